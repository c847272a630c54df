"""A command whose optional package is not installed ends with the name of the package and how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPTIONAL = (
    *("optuna", "sqlalchemy", "torch", "timm", "torchvision", "ultralytics", "transformers"),
    *("distributed", "dask", "cryptography", "pyarrow", "resvg_py"),
)
PROBE = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name in {OPTIONAL!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
from qdqtool.cli.app import run
assert run(["recipe", "example"]) == 0
data = ["--samples", "calibration.npz"]
commands = [
    ["sweep", "model.onnx", *data, "--out", "sweep"],
    ["calibrate", "model.onnx", *data, "-o", "table.json", "--cluster"],
    ["qat", "run", "qat-digits", "--out", "qat"],
    ["run", "timm:resnet18", *data, "--out", "timm"],
    ["run", "torchvision:resnet18", *data, "--out", "torchvision"],
    ["run", "network.py:classifier", *data, "--out", "torch", "--trust"],
]
print([run(command) for command in commands])
"""
WITHOUT = f"""
{PROBE[: PROBE.index("commands = ")]}
import qdqtool
qdqtool.place("model.onnx")
assert run(["quantize", "model.onnx", *data, "--out", "q.onnx"]) == 0
assert run(["fix", "q.onnx", *data, "--on", "local", "--dry-run"]) == 0
assert run(["time", "model.onnx", "q.onnx", "--on", "local", "--trtexec", "no-such-trtexec"]) == 3
"""
"""Calls that need no optional package. The last command fails because its trtexec does not exist."""


def test_what_needs_a_package_that_is_missing_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text("def classifier(): ...\n")
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == [str([3] * 6)], done.stdout + done.stderr
    assert done.stderr.count("  fix: pip install ") == 6, done.stderr
    assert not list(tmp_path.glob("qdqtool-bug-*")), done.stderr


def test_what_needs_no_optional_package_runs_without_them(tmp_path: Path) -> None:
    """`fix` and `time` share code with sweeps, whose optuna a plain installation lacks."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "local has no trtexec" in done.stderr
    assert "optuna" not in done.stderr
