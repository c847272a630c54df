"""Operators of com.microsoft become ONNX operators that compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.preparation.contrib import DOMAIN, WITHOUT_A_BUILDER
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened

BATCH, TOKENS, WIDTH, HEADS, SIZE = 1, 5, 64, 4, 16


def sketch(
    op: str, *weights: tuple[int, ...], outputs: int = 1, domain: str = DOMAIN, **attributes: Any
) -> onnx.ModelProto:
    """One node that reads x of (1, 5, 64), a second such tensor for a shape of three dimensions, and weights."""
    s = models.Sketch()
    inputs = [s.input("x", [BATCH, TOKENS, WIDTH])]
    for index, shape in enumerate(weights):
        name = f"w{index}"
        inputs.append(s.input(name, shape) if len(shape) > 2 else s.weight(name, *shape) if shape else "")
    names = ["y", "", "", "sum"][:outputs]
    s.nodes.append(helper.make_node(op, inputs, names, name="node", domain=domain, **attributes))
    for name in filter(None, names):
        s.output(name)
    return s.model(opset=17, domains=[DOMAIN])


def grouped(
    *, packed: bool, rotated: bool, interleaved: bool = False, past: int = 3, **more: int
) -> onnx.ModelProto:
    """A step of a decoder with eight heads that share two, which grows its cache by the new tokens."""
    s = models.Sketch()
    shared, total = 2, TOKENS + past
    wide = (HEADS + 2 * shared) * SIZE if packed else HEADS * SIZE
    inputs = [s.input("q", [BATCH, TOKENS, wide])]
    inputs += ["", ""] if packed else [s.input(name, [BATCH, TOKENS, shared * SIZE]) for name in "kv"]
    inputs += [s.input(name, [BATCH, shared, past, SIZE]) for name in ("past_k", "past_v")]
    inputs += [s.constant("ends", np.full(BATCH, total - 1, np.int32)), s.constant("total", np.int32(total))]
    attributes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": shared, **more}
    if rotated:
        angles = np.outer(np.arange(16), 1 / 100 ** (np.arange(SIZE // 2) / SIZE)).astype(np.float32)
        inputs += [s.constant("cos", np.cos(angles)), s.constant("sin", np.sin(angles))]
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(interleaved)}
    names = ["y", "present_k", "present_v"]
    s.nodes.append(
        helper.make_node("GroupQueryAttention", inputs, names, name="node", domain=DOMAIN, **attributes)
    )
    s.output("y", [BATCH, TOKENS, HEADS * SIZE])
    for name in names[1:]:
        s.output(name, [BATCH, shared, total, SIZE])
    return s.model(opset=17, domains=[DOMAIN])


LIKE_X = (BATCH, TOKENS, WIDTH)
CASES = {
    "skip_norm": sketch("SkipLayerNormalization", LIKE_X, (WIDTH,), (WIDTH,), epsilon=1e-5),
    "skip_norm_with_bias_and_sum": sketch(
        "SkipLayerNormalization", LIKE_X, (WIDTH,), (WIDTH,), (WIDTH,), outputs=4, epsilon=1e-5
    ),
    "skip_mean_square": sketch("SkipSimplifiedLayerNormalization", LIKE_X, (WIDTH,), epsilon=1e-5),
    "skip_mean_square_and_sum": sketch(
        "SkipSimplifiedLayerNormalization", LIKE_X, (WIDTH,), (WIDTH,), outputs=4, epsilon=1e-5
    ),
    "mean_square": sketch("SimplifiedLayerNormalization", (WIDTH,), domain="", axis=-1, epsilon=1e-5),
    "bias_gelu": sketch("BiasGelu", (WIDTH,)),
    "gelu": sketch("Gelu"),
    "fast_gelu": sketch("FastGelu", (WIDTH,)),
    "quick_gelu": sketch("QuickGelu", alpha=1.702),
    "product": sketch("FusedMatMul", (16, WIDTH), transB=1, alpha=0.5),
    "heads": sketch("MultiHeadAttention", LIKE_X, LIKE_X, num_heads=HEADS),
    "heads_with_bias": sketch("MultiHeadAttention", LIKE_X, LIKE_X, (3 * WIDTH,), num_heads=HEADS, scale=0.2),
    "heads_with_mask": sketch(
        "MultiHeadAttention", LIKE_X, LIKE_X, (), (), (BATCH, HEADS, TOKENS, TOKENS), num_heads=HEADS
    ),
    "shared_heads": grouped(packed=False, rotated=False),
    "shared_heads_packed": grouped(packed=True, rotated=False),
    "shared_heads_that_see_later_tokens": grouped(packed=False, rotated=False, causal=0),
    "shared_heads_rotated": grouped(packed=False, rotated=True),
    "shared_heads_packed_and_rotated_in_couples": grouped(packed=True, rotated=True, interleaved=True),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_onnxruntime_written_out_computes_the_same(name: str, tmp_path: Path) -> None:
    proto = CASES[name]
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    assert {node.domain for node in model.view.nodes} <= {""}
    assert "SimplifiedLayerNormalization" not in {node.op for node in model.view.nodes}
    feeds = models.feeds(proto)
    wanted, found = models.run(proto, feeds), models.run(model.proto, feeds)
    assert wanted.keys() == found.keys()
    for tensor, value in wanted.items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("heads", ["", "", "", "past_k", "past_v", "filled"], []),
        ("heads", ["", "", "", "past_k", "past_v", "", "beams"], []),
        ("shared_heads", [], ["scores"]),
    ],
)
def test_an_attention_with_a_tensor_that_is_not_written_stays(
    name: str, inputs: list[str], outputs: list[str], tmp_path: Path
) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES[name])
    (node,) = proto.graph.node
    node.input.extend(inputs)
    node.output.extend(outputs)
    shapes = {"past_k": [BATCH, HEADS, 8, SIZE], "past_v": [BATCH, HEADS, 8, SIZE], "filled": [1]}
    for tensor in filter(None, inputs):
        kind = TensorProto.FLOAT if "past" in tensor else TensorProto.INT32
        shape = shapes.get(tensor, [BATCH, 1, 8])
        proto.graph.input.append(helper.make_tensor_value_info(tensor, kind, shape))
    for tensor in outputs:
        proto.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    assert [one.op for one in model.view.nodes] == [node.op_type]


@pytest.mark.parametrize("batch", [2, "batch"])
def test_sequences_of_different_lengths_stay_one_operator(batch: int | str, tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES["shared_heads"])
    for value in (*proto.graph.input, *proto.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.CopyFrom(helper.make_tensor_value_info("", 1, [batch]).type.tensor_type.shape.dim[0])
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    assert [node.op for node in model.view.nodes] == ["GroupQueryAttention"]
    assert any("with a batch of 1" in note for note in model.notes)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_operators_one_after_another_have_the_type_of_the_model(
    kind: int, weighted: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    x = s.input("x", [2, 8], kind)
    for index, op in enumerate(("Gelu", "QuickGelu", "FastGelu")):
        x = s.node(op, [x], f"h{index}", domain=DOMAIN)
    if weighted:
        weight = np.eye(8, dtype=helper.tensor_dtype_to_np_dtype(kind))
        x = s.node("MatMul", [x, s.constant("w", weight)], "product")
        x = s.node("QuickGelu", [x], "last", domain=DOMAIN)
    s.output(x, [2, 8], kind)
    model = prepare(opened(s.model(17, [DOMAIN]), tmp_path), PrepareOptions())
    assert {node.domain for node in model.view.nodes} == {""}
    onnx.checker.check_model(model.proto, full_check=True)


def test_an_operator_of_two_float_types_stays(tmp_path: Path) -> None:
    proto = sketch("SimplifiedLayerNormalization", (WIDTH,), domain="", axis=-1, epsilon=1e-5)
    half = onnx.numpy_helper.from_array(np.ones(WIDTH, np.float16), "w0")
    proto.graph.initializer[0].CopyFrom(half)
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    assert [node.op for node in model.view.nodes] == ["SimplifiedLayerNormalization"]


def test_an_operator_that_no_builder_takes_is_named_with_a_way_out(tmp_path: Path) -> None:
    s = models.Sketch()
    experts = [s.input("x", [4, WIDTH]), s.input("router", [4, 2])]
    s.nodes.append(helper.make_node("QMoE", experts, ["y"], name="experts", domain=DOMAIN, k=1))
    s.outputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, WIDTH]))
    model = prepare(opened(s.model(domains=[DOMAIN]), tmp_path), PrepareOptions())
    (note,) = (note for note in model.notes if "QMoE" in note)
    assert "'experts'" in note
    assert WITHOUT_A_BUILDER["QMoE"] in note
