"""Reasons to keep a node float, each held against engines with the node in float and quantized."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.auditing.checks.fusion import find_attention_not_fused as find
from qdqtool.auditing.context import stage
from qdqtool.core.advice import promises, settings_in
from qdqtool.core.claims import ADDS_A_KERNEL, Assertion, of_fix
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import DType
from qdqtool.pipeline.recipes import change_recipe
from tests.models import Sketch
from tests.placement import graphs

pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
from tests.placement import building
from tests.placement.building import Built, build, quantized

pytestmark = [pytest.mark.rtx, pytest.mark.slow]


def router() -> onnx.ModelProto:
    """A mixture of experts: a router of 4 columns reads what a wide product reads too."""
    s = Sketch(71)
    x = s.input("x", [2, 24, 64])
    x = s.node(
        "Relu", [s.node("MatMul", [x, s.weight("in_w", 64, 64)], "in_y", name="in")], "x_y", name="relu"
    )
    gate = s.node("MatMul", [x, s.weight("router_w", 64, 4)], "router_y", name="router")
    gate = s.node(
        "ReduceMax", [s.node("Softmax", [gate], "gate", name="softmax")], "most", name="max", axes=[-1]
    )
    wide = s.node("MatMul", [x, s.weight("wide_w", 64, 128)], "wide_y", name="wide")
    s.output(s.node("Mul", [wide, gate], "y", name="mul"), [2, 24, 128])
    return s.model()


def learned_queries() -> onnx.ModelProto:
    """Queries of the input on stored keys: the constant factor is a stack of [16 x 12] matrices."""
    s = Sketch(72)
    x = s.input("x", [1, 4, 32, 16])
    y = s.node("MatMul", [x, s.weight("keys", 1, 4, 16, 12)], "scores", name="scores")
    y = s.node("Softmax", [y], "p", name="softmax", axis=-1)
    s.output(s.node("MatMul", [y, s.weight("values", 1, 4, 12, 16)], "y", name="av"), [1, 4, 32, 16])
    return s.model()


def experts(*batches: int) -> onnx.ModelProto:
    """Four experts whose weights are one stack of matrices."""
    s = Sketch(73)
    x = s.input("x", [*batches, 24, 64])
    joined = [*batches[:-1], 4]
    s.output(s.node("MatMul", [x, s.weight("w", 4, 64, 128)], "y", name="experts"), [*joined, 24, 128])
    return s.model()


def row_per_matrix(samples: int, matrices: int) -> onnx.ModelProto:
    """A step of a recurrence with heads: each matrix of a stack multiplies one row."""
    s = Sketch(74)
    x = s.node("Relu", [s.input("x", [samples, matrices, 1, 32])], "x_y", name="relu")
    y = s.node("MatMul", [x, s.weight("w", matrices, 32, 32)], "heads_y", name="heads")
    s.output(s.node("Tanh", [y], "y", name="tanh"), [samples, matrices, 1, 32])
    return s.model()


def outer() -> onnx.ModelProto:
    """A step of linear attention: a column times a row is added to a state, which one row reads."""
    s = Sketch(75)
    row, column, state = (
        s.input("row", [2, 4, 1, 32]),
        s.input("column", [2, 4, 32, 1]),
        s.input("s", [2, 4, 32, 32]),
    )
    product = s.node("MatMul", [column, row], "product", name="outer")
    s.output(s.node("Add", [product, state], "y", name="add"), [2, 4, 32, 32])
    return s.model()


@pytest.mark.parametrize(
    ("network", "node", "rule"),
    [
        (row_per_matrix(2, 16), "heads", "gemv"),
        (row_per_matrix(1, 128), "heads", "gemv"),
        (outer(), "outer", "narrow"),
    ],
    ids=["sixteen matrices for two samples", "many matrices for one sample", "outer product"],
)
def test_what_float_computes_with_its_neighbours_stays_float(
    network: onnx.ModelProto, node: str, rule: str
) -> None:
    model, placement = quantized(network)
    assert node not in {decision.slot.node for decision in placement.quantized}
    other, anyway = quantized(network, skip_rules=(rule,))
    assert node in {decision.slot.node for decision in anyway.quantized}
    assert len(build(model.proto).kernels) < len(build(other.proto).kernels)


def test_an_attention_with_one_key_is_not_split_by_its_outer_product() -> None:
    s = Sketch(76)
    query, key = s.input("query", [1, 4, 32, 16]), s.input("key", [1, 4, 16, 1])
    y = s.node("MatMul", [query, key], "scores", name="scores")
    y = s.node("Softmax", [y], "p", name="softmax", axis=-1)
    s.output(s.node("MatMul", [y, s.input("value", [1, 4, 1, 16])], "y", name="av"), [1, 4, 32, 16])
    _, placement = quantized(s.model())
    rules = {opinion.rule for decision in placement.decisions for opinion in decision.opinions}
    assert "narrow" not in rules


def test_a_large_stack_that_is_repeated_for_each_sample_is_quantized() -> None:
    model, placement = quantized(row_per_matrix(2, 128))
    assert "heads" in {decision.slot.node for decision in placement.quantized}
    other, _ = quantized(row_per_matrix(2, 128), exclude=("heads",))
    assert len(build(model.proto).kernels) <= len(build(other.proto).kernels)


def test_a_narrow_product_beside_a_wide_one_costs_no_kernel() -> None:
    model, placement = quantized(router())
    assert {decision.slot.node for decision in placement.quantized} >= {"router", "wide"}
    other, _ = quantized(router(), exclude=("router",))
    assert len(build(model.proto).kernels) <= len(build(other.proto).kernels)


def test_a_stack_of_narrow_matrices_is_quantized() -> None:
    model, placement = quantized(learned_queries())
    assert {str(decision.slot) for decision in placement.quantized} >= {"scores[0]", "scores[1]"}
    assert dict(build(model.proto).precision)["scores"] == "int8"


@pytest.mark.parametrize("batches", [(), (1,), (4,)])
def test_int4_in_a_stack_is_read_by_the_kernel(batches: tuple[int, ...]) -> None:
    model, placement = quantized(experts(*batches), "fp16", format="int4-weights", sm=("86",))
    assert len(placement.quantized) == 1
    readers = [
        kernel
        for kernel in build(model.proto).kernels
        if any(constant.dtype is DType.INT4 for constant in kernel.constants)
    ]
    assert readers
    assert all(kernel.inputs for kernel in readers), "a kernel that only dequantizes reads nothing else"


def test_int4_in_a_stack_beside_an_input_of_four_dimensions_is_not_placed() -> None:
    _, placement = quantized(experts(1, 4), "fp16", format="int4-weights", sm=("86",))
    (reason,) = {
        opinion.reason
        for decision in placement.decisions
        for opinion in decision.opinions
        if "stack" in opinion.reason
    }
    assert not placement.quantized
    assert reason.startswith("the weights are a stack of 4 matrices")
    (fix,) = {opinion.fix for decision in placement.decisions for opinion in decision.opinions if opinion.fix}
    assert settings_in(fix) == ('place.formats={"experts": "int8-weights"}',)
    _, instead = quantized(
        experts(1, 4), "fp16", format="int4-weights", formats={"experts": "int8-weights"}, sm=("86",)
    )
    assert len(instead.quantized) == 1


@pytest.mark.parametrize(("size", "tokens"), [(16, 24), (24, 20)])
def test_fp8_leaves_an_attention_of_few_keys_as_one_float_kernel(
    size: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"format": "fp8", "sm": ("89",)}
    kept = _fp8(size, tokens, options)
    monkeypatch.setattr("qdqtool.placement.formats.fp8_obstacle", lambda *_: "")
    forced = _fp8(size, tokens, options)
    assert len(kept.kernels) < len(forced.kernels)
    assert [any("_mha" in kernel.name for kernel in each.kernels) for each in (kept, forced)] == [True, False]


def _fp8(size: int, tokens: int, options: dict[str, object]) -> Built:
    return build(quantized(graphs.heads(size, tokens), "fp16", **options)[0].proto, "sm89")


def test_the_fix_of_an_attention_in_pieces_makes_it_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 24 have no INT8 kernel: the fix names that, and as typed it gives the float kernel."""
    model, placement = quantized(graphs.heads(24, 32))
    (told,) = _attentions_in_pieces(model.proto, placement, monkeypatch)
    assert "the heads of the attention have size 24" in told
    recipe = change_recipe(Recipe(), settings_in(told))
    after, _ = quantized(graphs.heads(24, 32), "fp16", exclude=recipe.place.exclude)
    assert recipe.insert.types == "fp16"
    assert any("_mha" in kernel.name for kernel in build(after.proto).kernels)


@pytest.mark.parametrize(
    ("cell", "units", "types"), [("LSTM", 48, "fp16"), ("GRU", 100, "fp32"), ("RNN", 64, "fp16")]
)
def test_steps_of_a_recurrence_stay_float(cell: str, units: int, types: str) -> None:
    """INT8 adds kernels, as the reason says. An engine for one sample is built also if the batch is dynamic."""
    model, placement = quantized(graphs.steps(cell, units, 1), types)
    assert not placement.quantized
    claims = {opinion.claim for entry in placement.decisions for opinion in entry.opinions if opinion.fix}
    assert claims == {ADDS_A_KERNEL}
    anyway, _ = quantized(graphs.steps(cell, units, 1), types, skip_rules=("gemv",))
    assert len(build(model.proto).kernels) < len(build(anyway.proto).kernels)


@pytest.mark.parametrize(("size", "tokens"), [(16, 49), (64, 50)])
def test_a_single_head_costs_no_more_in_int8(size: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Q/DQ makes it one kernel; its fix says so, and promises nothing else."""
    model, placement = quantized(graphs.heads(size, tokens, 1))
    (fix,) = _attentions_in_pieces(model.proto, placement, monkeypatch)
    assert promises(fix, of_finding=True) == (of_fix(Assertion.STAYS_APART),)
    floats, _ = quantized(graphs.heads(size, tokens, 1), exclude=("qk", "av"))
    int8, other = build(model.proto), build(floats.proto)
    assert {"qk", "av"} <= {node for node, precision in int8.precision if precision == "int8"}
    assert len(int8.kernels) <= len(other.kernels)
    assert int8.bytes < other.bytes


def _attentions_in_pieces(
    proto: onnx.ModelProto, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The fixes of QDQ215 for the engine of a model."""
    found: list[str] = []

    def audited(model, engine):
        found.extend(draft.fix for draft in find(stage(engine, model, placement)))
        return building_audit(model, engine)

    building_audit = building.audit
    monkeypatch.setattr(building, "audit", audited)
    assert build(proto).error == ""
    return found
