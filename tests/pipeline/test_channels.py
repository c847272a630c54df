"""Depthwise convolutions that one scale cannot serve are found, and only those."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.calibration.samples import open_samples
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.findings import Severity
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.channels import lost_channels
from tests import models
from tests.calibration.material import opened, placed

EVEN = np.ones(16, np.float32)
UNEVEN = np.where(np.arange(16) < 4, 0.01, 1.0).astype(np.float32)
LONELY = np.where(np.arange(16) < 1, 0.01, 1.0).astype(np.float32)


def depthwise(folder: Path, groups: int = 16) -> Model:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 16, 6, 6])
    weight = sketch.weight("w", 16, 16 // groups, 3, 3)
    sketch.output(sketch.node("Conv", [x, weight], "y", name="conv", group=groups), ["N", 16, 4, 4])
    return opened(sketch.model(), folder)


def found(model: Model, sizes: np.ndarray, folder: Path, amax: float = 1.0) -> list[str]:
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (3, 16, 6, 6)).astype(np.float32) * sizes.reshape(1, 16, 1, 1)
    np.savez(folder / "s.npz", x=rows)
    table = CalibrationTable(ranges=(TensorRange(tensor="x", amax=(amax,)),))
    samples = open_samples(str(folder / "s.npz"), model.view.inputs)
    findings = lost_channels(model, placed(model), table, samples)
    assert all(finding.severity is Severity.WARNING for finding in findings)
    return [f"{finding.subject}: {finding.reason}; {finding.fix}" for finding in findings]


def test_a_model_without_depthwise_convolutions_is_not_even_run(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert lost_channels(model, placed(model), CalibrationTable(ranges=()), iter(())) == ()


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [(EVEN, 16), (UNEVEN, 1), (UNEVEN, 4), (0 * EVEN, 16)],
    ids=["channels of one size", "an ordinary convolution", "groups of several channels", "zeros only"],
)
def test_nothing_is_found_where_no_channel_is_lost(sizes: np.ndarray, groups: int, tmp_path: Path) -> None:
    assert found(depthwise(tmp_path, groups), sizes, tmp_path) == []


def test_lost_channels_are_counted_and_the_fix_names_the_node(tmp_path: Path) -> None:
    (words,) = found(depthwise(tmp_path), UNEVEN, tmp_path)
    assert words.startswith(
        "conv: the depthwise convolution reads 'x' with one scale, and 4 of its 16 channels never exceed 2 steps"
    )
    assert words.endswith("place.exclude=[conv]'")


def test_a_single_small_channel_among_many_is_no_finding(tmp_path: Path) -> None:
    assert found(depthwise(tmp_path), LONELY, tmp_path) == []


def test_what_is_left_of_a_channel_that_never_fires_is_no_channel(tmp_path: Path) -> None:
    assert (
        found(depthwise(tmp_path), np.where(np.arange(16) < 4, 1e-30, 1.0).astype(np.float32), tmp_path) == []
    )


def test_a_clipped_range_saves_the_small_channels(tmp_path: Path) -> None:
    assert found(depthwise(tmp_path), UNEVEN, tmp_path, amax=0.1) == []


@pytest.mark.parametrize(("before", "after"), [(UNEVEN, EVEN), (EVEN, UNEVEN)], ids=["evened", "made uneven"])
def test_of_an_equalized_network_its_own_channels_are_judged(
    before: np.ndarray, after: np.ndarray, tmp_path: Path
) -> None:
    """The ranges are those of the channels that equalization made, and so must be what they are held against."""
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 16, 6, 6])
    front = sketch.constant("front", _scaling(before))
    y = sketch.node("Conv", [x, front], "y", name="first")
    z = sketch.node("Conv", [y, sketch.weight("w", 16, 1, 3, 3)], "z", name="conv", group=16)
    sketch.output(z, ["N", 16, 4, 4])
    model = opened(sketch.model(), tmp_path)
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 16, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=rows)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    plain = CalibrationTable(ranges=tuple(TensorRange(tensor=tensor, amax=(1.0,)) for tensor in ("x", "y")))
    equalized = replace(plain, weights=WeightChanges(values={"front": _scaling(after)}))
    for table, is_found in ((plain, before is UNEVEN), (equalized, after is UNEVEN)):
        # what was seen of the network before it was equalized must not be taken for its own
        for seen in (None, {"y": before}):
            assert bool(lost_channels(model, placed(model), table, samples, seen)) is is_found


def _scaling(sizes: np.ndarray) -> np.ndarray:
    return np.diag(sizes).reshape(16, 16, 1, 1).astype(np.float32)
