"""Runs the jobs of a hosted workflow, or the steps of the action, on this machine: what a service would be told to do.

    python benchmarks/hosted.py .github/workflows/release.yml build --ref v0.1.0
    python benchmarks/hosted.py .github/workflows/test.yml locked --without pytest
    python benchmarks/hosted.py action.yml --input subject=engine.json --input upload=false

A job runs in a fresh clone of this checkout and, after `setup-python`, in a fresh environment of that Python. `checkout`,
`setup-python` and the two artifact actions are done by their own means here; other actions are named and left out. Steps whose
`if` speaks of another system are skipped; one that fails ends the job, as there. `--without` leaves out commands that hold
a text: the gate would run this file again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass
class Runner:
    """One job: where it runs, what expressions stand for, and what was left out.

    Attributes:
        folder: the clone.
        known: expressions and their values.
        without: commands that hold one of these are left out.
    """

    folder: Path
    known: dict[str, str]
    without: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    left_out: list[str] = field(default_factory=list)

    def text(self, value: object) -> str:
        """A value of the file with its expressions replaced; an unknown one is a mistake of the file."""
        return EXPRESSION.sub(lambda match: self.known[match[1]], str(value))

    def wanted(self, step: Mapping[str, Any]) -> bool:
        """Whether the condition of a step holds on Linux; one that is not understood is a mistake of the file."""
        condition = EXPRESSION.sub(r"\1", str(step.get("if", "always()")))
        parts = [part.strip() for part in condition.split("&&")]
        return all(self._holds(part) for part in parts)

    def _holds(self, part: str) -> bool:
        if part == "always()":
            return True
        if match := re.fullmatch(r"([\w.-]+) (==|!=) '([^']*)'", part):
            return (self.known[match[1]] == match[3]) == (match[2] == "==")
        if match := re.fullmatch(r"hashFiles\(([\w.-]+)\) != ''", part):
            return (self.folder / self.known[match[1]]).exists()
        raise ValueError(f"the condition {part!r} is not understood")

    def step(self, step: Mapping[str, Any]) -> int:
        """Do one step; its exit status."""
        if not self.wanted(step):
            return 0
        if "uses" in step:
            if any(word in str(step["uses"]) for word in self.without):
                self.left_out.append(str(step["uses"]))
                return 0
            return self._action(str(step["uses"]), step.get("with", {}))
        command = str(step["run"])
        if any(word in command for word in self.without):
            self.left_out.append(command.strip())
            return 0
        shell = step.get("shell", "bash")
        given = {name: self.text(value) for name, value in step.get("env", {}).items()}
        began = time.monotonic()
        done = subprocess.run(
            [shell, "-e", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env={**self.environment, **given},
            check=False,
        )
        print(f"[{done.returncode}] {time.monotonic() - began:.1f} s  {command.strip()}", flush=True)
        return done.returncode

    def _action(self, name: str, given: Mapping[str, Any]) -> int:
        kind = name.partition("@")[0]
        if kind == "actions/checkout":
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.folder)], check=True)
        elif kind == "actions/setup-python":
            self._python(self.text(given["python-version"]))
        elif kind == "actions/upload-artifact":
            kept = self.folder.parent / "artifacts" / str(given["name"])
            shutil.copytree(self.folder / str(given["path"]), kept)
        elif kind == "actions/download-artifact":
            shutil.copytree(
                self.folder.parent / "artifacts" / str(given["name"]), self.folder / str(given["path"])
            )
        else:
            self.left_out.append(name)
        return 0

    def _python(self, version: str) -> None:
        found = _pyenv(version) or shutil.which(f"python{version}")
        if found is None:
            raise FileNotFoundError(f"there is no Python {version} here")
        place = self.folder.parent / "python"
        subprocess.run([found, "-m", "venv", str(place)], check=True)
        self.environment["PATH"] = os.pathsep.join([str(place / "bin"), self.environment["PATH"]])
        self.environment.pop("PYTHONPATH", None)


def _pyenv(version: str) -> str | None:
    # a version manager that keeps its Pythons off PATH
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    return str(places[-1]) if places else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("job", nargs="?")
    parser.add_argument("--input", action="append", default=[], help="NAME=VALUE of the action")
    parser.add_argument("--matrix", action="append", default=[], help="NAME=VALUE of a matrix")
    parser.add_argument("--ref", default="main")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    read = YAML(typ="safe").load(arguments.file.read_text("utf-8"))
    known = {"runner.os": "Linux"}
    known |= {
        f"matrix.{name}": value for name, _, value in (pair.partition("=") for pair in arguments.matrix)
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkout"
        if "runs" in read:
            folder = Path.cwd()
            steps = read["runs"]["steps"]
            known |= {f"inputs.{name}": str(each.get("default", "")) for name, each in read["inputs"].items()}
            known |= {
                f"inputs.{name}": value
                for name, _, value in (pair.partition("=") for pair in arguments.input)
            }
        else:
            steps = read["jobs"][arguments.job]["steps"]
        runner = Runner(folder, known, tuple(arguments.without))
        runner.environment |= {"GITHUB_REF_NAME": arguments.ref, "RUNNER_OS": "Linux", "CI": "true"}
        status = next((code for step in steps if (code := runner.step(step))), 0)
    for each in runner.left_out:
        print(f"left out: {each}")
    return status


if __name__ == "__main__":
    sys.exit(main())
