"""`run --max-drop` and `--min-sqnr`: nodes stay float until the limit holds, and the engine proves it."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.app import run as cli
from qdqtool.cli.verdict import accuracy_missed
from qdqtool.core.advice import settings_in
from qdqtool.core.comparison import Comparison, TaskAccuracy
from qdqtool.core.kinds import BUILD, CALIBRATION, LIMIT, SENSITIVITY
from qdqtool.core.sensitivity import FloatSet
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.pipeline.search.float_nodes import Limit
from qdqtool.pipeline.search.limited_run import _check_task, _tighten_limit
from qdqtool.placement.decide import decide

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "recipes" / "examples" / "digits"
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = pytest.mark.rtx


def arguments(out: Path, *more: str) -> list[str]:
    samples = [
        "--samples",
        f"{DIGITS / 'calibration.npz'}[:32]",
        "--eval-samples",
        f"{DIGITS / 'evaluation.npz'}[:64]",
    ]
    return [
        "run",
        str(DIGITS / "digits.onnx"),
        *samples,
        "--set",
        "compare.task=agreement",
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps 3 dB more than the network with every node quantized."""
    out = tmp_path_factory.mktemp("limit")
    assert cli(arguments(out / "plain")) == 0
    level = json.loads((out / "plain" / "report.json").read_text("utf-8"))["data"]["comparison"]["sqnr"]
    (out / "level").write_text(str(level["sqnr_db"] + 3))
    assert cli(arguments(out / "limited", "--min-sqnr", str(level["sqnr_db"] + 3), "--sm", "89")) == 0
    return out


@pytest.mark.slow
def test_the_limit_is_kept_by_the_model_that_was_built(folder: Path) -> None:
    level = float((folder / "level").read_text())
    report = json.loads((folder / "limited" / "report.json").read_text("utf-8"))["data"]
    assert report["comparison"]["sqnr"]["sqnr_db"] >= level
    found = LIMIT.read(folder / "limited" / "limit.json")
    assert found.chosen is not None
    assert found.chosen.kept
    assert report["comparison"]["sqnr"]["sqnr_db"] == pytest.approx(found.chosen.sqnr_db, abs=1.0)
    assert not found.whole.sqnr_db >= level
    assert found.confidence == 0.9
    assert found.chosen.least_db >= level
    assert (found.samples, found.choosing, found.calibrated) == (64, 32, False)


def test_searches_measure_the_zero_points_that_the_model_has(folder: Path) -> None:
    plain = folder / "plain"
    assert CALIBRATION.read(plain / "calibration.json").zero_points is not None
    measured = json.loads((plain / "report.json").read_text("utf-8"))["data"]["comparison"]["sqnr"]["sqnr_db"]
    assert LIMIT.read(folder / "limited" / "limit.json").whole.sqnr_db == pytest.approx(measured, abs=0.2)
    words = ["sensitivity", str(plain / "model.qdq.onnx"), "--samples", f"{DIGITS / 'evaluation.npz'}[:64]"]
    assert cli([*words, "--no-causes", "--top", "1", "--out", str(folder / "sensitivity")]) == 0
    found = SENSITIVITY.read(folder / "sensitivity" / "sensitivity.json")
    assert found.whole.sqnr_db == pytest.approx(measured, abs=0.2)


@pytest.mark.slow
def test_the_nodes_stay_float_in_the_engine_and_cost_what_is_said(folder: Path) -> None:
    found = LIMIT.read(folder / "limited" / "limit.json")
    report = json.loads((folder / "limited" / "report.json").read_text("utf-8"))["data"]
    assert found.before.nodes_int8 > found.after.nodes_int8 == report["summary"]["nodes_int8"]
    assert found.after.engine_bytes == (folder / "limited" / "engine.plan").stat().st_size
    assert found.before.engine_bytes == (folder / "limited" / "quantized" / "engine.plan").stat().st_size
    float_nodes = {entry["node"] for entry in report["verdicts"] if entry["asked"] == "float"}
    assert set(found.chosen.kept) & {entry["node"] for entry in report["verdicts"]} <= float_nodes


def test_ranges_are_those_that_were_searched_with(folder: Path) -> None:
    whole = CALIBRATION.read(folder / "limited" / "quantized" / "calibration.json").by_tensor()
    for tensor, entry in CALIBRATION.read(folder / "limited" / "calibration.json").by_tensor().items():
        assert whole[tensor] == entry


def test_the_report_and_the_page_say_what_was_paid(folder: Path) -> None:
    report = json.loads((folder / "limited" / "report.json").read_text("utf-8"))["data"]
    kept = report["sections"]["limit"]["chosen"]["kept"]
    assert kept
    told = {entry["node"]: entry for entry in (*report["fallbacks"], *report["verdicts"])}
    reasons = [told[node]["reason"] for node in kept if node in told]
    assert reasons
    assert all("the accuracy limit keeps this node float" in reason for reason in reasons)
    page = (folder / "limited" / "report.html").read_text("utf-8")
    assert "Float nodes that the accuracy limit required" in page
    assert "Its cost" in page


SURFACES = (
    ("audit",),
    ("audit", "--json"),
    ("audit", "--format", "junit"),
    ("audit", "--format", "sarif"),
    ("audit", "--format", "markdown"),
    ("audit", "--format", "github"),
    ("report",),
    ("report", "--json"),
)
"""Commands that say of a run folder what could be done."""


@pytest.mark.parametrize("command", SURFACES, ids=" ".join)
def test_no_surface_names_a_fix_that_would_undo_the_limit(
    command: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every setting that is printed is taken: no node is quantized by it that the limit keeps float."""
    work = folder / "limited"
    assert cli([command[0], str(work), *command[1:]]) == 0
    undone(work, capsys.readouterr().out)


@pytest.mark.parametrize("name", ["report.html", "findings.json", "placement.json", "report.json"])
def test_no_file_names_a_fix_that_would_undo_the_limit(name: str, folder: Path) -> None:
    undone(folder / "limited", html.unescape((folder / "limited" / name).read_text("utf-8")))


def undone(work: Path, text: str) -> None:
    """Assert that nothing in the text quantizes what the limit keeps float."""
    kept = set(LIMIT.read(work / "limit.json").chosen.kept) & set(
        recipes.load(str(work / "recipe.yaml"), []).place.kept_float
    )
    assert kept
    view = load(work / "model.prepared.onnx").view
    settings = {word for line in text.replace('\\"', '"').splitlines() for word in settings_in(line)}
    for change in [(), *((word,) for word in settings if word.startswith("place."))]:
        place = recipes.load(str(work / "recipe.yaml"), list(change)).placing
        quantized = {one.slot.node for one in decide(view, place).decisions if one.quantize}
        assert not kept & quantized, change
    for node in kept:
        assert f"--int8 {node}" not in text


def test_the_recipe_in_the_folder_gives_the_nodes_without_a_search(folder: Path) -> None:
    kept = LIMIT.read(folder / "limited" / "limit.json").chosen.kept
    recipe = recipes.load(str(folder / "limited" / "recipe.yaml"), [])
    assert recipe.place.kept_float == kept


def test_the_same_command_again_does_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    level = (folder / "level").read_text()
    before = BUILD.read(folder / "limited" / "build.json")
    assert cli(arguments(folder / "limited", "--min-sqnr", level, "--sm", "89")) == 0
    said = capsys.readouterr()
    assert said.err.count("up to date") >= 24
    assert "Its cost" in said.out
    assert BUILD.read(folder / "limited" / "build.json") == before


def test_nodes_outside_int8_are_tried_in_fp8_and_fp16_and_the_fastest_engine_that_keeps_the_limit_is_taken(
    folder: Path,
) -> None:
    level = float((folder / "level").read_text())
    found = LIMIT.read(folder / "limited" / "limit.json")
    tried = {word for one in found.alternatives for word in one.formats.values()}
    assert tried == {"fp8", "fp16", "float"}
    for one in found.alternatives:
        assert set(one.formats) == set(found.chosen.kept)
        assert one.keeps == (one.sqnr_db >= level)
    built = [one for one in found.alternatives if one.cost is not None]
    assert len(built) > 1
    for one in built:
        plan = folder / "limited" / one.folder / "engine.plan"
        assert one.cost.engine_bytes == plan.stat().st_size
    best = min((one for one in built if one.keeps), key=lambda one: one.ms)
    assert found.formats == best.formats
    assert found.after == best.cost
    page = (folder / "limited" / "report.html").read_text("utf-8")
    assert "Formats that were tried for these nodes" in page
    assert found.device == "NVIDIA L4"


@pytest.mark.slow
def test_without_alternatives_nodes_outside_int8_are_of_the_float_parts_type(
    folder: Path, tmp_path: Path
) -> None:
    level = (folder / "level").read_text()
    more = ["--min-sqnr", level, "--set", "accuracy.alternatives=[]"]
    assert cli(arguments(tmp_path / "run", *more)) == 0
    found = LIMIT.read(tmp_path / "run" / "limit.json")
    assert found.chosen.kept
    assert found.alternatives == ()
    assert not (tmp_path / "run" / "float").exists()


@pytest.mark.slow
def test_a_limit_that_holds_anyway_keeps_nothing_float(folder: Path, tmp_path: Path) -> None:
    assert cli(arguments(tmp_path / "run", "--max-drop", "100")) == 0
    found = LIMIT.read(tmp_path / "run" / "limit.json")
    assert found.chosen == found.whole
    assert found.before == found.after


@pytest.mark.slow
def test_labels_in_the_file_of_the_samples_are_enough_for_a_drop(tmp_path: Path) -> None:
    with np.load(DIGITS / "evaluation.npz") as stored:
        images = stored["image"][:16]
    np.savez(tmp_path / "labelled.npz", image=images, y=np.zeros(len(images), np.int64))
    samples = ["--eval-samples", str(tmp_path / "labelled.npz"), "--set", "compare.task=classify"]
    assert cli(arguments(tmp_path / "run", "--max-drop", "100", *samples)) == 0
    assert LIMIT.read(tmp_path / "run" / "limit.json").chosen.task.metric == "top1"


def test_a_drop_without_labels_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(tmp_path / "run", "--max-drop", "1", "--set", "compare.task=classify")
    assert cli(command) == 2
    assert "--labels" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_drop_of_a_task_that_the_output_does_not_fit_says_what_the_output_lacks() -> None:
    note = "no task metric: an output of shape (1, 10) holds no class scores at each position of a line"
    compared = Comparison(
        reference="float", candidate="int8", samples=1, meaningful=True, outputs=(), notes=(note,)
    )
    with pytest.raises(UsageError, match=re.escape(note.removeprefix("no task metric: "))):
        _check_task(compared, Limit(max_drop=1.0))


def test_a_set_that_was_not_enough_does_not_meet_the_limit_of_the_next_search() -> None:
    """A search that loses no sample by a set would find the same set again."""
    task = TaskAccuracy(metric="agreement", unit="%", reference=100.0, candidate=100.0, samples=50)
    chosen = FloatSet(kept=("a",), sqnr_db=19.6, task=task, int8_nodes=9, total_nodes=10)
    lacking = Limit(max_drop=1.5, min_sqnr=0.0)
    for asked in (
        Limit(max_drop=0.5),
        Limit(max_drop=0.0),
        Limit(max_drop=3.0),
        Limit(max_drop=3.0, min_sqnr=10.0),
    ):
        tight = _tighten_limit(asked, lacking, chosen)
        assert not tight.is_met(chosen)
        assert tight.is_met(replace(chosen, sqnr_db=20.7))
    lossy = replace(chosen, task=replace(task, candidate=99.6))
    assert _tighten_limit(Limit(max_drop=0.5), lacking, lossy) == Limit(max_drop=0.0)
    assert _tighten_limit(Limit(min_sqnr=19.0), Limit(min_sqnr=1.0), chosen) == Limit(min_sqnr=20.0)


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_loss_of_as_many_samples_as_the_limit_allows_keeps_it(lost: int) -> None:
    """100 * a / n - 100 * b / n is often a little more than 100 * (a - b) / n."""
    for samples in (7, 49, 300, 1000):
        for right in range(lost, samples + 1, 3):
            shares = [100 * count / samples for count in (right, right - lost)]
            task = TaskAccuracy(
                metric="top1", unit="%", reference=shares[0], candidate=shares[1], samples=samples
            )
            comparison = Comparison(
                reference="a", candidate="b", samples=samples, meaningful=True, outputs=(), task=(task,)
            )
            chosen = FloatSet(kept=(), sqnr_db=None, task=task, int8_nodes=1, total_nodes=1)
            limit = Limit(max_drop=100 * lost / samples)
            assert limit.is_met(chosen)
            assert accuracy_missed(comparison, limit.max_drop) == []
            strict = Limit(max_drop=100 * (lost - 0.5) / samples)
            assert not strict.is_met(chosen)
