"""A folder inside the folder: files are made there and moved out when they are whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qdqtool.errors import InputFileError

ENGINE, LOG, LAYERS = "engine.plan", "build.log", "layers.txt"
"""The products of every builder; the layer information is kept as the builder gives it, dump or JSON."""


@contextmanager
def drafting(folder: Path) -> Iterator[Path]:
    """A fresh folder inside `folder` that is gone when the block ends, however it ends.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=".build-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise unwritable(folder, error.strerror or str(error)) from error
    with place as name:
        yield Path(name)


def publish(drafts: Path, folder: Path, names: Iterable[str]) -> None:
    """Move finished files out of the drafts, each replacing an older one in a single step.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        for name in names:
            (drafts / name).replace(folder / name)
    except OSError as error:
        raise unwritable(folder, error.strerror or str(error)) from error


def withdraw(folder: Path, names: Iterable[str]) -> None:
    """Remove files of an earlier build, which no longer belong to the log beside them."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def unwritable(folder: Path, why: str) -> InputFileError:
    """The error for a folder that takes no files."""
    return InputFileError(
        f"cannot be written: {why}",
        fix="check the folder's permissions and the free space",
        where=str(folder),
    )
