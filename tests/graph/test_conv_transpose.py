"""A ConvTranspose becomes the Conv that computes the same, with DepthToSpace behind it where it has strides."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qdqtool.core.recipe import PlacementOptions, PrepareOptions, Recipe
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened


def _model(rank: int = 2, group: int = 1, kernel: int = 3, **attributes: Any) -> Any:
    s = models.Sketch()
    x = s.input("x", [1, 8, *[9] * rank])
    weight = s.weight("w", 8, 12 // group, *[kernel] * rank)
    inputs = [x, weight, s.weight("b", 12)]
    s.output(s.node("ConvTranspose", inputs, "y", name="up", group=group, **attributes))
    return s.model()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"group": 4},
        {"rank": 1, "pads": [1, 0]},
        {"rank": 3, "group": 2},
        {"pads": [1, 2, 0, 1]},
        {"kernel": 4, "dilations": [2, 3], "pads": [1, 0, 2, 3], "strides": [1, 1]},
        {"kernel": 1},
    ],
    ids=str,
)
def test_stride_1_is_a_convolution_that_computes_the_same(attributes: dict[str, Any], tmp_path: Path) -> None:
    proto = _model(**attributes)
    ready = prepare(opened(proto, tmp_path), PrepareOptions())
    assert [node.op for node in ready.view.nodes] == ["Conv"]
    assert "1 ConvTranspose node written" in " ".join(ready.notes)
    feeds = models.feeds(proto)
    np.testing.assert_allclose(
        models.run(ready.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [2, 2]}, {"strides": [2, 1]}, {"pads": [3, 0, 0, 0]}, {"auto_pad": "SAME_UPPER"}],
    ids=str,
)
def test_what_is_no_convolution_stays(attributes: dict[str, Any], tmp_path: Path) -> None:
    ready = prepare(opened(_model(**attributes), tmp_path), PrepareOptions())
    assert [node.op for node in ready.view.nodes] == ["ConvTranspose"]


def test_the_rewriting_can_be_switched_off(tmp_path: Path) -> None:
    ready = prepare(opened(_model(), tmp_path), PrepareOptions(conv_transpose=False))
    assert [node.op for node in ready.view.nodes] == ["ConvTranspose"]


STRIDED = PrepareOptions(strided_conv_transpose=True)


@pytest.mark.parametrize(
    ("attributes", "ops"),
    [
        ({"kernel": 2, "strides": [2, 2]}, ["Conv", "DepthToSpace"]),
        ({"kernel": 4, "strides": [4, 4], "group": 4}, ["Conv", "DepthToSpace"]),
        ({"kernel": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}, ["Conv", "DepthToSpace"]),
        ({"kernel": 3, "strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}, ["Conv", "DepthToSpace"]),
        ({"kernel": 5, "strides": [3, 3], "pads": [0, 1, 2, 1]}, ["Conv", "DepthToSpace"]),
        ({"kernel": 2, "strides": [3, 3], "output_padding": [1, 1]}, ["Conv", "DepthToSpace"]),
        ({"kernel": 3, "strides": [2, 2]}, ["Conv", "DepthToSpace", "Slice"]),
        ({"kernel": 3, "strides": [2, 2], "pads": [1] * 4}, ["Conv", "DepthToSpace", "Slice"]),
        ({"kernel": 5, "strides": [1, 2], "pads": [2] * 4}, ["Conv", "Reshape", "Transpose", "Reshape", "Slice"]),
        ({"kernel": 16, "strides": [8], "rank": 1, "pads": [4, 4]}, ["Conv", "Reshape", "Transpose", "Reshape"]),
        ({"kernel": 5, "strides": [1, 2], "pads": [2, 2, 2, 1], "group": 2}, ["Conv", "Reshape", "Transpose", "Reshape"]),
        ({"kernel": 2, "strides": [2] * 3, "rank": 3}, ["Conv", "Reshape", "Transpose", "Reshape"]),
        ({"kernel": 3, "strides": [2, 1, 3], "rank": 3, "pads": [0, 1, 0, 1, 1, 0]}, ["Conv", "Reshape", "Transpose", "Reshape"]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, "batch"])
def test_strides_are_a_convolution_of_all_places_that_computes_the_same(
    attributes: dict[str, Any], ops: list[str], batch: int | str, tmp_path: Path
) -> None:
    proto = _model(**attributes)
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    setattr(
        proto.graph.input[0].type.tensor_type.shape.dim[0],
        "dim_value" if batch == 1 else "dim_param",
        batch,
    )
    ready = prepare(opened(proto, tmp_path), STRIDED)
    assert [node.op for node in ready.view.nodes] == ops
    feeds = {
        "x": np.random.default_rng(0).normal(
            size=(2 if batch == "batch" else 1, 8, *[9] * attributes.get("rank", 2))
        )
    }
    feeds = {"x": feeds["x"].astype(np.float32)}
    np.testing.assert_allclose(
        models.run(ready.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-5, atol=1e-5
    )


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_strides_kernels_and_pads_compute_the_same_or_stay(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    strides = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    kernel = data.draw(st.integers(1, 6))
    pads = data.draw(st.lists(st.integers(0, 3), min_size=2 * rank, max_size=2 * rank))
    extra = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    proto = _model(
        rank=rank, group=data.draw(st.sampled_from([1, 2, 4])), kernel=kernel,
        strides=strides, pads=pads, output_padding=extra,
    )  # fmt: skip
    sizes = [8 * s + kernel - pads[i] - pads[rank + i] + extra[i] for i, s in enumerate(strides)]
    assume(min(sizes) > 0)
    with tempfile.TemporaryDirectory() as folder:
        ready = prepare(opened(proto, Path(folder)), STRIDED)
    feeds = models.feeds(proto)
    np.testing.assert_allclose(
        models.run(ready.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": 2, "strides": [2, 2], "dilations": [2, 2]},
        {"kernel": 2, "strides": [2, 2], "output_shape": [18, 18]},
        {"kernel": 2, "strides": [2, 2], "pads": [2, 2, 2, 2]},
    ],
    ids=["dilated", "output shape", "pads beyond the kernel"],
)
def test_strides_stay_where_no_convolution_computes_the_same(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    ready = prepare(opened(_model(**attributes), tmp_path), STRIDED)
    assert [node.op for node in ready.view.nodes] == ["ConvTranspose"]


@pytest.mark.parametrize(("target", "ops"), [("rtx", ["Conv", "DepthToSpace"]), ("10", ["ConvTranspose"])])
def test_strides_are_rewritten_for_the_builder_without_a_kernel(
    target: str, ops: list[str], tmp_path: Path
) -> None:
    recipe = Recipe(place=PlacementOptions(target=target))
    ready = prepare(opened(_model(kernel=2, strides=[2, 2]), tmp_path), recipe.preparing)
    assert [node.op for node in ready.view.nodes] == ops


def test_a_batch_normalization_behind_strides_is_folded_first(tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.node(
        "ConvTranspose",
        [s.input("x", [1, 8, 9, 9]), s.weight("w", 8, 12, 2, 2)],
        "up",
        name="up",
        strides=[2, 2],
    )
    s.output(s.batchnorm("bn", y, 12))
    proto = s.model()
    ready = prepare(opened(proto, tmp_path), STRIDED)
    assert [node.op for node in ready.view.nodes] == ["Conv", "DepthToSpace"]
    feeds, name = models.feeds(proto), proto.graph.output[0].name
    np.testing.assert_allclose(
        models.run(ready.proto, feeds)[name], models.run(proto, feeds)[name], rtol=1e-4, atol=1e-5
    )
