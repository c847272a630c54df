"""FP16 and BF16 models compute on the CPU what their types say: every tensor between two nodes is rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdqtool import api
from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.typed.emulate import emulate_types
from qdqtool.runtime.runner import OrtRunner, open_model, open_runner
from tests import models
from tests.models import Sketch, save

Array = np.ndarray[Any, Any]

ROWS, COLUMNS = 4, 8
TYPES = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_normalization(x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": np.abs,
    "Exp": np.exp,
    "Neg": np.negative,
    "Relu": lambda x: np.where(x < 0, np.float32(0), x),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softmax": softmax,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Mul": np.multiply,
    "Sub": np.subtract,
}
CORRECTLY_ROUNDED = {"Abs", "Neg", "Relu", "Sqrt", *BINARY}
"""Operators that both sides compute in FP32 to the last bit; the others may differ where a result lies between two numbers."""


@np.errstate(all="ignore")
def evaluated(op: str, values: list[Array]) -> Array:
    """A node in FP32, as the definition of the operator says."""
    wide = [value.astype(np.float32) for value in values]
    if op == "MatMul":
        return wide[0].astype(np.float64) @ wide[1].astype(np.float64)
    if op == "LayerNormalization":
        return layer_normalization(*wide)
    return UNARY[op](*wide) if op in UNARY else BINARY[op](*wide)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Sketch, int]:
    """A graph of one narrow type: nodes in any order, each of which reads what was computed before it."""
    kind = draw(st.sampled_from([*TYPES]))
    s = Sketch(draw(st.integers(0, 1000)))
    s.node("Cast", [s.input("x", [ROWS, COLUMNS])], "t0", to=kind)
    size = draw(st.sampled_from([0.1, 3.0, 300.0]))
    for name, shape in (("k", (ROWS, COLUMNS)), ("w", (COLUMNS, COLUMNS)), ("g", (COLUMNS,))):
        s.constant(name, (s.random.standard_normal(shape) * size).astype(TYPES[kind]))
    tensors = ["t0"]
    for number in range(1, draw(st.integers(2, 8))):
        op = draw(st.sampled_from([*UNARY, *BINARY, "MatMul", "LayerNormalization"]))
        inputs = [draw(st.sampled_from(tensors[-2:]))]
        if op in BINARY:
            inputs.append(draw(st.sampled_from([*tensors, "k"])))
        inputs += {"MatMul": ["w"], "LayerNormalization": ["g", "g"]}.get(op, [])
        tensors.append(s.node(op, inputs, f"t{number}"))
    s.node("Cast", [tensors[-1]], "y", to=TensorProto.FLOAT)
    s.output("y", [ROWS, COLUMNS])
    return s, kind


def watching(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model that also returns every narrow tensor, as FP32."""
    made = [node.output[0] for node in proto.graph.node if node.op_type != "Cast"]
    for name in ["t0", *made]:
        proto.graph.node.append(helper.make_node("Cast", [name], [f"{name}_seen"], to=TensorProto.FLOAT))
        proto.graph.output.append(helper.make_tensor_value_info(f"{name}_seen", TensorProto.FLOAT, None))
    return proto


@np.errstate(all="ignore")
def assert_near(found: Array, exact: Array, kind: int, slack: Array | float) -> None:
    """Whether two arrays hold the same numbers of a type; those that `slack` allows to differ may be neighbours.

    `slack` is how far FP32 may be off before it is rounded: not at all, at 0.
    """
    slack = np.broadcast_to(slack, exact.shape)
    both_nan = np.isnan(found) & np.isnan(exact)
    step = np.where(slack > 0, float(ml_dtypes.finfo(TYPES[kind]).eps), 0) * np.abs(exact)
    least = np.where(slack > 0, float(ml_dtypes.finfo(TYPES[kind]).smallest_subnormal), 0)
    near = np.abs(found - exact) <= step + least + slack
    at_the_end = (slack > 0) & (np.abs(exact) >= float(ml_dtypes.finfo(TYPES[kind]).max))
    good = (found == exact) | both_nan | near | ~np.isfinite(slack) | at_the_end
    assert np.all(good), (found[~good], exact[~good])


@np.errstate(all="ignore")
def slack_of(op: str, inputs: list[Array]) -> Array | float:
    """How far two sound FP32 kernels may be apart; sums have an order, functions an approximation."""
    if op in CORRECTLY_ROUNDED:
        return 0.0
    wide = [np.abs(value.astype(np.float64)) for value in inputs]
    if op == "MatMul":
        largest = wide[0] @ wide[1]
    elif op == "LayerNormalization":
        spread = np.sqrt(np.var(inputs[0].astype(np.float64), axis=-1, keepdims=True) + 1e-5)
        largest = wide[0].max(axis=-1, keepdims=True) / spread * wide[1] * COLUMNS + wide[2]
    else:
        largest = np.ones(wide[0].shape)
    too_large = largest > float(np.finfo(np.float32).max) ** 0.5
    return np.where(too_large, np.inf, COLUMNS * 2.0**-22 * largest)


@settings(max_examples=60, deadline=None)
@given(chain=chains(), optimized=st.booleans())
def test_every_node_rounds_what_it_computes_from_rounded_inputs(
    chain: tuple[Sketch, int], optimized: bool
) -> None:
    s, kind = chain
    x = s.random.standard_normal((ROWS, COLUMNS)).astype(np.float32) * 8
    watched = watching(s.model())
    runner = open_runner(watched.SerializeToString(), description="", optimized=optimized)
    found = runner.run({"x": x})
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in s.initializers}
    known |= {name.removesuffix("_seen"): value for name, value in found.items()}
    assert_near(known["t0"], x.astype(TYPES[kind]).astype(np.float32), kind, 0.0)
    for node in s.nodes:
        if node.op_type != "Cast":
            inputs = [known[name] for name in node.input]
            with np.errstate(all="ignore"):
                exact = evaluated(node.op_type, inputs).astype(TYPES[kind]).astype(np.float32)
            assert_near(known[node.output[0]], exact, kind, slack_of(node.op_type, inputs))
    # nobody watching, the same bits come out
    alone = open_runner(s.model().SerializeToString(), description="", optimized=optimized).run({"x": x})
    np.testing.assert_array_equal(alone["y"], found["y"])


def test_adding_and_taking_away_2048_leaves_what_fp16_leaves(tmp_path: Path) -> None:
    """The smallest case: onnxruntime gives x back, and a comparison of the two said "no difference"."""
    plain, half = Sketch(), Sketch()
    x = plain.node("Add", [plain.input("x", ["N", 4]), plain.constant("k", np.float32(2048))], "b")
    plain.output(plain.node("Sub", [x, "k"], "y"), ["N", 4])
    half.node("Cast", [half.input("x", ["N", 4])], "a", to=TensorProto.FLOAT16)
    half.node("Add", ["a", half.constant("k", np.float16(2048))], "b")
    half.node("Cast", [half.node("Sub", ["b", "k"], "c")], "y", to=TensorProto.FLOAT)
    half.output("y", ["N", 4])
    values = np.float32([[0.1, 0.5, 1, 3.3]])
    reference, candidate = (
        save(each.model(), tmp_path, f"{name}.onnx") for name, each in (("plain", plain), ("half", half))
    )
    for optimized in (True, False):
        found = open_runner(candidate, description="half", optimized=optimized)
        assert found.description == "half, FP16 emulated"
        assert found.run({"x": values})["y"].tolist() == [[0, 0, 0, 4]]
    np.savez(tmp_path / "x.npz", x=np.tile(values, (8, 1)))
    comparison = api.compare(reference, candidate, tmp_path / "x.npz")
    measured = next(each.value for each in comparison.outputs[0].measures if each.metric == "sqnr_db")
    noise = values - np.float32([[0, 0, 0, 4]])
    assert measured == pytest.approx(10 * np.log10((values**2).sum() / (noise**2).sum()), abs=1e-3)


def test_what_is_too_large_becomes_infinite_as_in_fp16() -> None:
    s = Sketch()
    s.input("x", [2], TensorProto.FLOAT16)
    s.node("Mul", ["x", s.constant("big", np.float16(60000))], "high")
    s.output(
        s.node("Mul", ["high", s.constant("small", np.float16(2.0**-14))], "y"), [2], TensorProto.FLOAT16
    )
    found = open_runner(s.model().SerializeToString(), description="").run({"x": np.float16([1, 2])})["y"]
    assert found.dtype == np.float16
    assert found.tolist() == [float(np.float16(60000 * 2.0**-14)), np.inf]


def test_a_reference_in_fp16_is_rounded_too(tmp_path: Path) -> None:
    s = Sketch()
    s.input("x", ["N", 4], TensorProto.FLOAT16)
    s.node("Add", ["x", s.constant("k", np.float16(2048))], "b")
    s.output(s.node("Sub", ["b", "k"], "y"), ["N", 4], TensorProto.FLOAT16)
    path = save(s.model(), tmp_path)
    np.savez(tmp_path / "x.npz", x=np.float16([[0.1, 0.5, 1, 3.3]]))
    comparison = api.compare(path, path, tmp_path / "x.npz")
    assert comparison.reference.endswith("FP16 emulated")
    assert comparison.candidate.endswith("FP16 emulated")


def _branching(kind: int) -> onnx.ModelProto:
    """y = x + 2048 - 2048 in the branch that is taken, where the constant is a tensor of the main graph."""
    s = Sketch()
    s.node("Cast", [s.input("x", [4])], "a", to=kind)
    s.constant("k", np.asarray(2048, TYPES[kind]))
    branches = {}
    for word, last in (("then_branch", "Sub"), ("else_branch", "Add")):
        nodes = [
            helper.make_node("Add", ["a", "k"], [f"{word}_b"]),
            helper.make_node(last, [f"{word}_b", "k"], [f"{word}_c"]),
        ]
        result = helper.make_tensor_value_info(f"{word}_c", kind, [4])
        branches[word] = helper.make_graph(nodes, word, [], [result])
    s.nodes.append(helper.make_node("If", [s.input("flag", [], TensorProto.BOOL)], ["c"], **branches))
    s.node("Cast", ["c"], "y", to=TensorProto.FLOAT)
    s.output("y", [4])
    return s.model()


@pytest.mark.parametrize("kind", TYPES)
def test_bodies_are_rounded_too(kind: int) -> None:
    runner = open_runner(_branching(kind).SerializeToString(), description="")
    x = np.float32([0.1, 0.5, 1, 3.3])
    narrow = x.astype(TYPES[kind])
    found = runner.run({"x": x, "flag": np.asarray(True)})["y"]
    two = TYPES[kind](2048)
    np.testing.assert_array_equal(found, (narrow + two - two).astype(np.float32))


@pytest.mark.parametrize("kind", TYPES)
def test_a_constant_that_the_model_returns_stays_its_output(kind: int) -> None:
    s = Sketch()
    s.input("x", [4], kind)
    s.node("Add", ["x", s.constant("k", np.asarray(2048, TYPES[kind]))], "y")
    for name, shape in (("y", [4]), ("k", []), ("x", [4])):
        s.output(name, shape, kind)
    runner = open_runner(s.model().SerializeToString(), description="")
    x = np.array([0.1, 0.5, 1, 3.3], TYPES[kind])
    found = runner.run({"x": x if kind == TensorProto.FLOAT16 else x.astype(np.float32)})
    for name, exact in (("y", x + TYPES[kind](2048)), ("k", TYPES[kind](2048)), ("x", x)):
        np.testing.assert_array_equal(found[name].astype(np.float32), np.float32(exact))


def test_a_loop_carries_rounded_values() -> None:
    s = Sketch()
    s.input("x", [2], TensorProto.FLOAT16)
    s.constant("count", np.int64(3))
    s.constant("go", np.asarray(True))
    s.constant("k", np.float16(100.5))
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["v", "k"], ["large"]),
            helper.make_node("Sub", ["large", "v"], ["w"]),
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Sqrt", ["w"], ["root"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT16, [2]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("root", TensorProto.FLOAT16, [2]),
        ],
    )
    s.nodes.append(helper.make_node("Loop", ["count", "go", "x"], ["y"], body=body))
    s.output("y", [2], TensorProto.FLOAT16)
    x = np.float16([1.3, 2.7])
    (found,) = open_runner(s.model().SerializeToString(), description="").run({"x": x}).values()
    for _ in range(3):
        x = np.sqrt(x * np.float16(100.5) - x)
    np.testing.assert_array_equal(found, x)


def test_a_pair_between_fp16_nodes_rounds_twice() -> None:
    """DQ gives FP16, and Q takes it: 122 steps for 1.5, which onnxruntime before 1.24 cuts off to 121."""
    s = Sketch()
    s.input("x", [3], TensorProto.FLOAT16)
    step, zero = s.constant("step", np.float16(0.0123)), s.constant("zero", np.int8(0))
    s.node("QuantizeLinear", ["x", step, zero], "q")
    s.node("DequantizeLinear", ["q", step, zero], "dq")
    s.output(s.node("Mul", ["dq", s.constant("k", np.float16(3.3))], "y"), [3], TensorProto.FLOAT16)
    s.output("q", [3], TensorProto.INT8)
    x = np.float16([1.5, 0.777, -9])
    found = open_runner(s.model(opset=19).SerializeToString(), description="").run({"x": x})
    steps = np.clip(np.rint(x.astype(np.float32) / np.float32(np.float16(0.0123))), -128, 127)
    assert found["q"].tolist() == steps.tolist()
    values = (steps.astype(np.float32) * np.float32(np.float16(0.0123))).astype(np.float16)
    np.testing.assert_array_equal(found["y"], values * np.float16(3.3))


def test_a_bias_between_pairs_stays_what_it_is() -> None:
    """By default onnxruntime 1.32 makes it INT32, and divides in FP16: the quotient overflows, and the sum is nonsense."""
    s = Sketch()
    s.node("Cast", [s.input("x", [1, 8, 4, 4])], "h", to=TensorProto.FLOAT16)
    zero = s.constant("zero", np.int8(0))
    steps = {name: s.constant(f"{name}_step", np.float16(step)) for name, step in (("h", 1e-3), ("w", 1e-3))}
    s.constant("c_step", np.float16(0.02))
    weight = s.random.integers(-127, 128, (8, 8, 1, 1)).astype(np.int8)
    bias = np.linspace(-0.2, 0.2, 8).astype(np.float16)
    s.constant("w", weight), s.constant("b", bias)
    s.node("QuantizeLinear", ["h", steps["h"], zero], "h_q")
    s.node("DequantizeLinear", ["h_q", steps["h"], zero], "h_dq")
    s.node("DequantizeLinear", ["w", steps["w"], zero], "w_dq")
    s.node("Conv", ["h_dq", "w_dq", "b"], "c")
    s.node("QuantizeLinear", ["c", "c_step", zero], "c_q")
    s.node("DequantizeLinear", ["c_q", "c_step", zero], "c_dq")
    s.output(s.node("Cast", ["c_dq"], "y", to=TensorProto.FLOAT), [1, 8, 4, 4])
    x = (s.random.standard_normal((1, 8, 4, 4)) * 0.05).astype(np.float32)
    found = open_runner(s.model(opset=19).SerializeToString(), description="").run({"x": x})["y"]
    step = np.float32(np.float16(1e-3))
    whole = np.clip(np.rint(x.astype(np.float16).astype(np.float32) / step), -128, 127)
    values = (whole * step).astype(np.float16).astype(np.float64)
    weights = (weight[:, :, 0, 0] * step).astype(np.float16).astype(np.float64)
    exact = np.einsum("nchw,oc->nohw", values, weights) + bias.astype(np.float64)[:, None, None]
    assert np.abs(found - exact).max() <= 0.51 * 0.02


@pytest.mark.parametrize("types", ["fp16", "bf16"])
@pytest.mark.parametrize("name", models.ALL)
def test_a_file_and_a_model_in_memory_give_the_same_bits(name: str, types: Any, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    model, _ = convert(load(save(proto, tmp_path)), InsertOptions(types=types))
    feeds = models.feeds(proto)
    path = save(model.proto, tmp_path, "narrow.onnx")
    one, two = open_runner(path, description=""), open_model(model, description="")
    assert one.description.endswith(f"{types.upper()} emulated")
    assert [_shown(runner) for runner in (one, two)] == [_shown(one)] * 2
    for output, value in one.run(feeds).items():
        np.testing.assert_array_equal(two.run(feeds)[output], value)


def _shown(runner: OrtRunner) -> tuple[Any, ...]:
    return runner.description, [(each.name, each.dtype) for each in runner.inputs], runner.outputs


def test_casts_of_a_model_that_onnxruntime_saved_round() -> None:
    """onnxruntime drops pairs of Casts that bear the name of its own."""
    s = Sketch()
    half = s.node(
        "Cast", [s.input("x", [2])], "h", name="InsertedPrecisionFreeCast_h", to=TensorProto.FLOAT16
    )
    s.output(s.node("Cast", [half], "y", name="InsertedPrecisionFreeCast_y", to=TensorProto.FLOAT), [2])
    x = np.float32([0.1, 2049])
    found = open_runner(s.model().SerializeToString(), description="").run({"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(np.float16))


def test_operators_that_are_not_of_onnx_are_rounded_too() -> None:
    """onnx does not know what they return, and nothing of what follows; onnxruntime does."""
    s = Sketch()
    s.node("Add", [s.input("x", [4], TensorProto.FLOAT16), s.constant("k", np.float16(2048))], "a")
    s.node("FastGelu", ["a"], "b", domain="com.microsoft")
    s.node("Sub", ["b", "k"], "c")
    s.node("Identity", ["c"], "d")
    s.output(s.node("Add", ["d", s.constant("z", np.float16(0))], "y"), [4], TensorProto.FLOAT16)
    model = s.model(domains=["com.microsoft"])
    found = open_runner(model.SerializeToString(), description="").run({"x": np.float16([0.1, 0.5, 1, 3.3])})
    assert found["y"].tolist() == [0, 0, 0, 4]


def test_a_model_of_one_float_type_is_opened_as_it_is(tmp_path: Path) -> None:
    path = save(models.conv_chain(), tmp_path)
    assert open_runner(path, description="float").description == "float"
    assert open_model(load(path), description="float").description == "float"


@pytest.mark.parametrize("kind", ["INT8", "INT4", "UINT4", "FLOAT8E4M3FN"])
def test_stored_weights_are_dequantized_to_fp16_by_one_node(kind: str) -> None:
    """A second rounding in FP32 would keep another copy of all weights while the session opens."""
    chance = np.random.default_rng(5)
    element = getattr(TensorProto, kind)
    low = 0 if kind == "UINT4" else -7
    stored = chance.integers(low, 8, (64, 32)).astype(np.float32)
    scale = chance.uniform(0.001, 0.1, (4, 32)).astype(np.float16)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], "back", axis=0, block_size=16),
            helper.make_node("MatMul", ["x", "wd"], ["y"], "product"),
        ],
        "stored",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [64, 32])],
        [helper.make_tensor("w", element, stored.shape, stored.ravel()), numpy_helper.from_array(scale, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    emulation = emulate_types(model.SerializeToString())
    assert emulation is not None
    nodes = emulation[0].proto.graph.node
    assert [node.op_type for node in nodes if "back" in node.name] == ["DequantizeLinear"]
    assert not [node for node in nodes if node.op_type == "Cast" and node.output[0] == "wd"]
    runner = open_runner(model.SerializeToString(), description="")
    made = runner.run({"x": np.eye(64, dtype=np.float16)})["y"]
    exact = stored * np.repeat(scale.astype(np.float32), 16, axis=0)
    np.testing.assert_array_equal(made, exact.astype(np.float16))
