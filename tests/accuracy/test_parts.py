"""What an output holds of boxes and scores, or was chosen from, is compared by itself, and says what the output hides."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.parts import group_outputs, with_parts
from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.comparison import Comparison, loss, sqnr, subject
from qdqtool.core.protocols import Feeds
from qdqtool.core.recipe import CalibrationOptions, CompareOptions, InsertOptions, PlacementOptions, Recipe
from qdqtool.graph.instrumented.stages import StagedModel
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline import comparing
from qdqtool.pipeline.search.subsets import TrialRunner
from qdqtool.pipeline.search.switched import StagedRunner
from qdqtool.placement.decide import decide
from qdqtool.report.words import part as told
from qdqtool.runtime.runner import open_model
from tests import models

_ROWS = np.array([0, 3, 2], np.int64)


def detector(
    folder: Path, name: str, *, chosen: bool, box_noise: float = 0.0, score_noise: float = 0.0
) -> Model:
    """Three boxes in pixels with a score each, all in a row or the two best of them, best first."""
    s = models.Sketch(3)
    s.input("x", ("n", 16))
    weight = np.random.default_rng(5).standard_normal((16, 9)).astype(np.float32)
    noise = np.random.default_rng(6).standard_normal((16, 9)).astype(np.float32)
    noise *= np.where(np.arange(9) < 6, box_noise, score_noise)
    s.node("MatMul", ["x", s.constant("w", (weight + noise).astype(np.float32))], "all", name="layer")
    sizes = s.constant("sizes", np.array([6, 3], np.int64))
    s.nodes.append(onnx.helper.make_node("Split", ["all", sizes], ["place", "sure"], name="split", axis=1))
    boxes = s.node("Reshape", ["place", s.constant("rows", _ROWS)], "lines")
    boxes = s.node("Mul", [boxes, s.constant("size", np.float32(320))], "boxes", name="scale")
    likely = s.node("Sigmoid", ["sure"], "likely", name="squash")
    last = s.constant("last", np.array([2], np.int64))
    column = s.node("Unsqueeze", [likely, last], "column", name="stand")
    if chosen:
        few = s.constant("few", np.array([2], np.int64))
        s.nodes.append(
            onnx.helper.make_node("TopK", [likely, few], ["score", "number"], name="choose", axis=1)
        )
        places = s.node(
            "Tile",
            [
                s.node("Unsqueeze", ["number", last], "place_column"),
                s.constant("twice", np.array([1, 1, 2], np.int64)),
            ],
            "places",
        )
        boxes = s.node("GatherElements", [boxes, places], "best_boxes", name="pick", axis=1)
        column = s.node("Unsqueeze", ["score", last], "best_column")
    s.output(s.node("Concat", [boxes, column], "rows_of_all", name="join", axis=2), None, TensorProto.FLOAT)
    return load(models.save(s.model(), folder, f"{name}.onnx"))


def compared(folder: Path, *, chosen: bool, box_noise: float, score_noise: float) -> Comparison:
    plain = detector(folder, "plain", chosen=chosen)
    other = detector(folder, "other", chosen=chosen, box_noise=box_noise, score_noise=score_noise)
    rows = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    np.savez(folder / "s.npz", x=rows)
    samples = open_samples(str(folder / "s.npz"), plain.view.inputs)
    first, second, parts = with_parts(plain, other)
    left, right = (open_model(model, description=str(model.path)) for model in (first, second))
    return compare(left, right, samples, CompareOptions(task="none"), parts=parts)


def level(signal: np.ndarray, noise: np.ndarray) -> float:
    return 10 * math.log10(np.square(signal).sum() / np.square(noise).sum())


@pytest.mark.parametrize("chosen", [False, True], ids=["side by side", "chosen by a TopK"])
def test_each_part_has_its_own_level_and_the_whole_is_their_mean(chosen: bool, tmp_path: Path) -> None:
    found = compared(tmp_path, chosen=chosen, box_noise=0.001, score_noise=0.3)
    weight = np.random.default_rng(5).standard_normal((16, 9))
    noise = np.random.default_rng(6).standard_normal((16, 9)) * np.where(np.arange(9) < 6, 0.001, 0.3)
    rows = np.load(tmp_path / "s.npz")["x"].astype(np.float64)
    values = [rows @ weight, rows @ (weight + noise)]
    sure = [1 / (1 + np.exp(-each[:, 6:])) for each in values]
    wanted = {
        "boxes": level(values[0][:, :6], values[1][:, :6] - values[0][:, :6]),
        "likely": level(sure[0], sure[1] - sure[0]),
    }
    levels = {part.tensors[0].replace("column", "likely"): part.sqnr_db for part in found.parts}
    assert levels == {name: pytest.approx(each, rel=1e-3) for name, each in wanted.items()}
    assert [part.chosen for part in found.parts] == [chosen, chosen]
    assert [entry.output for entry in found.outputs] == ["rows_of_all"]
    mean = np.mean([10 ** (-each / 10) for each in wanted.values()])
    assert found.sqnr is not None
    assert found.sqnr.sqnr_db == pytest.approx(-10 * math.log10(mean), rel=1e-3)
    assert found.sqnr.low is not None
    assert found.sqnr.low < found.sqnr.sqnr_db
    assert any("selects and sorts" in note for note in found.notes) is chosen
    verb = "was chosen from" if chosen else "contains"
    assert all(told(part).startswith(f"rows_of_all {verb} ") for part in found.parts)


def test_large_models_are_compared_by_their_parts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, noise in (("plain", 0.0), ("other", 0.3)):
        detector(tmp_path, name, chosen=True, box_noise=0.001, score_noise=noise)
    match = comparing.ComparedSides(
        reference=str(tmp_path / "plain.onnx"),
        candidate=str(tmp_path / "other.onnx"),
        samples="random:3",
        labels=None,
        recipe=Recipe(),
    )
    together = comparing.compare_match(match)
    assert together.parts
    monkeypatch.setattr(comparing, "LARGE", 1)
    assert comparing.compare_match(match) == together


def test_noise_of_scores_is_found_though_boxes_hide_it(tmp_path: Path) -> None:
    """The output as a whole is as good as its boxes."""
    found = compared(tmp_path, chosen=False, box_noise=0.001, score_noise=2.0)
    whole = next(each.value for each in found.outputs[0].measures if each.metric == "sqnr_db")
    assert whole is not None
    assert whole > 50
    severity, words = loss(found)
    assert severity is not None
    assert "in output 'rows_of_all' has" in words
    assert subject(found) == "rows_of_all"
    worst = min(part.sqnr_db for part in found.parts if part.sqnr_db is not None)
    assert sqnr(found) == worst < 15
    assert {entry.output for entry in found.worst} == {"rows_of_all: " + found.parts[-1].tensors[0]}


def test_rows_that_change_places_are_no_loss(tmp_path: Path) -> None:
    """Scores that hardly differ change places; nothing that was chosen from is damaged."""
    found = compared(tmp_path, chosen=True, box_noise=0.001, score_noise=0.1)
    whole = next(each.value for each in found.outputs[0].measures if each.metric == "sqnr_db")
    levels = [part.sqnr_db for part in found.parts if part.sqnr_db is not None]
    assert whole is not None
    assert whole < max(levels) - 10
    assert loss(found) == (None, "")


def test_a_model_without_such_outputs_is_left_alone(tmp_path: Path) -> None:
    model = load(models.save(models.conv_chain(), tmp_path))
    assert with_parts(model, model) == (model, model, ())


def test_a_candidate_without_the_nodes_is_compared_by_its_outputs(tmp_path: Path) -> None:
    plain = detector(tmp_path, "plain", chosen=False)
    assert with_parts(plain, load(models.save(models.conv_chain(), tmp_path)))[2] == ()
    assert [part.output for part in with_parts(plain, plain)[2]] == ["rows_of_all", "rows_of_all"]


def several(folder: Path) -> Model:
    """Two layers' outputs of different size behind one that only passes a mask on."""
    s = models.Sketch(3)
    s.input("x", ("n", 16))
    mask = s.node(
        "Cast", [s.node("Greater", ["x", s.constant("zero", np.float32(0))], "above")], "mask", to=1
    )
    s.output(mask, None)
    s.output(s.node("MatMul", ["x", s.weight("w1", 16, 32)], "large", name="layer"), None)
    hundred = s.constant("hundred", np.float32(0.01))
    small = s.node("MatMul", ["large", s.weight("w2", 32, 32)], "inner", name="second")
    s.output(s.node("Mul", [small, hundred], "small"), None)
    return load(models.save(s.model(), folder, "several.onnx"))


def aside(folder: Path) -> Model:
    return detector(folder, "plain", chosen=False)


def chosen_rows(folder: Path) -> Model:
    return detector(folder, "plain", chosen=True)


@pytest.mark.parametrize("make", [aside, chosen_rows, several], ids=lambda make: make.__name__)
def test_trials_measure_what_a_comparison_measures(make: Callable[[Path], Model], tmp_path: Path) -> None:
    """A limit of accuracy is searched by trials, and held against the comparison."""
    plain = make(tmp_path)
    rows = np.random.default_rng(1).standard_normal((12, 16)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=rows)
    samples = open_samples(str(tmp_path / "s.npz"), plain.view.inputs)
    placement = decide(plain.view, PlacementOptions(last_layer="int8", skip_rules=("narrow",)))
    table = make_table(
        collect(plain, placement, samples), placement, plain.view, CalibrationOptions(method="max")
    )
    quantized = insert(plain, placement, table, InsertOptions())
    first, second, parts = with_parts(plain, quantized)
    options = CompareOptions(task="none")
    runner = StagedRunner(StagedModel(second, plain=first), "staged", optimized=False)
    trials = TrialRunner(runner, options, parts=parts)
    assert trials.nodes[0] == "layer"
    outcome = trials.run({"all": frozenset(trials.nodes)}, samples)["all"]
    left, right = (open_model(model, description="test") for model in (first, second))
    found = compare(left, right, samples, options, parts=parts)
    assert found.sqnr is not None
    assert outcome.decibel == pytest.approx(found.sqnr.sqnr_db, abs=0.05)


def test_an_output_that_no_layer_computes_dilutes_nothing(tmp_path: Path) -> None:
    plain = several(tmp_path)
    first, second, parts = with_parts(plain, plain)
    assert group_outputs([info.name for info in plain.view.outputs], parts) == (("large",), ("small",))
    assert [info.name for info in first.view.outputs] == ["mask", "large", "small"]
    rows = np.random.default_rng(1).standard_normal((12, 16)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=rows)
    samples = open_samples(str(tmp_path / "s.npz"), plain.view.inputs)
    left, right = (open_model(model, description="test") for model in (first, second))
    assert right.run({"x": rows}).keys() == {"mask", "large", "small"}

    class Noisy:
        description = "noisy"
        inputs = right.inputs
        outputs = right.outputs
        at_once = 1

        def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
            found = right.run(feeds)
            return {**found, "large": found["large"] * 1.1, "small": found["small"] * 1.01}

    both = compare(left, Noisy(), samples, CompareOptions(task="none"), parts=parts)
    assert both.parts == ()
    assert both.sqnr is not None
    assert both.sqnr.output == "large and 1 more"
    assert both.sqnr.sqnr_db == pytest.approx(-10 * math.log10((0.1**2 + 0.01**2) / 2), rel=1e-3)
    named = compare(left, Noisy(), samples, CompareOptions(task="none", output="small"), parts=parts)
    assert named.sqnr is not None
    assert named.sqnr.sqnr_db == pytest.approx(40, rel=1e-3)


def test_a_part_that_cannot_be_measured_is_said_and_the_output_measured(tmp_path: Path) -> None:
    """What is NaN may never be chosen; a limit must not be kept for want of a figure."""
    plain = detector(tmp_path, "plain", chosen=False)
    first, second, parts = with_parts(plain, plain)
    rows = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=rows)
    samples = open_samples(str(tmp_path / "s.npz"), plain.view.inputs)
    left, right = (open_model(model, description="test") for model in (first, second))

    class Broken:
        description = "broken"
        inputs = right.inputs
        outputs = right.outputs
        at_once = 1

        def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
            found = right.run(feeds)
            spoilt = {name: found[name] * np.nan for part in parts for name in part.names}
            return {**found, **spoilt, "rows_of_all": found["rows_of_all"] * 1.1}

    found = compare(left, Broken(), samples, CompareOptions(task="none"), parts=parts)
    assert found.parts == ()
    assert sum("is not compared separately" in note for note in found.notes) == len(parts)
    assert found.sqnr is not None
    assert found.sqnr.sqnr_db == pytest.approx(20, rel=1e-3)
