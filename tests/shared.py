"""What lies outside the package: scripts of the checkout, and material beside it that is not part of the project."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def shared(relative: str) -> Path:
    """A file of the shared material; the test is skipped where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs {relative} of the shared material beside the checkout")
    return path


def benchmark(name: str) -> ModuleType:
    """A script of benchmarks/ as a module; it imports what lies beside it."""
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)
