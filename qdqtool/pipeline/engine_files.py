"""Reads what a file shows of an engine: its layers, the log of its build, or both."""

from __future__ import annotations

from pathlib import Path

from qdqtool.buildlog import open_runs
from qdqtool.buildlog import read as read_log
from qdqtool.buildlog.answer import unsaid
from qdqtool.core.buildlog import LogRun
from qdqtool.core.engine import Engine
from qdqtool.engine.layer_info import read
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file
from qdqtool.io.text import TextSource

_TEXTS = frozenset({"layer-lines", "layers-dump"})
"""Forms of layer information that logs contain."""
_ALONE = "build-log"
"""Form of an engine for which there is a build log and no layer information."""
_BINARY = frozenset({".plan", ".engine", ".trt", ".onnx"})
_DUMP = "Layers:\n"
# Largest size in bytes of a file that is read twice to find its kind.
_MODERATE = 1 << 26


def log_of(log: Path | None, file: Path, form: str) -> LogRun | None:
    """Return the last builder run in `log`; without `log`, in `file` if it is a log of moderate size.

    None if there is none.

    Raises:
        InputFileError: `log` cannot be read, or holds no run.
    """
    if log is None and (form not in {*_TEXTS, _ALONE} or file.stat().st_size > _MODERATE or _is_bare(file)):
        return None
    runs = read_log(log or file).runs
    if not runs and log is not None:
        raise InputFileError(
            "the file contains no build log", fix="pass the verbose log of the build", where=str(log)
        )
    last = runs[-1] if runs else None
    if log is None and last and not (last.ledger or last.events or last.network.nodes or last.warnings):
        return None
    return last


def engine_of(file: Path) -> Engine:
    """Read the layers in a file. For a log that prints no layers, return an engine without layers.

    Raises:
        InputFileError: the file has no layers and is not a log; or it is a pipe, which can be read only once.
    """
    require_file(file)
    try:
        return read(file)
    except InputFileError as error:
        try:
            run = list(open_runs(TextSource(file)))[-1]
        except InputFileError:
            raise error from None
        if run.value().compute:
            note = "the log prints no layers: the verdicts use its lines about Q and DQ nodes"
            return Engine(layers=(), form=_ALONE, notes=(note,))
        if file.suffix in _BINARY or run.identity.front_end == "unknown" or run.recognised <= run.unread:
            raise
        return Engine(layers=(), form=_ALONE, notes=unsaid(run.digest()))


def _is_bare(file: Path) -> bool:
    """Return True if a file contains only a layer dump. Such a file may be as large as a log."""
    return next(TextSource(file).pieces(), "").startswith(_DUMP)
