"""Laws of the parts of a data set: spread over the whole set, and without a common sample."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.calibration.samples import open_samples
from qdqtool.core.protocols import Sample
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.ranges import samples as parts
from tests import models
from tests.calibration.material import info

WHOLE, COUNT = st.integers(0, 700), st.integers(1, 300)


def numbered(whole: int) -> tuple[Sample, ...]:
    return tuple(Sample(name=str(number), feeds={}) for number in range(whole))


def numbers_of(samples: tuple[Sample, ...]) -> list[int]:
    return [int(sample.name) for sample in samples]


def is_spread(numbers: list[int], whole: int) -> bool:
    """Say whether the gaps before, between and after the numbers are as equal as whole numbers allow, up to a pair."""
    gaps = [right - left for left, right in pairwise([*numbers, whole])]
    return not numbers or (numbers[0] <= 1 and max(gaps) - min(gaps) <= 2)


@given(whole=WHOLE, count=COUNT)
def test_chosen_samples_are_spread_over_the_whole_set(whole: int, count: int) -> None:
    chosen = [*parts.choosing_numbers(whole, count)]
    assert len(chosen) == min(whole, count)
    assert is_spread(chosen, whole)
    assert numbers_of(parts.spread_over(numbered(whole), count)) == chosen


@given(whole=WHOLE)
def test_samples_that_check_are_others_than_those_that_choose(whole: int) -> None:
    choosing, checking = map(numbers_of, parts.choosing_and_checking(numbered(whole)))
    assert not {*choosing} & {*checking}
    assert len(choosing) == min(parts.CHOOSING, (whole + 1) // 2)
    assert len(checking) == min(parts.CHECKING, whole // 2)
    assert all(is_spread(part, whole) for part in (choosing, checking))
    everything = numbers_of(parts.some_first(numbered(whole)))
    assert sorted(everything) == [*range(whole)]
    assert is_spread(everything[: parts.OF_LARGE], whole)


@pytest.mark.parametrize("whole", [63, 64, 65, 95, 96, 127, 200])
def test_fits_and_searches_use_samples_from_all_over_without_those_that_are_skipped(
    whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = load(models.save(models.ALL["gemms"](), tmp_path)).view
    monkeypatch.setattr(parts, "count_taken", lambda *_: 32)
    rows = np.arange(whole, dtype=np.float32).reshape(-1, 1)
    spoiled = np.insert(rows, [2, 3, 3, 10, whole // 2], np.nan, axis=0)
    for number, part in enumerate(np.array_split(spoiled, 3)):
        np.savez(tmp_path / f"{number}.npz", x=part)
    samples = open_samples(str(tmp_path), (info("x", "N", 1),), on_nan="skip")
    assert len(samples) == whole

    def values(part: object) -> list[int]:
        return [int(sample.feeds["x"].item()) for sample in part]  # type: ignore[attr-defined]

    choosing, fitting = values(parts.choosing(samples, 32)), values(parts.fitting_samples(view, samples, 16))
    assert len(choosing) == 32
    assert len(fitting) == 16
    assert {*fitting} <= parts.fitting_numbers(view, whole)
    assert whole < 64 or not {*choosing} & {*fitting}
    assert fitting[-1] >= whole * 7 / 8
    assert values(parts.from_all_over(samples, 32)) == choosing
