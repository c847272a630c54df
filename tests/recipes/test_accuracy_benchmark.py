"""The benchmark of accuracy feeds every network what it takes, whatever the rows of a file look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.errors import InputFileError
from qdqtool.runtime.runner import open_runner
from tests import models
from tests.shared import benchmark

DATA = benchmark("accuracy_data")


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A row and a number without dimensions."""
    sketch = models.Sketch()
    row = sketch.input("row", ["N", 4])
    number = sketch.input("number", [])
    sketch.node("Mul", [sketch.node("Relu", [row], "loud"), number], "product")
    sketch.output("product", ["N", 4])
    return models.save(sketch.model(), tmp_path)


def test_a_number_is_fed_without_a_batch(network: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(
        data,
        row=np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32),
        number=np.arange(9, dtype=np.float32),
    )
    found = DATA.stranger(network, data, 3, 3)
    runner = open_runner(network, description="test")
    for feeds in found.evaluation:
        wanted = np.maximum(feeds["row"], 0) * feeds["number"]
        assert np.array_equal(runner.run(feeds)["product"], wanted)
    assert len(found.evaluation) == 3
    assert found.calibration["number"].shape == (3,)


def test_rows_that_do_not_fit_are_refused_by_name(network: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, row=np.zeros((9, 5), np.float32), number=np.arange(9, dtype=np.float32))
    with pytest.raises(InputFileError, match=r"data.npz\[\d\], input 'row'"):
        DATA.stranger(network, data, 3, 3)


@pytest.mark.parametrize("labelled", [False, True])
def test_a_detector_agrees_on_the_class_of_its_best_box_and_not_on_a_coordinate(
    tmp_path: Path, labelled: bool
) -> None:
    sketch = models.Sketch()
    sketch.output(sketch.node("Relu", [sketch.input("boxes", ["N", 7, 40])], "found"), ["N", 7, 40])
    rows = np.full((9, 7, 40), 1e-4, np.float32)
    rows[:, :4] = np.random.default_rng(0).uniform(5, 60, (9, 4, 40))
    rows[:, 5, 3] = 0.9
    data = tmp_path / "data.npz"
    np.savez(data, boxes=rows, **({"labels": np.ones(9, np.int64)} if labelled else {}))
    case = DATA.stranger(models.save(sketch.model(), tmp_path), data, 3, 3)
    plain = rows[:1]
    moved, lost = plain.copy(), plain.copy()
    moved[0, 0, 7] = 64.0
    lost[0, 6, 3] = 0.95
    assert [case.right(plain, one, 0) for one in (plain, moved, lost)] == [100.0, 100.0, 0.0]
