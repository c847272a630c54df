"""What a choice may cost is asked of the sizes that samples have, whether a model writes them down or leaves them open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.calibration.samples import open_samples
from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.reference import Budget, Reference
from qdqtool.pipeline.ranges.samples import is_small
from tests.models import Sketch

Sides = tuple[int | str, int | str]


def network(folder: Path, sides: Sides, channels: int = 16) -> Model:
    s = Sketch(3)
    x = s.input("x", ["N", 3, *sides])
    for number, before in enumerate((3, channels, channels)):
        x = s.relu(f"relu{number}", s.conv(f"conv{number}", x, (before, channels), stride=2))
    s.output(x)
    return prepare(load(written(s, folder, sides)), PrepareOptions())


def written(sketch: Sketch, folder: Path, sides: Sides) -> Path:
    path = folder / f"{sides[0]}x{sides[1]}.onnx"
    path.write_bytes(sketch.model().SerializeToString())
    return path


@pytest.mark.parametrize(("channels", "small"), [(16, True), (64, False)])
def test_a_picture_of_free_size_costs_what_one_of_usual_size_costs(
    channels: int, small: bool, tmp_path: Path
) -> None:
    answers = {
        is_small(network(tmp_path, sides, channels).view) for sides in ((224, 224), ("H", "W"), ("?", "?"))
    }
    assert answers == {small}


def test_as_many_samples_fit_into_a_batch_whether_the_size_is_free_or_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((40, 3, 512, 512), np.float32))
    counts = {}
    for sides in ((512, 512), ("H", "W")):
        model = network(tmp_path, sides)
        samples = open_samples(str(tmp_path / "x.npz"), model.view.inputs)
        reference = Reference(model, samples, Budget(), count=40)
        assert reference.fitting < len(reference.affordable(40))
        counts[sides] = len(reference.affordable(40))
    assert len(set(counts.values())) == 1
    assert min(counts.values()) < 40
