"""Raw samples as their sources return them. Each is fitted to the inputs of the model, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import Command, Setting, count_noun
from qdqtool.errors import InputFileError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image


# --- values ----------------------------------------------------------------------------------------------------------
# Converts raw images and arrays to model inputs, as set in the recipe.

MOST_FED: Final = 1 << 24
"""Largest number of pixels in an image fed to the model: 4096 x 4096, which take 192 MiB in FP32."""


_SIXTEEN_BITS: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_WITHIN_SIXTEEN: Final = frozenset({"PNG", "PPM"})
"""File formats whose mode "I" holds 16 bits; releases of Pillow differ in the mode they use for such files."""
_THROUGH: Final = {"HSV": "RGB", "LAB": "RGB", "La": "LA", "RGBa": "RGBA"}
"""Modes that Pillow cannot convert directly to all others, with the intermediate mode to use."""


def shape_image(image: Image, preprocess: Preprocess) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Resize, crop and letterbox an image. Return (height, width, channels) in the colour order of the recipe.

    Values are from 0 to 255 for every mode of picture. Pictures of 16 bits become float32, so that no grey level is
    lost.

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
    """Convert the image to `mode`, or to mode "F" if it has 16 bits: Pillow's conversion would clip 16 bits at 255."""
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _WITHIN_SIXTEEN):
        from PIL import Image as Images

        return Images.fromarray(np.asarray(image).astype(np.float32) / 257)
    if image.mode in {"I", "F"}:
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise UsageError(
            f"the image holds {kind}, and the file does not define which value is white",
            fix="save the image with 8 or 16 bits; or store arrays (.npy), with samples.preprocess.arrays=true and "
            "samples.preprocess.scale for their range",
        )
    return (image.convert(_THROUGH[image.mode]) if image.mode in _THROUGH else image).convert(mode)


def shaped_size(size: tuple[int, int], preprocess: Preprocess) -> tuple[int, int]:
    """Return the (width, height) of the result of `shape_image`.

    If the resized image has more than `MOST_FED` pixels, return the size of the resized image.

    Nothing is decoded. A strip of 1 x 100000 pixels that is resized to 224 at its shorter side would be 22 400 000
    high before it is cropped.
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
    boxes: NDArray[np.float64],
    points: tuple[NDArray[np.float64], ...] | None,
    size: tuple[int, int],
    preprocess: Preprocess,
) -> tuple[NDArray[np.float64], tuple[NDArray[np.float64], ...] | None]:
    """Return boxes and their points in pixels of the result of `shape_image`. Boxes that a crop removes completely are omitted.

    Args:
        boxes: (boxes, 5): class, left, top, right, bottom as shares of the picture.
        points: of each box, (points, 2 or more): x, y as shares of the picture, then values that stay.
        size: (width, height) of the picture.
        preprocess: how the picture becomes an input.
    """
    if preprocess.resize is not None:
        size = _resized_size(size, preprocess.resize)
    scale, shift = np.array(size, np.float64), np.zeros(2)
    low, high = np.full(2, -np.inf), np.full(2, np.inf)
    if preprocess.crop is not None:
        left, top, right, bottom = _crop_box(size, preprocess.crop)
        size = (right - left, bottom - top)
        shift, low, high = -np.array([left, top], np.float64), np.zeros(2), np.array(size, np.float64)
    if preprocess.letterbox is not None:
        inner, offset = _letterbox(size, preprocess.letterbox, preprocess.anchor)
        factor = np.array(inner) / size
        scale, shift, low, high = (
            scale * factor,
            shift * factor + offset,
            low * factor + offset,
            high * factor + offset,
        )
    corners = np.clip(boxes[:, 1:].reshape(-1, 2, 2) * scale + shift, low, high)
    visible = np.flatnonzero((corners[:, 1] > corners[:, 0]).all(axis=1))
    placed = np.concatenate([boxes[:, :1], corners.reshape(-1, 4)], axis=1)[visible]
    if points is None:
        return placed, None
    places = (points[number] for number in visible)
    return placed, tuple(np.column_stack([some[:, :2] * scale + shift, some[:, 2:]]) for some in places)


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
    """Return (width, height) after resizing to `target`: (height, width), or the shorter side's length."""
    if isinstance(target, int):
        ratio = target / min(size)
        return (max(target, round(size[0] * ratio)), max(target, round(size[1] * ratio)))
    return (target[1], target[0])


def _crop_box(size: tuple[int, int], target: int | tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the centre crop of an image whose size is (width, height)."""
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
    """Return (width, height) and (left, top) of a picture of `size` in a letterbox of (height, width).

    A letterbox around the centre rounds as Ultralytics does; at the top left, lengths are cut off as in YOLOX.
    """
    height, width = target
    ratio = min(width / size[0], height / size[1])
    rounded = round if anchor == "center" else int
    inner = (max(1, rounded(size[0] * ratio)), max(1, rounded(size[1] * ratio)))
    return inner, ((width - inner[0]) // 2, (height - inner[1]) // 2) if anchor == "center" else (0, 0)


# --- raw -------------------------------------------------------------------------------------------------------------
# Raw samples and their sources, before they are fitted to the model.


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSample:
    """One sample as its source stores it, before preprocessing.

    Attributes:
        name: its source, for messages ("cat.jpg", "x.npz[17]").
        arrays: by model input name.
        label: class index, or None.
        is_image: whether the arrays are decoded images, which are always preprocessed.
        is_ready: whether the arrays are made for the model's inputs, and never preprocessed.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    label: int | None = None
    is_image: bool = False
    is_ready: bool = False


class RawSource(Protocol):
    """Source of samples of one kind, in an order that never changes."""

    @property
    def description(self) -> str:
        """Description of the samples."""

    @property
    def meaningful(self) -> bool:
        """False if the samples are random numbers: ranges and accuracy from such samples mean nothing."""

    def digest(self) -> str:
        """Return a digest that changes whenever the samples change."""

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        """Yield the samples with these ascending numbers."""


# --- conform ---------------------------------------------------------------------------------------------------------


_COLOURS = frozenset({1, 3, 4})
NUMPY_TYPES = {
    DType.FLOAT16: np.float16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.BOOL: np.bool_,
}
"""numpy types of arrays for model inputs; numpy has none for other types."""


def conform(raw: RawSample, inputs: tuple[TensorInfo, ...], preprocess: Preprocess) -> Sample:
    """Fit a raw sample to the model: one array per input, of its type and shape, with a batch dimension of 1.

    Raises:
        InputFileError: names, shapes or types do not fit; names the tensor and the sample.
    """
    names = {info.name for info in inputs}
    missing, extra = sorted(names - raw.arrays.keys()), sorted(raw.arrays.keys() - names)
    if missing:
        raise InputFileError(
            f"the sample has no array for input {', '.join(map(repr, missing))}; it has {', '.join(map(repr, extra)) or 'none'}",
            fix=f"name the arrays like the model's inputs: {', '.join(sorted(names))}",
            where=raw.name,
        )
    feeds = {info.name: _fit_sample(raw, info, preprocess) for info in single(inputs)}
    return Sample(name=raw.name, feeds=feeds, label=raw.label)


def single(inputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Return the inputs of one sample: the model's inputs, with a batch size of 1 instead of a fixed one."""
    if fixed_batch(inputs) is None:
        return inputs
    return tuple(replace(info, shape=(1, *info.shape[1:]) if info.shape else info.shape) for info in inputs)


def nonfinite(sample: Sample) -> dict[str, int]:
    """Count the NaN and Inf values of each input. Inputs without such values are omitted."""
    counts = {
        name: array.size - int(np.count_nonzero(np.isfinite(array)))
        for name, array in sample.feeds.items()
        if array.dtype.kind == "f"
    }
    return {name: count for name, count in counts.items() if count}


def fixed_batch(inputs: tuple[TensorInfo, ...]) -> int | None:
    """Return the fixed batch size of all inputs; None if it is dynamic, or if inputs differ."""
    leading = {info.shape[0] for info in inputs if info.shape}
    size = leading.pop() if len(leading) == 1 else None
    return size if isinstance(size, int) else None


def without_batch(inputs: tuple[TensorInfo, ...]) -> frozenset[str]:
    """Return the inputs whose dynamic first dimension is not a batch, because another axis has the same name.

    For example, a graph network reads [n, 8] features of its nodes and an [n, n] matrix: the n rows are one sample.
    """
    inner = {dim for info in inputs for dim in (info.shape or ())[1:] if isinstance(dim, str) and dim != "?"}
    return frozenset(info.name for info in inputs if info.shape and info.shape[0] in inner)


def tile_sample(sample: Sample, copies: int) -> Sample:
    """Repeat the sample `copies` times along the batch dimension."""
    if copies == 1:
        return sample
    feeds = {
        name: np.concatenate([array] * copies) if array.ndim else array
        for name, array in sample.feeds.items()
    }
    return replace(sample, feeds=feeds)


def _fit_sample(raw: RawSample, info: TensorInfo, preprocess: Preprocess) -> NDArray[Any]:
    array = raw.arrays[info.name]
    where = f"{raw.name}, input {info.name!r}"
    if raw.is_image or (preprocess.arrays and not raw.is_ready):
        rows = array if raw.is_image else shape_array(_without_batch(array, info, preprocess), preprocess)
        is_integer = np.dtype(NUMPY_TYPES.get(info.dtype, np.float32)).kind in "iu"
        # a picture of 16 bits has fractions
        array = scale_values(np.rint(rows) if raw.is_image and is_integer else rows, preprocess)
        array = _as_integers(array, where) if is_integer else array
    typed = _convert_type(array, info, where)
    shape = fitted_shape(typed.shape, info.shape, where, picture=raw.is_image)
    return np.asarray(typed.reshape(shape), order="C")


def _as_integers(values: NDArray[np.float32], where: str) -> NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        integers = values.astype(np.int64)
    if not np.array_equal(integers, values):
        raise InputFileError(
            "the model reads integers, but the prepared values are fractions",
            fix=f"{Setting('samples.preprocess.scale', '1')}, with mean 0 and std 1: this model scales pictures itself",
            where=where,
        )
    return integers


def _without_batch(array: NDArray[Any], info: TensorInfo, preprocess: Preprocess) -> NDArray[Any]:
    """Remove a leading batch dimension of 1 from a raw array, unless it is the only dimension."""
    rank = len(info.shape or ()) if preprocess.reshape is None else array.ndim + 1
    has_batch = array.ndim > 1 and array.shape[0] == 1 and array.ndim >= rank
    return array[0] if has_batch else array


def _convert_type(array: NDArray[Any], info: TensorInfo, where: str) -> NDArray[Any]:
    numpy_type = NUMPY_TYPES.get(info.dtype)
    if numpy_type is None or array.dtype == numpy_type:
        return array
    target = np.dtype(numpy_type)
    if array.dtype.kind == "f" and target.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(target)
    if array.dtype.kind in "iub" and target.kind in "iub":
        cast = array.astype(target)
        if np.array_equal(cast, array):
            return cast
        raise InputFileError(
            f"the array contains values that {target} cannot represent",
            fix=f"store the array as {target}",
            where=where,
        )
    is_raw = array.dtype.kind in "iu" and target.kind == "f"
    hint = "; for raw pixels set samples.preprocess.arrays=true with scale, mean and std" if is_raw else ""
    raise InputFileError(
        f"the array is {array.dtype}, but the model needs {target}",
        fix=f"store the array as {target}{hint}",
        where=where,
    )


def fitted_shape(
    have: tuple[int, ...], declared: tuple[int | str, ...] | None, where: str, *, picture: bool = False
) -> tuple[int, ...]:
    """Return the shape in which an array of shape `have` is fed to an input.

    A missing batch dimension is added, and dimensions of 1 may change.

    Raises:
        InputFileError: no allowed change of the shape fits the model.
    """
    if declared is None or fits(have, declared):
        return have
    if fits((1, *have), declared):
        return (1, *have)
    dims = tuple(1 if isinstance(dim, str) else dim for dim in declared)
    is_same = tuple(dim for dim in have if dim != 1) == tuple(dim for dim in dims if dim != 1)
    if is_same and math.prod(have) == math.prod(dims):
        return dims
    end = declared[-len(have) :]
    turned = len(have) >= 3 and fits((*have[:-3], have[-1], *have[-3:-1]), end)
    # images get their channels moved to the front; these samples already have the model's order
    moved = len(have) >= 3 and fits((*have[:-3], *have[-2:], have[-3]), end)
    raise InputFileError(
        f"the array has shape {_text(have)}, but the model needs {_text(declared)}",
        fix=_resizing(declared)
        if picture
        else "the channels come last: set samples.preprocess.arrays=true, or transpose the array"
        if turned
        else "transpose the array; with samples.preprocess.arrays=true set samples.preprocess.layout=as-is, which moves no channels"
        if moved
        else "resize, crop or reshape the samples (samples.preprocess), or choose others",
        where=where,
    )


def _resizing(declared: tuple[int | str, ...]) -> str:
    """Return the setting that resizes images to the height and width of an input.

    HEIGHT and WIDTH stand for dynamic dimensions.
    """
    sizes = declared[2:4] if len(declared) == 4 and declared[1] in _COLOURS else declared[1:3]
    size = ",".join(map(str, sizes)) if all(isinstance(dim, int) for dim in sizes) else "HEIGHT,WIDTH"
    return f"{Setting('samples.preprocess.resize', f'[{size}]')}, or crop or letterbox instead ({Command('recipe', ('new', 'MODEL'))})"


def fits(shape: tuple[int, ...], declared: tuple[int | str, ...]) -> bool:
    """Return True if an array of `shape` fits an input of shape `declared`.

    A named dimension fits any length.
    """
    return len(shape) == len(declared) and all(
        isinstance(want, str) or have == want for have, want in zip(shape, declared, strict=True)
    )


def _text(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
