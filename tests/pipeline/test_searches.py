"""Laws of all searches: each decision names its edit, its objective and its evidence, and a search gives one order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.cli.app import run
from qdqtool.core.journal import HEAD, Journal, TrialOutcome
from qdqtool.core.kinds import CALIBRATION, SENSITIVITY
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.sensitivity import FloatLimit
from qdqtool.core.sweep import Outcome, Sweep, Trial
from qdqtool.pipeline import recipes
from qdqtool.pipeline.search.experiment import LeastGain, NetworkEdit, OutputNoise, Search
from qdqtool.pipeline.search.float_nodes import FloatSearch, Limit
from qdqtool.pipeline.search.subsets import TrialRunner
from qdqtool.pipeline.search.switched import units_of
from tests import models
from tests.accuracy.test_sensitivity import Noisy, samples

UNDECIDED = {TrialOutcome.NOT_TRIED}


def obeys(journal: Journal) -> None:
    """Assert that every row says what was changed, what became of it and why, and shows the numbers."""
    assert journal.search
    assert journal.objective
    assert journal.unit
    for one in journal.trials:
        assert one.what
        assert one.why
        recipes.load(None, list(one.settings))
        if one.outcome in UNDECIDED or "NaN" in one.why:
            continue
        assert one.gain is not None or "no noise" in one.why, one
        if one.samples > 1 and one.gain is not None:
            assert one.low is not None, one
            assert one.high is not None, one
            assert one.low - 1e-6 <= one.gain <= one.high + 1e-6
    assert all(len(row) == len(HEAD) for row in journal.rows)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A network and samples with one large value each, so that calibrators differ, as options of a command."""
    model = models.save(models.residual_cnn(), tmp_path)
    arrays = models.feeds(models.residual_cnn(), seed=1, batch=32)
    for values in arrays.values():
        values.reshape(len(values), -1)[:, 0] = 9.0
    np.savez(tmp_path / "s.npz", **arrays)
    return [str(model), "--samples", str(tmp_path / "s.npz")]


def test_ranges_obey_the_laws_of_a_journal(words: list[str], tmp_path: Path) -> None:
    found = []
    for name in ("a.json", "b.json"):
        assert run(["calibrate", *words, "-o", str(tmp_path / name)]) == 0
        found.append(CALIBRATION.read(tmp_path / name).journal)
    assert found[0] is not None
    assert found[0].kept
    assert found[0] == found[1]
    obeys(found[0])


@pytest.mark.slow
def test_a_study_obeys_the_laws_of_a_journal_and_finds_one_order(words: list[str], tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        assert run(["sensitivity", *words, "-o", str(tmp_path / name)]) == 0
        found.append(SENSITIVITY.read(tmp_path / name / "sensitivity.json"))
    assert found[0].nodes == found[1].nodes
    assert found[0].journal == found[1].journal
    assert len(found[0].journal.trials) > 2
    assert not found[0].journal.kept  # a study changes nothing
    obeys(found[0].journal)


def test_the_journal_of_a_study_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sensitivity", *words, "--journal"]) == 0
    shown = capsys.readouterr().out
    assert "What was tried: cures, by SQNR of the outputs" in shown
    assert "float" in shown


def searched(levels: list[float], limit: Limit) -> FloatLimit:
    runner = Noisy({f"n{number}": level for number, level in enumerate(levels)})
    trials = TrialRunner(runner, CompareOptions(task="agreement" if limit.max_drop is not None else "none"))
    units = units_of(runner.nodes, (), frozenset(runner.nodes))
    return FloatSearch((trials, trials), units, (samples(), samples()), limit).run()


@given(
    levels=st.lists(st.floats(0.01, 0.3), min_size=1, max_size=8),
    limit=st.one_of(
        st.floats(5, 50).map(lambda level: Limit(min_sqnr=level)),
        st.floats(0, 5).map(lambda drop: Limit(max_drop=drop)),
        st.floats(5, 50).map(lambda level: Limit(min_sqnr=level, confidence=0.9)),
    ),
)
@settings(max_examples=20, deadline=None)
def test_a_limit_obeys_the_laws_of_a_journal_and_finds_one_order(levels: list[float], limit: Limit) -> None:
    first, second = (searched(levels, limit) for _ in range(2))
    assert first == second
    journal = FloatLimit(
        max_drop=limit.max_drop,
        min_sqnr=limit.min_sqnr,
        samples=8,
        whole=first.whole,
        path=first.path,
        chosen=first.chosen,
        evaluations=first.evaluations,
    ).journal
    obeys(journal)
    kept = [one for one in journal.trials if one.outcome is TrialOutcome.KEPT]
    assert len(kept) == bool(first.chosen and first.chosen.kept)


noises = st.lists(st.floats(1e-6, 1), min_size=4, max_size=24)


@given(before=noises, factor=st.floats(0.2, 2), least=st.floats(0, 3), candidates=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_gained_as_much_as_was_asked_for(
    before: list[float], factor: float, least: float, candidates: int
) -> None:
    spread = np.random.default_rng(len(before)).uniform(0.7, 1.3, len(before))
    one = OutputNoise(shares=tuple(before))
    other = OutputNoise(shares=tuple(float(share) for share in np.array(before) * factor * spread))
    edit = NetworkEdit(what="it", settings=("calibrate.method=max",))
    search = Search()
    is_kept = search.keeps(edit, other, one, LeastGain(gain_db=least, candidates=candidates))
    (row,) = search.records
    assert (row.outcome is TrialOutcome.KEPT) is is_kept
    assert row.settings == edit.settings
    if is_kept:
        assert row.gain is not None
        assert row.gain > least - 1e-3
    # of the same two only one can be kept
    assert not (is_kept and Search().keeps(edit, one, other, LeastGain(gain_db=least)))
    # what more candidates allow, fewer allow too
    assert not is_kept or Search().keeps(edit, other, one, LeastGain(gain_db=least))


def test_an_edit_that_is_fitted_to_samples_must_gain_on_the_others() -> None:
    before = OutputNoise(shares=(1.0,) * 16)
    noisy = np.random.default_rng(0).uniform(0.9, 1.1, 16)
    seen = OutputNoise(shares=tuple(0.1 * noisy[:8]) + tuple(noisy[8:]))
    edit = NetworkEdit(what="it")
    assert Search().keeps(edit, seen, before, LeastGain(gain_db=0.3, unseen=range(8)))
    assert not Search().keeps(edit, seen, before, LeastGain(gain_db=0.3, unseen=range(8, 16)))


def test_a_sweep_has_the_rows_of_a_journal() -> None:
    def trial(number: int, accuracy: float | None) -> Trial:
        words = (f"calibrate.percentile={90 + number}",)
        if accuracy is None:
            return Trial(number=number, state="failed", reason="the builder refused it", settings=words)
        found = Outcome(settings=words, accuracy=accuracy, ms=1.0, nodes_int8=1, nodes_total=1, kernels=None)
        return Trial(number=number, state="complete", outcome=found, settings=words)

    trials = (trial(0, 30.0), trial(1, 32.0), trial(2, None))
    found = Sweep(
        model="m",
        metric="sqnr_db",
        unit="dB",
        reference=None,
        device="",
        spread=None,
        pareto=trials[1:2],
        trials=trials,
    ).journal
    obeys(found)
    assert [(one.outcome.value, one.gain) for one in found.trials] == [
        ("rejected", 0.0),
        ("kept", 2.0),
        ("not tried", None),
    ]
    assert found.trials[2].why == "the builder refused it"
