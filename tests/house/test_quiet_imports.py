"""Help answers at once: it opens neither numpy nor onnx."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qdqtool.plugins import Registry

COMMANDS = Registry(package="qdqtool.cli.commands").names()
HEAVY = ("numpy", "onnx", "onnxruntime", "numba", "torch", "tensorrt_rtx", "optuna", "distributed", "PIL")
PROBE = f"""
import sys
from qdqtool.cli.app import run
code = run(sys.argv[1:])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS)], ids=lambda command: " ".join(command) or "all"
)
def test_help_opens_no_heavy_package(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
