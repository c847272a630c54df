"""The figures that rules quote, measured again on small graphs."""

from __future__ import annotations

from functools import cache

import pytest

from qdqtool.placement.lint import lint
from tests import models
from tests.placement import graphs

pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
from tests.placement.building import Built, build, quantized

pytestmark = pytest.mark.rtx
MAKERS = (
    models.attention, models.concat_cnn, models.conv_chain, models.depthwise_cnn, models.gemms, models.matmuls,
    models.residual_cnn, models.silu_cnn, models.unet, graphs.excite, graphs.pyramid, graphs.strided_shortcut,
    graphs.pooled, graphs.shared_weight, graphs.downsampling, graphs.inverted, graphs.neck, graphs.pool_chain,
    graphs.averaged_branch, graphs.gated,
)  # fmt: skip

HALVES = (models.attention, models.residual_cnn, models.unet, graphs.neck)


@cache
def built(make, types: str = "fp32", **options) -> Built:
    return build(quantized(make(), types, **options)[0].proto)


@pytest.mark.parametrize(
    ("make", "types"),
    [*((make, "fp32") for make in MAKERS), *((make, "fp16") for make in HALVES)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_requested_node_is_int8_and_lint_has_nothing_to_say(make, types):
    model, placement = quantized(make(), types)
    requested = {decision.slot.node for decision in placement.quantized}
    result = built(make, types)
    assert result.error == ""
    precision = dict(result.precision)
    assert {node: precision[node] for node in requested & precision.keys()} == dict.fromkeys(
        requested & precision.keys(), "int8"
    )
    assert [f for f in lint(model).findings if f.rule != "per_tensor_weights"] == []


def test_attention_is_one_fused_int8_kernel():
    whole = built(models.attention)
    assert any("_gemm_mha" in layer.name for layer in whole.kernels)
    halves = built(models.attention, skip_rules=("matmul_activations",))
    assert len(whole.kernels) < len(halves.kernels)
    alone = built(models.attention, exclude=("proj",), skip_rules=("attention",))
    assert not any("_gemm_mha" in layer.name for layer in alone.kernels)


def test_a_quantized_shortcut_saves_the_float_copy():
    assert built(graphs.inverted).bytes < built(graphs.inverted, skip_rules=("residual_add",)).bytes
    strided = built(graphs.strided_shortcut).bytes
    assert strided < built(graphs.strided_shortcut, skip_rules=("residual_add",)).bytes


def test_a_residual_stream_that_nobody_else_reads_in_int8_is_cheaper_in_float():
    def eager(view, options):
        from qdqtool.core.placement import QuantSpec, RequestOrVeto, Slot, SlotStatement

        for node in ("add1", "add2"):
            slot = Slot(node=node, index=1)
            yield SlotStatement(slot=slot, stance=RequestOrVeto.REQUEST, reason="", spec=QuantSpec())

    from qdqtool.core.recipe import InsertOptions
    from qdqtool.graph.qdq.insert import insert
    from qdqtool.matching.rule import rulebook
    from qdqtool.placement.decide import decide
    from tests.placement.building import table

    model, _ = quantized(models.attention(), ops=())
    placement = decide(
        model.view,
        rules={**{name: rule.place for name, rule in rulebook().rules.items() if rule.place}, "eager": eager},
    )
    more = build(insert(model, placement, table(model, placement), InsertOptions()).proto)
    assert built(models.attention).bytes <= more.bytes


def test_a_tied_concat_writes_less():
    assert built(graphs.pyramid).bytes < built(graphs.pyramid, ops=("Conv",)).bytes


def test_a_gate_in_int8_costs_kernels():
    gated = built(graphs.excite, skip_rules=("squeeze_excite", "gemv"))
    assert len(built(graphs.excite).kernels) < len(gated.kernels)
    assert built(graphs.excite).bytes <= gated.bytes


def test_conv_transpose_in_int8_costs_kernels_and_stays_float():
    asked = built(models.unet, skip_rules=("conv_transpose",))
    model, _ = quantized(models.unet(), target="10")
    forced = build(model.proto)
    assert dict(forced.precision)["up"] == "float"
    assert len(forced.kernels) > len(asked.kernels)


def test_average_pools_gain_nothing_from_qdq():
    with_pairs = build(quantized(graphs.pooled(), target="10")[0].proto)
    assert built(graphs.pooled).bytes <= with_pairs.bytes
    assert built(graphs.pooled).roundings < with_pairs.roundings


def test_a_second_branch_in_int8_saves_nothing():
    classic = build(quantized(graphs.downsampling(), target="10", skip_rules=("pooling",))[0].proto)
    assert built(graphs.downsampling).bytes == classic.bytes
    assert built(graphs.downsampling).roundings < classic.roundings


def test_computed_weights_are_multiplied_in_int8():
    product = next(layer for layer in built(graphs.computed_weight).kernels if "conv" in layer.onnx_nodes)
    assert [str(tensor.dtype) for tensor in product.inputs] == ["int8", "int8"]


def test_a_pair_in_front_of_a_fork_saves_the_float_copy():
    assert built(graphs.neck).bytes < built(graphs.neck, skip_rules=("fan_out",)).bytes
    assert len(built(graphs.neck).kernels) <= len(built(graphs.neck, skip_rules=("fan_out",)).kernels)


@pytest.mark.parametrize("shape", [(8, 10), (1, 32)], ids=["narrow", "one row"])
def test_a_small_head_in_int8_costs_kernels(shape):
    kept = build(quantized(graphs.head(*shape))[0].proto)
    forced = build(quantized(graphs.head(*shape), skip_rules=("gemv", "narrow"))[0].proto)
    assert len(kept.kernels) < len(forced.kernels)


@pytest.mark.parametrize(("size", "fused"), [(16, True), (32, True), (48, False), (64, True)])
def test_int8_attention_is_fused_for_three_head_sizes_only(size, fused):
    forced = build(quantized(graphs.heads(size, 16), "fp16", skip_rules=("attention",))[0].proto)
    assert any("_gemm_mha" in layer.name for layer in forced.kernels) is fused
    kept = build(quantized(graphs.heads(size, 16), "fp16")[0].proto)
    assert len(kept.kernels) <= len(forced.kernels)


@pytest.mark.parametrize(("size", "tokens"), [(8, 64), (24, 49), (48, 16), (64, 577)])
@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_the_placement_of_an_attention_is_the_cheaper_one(size, tokens, types):
    """The rule's choice against its opposite: no more kernels, and fewer bytes where the kernels are equal."""
    forced = {"skip_rules": ("attention",)}, {"exclude": ("qk", "av")}
    kept = build(quantized(graphs.heads(size, tokens), types)[0].proto)
    for options in forced:
        other = build(quantized(graphs.heads(size, tokens), types, **options)[0].proto)
        assert (len(kept.kernels), kept.bytes) <= (len(other.kernels), other.bytes)


def test_int8_attention_is_not_fused_beyond_512_tokens():
    forced = build(quantized(graphs.heads(32, 520), "fp16", skip_rules=("attention",))[0].proto)
    assert not any("_gemm_mha" in layer.name for layer in forced.kernels)
    kept = build(quantized(graphs.heads(32, 520), "fp16")[0].proto)
    assert kept.bytes < forced.bytes


def test_the_kernel_that_averages_quantizes_for_the_head_and_writes_less():
    kept = build(quantized(graphs.pooled_head(10))[0].proto)
    floating = build(quantized(graphs.pooled_head(10), last_layer="float")[0].proto)
    assert kept.bytes < floating.bytes
    assert any("Mean" in layer.name and "Roun" in layer.name for layer in kept.kernels)


@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_a_hair_between_the_scales_around_a_concat_of_pools_saves_kernels_and_bytes(types):
    apart = built(graphs.pool_chain, types)
    equal = built(graphs.pool_chain, types, skip_rules=("pool_concat",))
    assert len(apart.kernels) < len(equal.kernels)
    assert apart.bytes <= equal.bytes


@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_an_average_that_reads_int8_beside_another_layer_saves_the_float_copy(types):
    shared = built(graphs.averaged_branch, types)
    apart = built(graphs.averaged_branch, types, skip_rules=("pooling",))
    assert shared.bytes < apart.bytes
    assert len(shared.kernels) <= len(apart.kernels)


def test_a_gate_that_reads_its_shortcut_as_int8_saves_the_float_copy():
    alone = built(graphs.gated, skip_rules=("gated_shortcut",))
    assert built(graphs.gated).bytes < alone.bytes
    assert len(built(graphs.gated).kernels) == len(alone.kernels)
