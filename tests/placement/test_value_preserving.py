"""A law: what holds of a tensor's values holds behind every operator that only moves them, in every package that is asked.

Bounds (calibration), ties (placement), INT8 values (lint and prediction, repair, audit) and scales of a calibration
cache pass the same operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnxruntime import InferenceSession

from qdqtool.api import quantize
from qdqtool.calibration.caches.converting import scales_of
from qdqtool.calibration.table import bounds
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import operands
from qdqtool.matching.weights import is_quantized
from qdqtool.placement.decide import decide
from qdqtool.trt import ops
from qdqtool.trt.ops import (
    MAY_MOVE,
    carried_inputs,
    holds_dequantize_back,
    picks_part,
    quantization_commutes,
    value_preserving,
)
from tests import models
from tests.models import Sketch
from tests.placement.qdq import GRAPHS

Move = Callable[[Sketch, str], str]


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def slice_(s: Sketch, x: str) -> str:
    ends = [s.constant(f"at{n}", integers(n)) for n in (0, 4, 1)]
    return s.node("Slice", [x, *ends], "moved", name="move")


def split(s: Sketch, x: str) -> str:
    s.node("Split", [x, s.constant("parts", integers(4, 4))], "moved", name="move", axis=1)
    s.nodes[-1].output.append("rest")
    return "moved"


def pad(s: Sketch, x: str) -> str:
    return s.node("Pad", [x, s.constant("pads", integers(0, 0, 1, 1, 0, 0, 1, 1))], "moved", name="move")


def channel_pad(s: Sketch, x: str) -> str:
    return s.node("Pad", [x, s.constant("pads", integers(0, 1, 0, 0, 0, 1, 0, 0))], "moved", name="move")


def reflect_pad(s: Sketch, x: str) -> str:
    pads = s.constant("pads", integers(0, 0, 1, 1, 0, 0, 1, 1))
    return s.node("Pad", [x, pads], "moved", name="move", mode="reflect")


def resize(s: Sketch, x: str) -> str:
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    return s.node("Resize", [x, "", factors], "moved", name="move", mode="nearest")


def with_constant(op: str, *values: int, **attributes: object) -> Move:
    def make(s: Sketch, x: str) -> str:
        return s.node(op, [x, s.constant("given", integers(*values))], "moved", name="move", **attributes)

    return make


def gather_elements(s: Sketch, x: str) -> str:
    rows = s.constant("rows", np.broadcast_to(integers(0, 2, 3)[:, None, None], (1, 3, 8, 8)).copy())
    return s.node("GatherElements", [x, rows], "moved", name="move", axis=1)


def gather_nd(s: Sketch, x: str) -> str:
    rows = s.constant("rows", integers(0, 2, 3).reshape(1, 3, 1))
    return s.node("GatherND", [x, rows], "moved", name="move", batch_dims=1)


def plain(op: str, **attributes: object) -> Move:
    def make(s: Sketch, x: str) -> str:
        return s.node(op, [x], "moved", name="move", **attributes)

    return make


MOVES: dict[str, Move] = {
    "Cast": plain("Cast", to=TensorProto.FLOAT),
    "DepthToSpace": plain("DepthToSpace", blocksize=2),
    "Dropout": plain("Dropout"),
    "Expand": with_constant("Expand", 1, 8, 8, 8),
    "Flatten": plain("Flatten"),
    "Gather": with_constant("Gather", 0, 2, 3, axis=1),
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GlobalMaxPool": plain("GlobalMaxPool"),
    "Identity": plain("Identity"),
    "MaxPool": plain("MaxPool", kernel_shape=[2, 2]),
    "Pad": pad,
    "Pad of channels": channel_pad,
    "Pad by reflection": reflect_pad,
    "Reshape": with_constant("Reshape", 1, 4, 16, 8),
    "Resize": resize,
    "Slice": slice_,
    "SpaceToDepth": plain("SpaceToDepth", blocksize=2),
    "Split": split,
    "Squeeze": with_constant("Squeeze", 0),
    "Tile": with_constant("Tile", 1, 2, 1, 1),
    "Transpose": plain("Transpose", perm=[0, 2, 1, 3]),
    "Unsqueeze": with_constant("Unsqueeze", 0),
    "Upsample": resize,
}
WIDTHS = {
    "DepthToSpace": 16,
    "Flatten": 512,
    "GlobalMaxPool": 1,
    "MaxPool": 7,
    "Pad": 10,
    "Pad by reflection": 10,
    "Resize": 16,
    "SpaceToDepth": 4,
}
"""The last dimension behind a move, where it is not 8."""


def graph(move: Move, tmp_path, *, pair: bool):
    """x ─ Conv ─ Sigmoid ─ [Q ─ DQ] ─ move ─ MatMul, and without the pair a second reader of the Sigmoid."""
    width = next((WIDTHS[name] for name, made in MOVES.items() if made is move and name in WIDTHS), 8)
    s = Sketch()
    x = s.conv("first", s.input("x", [1, 3, 8, 8]), (3, 8))
    bounded = source = s.node("Sigmoid", [x], "bounded", name="gate")
    if pair:
        scale, zero = s.constant("scale", np.float32(0.01)), s.constant("zero", np.int8(0))
        s.node("QuantizeLinear", [bounded, scale, zero], "q", name="q")
        source = s.node("DequantizeLinear", ["q", scale, zero], "dq", name="dq")
    moved = move(s, source)
    s.output(s.node("MatMul", [moved, s.weight("w", width, 16)], "y", name="product"))
    if not pair:
        s.output(s.conv("second", bounded, (8, 8)))
    proto = s.model()
    return load(models.save(proto, tmp_path))


def test_every_operator_that_may_move_values_is_asked_for() -> None:
    assert {name.split()[0] for name in MOVES} | {"Concat"} >= MAY_MOVE


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
class TestBehindAMove:
    def test_it_is_value_preserving(self, move, tmp_path) -> None:
        view = graph(move, tmp_path, pair=False).view
        assert value_preserving(view, view.by_name["move"])
        assert carried_inputs(view, view.by_name["move"]) == (0,)

    def test_a_bound_survives(self, move, tmp_path) -> None:
        bound = bounds(graph(move, tmp_path, pair=False).view)["moved"]
        assert (bound.amax, bound.op, bound.saturates) == (1.0, "Sigmoid", True)

    def test_a_tie_survives(self, move, tmp_path) -> None:
        view = graph(move, tmp_path, pair=False).view
        ties = [tie.tensors for tie in decide(view, PlacementOptions(skip_rules=("gemv", "narrow"))).ties]
        assert ties == [("bounded", "moved")]

    def test_int8_values_survive_for_lint_and_prediction(self, move, tmp_path) -> None:
        model = graph(move, tmp_path, pair=True)
        flow = Flow(model)
        pair = flow.origin(model.view.by_name["product"], 0)
        assert pair is not None
        assert pair.dequantize == "dq"

    def test_int8_values_survive_for_the_audit(self, move, tmp_path) -> None:
        flow = Flow(graph(move, tmp_path, pair=True))
        (operand, _) = operands(flow, flow.view.by_name["product"], Target.parse("rtx"))
        assert operand.quantized

    def test_int8_values_survive_for_repair_as_far_as_the_builder_carries_them(self, move, tmp_path) -> None:
        view = graph(move, tmp_path, pair=True).view
        node = view.by_name["move"]
        carried = quantization_commutes(view, node) and not holds_dequantize_back(view, node)
        assert is_quantized(view, "moved") == carried

    def test_a_scale_of_a_cache_survives(self, move, tmp_path) -> None:
        pairs = find(graph(move, tmp_path, pair=True))
        scales, _ = scales_of(pairs, graph(move, tmp_path, pair=False).view)
        assert scales["moved"] == pytest.approx(0.01)


def concat(tmp_path, first: str = "Sigmoid", second: str = "Sigmoid"):
    s = Sketch()
    x = s.input("x", [1, 3, 8, 8])
    branches = [
        s.node(op, [s.conv(f"c{n}", x, (3, 8))], f"b{n}", name=f"gate{n}")
        for n, op in enumerate((first, second))
    ]
    joined = s.node("Concat", branches, "joined", name="join", axis=1)
    s.output(s.conv("last", joined, (16, 8)))
    return load(models.save(s.model(), tmp_path)).view


def test_a_concat_of_bounded_branches_is_bounded(tmp_path) -> None:
    assert bounds(concat(tmp_path))["joined"].amax == 1.0


def test_a_concat_with_one_unbounded_branch_is_not(tmp_path) -> None:
    assert "joined" not in bounds(concat(tmp_path, second="Relu"))


def linear_resize(s: Sketch, x: str) -> str:
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    return s.node("Resize", [x, "", factors], "moved", name="move", mode="linear")


def pad_with_a_value(s: Sketch, x: str) -> str:
    pads, value = s.constant("pads", integers(0, 0, 1, 1, 0, 0, 1, 1)), s.constant("value", np.float32(1 / 3))
    return s.node("Pad", [x, pads, value], "moved", name="move")


OTHERS: dict[str, Move] = {
    "AveragePool": plain("AveragePool", kernel_shape=[2, 2]),
    "linear Resize": linear_resize,
    "Pad with a value": pad_with_a_value,
    "Softmax": plain("Softmax"),
}


@pytest.mark.parametrize("name", MOVES | OTHERS)
def test_rounding_before_an_operator_that_commutes_is_rounding_behind_it(name, tmp_path) -> None:
    s = Sketch()
    moved = (MOVES | OTHERS)[name](s, s.input("x", [1, 8, 8, 8]))
    s.output(moved)
    path = models.save(s.model(), tmp_path)
    view = load(path).view
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(0).uniform(0, 1, (1, 8, 8, 8)).astype(np.float32)

    def rounded(values: np.ndarray) -> np.ndarray:
        return (np.rint(values / np.float32(0.01)) * np.float32(0.01)).astype(np.float32)

    (before,), (behind,) = (session.run(["moved"], {"x": given}) for given in (rounded(values), values))
    if quantization_commutes(view, view.by_name["move"]):
        np.testing.assert_array_equal(before, rounded(behind))
    assert not (name in OTHERS and quantization_commutes(view, view.by_name["move"]))


BRANCHES = {"Sigmoid": 1.0, "Tanh": 1.0, "narrow": 3.0, "wide": 6.0, "upper": None, "Relu": None}
"""What may make a branch, with the largest magnitude that it can have; "upper" is a Clip without a lower limit."""


def branch(s: Sketch, kind: str, number: int) -> str:
    limits = {"narrow": (-3, 2), "wide": (0, 6), "upper": (None, 1)}.get(kind)
    if limits is None:
        return s.node(kind, ["x"], f"b{number}", name=f"gate{number}")
    given = [
        "" if limit is None else s.constant(f"limit{number}_{side}", np.float32(limit))
        for side, limit in enumerate(limits)
    ]
    return s.node("Clip", ["x", *given], f"b{number}", name=f"gate{number}")


@given(kinds=st.lists(st.sampled_from(sorted(BRANCHES)), min_size=1, max_size=4))
def test_a_bound_is_the_largest_magnitude_that_any_sample_reaches(kinds: list[str]) -> None:
    s = Sketch()
    s.input("x", [1, 4, 3])
    joined = s.node(
        "Concat", [branch(s, kind, n) for n, kind in enumerate(kinds)], "joined", name="join", axis=1
    )
    s.output(s.node("Transpose", [joined], "moved", name="move", perm=[0, 2, 1]), [1, 3, 4 * len(kinds)])
    with TemporaryDirectory() as folder:
        path = models.save(s.model(), Path(folder))
        found = bounds(load(path).view)
        samples = np.random.default_rng(0).standard_normal((1, 4, 3)).astype(np.float32) * 1e4
        (reached,) = InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": samples})
    limits = [BRANCHES[kind] for kind in kinds]
    if None in limits:
        assert not {"joined", "moved"} & found.keys()
    else:
        assert found["moved"].amax == found["joined"].amax == max(limits) == np.abs(reached).max()


def test_a_cast_to_integers_moves_no_values(tmp_path) -> None:
    view = graph(plain("Cast", to=TensorProto.INT32), tmp_path, pair=False).view
    assert not value_preserving(view, view.by_name["move"])


def test_parts_of_a_tensor_are_told_from_the_whole(tmp_path) -> None:
    parts = {
        name
        for name, move in MOVES.items()
        if picks_part(graph(move, tmp_path, pair=False).view.by_name["move"])
    }
    assert parts == {"Gather", "GatherElements", "GatherND", "Slice", "Split"}


@pytest.mark.parametrize("name", ["Gather", "Slice", "Split", "Concat"])
def test_no_range_is_clipped_below_what_a_hard_bound_was_seen_to_reach(name, tmp_path) -> None:
    s = Sketch(seed=3)
    x = s.input("x", [1, 3, 8, 8])
    gates = [s.node("Sigmoid", [s.conv(f"c{n}", x, (3, 8))], f"b{n}", name=f"gate{n}") for n in (0, 1)]
    joined = (
        s.node("Concat", gates, "moved", name="move", axis=1)
        if name == "Concat"
        else MOVES[name](s, gates[0])
    )
    channels = {"Concat": 16, "Gather": 3, "Slice": 4, "Split": 4}[name]
    s.output(s.conv("last", joined, (channels, 8)))
    path, data = models.save(s.model(), tmp_path), tmp_path / "x.npy"
    np.save(data, np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32))
    table = quantize(path, str(data), tmp_path / "q.onnx", settings=["calibrate.method=entropy"])
    (entry,) = [entry for entry in table.ranges if entry.tensor == "moved"]
    assert entry.amax[0] >= max(abs(entry.low), abs(entry.high))


@pytest.mark.parametrize(
    ("graph_name", "carried"), [("concat_same_scale_bare", True), ("concat_other_scales_bare", False)]
)
def test_int8_values_survive_a_concat_whose_branches_have_one_scale(graph_name, carried, tmp_path) -> None:
    flow = Flow(load(models.save(GRAPHS[graph_name](), tmp_path)))
    assert (flow.origin(flow.view.by_name["c3"], 0) is not None) == carried
    assert ("cat_y" in flow.carried) == carried


def test_every_fact_in_the_table_of_operators_makes_a_family() -> None:
    text = Path(ops.__file__).read_text("utf-8")
    assert set(re.findall(r'_WITH\["([\w-]+)"\]', text)) == ops._WITH.keys()
