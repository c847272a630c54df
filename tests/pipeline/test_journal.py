"""Every range carries the decisions that made it, and every candidate that was tried is in the journal, with what it gained."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.calibration.table import make_tables
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.fixes import FixOutcome, FixReport, FixTrial, Metrics
from qdqtool.core.journal import HEAD, Journal, TrialOutcome, TrialRecord
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.recipe import CalibrationOptions, Recipe
from qdqtool.core.sensitivity import Alternative, Cure, FloatLimit, FloatSet, NodeSensitivity, Sensitivity
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges import samples as partition
from qdqtool.pipeline.search.experiment import same_ranges, singles
from tests import models
from tests.shared import ROOT

OUTCOMES = {one.value for one in TrialOutcome}
DIGITS = ROOT / "recipes" / "examples" / "digits"


def order(folder: Path, name: str = "residual_cnn", count: int = 40, **recipe: object) -> Calibration:
    """A calibration of a network whose samples hold one large value each, so that calibrators differ."""
    path = models.save(models.ALL[name](), folder)
    job = Calibration(CalibrationRequest(model=path, recipe=Recipe(), samples=""))
    (entry,) = job.model.view.inputs
    shape = [dim if isinstance(dim, int) else 1 for dim in entry.shape or ()]
    values = np.random.default_rng(2).standard_normal((count, *shape[1:])).astype(np.float32)
    values.reshape(count, -1)[:, 0] = 12.0
    np.savez(folder / "s.npz", **{entry.name: values})
    made = Recipe.model_validate(recipe)
    return Calibration(CalibrationRequest(model=path, recipe=made, samples=str(folder / "s.npz")))


def journal_of(table: CalibrationTable) -> Journal:
    assert table.journal is not None
    return table.journal


@pytest.mark.parametrize("count", [16, pytest.param(90, marks=pytest.mark.slow)])
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["small", "large"])
@pytest.mark.parametrize("name", ["residual_cnn", "gemms"])
def test_what_is_kept_is_what_is_written(
    name: str, large: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(partition, "_SMALL", 0)
    job = order(tmp_path, name, count)
    table = job.table()
    journal = journal_of(table)
    assert all(entry.origin for entry in table.ranges)
    assert {one.outcome.value for one in journal.trials} <= OUTCOMES
    kept = [one.what for one in journal.kept]
    assert kept
    choices = [CalibrationOptions(method=method) for method in ("max", "mse", "entropy", "percentile")]
    tables = make_tables(job.histograms["auto"], job.placement, job.constants, choices)
    alone = {choice.method: made.by_tensor() for choice, made in zip(choices, tables, strict=True)}
    activations = [entry for entry in table.ranges if any("compared" in step for step in entry.origin)]
    assert activations
    means = [what for what in kept if what.startswith("mean of ")]
    for entry in activations:
        is_mean = any(step.startswith("mean of ") for step in entry.origin)
        is_other = any("second best" in step or step.startswith("times ") for step in entry.origin)
        is_other |= bool(entry.zero_point)
        assert is_mean <= bool(means)
        if not is_mean and not is_other:
            (single,) = [what for what in kept if what in alone] or [entry.method]
            assert entry.amax == alone[single][entry.tensor].amax


def test_two_searches_on_one_subject_and_one_objective_give_one_journal(tmp_path: Path) -> None:
    one, other = (journal_of(order(tmp_path, count=60).table()) for _ in range(2))
    assert one == other
    assert [trial.what for trial in one.trials] == [trial.what for trial in other.trials]


@pytest.mark.parametrize(
    ("recipe", "step"),
    [
        ({"calibrate": {"method": "mse"}}, "calibrator mse"),
        ({"calibrate": {"overrides": {"*": "max"}, "method": "mse"}}, "calibrate.overrides names '*'"),
        ({"calibrate": {"method": "max", "shrink": {"*": 0.5}}}, "times 0.5, as calibrate.shrink says"),
        (
            {"calibrate": {"method": "max"}, "weights": {"rounding": "gptq"}},
            "values rounded by gptq, with this range",
        ),
        (
            {"weights": {"equalize": "cross-layer"}, "calibrate": {"method": "max"}},
            "network equalized by cross-layer",
        ),
    ],
)
def test_a_range_names_what_the_recipe_decided(recipe: dict[str, object], step: str, tmp_path: Path) -> None:
    table = order(tmp_path, "conv_chain", **recipe).table()
    assert all(entry.origin for entry in table.ranges)
    assert any(step in entry.origin for entry in table.ranges)
    assert table.journal is None


def test_every_range_that_the_product_makes_names_its_origin() -> None:
    """A `TensorRange` without `origin` would answer `--why` with nothing."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "qdqtool").rglob("*.py"))
        if "TensorRange(" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TensorRange"
        if all(word.arg != "origin" for word in node.keywords)
    ]
    assert not silent


def test_a_stopped_candidate_is_dropped_and_an_equal_one_is_not_tried() -> None:
    loud, quiet = (4.0,) * 8, (1.0,) * 16
    found = {one.what: one for one in singles({"max": quiet, "mse": loud}, "max")}
    assert found["max"].outcome is TrialOutcome.KEPT
    assert found["mse"].outcome is TrialOutcome.DROPPED
    assert (found["mse"].value, found["mse"].samples) == (None, 8)
    assert found["mse"].gain == pytest.approx(-6.02, abs=0.01)
    table = CalibrationTable(ranges=())
    assert [one.why for one in same_ranges({"max": table, "twin": table}, ["max"])] == [
        "the ranges are equal to those of max"
    ]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 0.0])
def test_noise_that_is_no_number_has_a_row_too(odd: float) -> None:
    found = {one.what: one for one in singles({"max": (1.0, 2.0), "mse": (odd, 0.0)}, "max")}
    assert (found["mse"].value, found["mse"].gain) == (None, None)
    assert found["mse"].samples == 2
    assert ("NaN" in found["mse"].why) is (odd != 0.0)


def test_old_tables_are_read_and_new_ones_keep_their_journal(tmp_path: Path) -> None:
    table = order(tmp_path).table()
    CALIBRATION.write(tmp_path / "t.json", table)
    again = CALIBRATION.read(tmp_path / "t.json")
    assert (again.journal, [entry.origin for entry in again.ranges]) == (
        table.journal,
        [entry.origin for entry in table.ranges],
    )
    written = json.loads((tmp_path / "t.json").read_text())
    del written["data"]["journal"]
    for entry in written["data"]["ranges"]:
        del entry["origin"]
    (tmp_path / "t.json").write_text(canonical(written))
    old = CALIBRATION.read(tmp_path / "t.json")
    assert old.journal is None
    assert old.ranges == table.ranges


def test_the_command_prints_decisions_and_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["calibrate", str(DIGITS / "digits.onnx"), "--samples", str(DIGITS / "calibration.npz")]
    words += ["--set", "samples.limit=16"]
    out = tmp_path / "t.json"
    page = tmp_path / "page.html"
    assert run([*words, "-o", str(out), "--journal", "--page", str(page)]) == 0
    table = CALIBRATION.read(out)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "What was tried: ranges, by SQNR of the outputs"
    assert lines[1].split() == " ".join(HEAD).split()
    assert len(lines) == 2 + len(journal_of(table).trials)
    text = page.read_text("utf-8")
    assert "<h1>Ranges of digits.onnx</h1>" in text
    assert all(f"<td>{trial.what}</td>" in text for trial in journal_of(table).trials)
    entry = next(one for one in table.ranges if len(one.origin) > 1)
    assert run([*words, "--why", entry.tensor]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == entry.tensor
    assert [line.split(". ", 1)[1] for line in said[1 : 1 + len(entry.origin)]] == list(entry.origin)
    assert "rounded up" in said[-1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--why", "nothing"], "'nothing' has no range"),
        (["--why", "x", "--json"], "--why and --journal cannot be combined"),
        (["--journal", "--shard", "1/2", "-o", "part.npz"], "cannot be combined with --shard"),
        (["--page", "page.html", "--shard", "1/2", "-o", "part.npz"], "cannot be combined with --shard"),
    ],
)
def test_questions_without_an_answer_are_refused(
    more: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(models.save(models.conv_chain(), tmp_path))
    np.savez("s.npz", x=np.ones((4, 8, 8, 8), np.float32))
    out = [] if "-o" in more else ["-o", "t.json"]
    assert run(["calibrate", path, "--samples", "s.npz", "--method", "max", *out, *more]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("t.json").exists()


def test_without_a_choice_the_journal_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(models.save(models.conv_chain(), tmp_path))
    np.savez(tmp_path / "s.npz", x=np.ones((4, 8, 8, 8), np.float32))
    assert run(["calibrate", path, "--samples", str(tmp_path / "s.npz"), "--method", "max", "--journal"]) == 0
    assert "no ranges were tried" in capsys.readouterr().out


def float_set(count: int, sqnr: float) -> FloatSet:
    kept = tuple(f"n{number}" for number in range(count))
    return FloatSet(kept=kept, sqnr_db=sqnr, task=None, int8_nodes=4 - count, total_nodes=4)


def test_a_limit_of_accuracy_has_the_rows_of_a_journal() -> None:
    alternatives = tuple(
        Alternative(formats={"n0": name, "n1": name}, sqnr_db=sqnr, task=None, keeps=sqnr > 20, ms=1.0)
        for name, sqnr in (("fp16", 25.0), ("fp8", 12.0))
    )
    limit = FloatLimit(
        max_drop=None,
        min_sqnr=20.0,
        samples=50,
        whole=float_set(0, 10.0),
        path=(float_set(4, 40.0), float_set(1, 15.0), float_set(2, 22.0)),
        chosen=float_set(2, 22.0),
        evaluations=9,
        alternatives=alternatives,
        formats={"n0": "fp16", "n1": "fp16"},
    )
    found = limit.journal
    assert (found.search, found.unit) == ("limit of accuracy", "dB")
    assert [(one.what, one.outcome.value, one.value, one.gain) for one in found.trials] == [
        ("4 nodes float", "rejected", 40.0, 30.0),
        ("1 node float", "rejected", 15.0, 5.0),
        ("2 nodes float", "kept", 22.0, 12.0),
        ("2 nodes in fp16", "kept", 25.0, 15.0),
        ("2 nodes in fp8", "rejected", 12.0, 2.0),
    ]
    assert [one.why for one in found.trials][:3] == [
        "a smaller set meets the limit",
        "does not meet the limit",
        "the smallest set found that meets the limit",
    ]


def test_fixes_and_cures_have_the_rows_of_a_journal() -> None:
    def engine(kernels: int) -> Metrics:
        return Metrics(
            int8=1, compute=2, kernels=kernels, conversions=0, activation_bytes=None, accuracy=None
        )

    trials = (
        FixTrial(
            subject="a", edit="float", outcome=FixOutcome.KEPT, why="fewer", before=engine(9), after=engine(7)
        ),
        FixTrial(
            subject="b",
            edit="float",
            outcome=FixOutcome.UNDONE,
            why="more",
            before=engine(7),
            after=engine(8),
        ),
        FixTrial(subject="c", edit="float", outcome=FixOutcome.NOT_TRIED, why="budget"),
    )
    report = FixReport(
        model="m",
        trials=trials,
        before=engine(9),
        after=engine(7),
        builds=2,
        budget=2,
        metric="",
        max_drop=0.0,
    )
    assert [(one.outcome.value, one.value, one.gain) for one in report.journal.trials] == [
        ("kept", 7, 2),
        ("rejected", 8, -1),
        ("not tried", None, None),
    ]
    cures = tuple(
        Cure(what="mse", settings=("a=1",), gain_db=gain, gain_low=gain - 1, gain_high=gain + 1, samples=16)
        for gain in (2.0, 0.5, -3.0)
    )
    node = NodeSensitivity(
        node="n", op="Conv", members=(), share=1.0, alone_db=None, without_db=None, gain_db=None, task=None,
        samples=16, exact=True, cures=cures,
    )  # fmt: skip
    study = Sensitivity(
        model="m",
        samples=16,
        meaningful=True,
        whole=float_set(0, 10.0),
        nodes=(node,),
        curve=(),
        cures=cures[:1],
    )
    rows = study.journal.rows
    assert [(what, outcome) for what, outcome, *_ in rows] == [
        ("n: mse", "better"),
        ("n: mse", "tied"),
        ("n: mse", "rejected"),
        ("the whole network: mse", "better"),
    ]
    assert rows[0][2:4] == ("+2.00 dB", "+1.00 to +3.00")


def test_rows_have_a_cell_for_each_column() -> None:
    record = TrialRecord(what="mse", outcome=TrialOutcome.NOT_TRIED, why="no inferences left")
    found = Journal(search="ranges", objective="SQNR", unit="dB", trials=(record,))
    assert found.rows == (("mse", "not tried", "", "", "", "no inferences left"),)
    assert len(HEAD) == len(found.rows[0])


def test_neighbours_of_one_outcome_and_reason_are_one_row() -> None:
    undone = [
        TrialRecord(what=f"node {number}", outcome=TrialOutcome.REJECTED, why="not fewer kernels")
        for number in range(5)
    ]
    kept = TrialRecord(what="pair", outcome=TrialOutcome.KEPT, gain=2.0)
    found = Journal(search="s", objective="o", unit="kernels", trials=(*undone, kept, undone[0]))
    assert [(row[0], row[1]) for row in found.rows] == [
        ("node 0; node 1 and 3 more", "rejected"),
        ("pair", "kept"),
        ("node 0", "rejected"),
    ]
