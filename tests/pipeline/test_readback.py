"""Scales that are written into a model are read back out of it, in every format with a scale per tensor or channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.tensors import FP8, FP8_E5M2, INT8, QuantFormat
from qdqtool.errors import UsageError
from qdqtool.graph.qdq.lower import lower
from qdqtool.pipeline.readback import read_back
from tests import models
from tests.graph.placing import opened
from tests.graph.test_quantized_graph import quantized
from tests.placement.qdq import GRAPHS


@pytest.mark.parametrize("stored", [False, True], ids=["float weights", "stored weights"])
@pytest.mark.parametrize("format_", [INT8, FP8, FP8_E5M2], ids=str)
@pytest.mark.parametrize("name", models.ALL)
def test_every_scale_comes_back_and_as_a_range(
    name: str, format_: QuantFormat, stored: bool, tmp_path: Path
) -> None:
    graph = quantized(opened(models.ALL[name](), tmp_path), format_, stored=stored)
    path = tmp_path / "model.qdq.onnx"
    onnx.save(lower(graph).proto, path)
    found, _ = read_back(path)
    read = {(entry.slot.node, entry.slot.index): entry for entry in found.scales}
    ranges = found.table.by_tensor()
    for slot, given in graph.assignment.items():
        scale = np.float32(given.scale).ravel()
        entry = read[slot.node, slot.index]
        np.testing.assert_array_equal(np.float32(entry.scale), scale)
        assert np.float32(ranges[entry.tensor].amax).max() >= scale.max() * format_.qmax * np.float32(
            0.999999
        )


def test_a_model_of_blocks_alone_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = models.save(GRAPHS["int4_weights"](), tmp_path)
    with pytest.raises(UsageError, match="skipped, it has a scale per block"):
        read_back(path)
