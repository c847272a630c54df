"""A ConvTranspose of stride 1 becomes the Conv that computes the same; others stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.core.recipe import PrepareOptions
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
    assert "1 ConvTranspose nodes of stride 1" in " ".join(ready.notes)
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
