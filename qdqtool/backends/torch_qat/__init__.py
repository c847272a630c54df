"""All code that uses torch: tracing, quantizers, training and export. torch may be missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from qdqtool.errors import MissingPackage

NVIDIA = "pip install 'qdqtool[qat-nvidia]'"
"""Command that installs NVIDIA's quantizers."""


def need(package: str, *, fix: str = "pip install 'qdqtool[qat]'") -> ModuleType:
    """Import a Python package that an optional extra of qdqtool installs.

    Raises:
        MissingPackage: it is not installed, or does not load here.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(f"{package} cannot be loaded: {error}", fix=fix) from error


def need_torch() -> None:
    """Check that torch is installed.

    Raises:
        MissingPackage: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPackage("torch is not installed", fix="pip install 'qdqtool[qat]'")
