"""Samples from a folder of images, one image per sample, sorted by name."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qdqtool.calibration.samples.conform import (
    MOST_FED,
    RawSample,
    fitted_shape,
    shape_image,
    shaped_size,
    single,
)
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import digest_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


MOST_PIXELS: Final = 1 << 26
"""Largest number of pixels in an image file: 64 megapixels, which take 256 MiB when decoded."""


class Images:
    """Source of decoded images."""

    meaningful = True

    def __init__(self, folder: Path, info: TensorInfo, preprocess: Preprocess) -> None:
        self.description = f"images in {folder.name}"
        self._wanted = info
        self._preprocess = preprocess
        self.files = pictures(folder)

    def digest(self) -> str:
        return digest_files(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        for number in numbers:
            path = self.files[number]
            yield RawSample(
                name=str(path),
                arrays={self._wanted.name: self._decode_image(path)},
                is_image=True,
            )

    def _decode_image(self, path: Path) -> NDArray[Any]:
        from PIL import Image, UnidentifiedImageError

        try:
            with warnings.catch_warnings():
                # Our own limit is lower than Pillow's, which only warns.
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                with Image.open(path) as image:
                    self._check_size(path, image.size)
                    return shape_image(image, self._preprocess)
        except (
            OSError,
            UnidentifiedImageError,
            SyntaxError,
            ValueError,
            OverflowError,
            MemoryError,
            Image.DecompressionBombError,
        ) as error:
            raise InputFileError(
                f"the image cannot be decoded: {error}",
                fix="remove the image or convert it to PNG or JPEG",
                where=str(path),
            ) from error
        except UsageError as error:
            raise UsageError(error.what, fix=error.fix, where=str(path)) from error

    def size_of(self, name: str) -> tuple[int, int]:
        """Return the (width, height) of a picture that was read earlier."""
        from PIL import Image

        with Image.open(name) as image:
            return image.size

    def _check_size(self, path: Path, size: tuple[int, int]) -> None:
        """Refuse an image by its header, because the size of a file does not limit the decoded size."""
        width, height = shaped_size(size, self._preprocess)
        if size[0] * size[1] > MOST_PIXELS or width * height > MOST_FED:
            raise InputFileError(
                f"the image has {size[0]} x {size[1]} pixels, {width} x {height} when prepared (resized); "
                f"the limits are {MOST_PIXELS >> 20} megapixels before, and {MOST_FED >> 20} after",
                fix="scale the image down first",
                where=str(path),
            )
        options = self._preprocess
        shape: tuple[int, ...] = (height, width, 1 if options.colour == "gray" else 3)
        if options.layout == "nchw":
            shape = (shape[-1], height, width)
        if options.reshape is not None:
            if -1 in options.reshape or math.prod(options.reshape) != math.prod(shape):
                return
            shape = options.reshape
        fitted_shape(
            shape, single((self._wanted,))[0].shape, f"{path}, input {self._wanted.name!r}", picture=True
        )


def pictures(folder: Path) -> tuple[Path, ...]:
    """Return the images in a folder and its subfolders, sorted. Links to folders are not followed.

    Entries that vanish meanwhile, or that may not be read, are skipped.
    """
    files = (
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 -- a Path for every file of a tree is slow
    )
    return tuple(
        sorted(
            (path for path in files if path.is_file()), key=lambda path: path.relative_to(folder).as_posix()
        )
    )
