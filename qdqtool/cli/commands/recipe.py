"""List, show, check and write recipes, and print the schema of everything a recipe can say.

A recipe may begin with `extends: NAME` (a shipped recipe, or a file in its own folder): it then contains only the
values that differ. A file outside that folder needs `--trust`.

    qdqtool recipe list
    qdqtool recipe show conv-int8
    qdqtool recipe new model.onnx --out mine.yaml
    qdqtool recipe check mine.yaml
    qdqtool recipe schema
    qdqtool recipe example --out digits
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

PLUGIN = typer.Typer(
    no_args_is_help=True, help="List, print, check and write recipes; print their schema; write an example."
)
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change one value: place.first_layer=float.")
]


@PLUGIN.command("list")
def list_recipes(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: name, purpose and file of each recipe.")
    ] = False,
) -> None:
    """List the shipped recipes and the purpose of each."""
    import json

    from rich.table import Table

    from qdqtool.cli.screen import show_table
    from qdqtool.pipeline import recipes

    uses = {name: recipes.load(name).description for name in recipes.names()}
    if as_json:
        rows = [{"name": name, "for": use, "file": str(recipes.locate(name))} for name, use in uses.items()]
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return
    table = Table("recipe", "for", box=None)
    for row in uses.items():
        table.add_row(*row)
    show_table(table)


@PLUGIN.command()
def show(
    recipe: Annotated[str, typer.Argument(help="Shipped recipe or .yaml file.")], changes: Changes = None
) -> None:
    """Print the description of a recipe, and the values of all its settings."""
    from qdqtool.cli.options import is_trusted
    from qdqtool.pipeline import recipes

    content, _ = recipes.inspect(recipe, changes or [], trust=is_trusted())
    sys.stdout.write(recipes.head(recipe) + recipes.dump(content))


@PLUGIN.command()
def check(
    recipe: Annotated[str, typer.Argument(help="Shipped recipe or .yaml file.")], changes: Changes = None
) -> None:
    """Check whether a recipe is valid; all mistakes are reported at once."""
    from qdqtool.cli.options import is_trusted
    from qdqtool.pipeline import recipes

    _, functions = recipes.inspect(recipe, changes or [], trust=is_trusted())
    sys.stdout.write(f"{recipe}: no mistakes\n")
    for function in functions:
        sys.stdout.write(f"runs code, so it needs --trust: {function}\n")


@PLUGIN.command()
def new(
    model: Annotated[Path, typer.Argument(help="Model that the recipe is for.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: print.")] = None,
) -> None:
    """Write a recipe that fits a model, with comments."""
    from shlex import quote

    from qdqtool.cli.screen import stderr
    from qdqtool.errors import UsageError
    from qdqtool.io.files import write_text
    from qdqtool.pipeline.preparations import read_stated
    from qdqtool.pipeline.suggest import suggest

    text = suggest(model, read_stated)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise UsageError(
            "the file exists already", fix="choose another file, or delete this file first", where=str(out)
        )
    write_text(out, text)
    name, file = quote(str(model)), quote(str(out))
    stderr().print(f"wrote {out}")
    stderr().print(f"next: qdqtool run {name} --recipe {file} --samples DATA")


@PLUGIN.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors and scripts."""
    from qdqtool.io.json_files import canonical
    from qdqtool.pipeline import recipes

    sys.stdout.write(canonical(recipes.schema()))


@PLUGIN.command()
def example(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write into; default: this one.")
    ] = Path(),
) -> None:
    """Write a small network with samples and labels, on which every command can be tried."""
    from qdqtool.cli.screen import stderr
    from qdqtool.pipeline import recipes

    for path in recipes.write_example(out):
        stderr().print(f"wrote {path}")
