"""Training checkpoints: written atomically, read without running code, bound to one model and recipe."""

from __future__ import annotations

import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import torch

from qdqtool.errors import InputFileError
from qdqtool.io.files import write_bytes


def write(path: Path, key: str, state: dict[str, Any]) -> None:
    """Write `state` to `path` atomically; `key` identifies the model and recipe it belongs to."""
    stream = io.BytesIO()
    torch.save({"key": key, **state}, stream)
    write_bytes(path, stream.getvalue())


def read(path: Path, key: str) -> dict[str, Any] | None:
    """Read the state at `path`; return None if there is none.

    Raises:
        InputFileError: damaged, or it belongs to another model or recipe.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError, BadZipFile) as error:
        raise InputFileError(
            f"is not a checkpoint: {' '.join(str(error).split())[:200]}",
            fix="delete it; training starts again",
            where=str(path),
        ) from error
    if not isinstance(state, dict) or state.get("key") != key:
        raise InputFileError(
            "is a checkpoint of another model, data or recipe",
            fix="choose another --out, or delete it; training starts again",
            where=str(path),
        )
    return state
