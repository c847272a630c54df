"""From histograms and weights to ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrators.histogram import histogram_of, merge
from qdqtool.calibration.collect import collect
from qdqtool.calibration.histograms import Histograms, Span
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import bounds, calibrator, groups, make_table
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.grids import grid_for
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.placement import SharedScale
from qdqtool.core.recipe import CalibrationOptions
from qdqtool.core.tensors import INT8
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.view import Model
from tests import models
from tests.calibration.material import images, opened, placed

METHODS = ("max", "entropy", "percentile", "legacy", "mse", "best")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return opened(models.residual_cnn(), tmp_path)


@pytest.fixture
def seen(model: Model, tmp_path: Path) -> Histograms:
    return collect(
        model, placed(model), open_samples(str(images(tmp_path, 8, (3, 16, 16))), model.view.inputs)
    )


def table(
    model: Model, seen: Histograms, ties: tuple[SharedScale, ...] = (), **options: object
) -> CalibrationTable:
    return make_table(seen, placed(model, ties), model.view, CalibrationOptions(**options))  # type: ignore[arg-type]


def test_every_quantized_tensor_gets_one_range_sorted_by_name(model: Model, seen: Histograms) -> None:
    found = table(model, seen)
    wanted = {decision.tensor for decision in placed(model).quantized}
    assert [entry.tensor for entry in found.ranges] == sorted(wanted)
    assert all(amax > 0 for entry in found.ranges for amax in entry.amax)
    assert (found.samples, found.meaningful) == (8, True)


@pytest.mark.parametrize("method", METHODS)
def test_the_method_of_the_recipe_decides(method: str, model: Model, seen: Histograms) -> None:
    entry = table(model, seen, method=method).by_tensor()["relu1_y"]
    assert entry.amax == (calibrator(method)(seen.tensors["relu1_y"], grid_for(INT8)).amax,)


def test_the_percentile_of_the_recipe_is_taken(model: Model, seen: Histograms) -> None:
    low, high = (
        table(model, seen, method="percentile", percentile=p).by_tensor()["x"].amax for p in (90, 99.99)
    )
    assert low < high
    assert table(model, seen, method="percentile:90").by_tensor()["x"].amax == low


def test_an_override_wins_for_matching_tensors(model: Model, seen: Histograms) -> None:
    found = table(model, seen, method="entropy", overrides={"relu1*": "max", "relu*": "mse"}).by_tensor()
    assert [found[name].method for name in ("relu1_y", "relu2_y", "x")] == ["max", "mse", "entropy"]


def test_a_range_shrinks_by_the_first_factor_that_matches(model: Model, seen: Histograms) -> None:
    plain = table(model, seen, method="max").by_tensor()
    found = table(model, seen, method="max", shrink={"relu1*": 0.5, "relu*": 0.75}).by_tensor()
    shares = {name: found[name].amax[0] / plain[name].amax[0] for name in ("relu1_y", "relu2_y", "x")}
    assert shares == pytest.approx({"relu1_y": 0.5, "relu2_y": 0.75, "x": 1.0})
    assert "times 0.5" in found["relu1_y"].note


@pytest.mark.parametrize(
    ("word", "fix"), [("entopy", "entropy"), ("percentile:200", "99.9"), ("max:3", "99.9")]
)
def test_an_unknown_method_is_refused(word: str, fix: str, model: Model, seen: Histograms) -> None:
    with pytest.raises(UsageError) as caught:
        table(model, seen, method=word)
    assert fix in caught.value.fix


def test_tied_tensors_share_the_range_of_their_common_histogram(model: Model, seen: Histograms) -> None:
    tie = SharedScale(tensors=("relu1_y", "relu3_y"), rule="test", reason="")
    found = table(model, seen, (tie,), method="mse").by_tensor()
    together = merge(seen.tensors["relu1_y"], seen.tensors["relu3_y"])
    assert (
        found["relu1_y"].amax == found["relu3_y"].amax == (calibrator("mse")(together, grid_for(INT8)).amax,)
    )
    assert found["relu1_y"].note == "shares its range with relu3_y"
    assert found["relu1_y"].high != found["relu3_y"].high


def test_ties_that_overlap_are_one_group(model: Model) -> None:
    ties = (
        SharedScale(tensors=("x", "relu1_y"), rule="a", reason=""),
        SharedScale(tensors=("relu1_y", "relu2_y"), rule="b", reason=""),
        SharedScale(tensors=("flat_y", "nobody"), rule="c", reason=""),
        SharedScale(tensors=("nobody2", "nobody3"), rule="d", reason=""),
    )
    found = groups(placed(model, ties))
    assert ("relu1_y", "relu2_y", "x") in found
    assert ("flat_y", "nobody") in found
    assert not any("nobody2" in group for group in found)


def test_weights_are_ranged_per_channel(model: Model, seen: Histograms) -> None:
    for weights, is_max in (("max", True), ("mse", False)):
        entry = table(model, seen, weights=weights).by_tensor()["conv1_w"]
        largest = np.abs(model.view.constant("conv1_w")).max(axis=(1, 2, 3))
        assert (entry.axis, len(entry.amax), entry.method) == (0, 8, weights)
        assert np.array_equal(entry.amax, largest) or (not is_max and np.all(np.array(entry.amax) <= largest))


def with_weights(value: np.ndarray, folder: Path) -> Model:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", value.shape[0]])
    sketch.output(
        sketch.node("MatMul", [x, sketch.constant("w", value)], "y", name="mm"), ["N", value.shape[1]]
    )
    return opened(sketch.model(), folder)


def ones(model: Model, width: int) -> Histograms:
    return Histograms(tensors={"x": histogram_of(np.ones(width))}, samples=1, span=Span(total=1, done=1))


def test_a_channel_of_zeros_gets_a_range_and_a_note(tmp_path: Path) -> None:
    model = with_weights(np.array([[1.0, 0.0], [-2.0, 0.0]], np.float32), tmp_path)
    entry = table(model, ones(model, 2)).by_tensor()["w"]
    assert entry.amax == (2.0, 2.0)
    assert entry.note == "1 of 2 channels hold zeros only"


def test_a_tensor_that_never_fired_says_so(tmp_path: Path) -> None:
    model = with_weights(np.eye(2, dtype=np.float32), tmp_path)
    dead = Histograms(tensors={"x": histogram_of(np.zeros(2))}, samples=1, span=Span(total=1, done=1))
    for method in METHODS:
        entry = table(model, dead, method=method).by_tensor()["x"]
        assert entry.amax == (1.0,)
        assert "zero in every sample" in entry.note


def test_a_constant_tensor_has_its_own_value_as_range(tmp_path: Path) -> None:
    model = with_weights(np.eye(2, dtype=np.float32), tmp_path)
    constant = Histograms(
        tensors={"x": histogram_of(np.full(9, -3.5))}, samples=1, span=Span(total=1, done=1)
    )
    for method in ("max", "entropy", "percentile", "best"):
        assert table(model, constant, method=method).by_tensor()["x"].amax == (3.5,)


def test_bounds_follow_the_graph(tmp_path: Path) -> None:
    assert {
        name: bound.amax for name, bound in bounds(opened(models.depthwise_cnn(), tmp_path).view).items()
    } == {
        "stem_clip_y": 6.0,
        "dw_clip_y": 6.0,
        "pw_clip_y": 6.0,
    }
    found = bounds(opened(models.attention(), tmp_path).view)
    assert {name: bound.saturates for name, bound in found.items()} == {"weights": True}


def test_probabilities_are_never_clipped_below_what_was_seen(tmp_path: Path) -> None:
    model = opened(models.attention(), tmp_path)
    seen = collect(model, placed(model), open_samples("random:8", model.view.inputs))
    entry = table(model, seen, method="percentile", percentile=50.0).by_tensor()["weights"]
    assert entry.amax == (seen.tensors["weights"].amax,)
    assert entry.note == "bounded by Softmax"


def test_a_clipped_tensor_never_gets_a_range_beyond_its_clip(tmp_path: Path) -> None:
    model = opened(models.depthwise_cnn(), tmp_path)
    seen = collect(model, placed(model), open_samples("random:8", model.view.inputs))
    for method in METHODS:
        entry = table(model, seen, method=method).by_tensor()["stem_clip_y"]
        assert entry.amax[0] <= 6.0


def test_a_tensor_that_was_not_collected_is_named(model: Model, seen: Histograms) -> None:
    rest = replace(seen, tensors={name: found for name, found in seen.tensors.items() if name != "x"})
    with pytest.raises(InputFileError, match="no histogram was collected for tensor 'x'"):
        table(model, rest)


def test_extremes_alone_allow_max_and_nothing_else(model: Model, tmp_path: Path) -> None:
    samples = open_samples(str(images(tmp_path, 2, (3, 16, 16))), model.view.inputs)
    quick = collect(model, placed(model), samples, options=CollectOptions(bins=False))
    assert table(model, quick, method="max").ranges
    with pytest.raises(InputFileError, match="only the extremes"):
        table(model, quick, method="entropy")


def test_half_a_collection_is_refused(model: Model, seen: Histograms) -> None:
    for span in (Span(total=9, done=8), Span(shard=1, shards=2, total=9, done=4)):
        with pytest.raises(InputFileError, match="do not cover all samples"):
            table(model, replace(seen, span=span))


def test_the_table_survives_its_artefact_and_is_the_same_every_time(
    model: Model, seen: Histograms, tmp_path: Path
) -> None:
    first = table(model, seen)
    assert CALIBRATION.dump(first) == CALIBRATION.dump(table(model, seen))
    CALIBRATION.write(tmp_path / "t.json", first)
    assert CALIBRATION.read(tmp_path / "t.json") == first


def test_random_samples_make_a_meaningless_table(model: Model) -> None:
    seen = collect(model, placed(model), open_samples("random:2", model.view.inputs))
    assert not table(model, seen).meaningful


def bounded(folder: Path, op: str, others: tuple[str, ...] = ()) -> tuple[Model, dict[str, TensorRange]]:
    """Two MatMul that read `op` of x, and x itself; `others` share the range of the first one's input."""
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 4])
    weight = sketch.constant("w", np.eye(4, dtype=np.float32))
    limited = sketch.node(op, [x], "limited", name="limit")
    sketch.output(sketch.node("MatMul", [limited, weight], "y", name="mm"), ["N", 4])
    sketch.output(sketch.node("MatMul", [x, weight], "z", name="plain"), ["N", 4])
    model = opened(sketch.model(), folder)
    crowd = np.concatenate([np.linspace(0, 0.4, 20_000), np.linspace(0.4, 0.9, 40)])
    seen = Histograms(
        tensors={"limited": histogram_of(crowd), "x": histogram_of(crowd)},
        samples=1,
        span=Span(total=1, done=1),
    )
    ties = (SharedScale(tensors=("limited", *others), rule="a", reason=""),) if others else ()
    return model, table(model, seen, ties=ties, method="percentile:99").by_tensor()


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Softmax"])
def test_what_saturates_keeps_the_largest_value_seen_and_no_more(op: str, tmp_path: Path) -> None:
    found = bounded(tmp_path, op)[1]
    assert found["limited"].amax == (pytest.approx(0.9),)
    assert (found["limited"].method, found["limited"].note) == ("max", f"bounded by {op}")
    assert found["x"].amax[0] < 0.42


def test_what_does_not_saturate_is_clipped_as_the_method_says(tmp_path: Path) -> None:
    found = bounded(tmp_path, "Relu")[1]
    assert found["limited"].amax == found["x"].amax
    assert found["limited"].note == ""


def test_a_bound_that_not_all_of_a_group_have_is_none(tmp_path: Path) -> None:
    found = bounded(tmp_path, "Sigmoid", others=("x",))[1]
    assert found["limited"].amax == found["x"].amax
    assert found["limited"].amax[0] < 0.42
    assert "bounded" not in found["limited"].note
