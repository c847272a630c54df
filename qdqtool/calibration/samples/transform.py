"""Converts raw images and arrays to model inputs, as set in the recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.recipe import Preprocess
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image


MOST_FED: Final = 1 << 24
"""Largest number of pixels in an image fed to the model: 4096 x 4096, which take 192 MiB in FP32."""


_SIXTEEN_BITS: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_WITHIN_SIXTEEN: Final = frozenset({"PNG", "PPM"})
"""File formats whose mode "I" holds 16 bits; releases of Pillow differ in the mode they use for such files."""
_THROUGH: Final = {"HSV": "RGB", "LAB": "RGB", "La": "LA", "RGBa": "RGBA"}
"""Modes that Pillow cannot convert directly to all others, with the intermediate mode to use."""


def shape_image(image: Image, preprocess: Preprocess) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Resize, crop and letterbox an image. Return (height, width, channels) in the colour order of the recipe.

    Values are from 0 to 255 for every mode of picture. Of 16 bits they are float32, so that no grey level is lost.

    Raises:
        UsageError: the crop is larger than the picture, or the picture does not say the range of its values.
    """
    image = _ranging_to_255(image, "L" if preprocess.colour == "gray" else "RGB")
    if preprocess.resize is not None:
        from PIL.Image import Resampling

        size = _resized_size(image.size, preprocess.resize)
        image = image if size == image.size else image.resize(size, Resampling.BILINEAR)
    if preprocess.crop is not None:
        image = image.crop(_crop_box(image.size, preprocess.crop))
    if preprocess.letterbox is not None:
        image = _apply_letterbox(image, preprocess.letterbox, preprocess)
    pixels = np.asarray(image)
    pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    if preprocess.colour != "gray" and pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    return pixels[:, :, ::-1] if preprocess.colour == "bgr" else pixels


def _ranging_to_255(image: Image, mode: str) -> Image:
    """Convert the image to `mode`, or to mode "F" if it has 16 bits; Pillow's conversion would clip 16 bits at 255."""
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _WITHIN_SIXTEEN):
        from PIL import Image as Images

        return Images.fromarray(np.asarray(image).astype(np.float32) / 257)
    if image.mode in {"I", "F"}:
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise UsageError(
            f"holds {kind}, and the file does not define which value is white",
            fix="save the image with 8 or 16 bits; or store arrays (.npy), with samples.preprocess.arrays=true and "
            "samples.preprocess.scale for their range",
        )
    return (image.convert(_THROUGH[image.mode]) if image.mode in _THROUGH else image).convert(mode)


def shaped_size(size: tuple[int, int], preprocess: Preprocess) -> tuple[int, int]:
    """Return (width, height) of the result of `shape_image`, or of an intermediate image above the limit.

    Nothing is decoded for it: a strip of 1 x 100000 pixels that is resized to 224 at its shorter side is 22 400 000
    high before anything is cropped.
    """
    if preprocess.resize is not None:
        size = _resized_size(size, preprocess.resize)
        if math.prod(size) > MOST_FED:
            return size
    if preprocess.crop is not None:
        left, top, right, bottom = _crop_box(size, preprocess.crop)
        size = (right - left, bottom - top)
    return size if preprocess.letterbox is None else (preprocess.letterbox[1], preprocess.letterbox[0])


def placed_boxes(
    boxes: NDArray[np.float64], size: tuple[int, int], preprocess: Preprocess
) -> NDArray[np.float64]:
    """Return boxes in pixels of the result of `shape_image`; those that a crop leaves nothing of are left out.

    Args:
        boxes: (boxes, 5): class, left, top, right, bottom as shares of the picture.
        size: (width, height) of the picture.
        preprocess: how the picture becomes an input.
    """
    if preprocess.resize is not None:
        size = _resized_size(size, preprocess.resize)
    corners = boxes[:, 1:].reshape(-1, 2, 2) * size
    if preprocess.crop is not None:
        left, top, right, bottom = _crop_box(size, preprocess.crop)
        size = (right - left, bottom - top)
        corners = np.clip(corners - (left, top), 0, size)
    if preprocess.letterbox is not None:
        inner, offset = _letterbox(size, preprocess.letterbox, preprocess.anchor)
        corners = corners * (np.array(inner) / size) + offset
    visible = (corners[:, 1] > corners[:, 0]).all(axis=1)
    return np.concatenate([boxes[:, :1], corners.reshape(-1, 4)], axis=1)[visible]


def shape_array(pixels: NDArray[Any], preprocess: Preprocess) -> NDArray[Any]:
    """Resize, crop and letterbox one raw array (height, width, channels) in RGB order, if its type allows it.

    Raises:
        UsageError: resizing is asked for and the values are not 8-bit.
    """
    if preprocess.resize is preprocess.crop is preprocess.letterbox is None:
        is_bgr = preprocess.colour == "bgr" and pixels.ndim == 3 and pixels.shape[-1] == 3
        return pixels[:, :, ::-1] if is_bgr else pixels
    if (
        pixels.dtype != np.uint8
        or pixels.ndim not in {2, 3}
        or (pixels.ndim == 3 and pixels.shape[-1] not in {1, 3})
    ):
        raise UsageError(
            f"an array of {pixels.dtype} {pixels.shape} cannot be resized or cropped",
            fix="pass uint8 arrays of height x width x 3, or remove resize, crop and letterbox from samples.preprocess",
        )
    from PIL import Image as Images

    return shape_image(Images.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels), preprocess)


def scale_values(values: NDArray[Any], preprocess: Preprocess) -> NDArray[np.float32]:
    """Compute (value * scale - mean) / std as float32, and apply the layout.

    Raises:
        UsageError: mean or std has another number of channels than the data.
    """
    result = values.astype(np.float32)
    for numbers in (preprocess.mean, preprocess.std):
        if len(numbers) not in {1, values.shape[-1] if values.ndim else 1}:
            raise UsageError(
                f"mean or std has {count_noun(len(numbers), 'value')}, but the data {values.shape} has a different number of channels",
                fix="the channels come first: store height x width x channels, or keep samples.preprocess.arrays false if the model reads the arrays unchanged"
                if values.ndim == 3 and values.shape[0] == len(numbers)
                else "give samples.preprocess.mean and std one value, or one per channel in the model's colour order",
            )
    if preprocess.scale != 1.0:
        result *= np.float32(preprocess.scale)
    if any(preprocess.mean):
        result -= np.array(preprocess.mean, np.float32)
    if any(value != 1.0 for value in preprocess.std):
        result /= np.array(preprocess.std, np.float32)
    if preprocess.layout == "nchw" and result.ndim == 3:
        result = np.ascontiguousarray(result.transpose(2, 0, 1))
    return result if preprocess.reshape is None else _reshape_values(result, preprocess.reshape)


def _reshape_values(values: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise UsageError(
            f"a sample of shape {values.shape} cannot be reshaped to {shape}",
            fix="correct samples.preprocess.reshape: the shape of one sample without the batch dimension",
        ) from error


def _resized_size(size: tuple[int, int], target: int | tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) after resizing; a single number is the length of the shorter side."""
    if isinstance(target, int):
        ratio = target / min(size)
        return (max(target, round(size[0] * ratio)), max(target, round(size[1] * ratio)))
    return (target[1], target[0])


def _crop_box(size: tuple[int, int], target: int | tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the centre crop of an image of (width, height)."""
    height, width = (target, target) if isinstance(target, int) else target
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    if left < 0 or top < 0:
        raise UsageError(
            f"a crop of {height} x {width} does not fit into an image of {size[1]} x {size[0]}",
            fix="set samples.preprocess.resize to at least the crop",
        )
    return left, top, left + width, top + height


def _apply_letterbox(image: Image, target: tuple[int, int], preprocess: Preprocess) -> Image:
    from PIL import Image as Images
    from PIL.Image import Resampling

    size, offset = _letterbox(image.size, target, preprocess.anchor)
    fill = (preprocess.pad,) * 3 if image.mode == "RGB" else preprocess.pad
    canvas = Images.new(image.mode, (target[1], target[0]), fill)
    canvas.paste(image.resize(size, Resampling.BILINEAR), offset)
    return canvas


def _letterbox(
    size: tuple[int, int], target: tuple[int, int], anchor: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (width, height) and (left, top) of a picture of `size` inside a letterbox of (height, width)."""
    height, width = target
    ratio = min(width / size[0], height / size[1])
    inner = (max(1, int(size[0] * ratio)), max(1, int(size[1] * ratio)))
    return inner, ((width - inner[0]) // 2, (height - inner[1]) // 2) if anchor == "center" else (0, 0)
