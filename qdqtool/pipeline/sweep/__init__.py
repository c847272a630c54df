"""Searches over configurations for the best accuracy and the best speed."""

from qdqtool.errors import MissingPackage

try:
    from qdqtool.pipeline.sweep.context import SweepRequest
    from qdqtool.pipeline.sweep.run import sweep
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise MissingPackage("sweeps need optuna", fix="pip install 'qdqtool[sweep]'") from error

__all__ = ["SweepRequest", "sweep"]
