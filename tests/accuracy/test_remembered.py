"""A remembered model gives what the model gives, and runs no sample twice that it had room for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qdqtool.accuracy.side_by_side import Remembered
from qdqtool.core.protocols import Feeds
from qdqtool.core.tensors import DType, TensorInfo


class Counting:
    """Doubles what it is fed, and counts."""

    description = "doubles"
    inputs = (
        TensorInfo(name="x", dtype=DType.FLOAT32, shape=("N",)),
        TensorInfo(name="words", dtype=DType.UNKNOWN, shape=("N",)),
    )
    outputs = ("y",)
    at_once = 4

    def __init__(self) -> None:
        self.runs = 0

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        self.runs += 1
        return {"y": 2 * feeds["x"]}


def fed(number: float, word: str = "a", count: int = 3) -> dict[str, NDArray[Any]]:
    return {"x": np.full(count, number, np.float32), "words": np.array([word] * count, object)}


FEEDS = (fed(1), fed(2), fed(1, "b"), fed(1, count=4), fed(-0.0), fed(0.0))


def test_every_sample_runs_once_and_gives_what_the_model_gives() -> None:
    model = Counting()
    remembered = Remembered(lambda: model, 1 << 20)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for feeds, found in zip(FEEDS, pool.map(remembered.run, FEEDS), strict=True):
                np.testing.assert_array_equal(found["y"], 2 * feeds["x"])
    assert model.runs == len(FEEDS)
    assert (remembered.inputs, remembered.outputs, remembered.at_once) == (model.inputs, ("y",), 4)


@pytest.mark.parametrize(("room", "again"), [(0, 6), (12, 5), (1 << 20, 0)])
def test_what_does_not_fit_is_run_again(room: int, again: int) -> None:
    model = Counting()
    remembered = Remembered(lambda: model, room)
    for _ in range(2):
        for feeds in FEEDS:
            np.testing.assert_array_equal(remembered.run(feeds)["y"], 2 * feeds["x"])
    assert model.runs == len(FEEDS) + again


def test_who_gets_an_answer_cannot_change_that_of_others() -> None:
    remembered = Remembered(Counting, 1 << 20)
    for _ in range(3):
        found = remembered.run(FEEDS[0])
        assert found["y"][0] == 2
        found["y"] = np.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        remembered.run(FEEDS[0])["y"][0] = 0


def test_a_closed_one_keeps_its_answers_and_opens_anew_for_others() -> None:
    first, second = Counting(), Counting()
    remembered = Remembered(lambda: first, 1 << 20)
    remembered.run(FEEDS[0])
    remembered.close()
    remembered.run(FEEDS[0])
    with pytest.raises(AssertionError, match="closed"):
        remembered.run(FEEDS[1])
    remembered.reopen(lambda: second)
    remembered.run(FEEDS[0])
    assert (first.runs, second.runs) == (1, 0)
    remembered.run(FEEDS[1])
    assert (first.runs, second.runs) == (1, 1)
