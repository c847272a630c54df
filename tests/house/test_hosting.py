"""Files that a hosting service reads: forms, workflows, the action, the image; the parts that can run here do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
PARTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)")


def read(path: Path) -> dict:
    return YAML(typ="safe").load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_the_service_asks_for(path: Path) -> None:
    form = read(path)
    assert form["name"]
    assert form["description"]
    for part in form["body"]:
        assert part["type"] in PARTS
        assert part["attributes"]["label"]
    names = [part["id"] for part in form["body"]]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_action_audits_and_writes_findings(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None or sys.platform == "win32":
        pytest.skip("the action runs in bash")
    action = read(ROOT / "action.yml")
    step = next(step for step in action["runs"]["steps"] if "qdqtool audit" in step.get("run", ""))
    asked = {match for value in step["env"].values() for match in EXPRESSION.findall(value)}
    assert asked <= {f"inputs.{name}" for name in action["inputs"]}
    given = {name: entry.get("default", "") for name, entry in action["inputs"].items()}
    given["subject"] = str(next((ROOT / "tests" / "data" / "layers").glob("rtx-*int8conv*")))
    given["fail-on"] = "never"
    environment = {
        name: given[EXPRESSION.search(value).group(1).removeprefix("inputs.")]  # type: ignore[union-attr]
        for name, value in step["env"].items()
    }
    program = tmp_path / "qdqtool"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qdqtool "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    subprocess.run(
        [bash, "-e", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert json.loads((tmp_path / given["sarif"]).read_text("utf-8"))["version"] == "2.1.0"


def test_lists_in_brackets_are_quoted_in_workflows_that_run_on_windows() -> None:
    """PowerShell takes an unquoted comma for the end of an argument."""
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
    asked = re.findall(r"pip install .*?-e (\S+)", text)
    assert len(asked) >= 3
    assert all(word.startswith('"') and word.endswith('"') for word in asked if "," in word)


@pytest.mark.slow
def test_the_hook_of_pre_commit_takes_all_models_of_a_commit(tmp_path: Path) -> None:
    (hook,) = read(ROOT / ".pre-commit-hooks.yaml")
    program, *words = hook["entry"].split()
    assert program == "qdqtool"
    digits = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"
    paths = [str(shutil.copy(digits, tmp_path / name)) for name in ("a.onnx", "b.onnx")]
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *words, *paths], capture_output=True, text=True, check=True
    )
    assert all(f"{path}:" in done.stdout for path in paths)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_scripts_of_a_workflow_take_no_expression_as_code(path: Path) -> None:
    """A name of a branch or a tag must not become part of a script."""
    for job in read(path)["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), step


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    release = read(ROOT / ".github" / "workflows" / "release.yml")
    assert release["permissions"] == {"contents": "read"}
    asking = [name for name, job in release["jobs"].items() if "id-token" in job.get("permissions", {})]
    assert asking == ["publish"]
    assert not any("run" in step for step in release["jobs"]["publish"]["steps"])


@pytest.mark.parametrize("name", ["requirements.lock", "image.lock", "tools.lock"])
def test_a_lock_names_every_dependency_with_hashes_and_no_host(name: str) -> None:
    path = ROOT / ".ci" / name
    if not path.exists():
        pytest.skip("the source distribution has no .ci")
    text = path.read_text("utf-8")
    assert "://" not in text
    entries = [entry for entry in re.split(r"\n(?=[a-z0-9])", text) if not entry.startswith("#")]
    assert len(entries) > 20
    assert all(re.match(r"[\w.-]+==\S", entry) and "--hash=sha256:" in entry for entry in entries)
    assert asked_for(name) <= {entry.partition("==")[0] for entry in entries}


def asked_for(lock: str) -> set[str]:
    """Names of the packages that a lock is made for."""
    if lock == "tools.lock":
        words = re.findall(r"^([\w.-]+)", (ROOT / ".ci" / "tools.in").read_text("utf-8"), re.MULTILINE)
    else:
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        needed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
        assert needed is not None
        words = re.findall(r'^  "([\w.-]+?)>=', needed[1], re.MULTILINE)
    assert words
    return {word.lower().replace(".", "-") for word in words}


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_actions_are_named_by_commit_with_their_release(path: Path) -> None:
    """A tag can be moved to other code by whoever owns the action; a commit cannot."""
    used = re.findall(r"uses: *(\S+)(.*)", path.read_text("utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: say which release this commit is"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_pages_name_actions_of_others_by_commit(path: Path) -> None:
    for action in re.findall(r"uses: *(\S+@\S+)", path.read_text("utf-8")):
        assert action.startswith("qdqtool/") or re.search(r"@[0-9a-f]{40}$", action), action


def test_one_action_has_one_commit() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    text = "".join(path.read_text("utf-8") for path in [*WORKFLOWS, *pages, ROOT / "action.yml"])
    known = {action.partition("@")[0]: action for action in re.findall(r"uses: *(\S+@.*)", text)}
    assert set(re.findall(r"uses: *(\S+@.*)", text)) == set(known.values())


def test_the_base_of_the_image_is_named_by_digest() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(set(bases)) == 1
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", bases[0])


def test_a_release_installs_nothing_but_what_is_locked() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    lines = [line for step in jobs["build"]["steps"] for line in step.get("run", "").splitlines()]
    installs = [line for line in lines if "pip install" in line]
    assert installs
    for line in installs:
        assert re.search(r"--require-hashes -r \.ci/\w+\.lock$|--no-deps dist/\*\.whl$", line), line
    assert all("--no-isolation" in line for line in lines if "-m build" in line)
    # the gate installs more, and so in a job of its own
    assert any(".ci/run" in step.get("run", "") for step in jobs["gate"]["steps"])
    assert jobs["build"]["needs"] == "gate"
    assert not any(".ci/run" in line for line in lines)


def hosted(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`benchmarks/hosted.py`, with a `qdqtool` and a `python` on PATH that are these here."""
    programs = cwd / "programs"
    programs.mkdir(exist_ok=True)
    for name, words in (("qdqtool", "-m qdqtool"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "hosted.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


needs_bash = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("bash") is None, reason="steps of workflows run in bash"
)


@pytest.mark.slow
@needs_bash
def test_the_whole_action_runs_and_fails_on_findings_that_a_baseline_does_not_hold(tmp_path: Path) -> None:
    layers = str(next((ROOT / "tests" / "data" / "layers").glob("rtx-*int8conv*")))
    common = [str(ROOT / "action.yml"), "--without", "pip install", "--without", "setup-python"]
    given = ["--input", f"subject={layers}", "--input", "fail-on=info"]
    first = hosted(*common, *given, cwd=tmp_path)
    results = json.loads((tmp_path / "qdqtool.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert first.returncode == (1 if results else 0), first.stderr
    assert "left out: github/codeql-action/upload-sarif@" in first.stdout or first.returncode == 1
    accepted = subprocess.run(
        [sys.executable, "-m", "qdqtool", "audit", layers, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "accepted.json").write_text(accepted.stdout, "utf-8")
    second = hosted(*common, *given, "--input", "baseline=accepted.json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr


TOY = """
on: push
jobs:
  build:
    steps:
      - {if: "runner.os == 'macOS'", run: exit 7}
      - {if: "runner.os != 'macOS'", env: {NAME: "${{ matrix.name }}"}, run: echo "$NAME of $GITHUB_REF_NAME"}
      - {run: never-there}
      - run: |
          false | true
      - {run: echo too far}
"""


@needs_bash
def test_steps_are_run_as_the_service_runs_them(tmp_path: Path) -> None:
    words = ["toy.yml", "build", "--matrix", "name=result", "--ref", "v1", "--without", "never-there"]
    (tmp_path / "toy.yml").write_text(
        TOY.replace("    steps:", "    steps:\n      - {uses: actions/checkout@v4}")
    )
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout can be cloned")
    done = hosted(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "result of v1" in done.stdout
    assert "too far" not in done.stdout
    assert "left out: never-there" in done.stdout


@needs_bash
@pytest.mark.parametrize("ref", ["right", "wrong"])
def test_a_release_is_refused_where_the_tag_is_not_the_version(ref: str, tmp_path: Path) -> None:
    steps = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    (check,) = (step for step in steps if step.get("name") == "The tag is the version")
    from qdqtool._version import __version__

    tag = f"v{__version__}" if ref == "right" else "v999"
    done = subprocess.run(
        ["bash", "-e", "-c", check["run"].replace("python ", f"{sys.executable} ")],
        cwd=ROOT,
        env={**os.environ, "GITHUB_REF_NAME": tag},
        check=False,
    )
    assert (done.returncode == 0) == (ref == "right")
