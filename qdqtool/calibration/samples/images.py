"""A source of samples in a folder of pictures, one sample each, in the order of their names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.calibration.samples.raw import RawSample
from qdqtool.calibration.samples.transform import shape_image
from qdqtool.core.recipe import Preprocess
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import digest_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


class Images:
    """Decoded pictures."""

    meaningful = True

    def __init__(self, folder: Path, input_name: str, preprocess: Preprocess) -> None:
        self.description = f"images in {folder.name}"
        self._input = input_name
        self._preprocess = preprocess
        self.files = pictures(folder)

    def digest(self) -> str:
        sha = hashlib.sha256()
        for path in self.files:
            sha.update(digest_file(path).encode())
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def read(self, numbers: range) -> Iterator[RawSample]:
        for number in numbers:
            path = self.files[number]
            yield RawSample(
                name=str(path),
                arrays={self._input: self._decoded(path)},
                is_image=True,
            )

    def _decoded(self, path: Path) -> NDArray[np.uint8]:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                return shape_image(image, self._preprocess)
        except (
            OSError,
            UnidentifiedImageError,
            SyntaxError,
            ValueError,
            Image.DecompressionBombError,
        ) as error:
            raise InputFileError(
                f"cannot be decoded: {error}",
                fix="remove the picture or convert it to PNG or JPEG",
                where=str(path),
            ) from error
        except UsageError as error:
            raise UsageError(error.what, fix=error.fix, where=str(path)) from error


def pictures(folder: Path) -> tuple[Path, ...]:
    """The pictures in a folder and below it, sorted."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return tuple(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))
