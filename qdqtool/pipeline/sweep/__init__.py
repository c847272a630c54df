"""Searches over configurations for the best accuracy and the best speed.

optuna is imported only for a sweep: `time` and `fix` use the host code of this package, and work without the extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from qdqtool.errors import MissingPackage

if TYPE_CHECKING:
    from qdqtool.pipeline.sweep.context import SweepRequest
    from qdqtool.pipeline.sweep.run import sweep

__all__ = ["SweepRequest", "sweep"]

_MODULES: Final = {"SweepRequest": "context", "sweep": "run"}


def __getattr__(name: str) -> object:
    """Import a public name at its first use.

    Raises:
        MissingPackage: optuna is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise MissingPackage("sweeps need optuna", fix="pip install 'qdqtool[sweep]'") from error
    return getattr(module, name)
