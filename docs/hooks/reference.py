"""Reference pages are written from the code when the site is built, so that they cannot say anything else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, those that are files elsewhere, and the schema of recipes for editors."""
    pages = {
        "reference/commands.md": commands(),
        "reference/recipe.md": recipe(),
        "reference/findings.md": findings(),
        "reference/artefacts.md": artefacts(),
        "reference/exit-codes.md": exit_codes(),
        "guides/other-tools.md": (ROOT / "recipes" / "INTEROPERATION.md").read_text("utf-8"),
        "security.md": (ROOT / "SECURITY.md").read_text("utf-8"),
        "recipe.schema.json": output("recipe", "schema"),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def output(*arguments: str) -> str:
    """What a command prints at 100 columns."""
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "TERM": "dumb", "PATH": ""}
    command = [sys.executable, "-m", "qdqtool", *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def commands() -> str:
    from qdqtool.cli.app import application

    parts = ["# Commands\n"]
    for name, command in sorted(application().commands.items()):
        parts.append(f"## {name}\n\n```text\n{output(name, '--help').strip()}\n```\n")
        for inner in getattr(command, "commands", {}):
            parts.append(f"### {name} {inner}\n\n```text\n{output(name, inner, '--help').strip()}\n```\n")
    return "\n".join(parts)


def recipe() -> str:
    schema = json.loads(output("recipe", "schema"))
    parts = [
        "# Recipe fields\n",
        "A recipe is YAML. `extends` names another recipe; what is not set has the default below. `--set`",
        "`SECTION.FIELD=VALUE` changes one field on the command line.\n",
        table(schema, schema),
    ]
    for name, field in schema["properties"].items():
        section = referred(field, schema)
        if "properties" in section:
            parts += [
                f"\n## {name}\n",
                section.get("description", "").split("\n\n")[0] + "\n",
                table(section, schema),
            ]
    return "\n".join(parts)


def table(section: dict[str, Any], schema: dict[str, Any]) -> str:
    rows = ["| field | default | meaning |", "|---|---|---|"]
    for name, field in section["properties"].items():
        if "properties" in referred(field, schema):
            continue
        choices = field.get("enum") or referred(field, schema).get("enum")
        words = cell(field.get("description", ""))
        words += f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
        rows.append(f"| `{name}` | `{cell(json.dumps(field.get('default', None)))}` | {words} |")
    return "\n".join(rows) + "\n"


def referred(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = field.get("$ref", "")
    found: dict[str, Any] = schema["$defs"][reference.rpartition("/")[2]] if reference else field
    return found


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def findings() -> str:
    """One page for every code: of rules, of engines, of data, of calibration caches."""
    from qdqtool.pages import coded_plugins, explanation, is_code, pages

    codes = {name for page in pages().values() for name in page.names if is_code(name)}
    parts = [
        "# Findings\n",
        "`qdqtool explain` prints this list, and `qdqtool explain CODE` the page of a code.\n",
        f"```text\n{output('explain').strip()}\n```\n",
    ]
    for code in sorted(codes | set(coded_plugins())):
        parts.append(f"## {code}\n\n```text\n{(explanation(code) or '').strip()}\n```\n")
    return "\n".join(parts)


def artefacts() -> str:
    from qdqtool.core import kinds
    from qdqtool.core.artefacts import Artefact

    found = sorted(
        (value for value in vars(kinds).values() if isinstance(value, Artefact)), key=lambda a: a.kind
    )
    rows = [
        f"| `{kind.kind}` | {kind.schema} | {cell((kind.type.__doc__ or '').split('Attributes:')[0])} |"
        for kind in found
    ]
    return "\n".join(
        [
            "# Artefacts\n",
            'Every JSON file has the form `{"kind", "schema", "provenance", "data"}`. `schema` grows when a field of',
            "`data` changes its meaning or goes; new fields do not change it. Equal inputs give equal bytes.\n",
            "| kind | schema | holds |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def exit_codes() -> str:
    from qdqtool import errors

    return f"# Exit codes\n\n```text\n{(errors.__doc__ or '').strip()}\n```\n"
