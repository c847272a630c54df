"""Laws over the modes of pictures: no grey level is lost or put in another order, or the picture is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.samples.conform import shape_image
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import QdqError, UsageError

RAMP = np.tile(np.arange(256, dtype=np.uint8), (2, 1))
"""Every grey level of 8 bits, twice, from black to white."""


def with_alpha(mode: str) -> Image.Image:
    alpha = np.full_like(RAMP, 255)
    colours = [RAMP] if mode.lower().startswith("l") else [RAMP] * 3
    return Image.frombytes(mode, RAMP.shape[::-1], np.stack([*colours, alpha], -1).tobytes())


def of_sixteen_bits(mode: str) -> Image.Image:
    order = {"I;16B": ">u2", "I;16N": "=u2"}.get(mode, "<u2")
    return Image.frombytes(mode, RAMP.shape[::-1], (RAMP.astype(np.uint16) * 257).astype(order).tobytes())


def neutral(mode: str, light: int) -> Image.Image:
    """A ramp of the channel `light`; the two others say "no colour"."""
    channels = [RAMP if channel == light else np.zeros_like(RAMP) for channel in range(3)]
    return Image.frombytes(mode, RAMP.shape[::-1], np.stack(channels, -1).tobytes())


GREY = Image.fromarray(RAMP)
RAMPS = {
    "L": GREY,
    "P": GREY.convert("P"),
    "RGB": GREY.convert("RGB"),
    "RGBX": GREY.convert("RGBX"),
    "CMYK": GREY.convert("CMYK"),
    "YCbCr": GREY.convert("YCbCr"),
    "HSV": neutral("HSV", 2),
    **{mode: with_alpha(mode) for mode in ("LA", "La", "RGBA", "RGBa")},
    "PA": GREY.convert("P").convert("PA"),
    **{mode: of_sixteen_bits(mode) for mode in ("I;16", "I;16L", "I;16B", "I;16N")},
}
"""A grey ramp in every mode that says what white is."""
REFUSED = {
    "I": Image.fromarray(RAMP.astype(np.int32) * 257),
    "F": Image.fromarray(RAMP.astype(np.float32) / 255),
}
"""A grey ramp in modes that do not."""


def prepared(image: Image.Image, colour: str = "rgb") -> NDArray[np.float32]:
    return shape_image(image, Preprocess(colour=colour)).astype(np.float32)


def test_no_mode_of_pillow_is_forgotten() -> None:
    assert set(Image.MODES) <= RAMPS.keys() | REFUSED.keys() | {"1", "LAB"}


@pytest.mark.parametrize("colour", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("mode", RAMPS)
def test_a_grey_ramp_keeps_its_order_its_levels_and_its_range(mode: str, colour: str) -> None:
    """16-bit greys became {0, 255}: Pillow's conversion clips them."""
    found = prepared(RAMPS[mode], colour)
    assert found.shape == (*RAMP.shape, 1 if colour == "gray" else 3)
    for channel in np.moveaxis(found, -1, 0):
        assert (np.diff(channel, axis=1) > 0).all()
        assert np.abs(channel - RAMP).max() <= 1


@pytest.mark.parametrize("colour", ["rgb", "gray"])
def test_lightness_becomes_grey_levels_in_order(colour: str) -> None:
    """LAB is converted by colour management: 256 lightnesses are 242 levels of sRGB."""
    found = prepared(neutral("LAB", 0), colour)
    assert (np.diff(found, axis=1) >= 0).all()
    assert len(np.unique(found[..., 0])) > 230
    assert found.min() <= 1
    assert found.max() >= 254


@pytest.mark.parametrize("colour", ["rgb", "gray"])
def test_a_picture_of_one_bit_is_black_and_white(colour: str) -> None:
    assert set(np.unique(prepared(GREY.convert("1"), colour))) == {0.0, 255.0}


def test_levels_of_a_dark_picture_of_16_bits_are_kept() -> None:
    """Depth in millimetres, or 12 bits in a container of 16: a few of 256 levels would be left."""
    depth = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    found = prepared(Image.frombytes("I;16", (64, 64), depth.tobytes()), "gray")
    assert len(np.unique(found)) == 4096
    assert found.max() == pytest.approx(4095 / 257)


@pytest.mark.parametrize(
    "options",
    [{"resize": (4, 128)}, {"crop": (2, 64)}, {"letterbox": (300, 300), "pad": 100}],
    ids=["resize", "crop", "letterbox"],
)
@pytest.mark.parametrize("colour", ["rgb", "gray"])
def test_16_bits_are_prepared_as_8_bits_are(options: dict, colour: str) -> None:
    recipe = Preprocess(colour=colour, **options)
    deep, flat = (shape_image(image, recipe).astype(np.float32) for image in (of_sixteen_bits("I;16"), GREY))
    assert deep.shape == flat.shape
    assert np.abs(deep - flat).max() <= 1


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_that_do_not_say_what_white_is_are_refused_with_a_way_out(mode: str) -> None:
    with pytest.raises(UsageError) as refused:
        prepared(REFUSED[mode])
    assert "8 or 16 bits" in refused.value.fix
    assert "samples.preprocess.arrays=true" in refused.value.fix


FILES = {
    "png 8": ("a.png", GREY),
    "png 16": ("a.png", of_sixteen_bits("I;16")),
    "tiff 16": ("a.tif", of_sixteen_bits("I;16")),
    "tiff 16 big-endian": ("a.tif", of_sixteen_bits("I;16B")),
    "tiff 32": ("a.tif", REFUSED["I"]),
    "tiff float": ("a.tif", REFUSED["F"]),
    "tiff cmyk": ("a.tif", RAMPS["CMYK"]),
    "png la": ("a.png", RAMPS["LA"]),
    "png rgba": ("a.png", RAMPS["RGBA"]),
    "gif": ("a.gif", GREY),
    "pgm 16": ("a.pgm", of_sixteen_bits("I;16")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_its_levels_or_is_refused_by_name(name: str, tmp_path: Path) -> None:
    file, image = FILES[name]
    image.save(tmp_path / file)
    wanted = (TensorInfo(name="x", dtype=DType.FLOAT32, shape=(1, 3, *RAMP.shape)),)
    if image in REFUSED.values():
        with pytest.raises(QdqError) as refused:
            list(open_samples(str(tmp_path), wanted))
        assert refused.value.where == str(tmp_path / file)
        assert refused.value.fix
        return
    (sample,) = open_samples(str(tmp_path), wanted)
    assert np.abs(sample.feeds["x"] - RAMP).max() <= 1
    assert (np.diff(sample.feeds["x"], axis=-1) > 0).all()
