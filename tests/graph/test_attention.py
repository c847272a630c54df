"""ONNX Attention becomes MatMul, Softmax and MatMul, computes the same, and is one kernel in FP8 and INT8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.recipe import PlacementOptions, PrepareOptions
from qdqtool.core.target import Target
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.matching.attention import attentions
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from tests import models
from tests.graph.placing import opened
from tests.placement import qdq

BATCH, TOKENS, SIZE = 2, 33, 16


def attention(
    heads: tuple[int, int] = (4, 4),
    *,
    rows: bool = False,
    past: int = 0,
    mask: str = "",
    free: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """One Attention with (query, key) heads, and what a decoder adds to it; `free` leaves batch and tokens open."""
    s = models.Sketch()
    batch, tokens, earlier = ("b", "t", "p") if free else (BATCH, TOKENS, past)
    wide = [[batch, tokens, count * SIZE] for count in (heads[0], heads[1], heads[1])]
    tall = [[batch, count, tokens, SIZE] for count in (heads[0], heads[1], heads[1])]
    inputs = [s.input(name, shape) for name, shape in zip("qkv", wide if rows else tall, strict=True)]
    total = "all" if free else TOKENS + past
    if mask:
        kind = TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT
        inputs.append(s.input("mask", [batch, 1, tokens, total], kind))
    outputs = ["y"]
    if past:
        inputs += [""] * (4 - len(inputs))
        inputs += [s.input(name, [batch, heads[1], earlier, SIZE]) for name in ("past_k", "past_v")]
        outputs += ["present_k", "present_v"]
    if rows:
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    s.nodes.append(helper.make_node("Attention", inputs, outputs, name="att", **attributes))
    for name in outputs:
        s.output(name)
    return s.model(opset=24)


CASES = {
    "four_dimensions": attention(),
    "heads_in_rows": attention(rows=True),
    "shared_heads": attention((4, 2)),
    "one_head_of_keys_in_rows": attention((4, 1), rows=True),
    "causal": attention(is_causal=1),
    "window": attention(is_causal=1, left_window_size=5),
    "cache": attention(past=7),
    "causal_cache": attention((4, 2), past=7, is_causal=1),
    "mask_of_floats": attention(mask="float"),
    "mask_of_flags": attention(mask="bool", is_causal=1),
    "soft_limit_and_scale": attention(softcap=2.0, scale=0.3),
    "free_lengths": attention((4, 2), free=True, past=7, is_causal=1),
    "free_lengths_in_rows": attention(free=True, rows=True, is_causal=1),
    "free_mask": attention(free=True, past=7, mask="bool"),
}
OPSETS = {"window": 25}


def prepared(proto: onnx.ModelProto, folder: Path) -> Model:
    return prepare(opened(proto, folder), PrepareOptions())


def fed(proto: onnx.ModelProto) -> dict[str, Any]:
    lengths = {"b": BATCH, "t": TOKENS, "p": 7, "all": TOKENS + 7}
    random, feeds = np.random.default_rng(0), {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [lengths.get(dim.dim_param, dim.dim_value) for dim in kind.shape.dim]
        made = random.standard_normal(shape).astype(np.float32)
        feeds[value.name] = made > 0 if kind.elem_type == TensorProto.BOOL else made
    if "mask" in feeds and feeds["mask"].dtype == bool:
        feeds["mask"][0, 0, 3] = False  # a query that may ask for no key
    return feeds


@pytest.mark.parametrize("name", CASES)
def test_an_attention_written_out_computes_the_same(name: str, tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(CASES[name].SerializeToString())
    proto.opset_import[0].version = OPSETS.get(name, 24)
    model = prepared(proto, tmp_path)
    assert "Attention" not in {node.op for node in model.view.nodes}
    assert model.view.by_name["att"].op == "MatMul"
    # With a soft limit a Tanh is between the products, which no kernel fuses.
    assert len(list(attentions(model.view))) == (0 if "soft_limit" in name else 1)
    wanted, found = models.run(proto, fed(proto)), models.run(model.proto, fed(proto))
    for tensor, value in wanted.items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-4, atol=1e-5)


def test_prepare_attention_false_leaves_the_operator(tmp_path: Path) -> None:
    model = prepare(opened(CASES["causal"], tmp_path), PrepareOptions(attention=False))
    assert [node.op for node in model.view.nodes] == ["Attention"]


def test_attentions_share_a_constant_mask(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 4, TOKENS, SIZE])
    for name in ("one", "two"):
        x = s.node("Attention", [x, x, x], name, is_causal=1)
    s.output(x)
    model = prepared(s.model(opset=24), tmp_path)
    masks = [node.inputs[1] for node in model.view.nodes if node.op == "Add"]
    assert len(masks) == 2
    assert len(set(masks)) == 1


@pytest.mark.parametrize("format_", ["fp8", "int8"])
def test_every_input_of_a_written_attention_is_quantized(format_: str, tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 64, 64])
    inputs = [s.node("MatMul", [x, s.weight(f"w{name}", 64, 64)], name) for name in "qkv"]
    y = s.node("Attention", inputs, "att", q_num_heads=4, kv_num_heads=4)
    s.output(s.node("MatMul", [y, s.weight("wo", 64, 64)], "y"))
    model = prepared(s.model(opset=23), tmp_path)
    options = PlacementOptions(format=format_, sm=("89",), ops=("MatMul",), float_type="fp16")
    placed = {decision.slot.node for decision in decide(model.view, options).decisions if decision.quantize}
    assert {"att", "att_scores"} <= placed


def test_repair_gives_the_probabilities_of_a_quantized_attention_a_pair(tmp_path: Path) -> None:
    model = opened(qdq.GRAPHS["attention_operator"](), tmp_path)
    fixes = [found.fix for found in lint(model, Target.parse("rtx")).findings if found.rule == "attention"]
    assert len(fixes) == 1
    assert "qdqtool repair" in fixes[0]
    whole, changes = repair(model, Target.parse("rtx"))
    assert "attention" in {change.rule for change in changes}
    scales = [whole.view.constant(node.inputs[1]) for node in whole.view.nodes if node.op == "QuantizeLinear"]
    assert min(float(scale) for scale in scales if scale is not None) == pytest.approx(1 / 127)
