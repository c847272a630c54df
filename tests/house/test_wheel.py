"""The wheel works outside the checkout, with its recipes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    python("-c", build, str(folder), cwd=ROOT)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_code_recipes_and_the_embedded_example(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"qdqtool/py.typed", "calibrators/methods/entropy.py", "qdqtool/_recipes/conv-int8.yaml"} <= names
    assert "qdqtool/_recipes/examples/digits/digits.onnx" in names
    assert not {name for name in names if name.startswith(("tests/", "benchmarks/"))}
    assert not {name for name in names if name.endswith((".nbi", ".nbc", ".pyc"))}


def test_the_wheel_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    said = python("-c", "import qdqtool; print(qdqtool.__file__)", cwd=empty, path=site)
    assert str(site) in said
    assert "conv-int8" in python("-m", "qdqtool", "recipe", "list", cwd=empty, path=site)
