"""A softmax that ends a network is found in each of its forms, in float and in Q/DQ, and its scores tell the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import Samples, open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions
from qdqtool.graph.endings import endings, in_front_of, quantities, returning, scores
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.reference import Budget, OutputReference, Reference
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models

Ending = Callable[[models.Sketch, str], str]


def network(end: Ending) -> onnx.ModelProto:
    """Two layers; scores of (n, 6)."""
    s = models.Sketch(3)
    s.input("x", ("n", 16))
    s.node("Gemm", ["x", s.weight("w1", 16, 32), s.weight("b1", 32)], "h1", name="first")
    s.node("Relu", ["h1"], "r")
    s.node("Gemm", ["r", s.weight("w2", 32, 6), s.weight("b2", 6)], "scores", name="second")
    s.output(end(s, "scores"), None)
    return s.model()


def plain(s: models.Sketch, x: str) -> str:
    return s.node("Softmax", [x], "y", name="end", axis=-1)


def moved(s: models.Sketch, x: str) -> str:
    shape = s.constant("shape", np.array([-1, 6, 1], np.int64))
    y = s.node("Reshape", [plain(s, x), shape], "reshaped")
    return s.node("Cast", [s.node("Identity", [y], "same")], "cast", to=TensorProto.FLOAT)


def written_out(s: models.Sketch, x: str) -> str:
    largest = s.node("ReduceMax", [x], "largest", axes=[1], keepdims=1)
    return _ratio(s, s.node("Sub", [x, largest], "shifted", name="end"))


def bare(s: models.Sketch, x: str) -> str:
    return _ratio(s, x, name="end")


def _ratio(s: models.Sketch, x: str, name: str = "power") -> str:
    power = s.node("Exp", [x], "power", name=name)
    axes = s.constant("axes", np.array([1], np.int64))
    return s.node("Div", [power, s.node("ReduceSum", [power, axes], "sum", keepdims=1)], "y")


def many(s: models.Sketch, x: str) -> str:
    shape = s.constant("shape", np.array([-1, 3, 2], np.int64))
    return plain(s, s.node("Reshape", [x, shape], "rows"))


def inside(s: models.Sketch, x: str) -> str:
    return s.node("MatMul", [plain(s, x), s.weight("w3", 6, 4)], "z")


def other_ratio(s: models.Sketch, x: str) -> str:
    axes = s.constant("axes", np.array([1], np.int64))
    return s.node("Div", [s.node("Exp", [x], "power"), s.node("ReduceSum", [x, axes], "sum")], "y")


def opened(end: Ending, folder: Path) -> Model:
    return load(models.save(network(end), folder))


def calibrated(
    model: Model, folder: Path
) -> tuple[NDArray[np.float32], Samples, Placement, CalibrationTable]:
    """Nine samples, and what is quantized by the largest magnitudes in them."""
    values = np.random.default_rng(1).standard_normal((9, 16)).astype(np.float32)
    np.savez(folder / "s.npz", x=values)
    samples = open_samples(str(folder / "s.npz"), model.view.inputs)
    placement = decide(model.view, PlacementOptions())
    histograms = collect(model, placement, samples)
    return (
        values,
        samples,
        placement,
        make_table(histograms, placement, model.view, CalibrationOptions(method="max")),
    )


@pytest.mark.parametrize("end", [plain, moved, written_out, bare], ids=lambda end: end.__name__)
def test_each_form_is_found_and_its_scores_tell_the_output(end: Ending, tmp_path: Path) -> None:
    model = opened(end, tmp_path)
    (output,) = (info.name for info in model.view.outputs)
    assert endings(model.view) == {output: (("end", 0),)}
    found = scores(model.view, endings(model.view))
    assert found == {output: "scores"}
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    small = open_runner(serialize(returning(model, found)), description="scores").run({"x": x})
    whole = open_runner(serialize(model), description="all").run({"x": x})
    power = np.exp(small["scores"])
    np.testing.assert_allclose(
        whole[output].reshape(5, 6), power / power.sum(axis=1, keepdims=True), rtol=1e-4
    )


@pytest.mark.parametrize("end", [inside, other_ratio, many], ids=lambda end: end.__name__)
def test_what_is_no_softmax_or_not_the_end_is_judged_as_it_is(end: Ending, tmp_path: Path) -> None:
    model = opened(end, tmp_path)
    assert endings(model.view) == {}
    found = scores(model.view, {})
    assert all(name == tensor for name, tensor in found.items())
    assert returning(model, found) is model


def boxes_and_scores(s: models.Sketch, x: str) -> str:
    """Two coordinates in pixels beside four scores, as detectors return them."""
    sizes = s.constant("sizes", np.array([2, 4], np.int64))
    s.nodes.append(onnx.helper.make_node("Split", [x, sizes], ["place", "sure"], name="split", axis=1))
    boxes = s.node("Mul", ["place", s.constant("stride", np.float32(320))], "boxes")
    joined = s.node("Concat", [boxes, s.node("Sigmoid", ["sure"], "likely")], "joined", axis=1)
    return s.node("Identity", [joined], "y")


def nested(s: models.Sketch, x: str) -> str:
    both = boxes_and_scores(s, x)
    return s.node("Concat", [both, s.node("HardSigmoid", [x], "other")], "z", axis=1)


def of_one_kind(s: models.Sketch, x: str) -> str:
    return s.node("Concat", [s.node("Relu", [x], "left"), s.node("Neg", [x], "right")], "y", axis=1)


def beside_a_constant(s: models.Sketch, x: str) -> str:
    row = s.constant("row", np.ones((1, 6), np.float32))
    return s.node("Concat", [s.node("Sigmoid", [x], "likely"), row], "y", axis=0)


@pytest.mark.parametrize(
    ("end", "parts"),
    [(boxes_and_scores, ["boxes", "likely"]), (nested, ["boxes", "likely", "other"])],
    ids=["one Concat", "a Concat of another"],
)
def test_boxes_and_scores_in_one_output_are_judged_apart(
    end: Ending, parts: list[str], tmp_path: Path
) -> None:
    model = opened(end, tmp_path)
    (output,) = (info.name for info in model.view.outputs)
    found = scores(model.view, endings(model.view))
    assert list(found.values()) == parts
    assert list(found) == [f"{output}[{number}]" for number in range(len(parts))]


def test_scores_of_several_maps_are_one_quantity(tmp_path: Path) -> None:
    model = opened(nested, tmp_path)
    (output,) = (info.name for info in model.view.outputs)
    assert quantities(model.view, endings(model.view)) == (
        (f"{output}[0]",),
        (f"{output}[1]", f"{output}[2]"),
    )
    assert quantities(model.view, {}) == ((output,),)


def best_first(s: models.Sketch, x: str) -> str:
    """Rows of two coordinates, a score and its number, best first, as detectors that end in a TopK return them."""
    sizes = s.constant("sizes", np.array([3, 3], np.int64))
    rows = s.constant("rows", np.array([0, 3, 1], np.int64))
    s.nodes.append(onnx.helper.make_node("Split", [x, sizes], ["place", "sure"], name="split", axis=1))
    boxes = s.node(
        "Mul", [s.node("Reshape", ["place", rows], "lines"), s.constant("size", np.float32(320))], "boxes"
    )
    likely = s.node("Sigmoid", [s.node("Reshape", ["sure", rows], "kinds")], "likely")
    best = s.node("ReduceMax", [likely], "best", axes=[2], keepdims=0)
    few = s.constant("few", np.array([2], np.int64))
    s.nodes.append(onnx.helper.make_node("TopK", [best, few], ["score", "number"], name="choose", axis=1))
    last = s.constant("last", np.array([2], np.int64))
    number = s.node("Unsqueeze", ["number", last], "column")
    chosen = s.node("GatherElements", [boxes, number], "chosen", axis=1)
    score = s.node("GatherElements", [likely, number], "scored", axis=1)
    kind = s.node("Cast", [number], "kind", to=TensorProto.FLOAT)
    return s.node("Concat", [chosen, score, kind], "y", axis=2)


def class_of_pixels(s: models.Sketch, x: str) -> str:
    """The best of three classes at each of two places."""
    shape = s.constant("places", np.array([-1, 3, 2], np.int64))
    return s.node("ArgMax", [s.node("Reshape", [x, shape], "maps")], "y", axis=1, keepdims=0)


def above_a_threshold(s: models.Sketch, x: str) -> str:
    """Values whose gate is open, as many as there are."""
    open_ = s.node("Greater", [s.node("Sigmoid", [x], "likely"), s.constant("half", np.float32(0.5))], "open")
    places = s.node("Transpose", [s.node("NonZero", [open_], "where")], "places", perm=[1, 0])
    return s.node("GatherND", [s.node("Neg", [x], "values"), places], "y")


def suppressed(s: models.Sketch, x: str) -> str:
    corners = s.constant("corners", np.array([0, 1, 4], np.int64))
    sizes = s.constant("sizes", np.array([4, 2], np.int64))
    s.nodes.append(onnx.helper.make_node("Split", [x, sizes], ["place", "sure"], name="split", axis=1))
    boxes = s.node("Reshape", ["place", corners], "boxes")
    likely = s.node(
        "Reshape",
        [
            s.node("ReduceMax", ["sure"], "top", axes=[1], keepdims=1),
            s.constant("one", np.array([0, 1, 1], np.int64)),
        ],
        "likely",
    )
    return s.node("NonMaxSuppression", [boxes, likely, s.constant("most", np.array([1], np.int64))], "y")


def chosen_inside(s: models.Sketch, x: str) -> str:
    """The choice feeds another layer, whose noise the choice does not tell."""
    few = s.constant("few", np.array([2], np.int64))
    s.nodes.append(onnx.helper.make_node("TopK", [x, few], ["most", "where"], name="choose", axis=1))
    return s.node("MatMul", ["most", s.weight("w3", 2, 4)], "z")


def beside_a_choice(s: models.Sketch, x: str) -> str:
    """What is chosen is not returned."""
    s.node("ArgMax", [x], "unused", axis=1)
    return s.node("Relu", [x], "y")


@pytest.mark.parametrize(
    ("end", "front"),
    [
        (best_first, {"boxes", "likely"}),
        (class_of_pixels, {"maps"}),
        (above_a_threshold, {"likely", "values"}),
        (suppressed, {"boxes", "likely"}),
    ],
    ids=["TopK", "ArgMax", "NonZero", "NonMaxSuppression"],
)
def test_what_is_chosen_is_judged_by_what_it_was_chosen_from(
    end: Ending, front: set[str], tmp_path: Path
) -> None:
    model = opened(end, tmp_path)
    for softmax in (True, False):
        found = scores(model.view, endings(model.view, softmax=softmax))
        assert set(found.values()) == front
        assert [len(names) for names in quantities(model.view, endings(model.view))] == [1] * len(front)


@pytest.mark.parametrize(
    ("end", "ops", "front"),
    [
        (suppressed, {"NonMaxSuppression"}, ("boxes", "likely")),
        (above_a_threshold, {"NonZero"}, ("values", "likely")),
        (best_first, {"TopK"}, ("likely", "boxes")),
        (best_first, {"NonZero"}, ("y",)),
        (chosen_inside, {"TopK"}, ()),
    ],
)
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "Q/DQ"])
def test_a_model_can_be_ended_in_front_of_what_chooses(
    end: Ending, ops: set[str], front: tuple[str, ...], quantized: bool, tmp_path: Path
) -> None:
    model = opened(end, tmp_path)
    if quantized:
        _, _, placement, table = calibrated(model, tmp_path)
        model = insert(model, placement, table, InsertOptions())
    view = model.view
    assert sorted(in_front_of(view, ops)) == sorted(front)


@pytest.mark.parametrize("end", [chosen_inside, beside_a_choice], ids=lambda end: end.__name__)
def test_a_choice_that_is_not_what_is_returned_changes_nothing(end: Ending, tmp_path: Path) -> None:
    assert endings(opened(end, tmp_path).view) == {}


def test_outputs_that_were_chosen_from_the_same_are_judged_once(tmp_path: Path) -> None:
    s = models.Sketch(3)
    s.input("x", ("n", 16))
    s.node("Gemm", ["x", s.weight("w1", 16, 6), s.weight("b1", 6)], "scores", name="first")
    few = s.constant("few", np.array([2], np.int64))
    s.nodes.append(onnx.helper.make_node("TopK", ["scores", few], ["most", "where"], name="choose", axis=1))
    s.output("most", None)
    s.output("where", None, TensorProto.INT64)
    s.output(s.node("Relu", ["scores"], "y"), None)
    view = load(models.save(s.model(), tmp_path)).view
    ends = endings(view)
    assert scores(view, ends) == {"most": "scores", "y": "y"}
    assert quantities(view, ends) == (("most",), ("y",))


def test_order_among_what_is_nothing_does_not_choose_calibrators(tmp_path: Path) -> None:
    """Two rows that change places are no noise of the network."""
    model = opened(best_first, tmp_path)
    values, samples, placement, table = calibrated(model, tmp_path)
    for kind in (Reference, OutputReference):
        reference = kind(model, samples, Budget())
        found = TrialSession(model, placement, table, reference, Budget()).candidate(
            "", table, reference.samples
        )
        written = insert(model, placement, table, InsertOptions())
        plain, quantized = (
            open_runner(serialize(returning(one, tensors)), description="test").run({"x": values})
            for one in (model, written)
            for tensors in (scores(one.view, reference.ends),)
        )
        parts = [
            np.square(right.astype(np.float64) - left).sum() / np.square(left.astype(np.float64)).sum()
            for left, right in zip(plain.values(), quantized.values(), strict=True)
        ]
        assert found.noise == pytest.approx(np.mean(parts), rel=1e-3)


@pytest.mark.parametrize("end", [of_one_kind, beside_a_constant], ids=lambda end: end.__name__)
def test_an_output_of_one_kind_is_judged_as_it_is(end: Ending, tmp_path: Path) -> None:
    assert endings(opened(end, tmp_path).view) == {}


def test_noise_of_scores_counts_as_much_as_that_of_boxes(tmp_path: Path) -> None:
    model = opened(boxes_and_scores, tmp_path)
    values, samples, placement, table = calibrated(model, tmp_path)
    reference = Reference(model, samples, Budget())
    found = TrialSession(model, placement, table, reference, Budget()).candidate("", table, reference.samples)
    written = insert(model, placement, table, InsertOptions())
    plain, quantized = (
        open_runner(serialize(one), description="test").run({"x": values})["y"].astype(np.float64)
        for one in (model, written)
    )
    parts = [
        np.square(quantized[:, part] - plain[:, part]).sum() / np.square(plain[:, part]).sum()
        for part in (slice(2), slice(2, None))
    ]
    assert found.noise == pytest.approx(np.mean(parts), rel=1e-3)


@pytest.mark.parametrize("end", [plain, moved, written_out], ids=lambda end: end.__name__)
def test_tables_are_judged_by_the_scores(end: Ending, tmp_path: Path) -> None:
    model = opened(end, tmp_path)
    values, samples, placement, table = calibrated(model, tmp_path)
    reference = Reference(model, samples, Budget())
    found = TrialSession(model, placement, table, reference, Budget()).candidate("", table, reference.samples)
    written = insert(model, placement, table, InsertOptions())
    assert reference.ends == endings(model.view)
    both = [
        open_runner(serialize(returning(one, tensors)), description="scores").run({"x": values})[name]
        for one in (model, written)
        for tensors in (scores(one.view, reference.ends),)
        for name in tensors.values()
    ]
    noise = np.square(both[1].astype(np.float64) - both[0]).sum(axis=1)
    assert found.shares == pytest.approx(noise / np.square(both[0].astype(np.float64)).sum(), rel=1e-3)
    assert found.noise > 0
    outputs = OutputReference(model, samples, Budget())
    assert outputs.ends == {}
    told = TrialSession(model, placement, table, outputs, Budget()).candidate("", table, outputs.samples)
    assert told.noise < found.noise
