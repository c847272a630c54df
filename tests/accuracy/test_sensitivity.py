"""Sensitivity on a model whose noise is known, and runs that survive being stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.evidence import Interval
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError, UsageError
from qdqtool.pipeline.search.float_nodes import Limit
from qdqtool.pipeline.search.sensitivity import SensitivityOptions, Subject, _widen_interval, sensitivity
from qdqtool.pipeline.search.subsets import RunStore, SampleRun, SubsetOutcome, TrialRunner
from tests.accuracy.stand_ins import Given

THOROUGH = SensitivityOptions()
NOISES = {"loud": 0.3, "soft": 0.01, "middle": 0.1, "silent": 0.0}


class Noisy:
    """Every quantized node adds noise of its own strength, in a direction of its own."""

    outputs = ("y",)
    inputs = (TensorInfo(name="x"),)
    description = "noisy"

    def __init__(self, noises: Mapping[str, float], together: int = 3) -> None:
        self._noises = noises
        self._together = together
        self.nodes = tuple(noises)
        self.calls = 0

    def together(self, _feeds: Feeds) -> int:
        return self._together

    def run(
        self, feeds: Sequence[Feeds], subsets: Mapping[str, frozenset[str]]
    ) -> Iterator[tuple[str, list[dict[str, np.ndarray]]]]:
        for name, subset in subsets.items():
            self.calls += len(feeds)
            yield name, [self.outputs_of(one, subset) for one in feeds]

    def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
        noise = [level if node in subset else 0.0 for node, level in self._noises.items()]
        return {"y": np.concatenate([feeds["x"], [noise]], axis=1)}


def samples(count: int = 8) -> Given:
    one = np.zeros((1, 4))
    one[0, 0] = 1.0
    return Given([Sample(name=f"s{number}", feeds={"x": one}, label=0) for number in range(count)])


def studied(
    noises: Mapping[str, float] = NOISES,
    options: SensitivityOptions = THOROUGH,
    runner: Noisy | None = None,
    **trials: Any,
) -> Sensitivity:
    runner = runner or Noisy(noises)
    bench = TrialRunner(runner, CompareOptions(), **trials)
    subject = Subject(name="m.onnx", ops=dict.fromkeys(noises, "Conv"), compute=frozenset(noises))
    return sensitivity(bench, subject, samples(), options)


def decibel(*levels: float) -> float:
    return -10 * math.log10(sum(level * level for level in levels))


def test_a_model_without_quantized_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="no quantized nodes"):
        studied({})


def test_nodes_are_ranked_by_the_noise_they_make() -> None:
    found = studied()
    assert [row.node for row in found.nodes] == ["loud", "middle", "soft", "silent"]
    assert found.whole.sqnr_db == pytest.approx(decibel(*NOISES.values()))


def test_alone_and_without_are_measured_and_the_gain_is_their_difference() -> None:
    loud = studied().nodes[0]
    assert loud.alone_db == pytest.approx(decibel(0.3))
    assert loud.without_db == pytest.approx(decibel(0.1, 0.01))
    assert loud.gain_db == pytest.approx(decibel(0.1, 0.01) - decibel(*NOISES.values()))
    assert loud.share == pytest.approx(0.09 / (0.09 + 0.01 + 0.0001))
    assert (loud.exact, loud.samples) == (True, 8)


def test_a_node_without_noise_has_no_level_and_no_gain() -> None:
    silent = studied().nodes[-1]
    assert silent.alone_db is None
    assert silent.share == 0.0
    assert silent.gain_db == pytest.approx(0.0, abs=1e-9)


def test_beyond_the_top_there_is_an_estimate_only() -> None:
    found = studied(options=SensitivityOptions(top=1, quick=2))
    assert [(row.exact, row.samples) for row in found.nodes[:2]] == [(True, 8), (False, 2)]
    assert found.nodes[1].without_db is None
    assert any("estimate on 2 samples" in note for note in found.notes)


class Loud(Noisy):
    """The samples behind the first four make ten times the noise."""

    def __init__(self, noises: Mapping[str, float]) -> None:
        super().__init__(noises, together=1)
        self._fed: dict[bytes, int] = {}

    def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
        loud = 10.0 if feeds["x"][0, 1] >= 4 else 1.0
        noise = [loud * level if node in subset else 0.0 for node, level in self._noises.items()]
        return {"y": np.concatenate([feeds["x"][:, :1], [noise]], axis=1)}


def test_the_interval_of_an_estimate_is_as_wide_as_estimates_were_found_to_be_off() -> None:
    def sample(number: int) -> Sample:
        return Sample(name=f"s{number}", feeds={"x": np.array([[1.0, number]])}, label=None)

    noises = {f"n{number}": 0.01 + 0.001 * number for number in range(8)}
    bench = TrialRunner(Loud(noises), CompareOptions(task="none"))
    subject = Subject(name="m.onnx", ops=dict.fromkeys(noises, "Conv"), compute=frozenset(noises))
    found = sensitivity(bench, subject, Given([sample(n) for n in range(8)]), SensitivityOptions(top=2))
    guessed = [row for row in found.nodes if not row.exact]
    assert len(guessed) == 6
    for row in guessed:
        level = noises[row.node]
        true = -10 * math.log10((4 * level**2 + 4 * (10 * level) ** 2) / 8)
        assert row.alone_db is not None
        assert row.alone_low is not None
        assert row.alone_high is not None
        assert row.alone_db - true > 10
        assert row.alone_low <= true + 1e-6 <= row.alone_high


@pytest.mark.parametrize(("reach", "is_known"), [(5.0, True), (25.0, True), (31.0, False), (400.0, False)])
def test_an_interval_that_covers_everything_is_unknown(reach: float, is_known: bool) -> None:
    noise = 1e-3
    ends = Interval(low=noise * 10 ** (-reach / 10), high=noise * 10 ** (reach / 10))
    guess = SubsetOutcome(noise=noise, task=None, interval=ends)
    assert (_widen_interval(guess, ()) is not None) is is_known


def test_the_curve_keeps_one_more_node_float_at_a_time() -> None:
    curve = studied(options=SensitivityOptions(top=3)).curve
    assert [entry.kept for entry in curve] == [("loud",), ("loud", "middle"), ("loud", "middle", "soft")]
    assert [entry.int8_nodes for entry in curve] == [3, 2, 1]
    assert curve[1].sqnr_db == pytest.approx(decibel(0.01))
    assert curve[2].sqnr_db is None


@pytest.mark.parametrize(
    ("top", "limit", "kept"),
    [
        (4, 5.0, ()),
        (4, 15.0, ("loud",)),
        (4, 30.0, ("loud", "middle")),
        (1, 30.0, ("loud", "middle")),
        (1, 1000.0, ("loud", "middle", "soft")),
    ],
    ids=["met already", "one node", "two nodes", "two nodes, one beyond the curve", "no noise at all"],
)
def test_the_smallest_set_that_meets_the_limit_is_advised(
    top: int, limit: float, kept: tuple[str, ...]
) -> None:
    found = studied(options=SensitivityOptions(top=top, limit=Limit(min_sqnr=limit)))
    assert found.advice is not None
    assert found.advice.kept == kept


@given(
    levels=st.lists(st.floats(0.001, 0.2), min_size=1, max_size=12),
    limit=st.floats(0, 80),
    top=st.integers(1, 12),
)
@settings(max_examples=25, deadline=None)
def test_where_noises_add_up_the_set_is_as_small_as_any(levels: list[float], limit: float, top: int) -> None:
    noises = {f"n{number}": level for number, level in enumerate(levels)}
    found = studied(noises, SensitivityOptions(top=top, limit=Limit(min_sqnr=limit)))
    order = [row.node for row in found.nodes]
    rest = [sum(noises[name] ** 2 for name in order[count:]) for count in range(len(order) + 1)]
    smallest = next(
        count for count, noise in enumerate(rest) if noise == 0 or -10 * math.log10(noise) >= limit
    )
    assert found.advice is not None
    assert len(found.advice.kept) == smallest


def test_without_a_limit_there_is_no_advice() -> None:
    assert studied().advice is None


def test_a_limit_on_accuracy_looks_at_the_task() -> None:
    found = studied({"flip": 1.5, "soft": 0.01}, SensitivityOptions(limit=Limit(max_drop=0.0)))
    assert found.whole.task is not None
    assert (found.whole.task.reference, found.whole.task.candidate) == (100.0, 0.0)
    assert found.advice is not None
    assert found.advice.kept == ("flip",)


def test_groups_are_switched_together() -> None:
    found = studied(options=SensitivityOptions(groups=("s*",)))
    group = next(row for row in found.nodes if row.op == "group")
    assert group.members == ("soft", "silent")
    assert [row.node for row in found.nodes] == ["loud", "middle", "s*"]


@pytest.mark.parametrize(
    ("groups", "excluded"), [((), ["loud", "silent"]), (("s*",), ["loud", "soft", "silent"])]
)
def test_the_setting_for_float_ends_names_all_nodes_that_were_measured_float(
    groups: tuple[str, ...], excluded: list[str]
) -> None:
    (cure,) = studied(options=SensitivityOptions(groups=groups)).cures
    assert cure.settings == (f"place.exclude={json.dumps(excluded)}",)


def test_a_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'x\*'"):
        studied(options=SensitivityOptions(groups=("x*",)))


def test_noise_that_does_not_add_up_is_said() -> None:
    class Jammed(Noisy):
        def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
            return {"y": np.concatenate([feeds["x"], [[bool(subset) * 0.3]]], axis=1)}

    assert any("adds up to 4.0 times" in note for note in studied(runner=Jammed(NOISES)).notes)


@pytest.mark.parametrize("together", [1, 2, 8, 32])
def test_how_many_samples_run_together_changes_nothing(together: int) -> None:
    assert studied(runner=Noisy(NOISES, together)) == studied()


def test_a_study_that_was_stopped_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    whole = Noisy(NOISES)
    expected = studied(runner=whole, store=RunStore(path, "key"))
    lines = path.read_text().splitlines()
    for kept in (1, len(lines) // 2, len(lines)):
        path.write_text("\n".join([*lines[:kept], lines[kept - 1][:20]]))
        again = Noisy(NOISES)
        assert studied(runner=again, store=RunStore(path, "key")) == expected
        assert again.calls == (0 if kept == len(lines) else again.calls)
        assert again.calls <= whole.calls


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SensitivityOptions(groups=("[ls]*",)), SensitivityOptions(groups=("loud", "[ls]*"))),
        (SensitivityOptions(top=4, quick=1), SensitivityOptions(top=2, quick=8)),
    ],
    ids=["other groups of one name", "fewer exact runs"],
)
def test_another_study_of_the_same_model_takes_over_only_runs_of_the_same_nodes(
    first: SensitivityOptions, second: SensitivityOptions, tmp_path: Path
) -> None:
    studied(options=first, store=RunStore(tmp_path / "runs.jsonl", "key"))
    assert studied(options=second, store=RunStore(tmp_path / "runs.jsonl", "key")) == studied(options=second)


def test_subsets_of_the_same_nodes_are_run_once() -> None:
    """Of two nodes, one left out is the other alone and the first step of the curve."""
    noises = {"loud": 0.3, "soft": 0.01}
    runner = Noisy(noises)
    studied(noises, runner=runner)
    both_and_each, nothing, plain = 3, 1, 1
    assert runner.calls == 8 * (plain + both_and_each + nothing)


def test_runs_of_another_model_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    studied(store=RunStore(path, "old"))
    again = Noisy(NOISES)
    studied(runner=again, store=RunStore(path, "new"))
    assert again.calls > 0
    assert json.loads(path.read_text().splitlines()[0]) == {"key": "new"}


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"sample": "x"}', '{"sample": 0, "runs": {"a": {"noise": 3}}}', "[" * 5000, "\0"]
)
def test_lines_that_are_damaged_are_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunStore(path, "key").write(0, {"a": SampleRun(noise=(1.0,), signal=(2.0,), hits=(1.0, 0.0))})
    path.write_text(f"{path.read_text()}\n{line}")
    journal = RunStore(path, "key")
    assert journal.read(0) == {"a": SampleRun(noise=(1.0,), signal=(2.0,), hits=(1.0, 0.0))}
    journal.write(1, {"b": SampleRun(noise=(0.0,), signal=(1.0,))})
    assert RunStore(path, "key").read(1) == journal.read(1)


def test_no_samples_are_an_error() -> None:
    bench = TrialRunner(Noisy(NOISES), CompareOptions())
    with pytest.raises(InputFileError, match="no samples"):
        sensitivity(bench, Subject(name="m", ops={}, compute=frozenset()), Given([]), SensitivityOptions())


@pytest.mark.parametrize("room", [1 << 20, 300, 0])
def test_the_float_model_runs_once_a_sample_where_its_outputs_can_be_kept(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One set after the other shows what all of them show at once; only the float model's runs become fewer."""
    monkeypatch.setattr("qdqtool.pipeline.search.subsets._ROOM", room)
    sets = {name: frozenset(NOISES) - {name} for name in NOISES}
    at_once = TrialRunner(Noisy(NOISES), CompareOptions()).run(sets, samples())
    runner = Noisy(NOISES)
    trials = TrialRunner(runner, CompareOptions())
    one_by_one = {name: trials.run({name: subset}, samples())[name] for name, subset in sets.items()}
    assert one_by_one == at_once
    kept = {1 << 20: 8, 300: 3, 0: 0}[room]
    assert runner.calls == 8 * len(sets) + kept + (8 - kept) * len(sets)
