"""Turns whatever a damaged model raises while it is read into the one error that names the file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError

from qdqtool.errors import InputFileError
from qdqtool.io.memory import VARIABLE

_log = logging.getLogger(__name__)
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, RuntimeError)
"""What onnx, protobuf and NumPy raise about fields that contradict each other; each release another of them."""


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Everything inside reads the model at `path`; what goes wrong there is the file's fault.

    The readers check what they know can be wrong and say it better; this is for what nobody has seen yet.

    Raises:
        InputFileError: the content contradicts itself, or needs more memory than there is.
    """
    try:
        yield
    except MemoryError as error:
        raise InputFileError(
            "needs more memory than there is",
            fix=f"use a machine with more memory, or a smaller model; --max-memory and {VARIABLE} set the budget",
            where=str(path),
        ) from error
    except (*_DAMAGE, DecodeError, EncodeError) as error:
        _log.info("%s: reading failed", path, exc_info=True)
        reason = " ".join(str(error).split())[:300] or "no reason given"
        raise InputFileError(
            f"holds values that contradict each other: {reason} ({type(error).__name__})",
            fix="export or copy the model again",
            where=str(path),
        ) from error
