"""Bias correction: the mean of every layer's output stays what it was in the float model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Feeds
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions, Preprocess
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.probe import boundary, probe, segment
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.changes import shift_biases, shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.bias import correct_biases
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.layer_walk import shrink_means
from qdqtool.pipeline.ranges.reference import Budget, Reference
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import OrtRunner, open_model, open_runner
from tests.models import Sketch


def skewed(folder: Path, *, bias: bool = True, kernel: int = 3) -> Model:
    """Inputs that are all positive and a depthwise layer: rounding errors of weights add up instead of cancelling."""
    sketch = Sketch(seed=3)
    x = sketch.input("x", ["batch", 8, 6, 6])
    first = sketch.node("Relu", [sketch.conv("first", x, (8, 16), kernel=kernel)], "first_relu")
    depth = sketch.conv("depth", first, (16, 16), kernel=kernel, group=16)
    if not bias:
        sketch.nodes[-1].input.pop()
    second = sketch.node("Add", [sketch.node("Relu", [depth], "depth_relu"), first], "sum")
    sketch.conv("last", second, (16, 8), kernel=1)
    sketch.output("last_y", ["batch", 8, 6, 6])
    path = folder / "skewed.onnx"
    graph = onnx.helper.make_graph(sketch.nodes, "skewed", sketch.inputs, sketch.outputs, sketch.initializers)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path
    )
    return load(path)


def calibrated(
    model: Model, folder: Path, count: int = 32
) -> tuple[Placement, CalibrationTable, CalibrationTable]:
    """Placement, the plain table, and the table with corrected biases."""
    values = np.random.default_rng(1).uniform(0.5, 3.0, (count, 8, 6, 6)).astype(np.float32)
    np.savez(folder / "x.npz", x=values)
    samples = open_samples(str(folder / "x.npz"), model.view.inputs, Preprocess())
    placement = decide(model.view, PlacementOptions())
    table = make_table(
        collect(model, placement, samples), placement, model.view, CalibrationOptions(method="max")
    )
    return placement, table, correct_biases(model, placement, table, samples)


def means(model: Model, folder: Path, tensor: str) -> NDArray[np.float64]:
    """Mean of every channel over all samples."""
    runner = open_runner(probe(model, [tensor]).source, description="test")
    with np.load(folder / "x.npz") as archive:
        return runner.run({"x": archive["x"]})[tensor].astype(np.float64).mean(axis=(0, 2, 3))


@pytest.mark.parametrize("count", [1], ids=["one sample"])
def test_too_few_samples_change_nothing(count: int, tmp_path: Path) -> None:
    _, plain, corrected = calibrated(skewed(tmp_path), tmp_path, count)
    assert corrected == plain


def test_identical_means_need_no_shift() -> None:
    assert not shrink_means(np.zeros((8, 3), np.float32)).any()


def test_a_shift_within_its_own_uncertainty_is_not_believed() -> None:
    noise = np.array([[1.0], [-1.0], [1.0], [-0.9]], np.float32)
    steady = np.array([[1.0], [1.01], [0.99], [1.0]], np.float32)
    assert shrink_means(noise) == 0
    assert shrink_means(steady) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without a bias"])
@pytest.mark.parametrize("tensor", ["first_y", "depth_y", "last_y"])
def test_mean_output_of_every_layer_is_that_of_the_float_model(
    tensor: str, bias: bool, tmp_path: Path
) -> None:
    model = skewed(tmp_path, bias=bias)
    placement, plain, corrected = calibrated(model, tmp_path)
    wanted = means(model, tmp_path, tensor)
    before = np.abs(means(insert(model, placement, plain, InsertOptions()), tmp_path, tensor) - wanted).max()
    after = np.abs(
        means(insert(model, placement, corrected, InsertOptions()), tmp_path, tensor) - wanted
    ).max()
    assert after < before / 4


def test_float_model_and_ranges_stay_as_they_were(tmp_path: Path) -> None:
    model = skewed(tmp_path)
    bytes_before = model.proto.SerializeToString()
    _, plain, corrected = calibrated(model, tmp_path)
    assert model.proto.SerializeToString() == bytes_before
    assert corrected.ranges == plain.ranges
    assert [entry.node for entry in corrected.shifts] == ["first", "depth", "last"]


def test_a_bias_that_two_layers_share_is_shifted_for_one_of_them_only(tmp_path: Path) -> None:
    model = skewed(tmp_path)
    shared = Model(proto=onnx.ModelProto.FromString(model.proto.SerializeToString()), path=model.path)
    by_name = {node.name: node for node in shared.proto.graph.node}
    by_name["depth"].input[2] = by_name["first"].input[2]
    view = shift_biases(shared, [NodeShift(node="depth", shift=(1.0,) * 16)]).view
    first, depth = (view.constant(view.by_name[name].inputs[2]) for name in ("first", "depth"))
    assert first is not None
    assert depth is not None
    np.testing.assert_allclose(depth, first + 1, rtol=1e-6)


@pytest.mark.parametrize(
    "shift",
    [NodeShift(node="nobody", shift=(1.0,)), NodeShift(node="depth", shift=(1.0, 2.0))],
    ids=["name", "count"],
)
def test_shifts_of_another_model_are_refused(shift: NodeShift, tmp_path: Path) -> None:
    with pytest.raises(InputFileError):
        shift_biases(skewed(tmp_path), [shift])


def test_only_layers_with_a_constant_bias_or_none_can_be_shifted(tmp_path: Path) -> None:
    assert [node.name for node in shiftable(skewed(tmp_path).view)] == ["first", "depth", "last"]


@pytest.mark.parametrize(
    ("shape", "is_shiftable"),
    [((5,), True), ((1, 5), True), ((1,), True), ((), True), ((5, 1), False), ((5, 5), False)],
)
def test_a_bias_per_row_is_not_shifted(shape: tuple[int, ...], is_shiftable: bool, tmp_path: Path) -> None:
    s = Sketch()
    bias = s.constant("b", np.ones(shape, np.float32))
    s.output(s.node("Gemm", [s.input("x", [5, 4]), s.weight("w", 4, 5), bias], "y", name="gemm"), [5, 5])
    names = [node.name for node in shiftable(Model(proto=s.model(), path=tmp_path).view)]
    assert names == (["gemm"] if is_shiftable else [])


def test_a_segment_is_fed_the_nearest_known_tensors_and_computes_the_same(tmp_path: Path) -> None:
    model = skewed(tmp_path)
    known = ["x", "first_y", "depth_y"]
    assert boundary(model, known, "last_y") == {"first_y", "depth_y"}
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 6, 6)).astype(np.float32)}
    whole = open_runner(probe(model, ["first_y", "depth_y", "last_y"]).source, description="whole").run(feeds)
    piece = segment(model, known, "last_y")
    assert [info.name for info in piece.inputs] == ["first_y", "depth_y"]
    assert isinstance(piece.source, bytes)
    runner = open_runner(piece.source, description="piece")
    result = runner.run({name: whole[name] for name in ("first_y", "depth_y")})
    np.testing.assert_allclose(result["last_y"], whole["last_y"], rtol=1e-5, atol=1e-5)


def fixed(model: Model) -> Model:
    """The same network for batches of one sample only."""
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return Model(proto=proto, path=model.path)


def mixing(model: Model) -> Model:
    """A fixed network with a Reshape that would put the samples of a batch side by side."""
    proto = fixed(model).proto
    flat = onnx.numpy_helper.from_array(np.array([1, 8, -1], np.int64), "flat")
    back = onnx.numpy_helper.from_array(np.array([1, 8, -1, 6], np.int64), "back")
    proto.graph.initializer.extend([flat, back])
    nodes = [
        onnx.helper.make_node("Reshape", ["x", "flat"], ["x_flat"], name="flatten"),
        onnx.helper.make_node("Reshape", ["x_flat", "back"], ["x_back"], name="unflatten"),
    ]
    for node in proto.graph.node:
        node.input[:] = ["x_back" if name == "x" else name for name in node.input]
    for node in reversed(nodes):
        proto.graph.node.insert(0, node)
    return Model(proto=proto, path=model.path)


@pytest.mark.parametrize("shape", [lambda model: model, fixed], ids=["free batch", "batch of one"])
def test_one_run_gives_the_shifts_of_a_run_per_layer(
    shape: Callable[[Model], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What lies at the border of an image counts as what lies inside: without padding both ways are equal.
    model = shape(skewed(tmp_path, kernel=1))
    monkeypatch.setattr(
        "qdqtool.pipeline.ranges.bias.believed_shifts", lambda *_: pytest.fail("run layer by layer")
    )
    _, _, together = calibrated(model, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("qdqtool.pipeline.ranges.reference.may_be_batched", lambda *_: False)
    _, _, apart = calibrated(model, tmp_path)
    assert [entry.node for entry in together.shifts] == [entry.node for entry in apart.shifts]
    for one, other in zip(together.shifts, apart.shifts, strict=True):
        np.testing.assert_allclose(one.shift, other.shift, rtol=0.02, atol=1e-3)


def test_a_model_that_mixes_the_samples_of_a_batch_is_run_layer_by_layer(tmp_path: Path) -> None:
    plain = calibrated(fixed(skewed(tmp_path, kernel=1)), tmp_path)[2]
    mixed = calibrated(mixing(skewed(tmp_path, kernel=1)), tmp_path)[2]
    assert [entry.node for entry in mixed.shifts] == [entry.node for entry in plain.shifts]
    for one, other in zip(mixed.shifts, plain.shifts, strict=True):
        np.testing.assert_allclose(one.shift, other.shift, rtol=0.02, atol=1e-3)


def parted(
    model: Model, folder: Path, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[CalibrationTable, list[int]]:
    """The table whose biases batches of at most so many samples correct, and how many were in each."""
    sizes: list[int] = []
    run = OrtRunner.run

    def noted(runner: OrtRunner, feeds: Feeds) -> dict[str, NDArray[np.float32]]:
        if runner.description in {"candidate tables", "rewritten model"}:
            sizes.append(len(feeds["x"]))
        return run(runner, feeds)

    monkeypatch.setattr(OrtRunner, "run", noted)
    monkeypatch.setattr(Reference, "fitting", fitting)
    return calibrated(model, folder)[2], sizes


@pytest.mark.parametrize("fitting", [2, 5, 16, 31])
def test_batches_that_fit_give_the_shifts_of_one_that_does_not(
    fitting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = skewed(tmp_path)
    whole, sizes = parted(model, tmp_path, 32, monkeypatch)
    assert sizes == [32]
    monkeypatch.undo()
    parts, sizes = parted(model, tmp_path, fitting, monkeypatch)
    assert max(sizes) <= fitting
    # those that ran when less than half were known run once more, with the shifts that all of them ask for
    count = math.ceil(32 / fitting)
    assert sum(sizes[:count]) == 32
    assert sizes[count:] == sizes[: math.ceil(count / 2)]
    assert max(sizes) - min(sizes) <= 1
    assert [entry.node for entry in parts.shifts] == [entry.node for entry in whole.shifts]
    for one, other in zip(parts.shifts, whole.shifts, strict=True):
        np.testing.assert_allclose(one.shift, other.shift, atol=0.05 * np.abs(other.shift).max())


def test_no_layer_has_a_session_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    real = open_model

    def counted(*words: object, **options: object) -> object:
        nonlocal opened
        opened += 1
        return real(*words, **options)  # type: ignore[arg-type]

    for module in ("executor", "reference"):
        monkeypatch.setattr(f"qdqtool.pipeline.ranges.{module}.open_model", counted)
    monkeypatch.setattr("qdqtool.pipeline.ranges.executor.with_stand_ins", lambda *_: None)
    calibrated(skewed(tmp_path), tmp_path)
    assert opened == 2


def test_channels_that_were_nan_in_a_sample_keep_their_bias() -> None:
    rows = np.array([[1.0, np.nan, np.inf], [1.1, 0.5, 0.5], [0.9, 0.5, 0.5]], np.float32)
    with np.errstate(invalid="ignore"):
        shift = shrink_means(rows)
    assert shift[0] == pytest.approx(1.0, abs=0.1)
    assert shift[1:].tolist() == [0.0, 0.0]


def test_tables_for_a_model_that_takes_no_batches_are_judged_with_the_biases_they_will_have(
    tmp_path: Path,
) -> None:
    model = mixing(skewed(tmp_path, kernel=1))
    placement, table, _ = calibrated(model, tmp_path)
    # all samples alike: as many as judge give the shifts that all of them give
    values = np.random.default_rng(2).uniform(0.5, 3.0, (1, 8, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "alike.npz", x=np.repeat(values, 32, axis=0))
    samples = open_samples(str(tmp_path / "alike.npz"), model.view.inputs, Preprocess())
    reference = Reference(model, samples, Budget(), bias=True)
    assert not reference.together
    trial = TrialSession(model, placement, table, reference, reference.budget)
    judged = trial.candidate("max", table, ()).table
    final = {entry.node: entry.shift for entry in correct_biases(model, placement, table, samples).shifts}
    assert {entry.node for entry in judged.shifts} <= {*final}
    for entry in judged.shifts:
        np.testing.assert_allclose(entry.shift, final[entry.node], rtol=1e-3, atol=1e-5)
    assert any(any(entry.shift) for entry in judged.shifts)


def test_a_convolution_behind_a_shape_of_unknown_length_is_corrected(tmp_path: Path) -> None:
    """Nothing behind such a Reshape has a known rank (text recognizers of PaddleOCR); the weights of a layer tell it."""
    sketch = Sketch(seed=3)
    x = sketch.input("x", ["batch", 8, 6, 6])
    first = sketch.conv("first", x, (8, 16))
    none = sketch.node(
        "Mul",
        [sketch.node("ReduceMax", [x], "most", keepdims=0), sketch.constant("no", np.zeros(1, np.float32))],
        "none",
    )
    four = sketch.node("Add", [none, sketch.constant("rank", np.full(1, 4, np.float32))], "bound")
    end = sketch.node("Cast", [four], "until", to=onnx.TensorProto.INT64)
    begin = sketch.constant("begin", np.zeros(1, np.int64))
    shape = sketch.node("Slice", [sketch.node("Shape", [first], "whole"), begin, end], "shape")
    last = sketch.conv("last", sketch.node("Reshape", [first, shape], "again"), (16, 8), kernel=1)
    sketch.output(sketch.relu("end", last), ["batch", 8, 6, 6])
    path = tmp_path / "ranks.onnx"
    onnx.save(sketch.model(), path)
    model = load(path)
    assert model.view.info(last).shape is None
    _, _, corrected = calibrated(model, tmp_path)
    assert {"first", "last"} <= {entry.node for entry in corrected.shifts}
