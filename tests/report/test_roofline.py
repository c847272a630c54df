"""Intensity against speed, under the roofs of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.core.report import LayerRow
from qdqtool.core.tensors import DType
from qdqtool.engine.roofline import find_device
from qdqtool.report.assemble import assemble
from qdqtool.report.figures import roofline
from tests.report.material import chain_material

A10 = find_device("NVIDIA A10")


def rows(tflops: float | None = 2.0, precision: DType = DType.INT8) -> list[LayerRow]:
    layers = assemble(chain_material(3)).layers
    return [
        replace(layer, intensity=10.0 * (place + 1), macs=10**6, tflops=tflops, precision=precision)
        for place, layer in enumerate(layers)
    ]


def roofs(layers: list[LayerRow]) -> list[str]:
    figure = roofline(layers, A10)
    assert figure is not None
    return [line.get("class", "") for line in figure.drawings[0].iter("polyline")]


def test_layers_without_intensity_are_no_chart() -> None:
    assert roofline(assemble(chain_material(3)).layers[:0], A10) is None


def test_without_a_gpu_or_without_times_there_are_no_roofs() -> None:
    figure = roofline(rows(), None)
    assert figure is not None
    assert figure.title == "Arithmetic intensity"
    assert roofs(rows(tflops=None)) == []


def test_every_precision_has_its_roof() -> None:
    mixed = [*rows(), *rows(precision=DType.FLOAT16)]
    assert roofs(mixed) == ["roof edge p-int8", "roof edge p-fp16"]


def test_the_caption_names_the_gpu_and_the_source_of_its_figures() -> None:
    figure = roofline(rows(), A10)
    assert figure is not None
    assert figure.title == "Roofline"
    assert "the limits of NVIDIA A10 (600 GB/s, NVIDIA A10 datasheet (2021))" in figure.caption


@pytest.mark.parametrize(("tflops", "below"), [(2.0, True), (10_000.0, False)])
def test_points_lie_under_their_roof_where_the_figures_are_possible(tflops: float, *, below: bool) -> None:
    figure = roofline(rows(tflops), A10)
    assert figure is not None
    (roof,) = figure.drawings[0].iter("polyline")
    top = min(float(corner.split(",")[1]) for corner in (roof.get("points") or "").split())
    dots = [float(dot.get("cy") or 0) for dot in figure.drawings[0].iter("circle")]
    assert all(dot > top for dot in dots) is below
