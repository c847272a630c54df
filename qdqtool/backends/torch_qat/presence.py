"""Says clearly when torch, or a package that an engine needs, is not here."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from qdqtool.errors import MissingPackage

NVIDIA = "pip install 'qdqtool[qat-nvidia]'"
"""Gets NVIDIA's quantizers, which are engines beside our own."""


def need(package: str, *, fix: str = "pip install 'qdqtool[qat]'") -> ModuleType:
    """The module called `package`.

    Raises:
        MissingPackage: it is not installed, or does not load here.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(f"{package} cannot be loaded: {error}", fix=fix) from error


def need_torch() -> None:
    """Return where torch can be imported.

    Raises:
        MissingPackage: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPackage("torch is not installed", fix="pip install 'qdqtool[qat]'")
