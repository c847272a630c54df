"""Transposed convolutions with strides run in INT8 on TensorRT for RTX once they are written as convolutions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.core.placement import SlotKind
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.placement.decide import decide
from tests import models
from tests.placement.building import Built, build, table


def conv(s: models.Sketch, x: str, name: str, channels: tuple[int, int], **attributes: Any) -> str:
    kernel = attributes.pop("kernel", (3, 3))
    weight = s.weight(f"{name}_w", channels[1], channels[0] // attributes.get("group", 1), *kernel)
    pads = [size // 2 for size in kernel] * 2
    return s.relu(
        f"{name}_relu", s.node("Conv", [x, weight], f"{name}_y", name=name, pads=pads, **attributes)
    )


def up(s: models.Sketch, x: str, name: str, channels: tuple[int, int], **attributes: Any) -> str:
    kernel = attributes.pop("kernel", (2, 2))
    weight = s.weight(f"{name}_w", channels[0], channels[1] // attributes.get("group", 1), *kernel)
    return s.node(
        "ConvTranspose", [x, weight, s.weight(f"{name}_b", channels[1])], f"{name}_y", name=name, **attributes
    )


def unet() -> onnx.ModelProto:
    """Two levels down and up again, with skip connections, kernels as large as the stride."""
    s = models.Sketch()
    high = conv(s, s.input("x", [1, 3, 64, 64]), "c1", (3, 16))
    middle = conv(s, high, "c2", (16, 32), strides=[2, 2])
    low = conv(s, middle, "c3", (32, 64), strides=[2, 2])
    y = s.node("Concat", [up(s, low, "up1", (64, 32), strides=[2, 2]), middle], "cat1", name="cat1", axis=1)
    y = conv(s, y, "c4", (64, 32))
    y = s.node("Concat", [up(s, y, "up2", (32, 16), strides=[2, 2]), high], "cat2", name="cat2", axis=1)
    s.output(conv(s, y, "c5", (32, 16)))
    return s.model()


def spectra(end: int = 1) -> onnx.ModelProto:
    """The ends of a network for speech: kernels of 1x5, strides along frequencies only, groups; `end` zeros are cut off behind."""
    s = models.Sketch()
    y = conv(s, s.input("x", [1, 16, 32, 129]), "c1", (16, 16), kernel=(1, 5), strides=[1, 2])
    y = conv(s, y, "c2", (16, 16), kernel=(1, 5), strides=[1, 2], group=2)
    wide = {"kernel": (1, 5), "strides": [1, 2], "pads": [0, 2, 0, end]}
    y = s.relu("u1_relu", up(s, y, "u1", (16, 16), group=2, **wide))
    s.output(s.node("Tanh", [up(s, y, "u2", (16, 2), **wide)], "y", name="tanh"))
    return s.model()


def odd_picture() -> onnx.ModelProto:
    """One level up, to one pixel less than twice as many."""
    s = models.Sketch()
    y = conv(s, s.input("x", [1, 3, 32, 32]), "c1", (3, 32))
    y = up(s, y, "up1", (32, 32), kernel=(3, 3), strides=[2, 2], pads=[1] * 4)
    s.output(conv(s, s.relu("up_relu", y), "c2", (32, 16)))
    return s.model()


def quantized(proto: onnx.ModelProto, folder: Path, *, strided: bool) -> Built:
    model = prepare(load(models.save(proto, folder)), PrepareOptions(strided_conv_transpose=strided))
    placement = decide(model.view, PlacementOptions())
    assert any(decision.kind is SlotKind.WEIGHT for decision in placement.quantized)
    return build(insert(model, placement, table(model, placement), InsertOptions()).proto)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "ups", "more"),
    [
        (unet, {"up1", "up2"}, 0),
        (spectra, {"u1", "u2"}, 1),
        (partial(spectra, 2), {"u1", "u2"}, 1),
        (odd_picture, {"up1"}, 0),
    ],
    ids=["UNet", "speech", "odd speech", "odd picture"],
)
def test_strides_as_convolutions_run_in_int8_with_fewer_bytes(
    network: Any, ups: set[str], more: int, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    before = quantized(network(), tmp_path, strided=False)
    after = quantized(network(), tmp_path, strided=True)
    assert before.error == after.error == ""
    assert {name for name, precision in before.precision if precision == "float"} == ups
    assert {precision for _, precision in after.precision} == {"int8"}
    assert after.bytes < before.bytes
    assert len(after.kernels) == len(before.kernels) + more
