"""Functions that a recipe names, "module:function" or "file.py:function", and the error for a missing torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from qdqtool.errors import MissingPackage, UsageError

# --- presence --------------------------------------------------------------------------------------------------------
# Reports a missing torch, or a missing package of an engine, with the command to install it.


NVIDIA = "pip install 'qdqtool[qat-nvidia]'"
"""Command that installs NVIDIA's quantizers."""


def need(package: str, *, fix: str = "pip install 'qdqtool[qat]'") -> ModuleType:
    """Import the module called `package`.

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


# --- callables -------------------------------------------------------------------------------------------------------


def resolve(text: str, beside: Path, key: str) -> Callable[..., Any]:
    """Return the function that `text` names; a relative .py file is searched in `beside`, then in the current folder.

    Raises:
        UsageError: no such module or function; `key` says which value of the recipe is wrong.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"{text!r} does not name a function", fix="write module:function or file.py:function", where=key
        )
    function = getattr(_module(place, beside, key), name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {name!r}", fix="write module:function", where=key)
    return function


def _module(place: str, beside: Path, key: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ImportError as error:
            fix = "check the name and PYTHONPATH, or write file.py:function"
            raise UsageError(f"{place} cannot be imported: {error}", fix=fix, where=key) from error
    path = next((candidate for candidate in (beside / place, Path(place)) if candidate.is_file()), None)
    if path is None:
        raise UsageError(
            f"the file {place} does not exist",
            fix="write the path relative to the recipe's folder",
            where=key,
        )
    return _from_file(path.resolve(), key)


def _from_file(path: Path, key: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, OSError) as error:
        raise UsageError(
            f"{path.name} cannot be imported: {error}", fix="correct the file", where=key
        ) from error
    return module
