"""Verdicts from evidence, on engines made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.auditing import audit, verdicts
from qdqtool.core.engine import Certainty, Role
from qdqtool.core.findings import Severity, Verdict
from qdqtool.core.placement import (
    Decision,
    Placement,
    QuantSpec,
    RequestOrVeto,
    Slot,
    SlotKind,
    SlotStatement,
)
from qdqtool.core.tensors import DType
from tests.audit.graphs import dead_and_fixed, fine, float_weight, matmul_wrong_axis, transposed_conv
from tests.audit.scenes import engine, kernel, model_of
from tests.placement.qdq import Quantized


def decision(node: str, index: int, *opinions: SlotStatement) -> Decision:
    wanted = bool(opinions) and all(opinion.stance is RequestOrVeto.REQUEST for opinion in opinions)
    return Decision(
        slot=Slot(node=node, index=index),
        tensor=f"{node}_{index}",
        op="Conv",
        kind=SlotKind.WEIGHT if index else SlotKind.ACTIVATION,
        quantize=wanted,
        spec=QuantSpec() if wanted else None,
        opinions=opinions,
    )


def opinion(
    node: str, index: int, stance: RequestOrVeto, reason: str = "it pays", fix: str = ""
) -> SlotStatement:
    return SlotStatement(
        slot=Slot(node=node, index=index), rule="user", stance=stance, reason=reason, fix=fix
    )


def asked(*nodes: str) -> Placement:
    slots = [(node, index) for node in nodes for index in (0, 1)]
    return Placement(
        decisions=tuple(
            decision(node, index, opinion(node, index, RequestOrVeto.REQUEST)) for node, index in slots
        ),
        ties=(),
    )


def test_a_model_without_compute_nodes_has_no_verdicts(tmp_path):
    from tests.models import Sketch

    s = Sketch()
    s.output(s.relu("relu", s.input("x", [1, 4])), [1, 4])
    assert verdicts(model_of(s.model(), tmp_path), engine(), None) == ()


def test_int8_nodes_need_no_reason(tmp_path):
    layers = engine(*(kernel(f"{node}_myl0_1", node) for node in ("c1", "c2", "c3")))
    found = verdicts(model_of(fine(), tmp_path), layers, asked("c1", "c2", "c3"))
    assert [(v.node, v.verdict, v.reason, v.fix, v.requested) for v in found] == [
        (node, Verdict.INT8, "", "", True) for node in ("c1", "c2", "c3")
    ]


def test_the_placements_own_veto_is_the_reason(tmp_path):
    refused = opinion("c2", 0, RequestOrVeto.VETO, "excluded by *2", "--set place.exclude=[]")
    placement = Placement(decisions=(decision("c2", 0, refused), decision("c2", 1, refused)), ties=())
    layers = engine(kernel("c2_myl0_1", "c2", precision=DType.FLOAT16))
    found = {v.node: v for v in verdicts(model_of(float_weight(), tmp_path), layers, placement)}
    assert found["c2"].reason == "placement kept the node float: excluded by *2 (rule user)"
    assert found["c2"].fix == "--set place.exclude=[]"
    assert found["c2"].requested is False


def test_what_tensorrt_never_runs_in_int8_is_not_passed_over_in_silence(tmp_path):
    from tests.models import Sketch

    s = Sketch()
    x = s.input("x", [4, 1, 8])
    gates = s.node(
        "LSTM", [x, s.weight("w", 1, 32, 8), s.weight("r", 1, 32, 8)], "states", name="lstm", hidden_size=8
    )
    s.output(s.node("Einsum", [gates, s.weight("v", 8, 4)], "y", name="sum", equation="abcd,de->e"), [4])
    layers = engine(*(kernel(f"{node}_myl0_1", node, precision=DType.FLOAT32) for node in ("lstm", "sum")))
    classic = engine(*(replace(layer, kind="CaskGemmConvolution") for layer in layers.layers))
    found = {v.node: v for v in verdicts(model_of(s.model(), tmp_path), classic, None)}
    assert found["lstm"].reason.endswith("TensorRT has no INT8 kernel for LSTM")
    assert found["sum"].reason == "classic TensorRT quantizes MatMul, not Einsum"
    assert all(v.verdict is Verdict.FP32 and v.fix for v in found.values())


def test_a_slot_nobody_asked_for_is_named(tmp_path):
    placement = Placement(decisions=(decision("c2", 0), decision("c2", 1)), ties=())
    layers = engine(kernel("c2_myl0_1", "c2", precision=DType.FLOAT32))
    found = {v.node: v for v in verdicts(model_of(float_weight(), tmp_path), layers, placement)}
    assert "no rule asks to quantize c2[0], c2[1]" in found["c2"].reason


def test_a_node_no_layer_names_is_not_found_and_says_what_to_check(tmp_path):
    result = audit(model_of(fine(), tmp_path), engine(kernel("other", "elsewhere")))
    assert {v.verdict for v in result.verdicts} == {Verdict.NOT_FOUND}
    assert {v.certainty for v in result.verdicts} == {Certainty.INFERRED}
    assert any("belongs to another" in note for note in result.notes)
    assert {f.severity for f in result.findings if f.check == "fallback"} == {Severity.WARNING}


def test_a_node_only_a_layers_name_tells_of_is_inferred(tmp_path):
    layers = engine(kernel("c1+c2_myl0_4"), kernel("c3 + relu2"))
    found = verdicts(model_of(fine(), tmp_path), layers, None)
    assert [(v.verdict, v.certainty) for v in found] == [(Verdict.INT8, Certainty.INFERRED)] * 3
    assert found[0].layers == found[1].layers == ("c1+c2_myl0_4",)


def test_a_node_only_other_kernels_name_is_absorbed(tmp_path):
    layers = engine(kernel("k", "c1", role=Role.OTHER), kernel("c2_myl0_1", "c2"), kernel("c3_myl0_2", "c3"))
    found = verdicts(model_of(fine(), tmp_path), layers, None)
    assert (found[0].verdict, found[0].precision, found[0].layers) == (
        Verdict.ABSORBED,
        DType.UNKNOWN,
        ("k",),
    )


def test_a_product_of_constants_without_a_kernel_is_absorbed(tmp_path):
    found = verdicts(model_of(dead_and_fixed(), tmp_path), engine(kernel("c1_myl0_1", "c1")), None)
    assert [(v.node, v.verdict) for v in found] == [("c1", Verdict.INT8), ("fixed", Verdict.ABSORBED)]


def test_two_kernels_that_disagree_are_unknown(tmp_path):
    layers = engine(kernel("a", "mm"), kernel("b", "mm", precision=DType.FLOAT16))
    found = verdicts(model_of(matmul_wrong_axis(), tmp_path), layers, None)
    assert found[0].precision is DType.UNKNOWN
    assert found[0].reason


@pytest.mark.parametrize(("pairs", "precision"), [(2, DType.INT8), (1, DType.UNKNOWN), (0, DType.UNKNOWN)])
def test_a_product_in_an_int8_attention_is_int8_where_both_of_its_operands_are(tmp_path, pairs, precision):
    s = Quantized()
    inputs = [s.input(name, [1, 64, 64]) for name in ("a", "b")]
    inputs = [s.pair(x, f"pair_{x}") if number < pairs else x for number, x in enumerate(inputs)]
    proto = s.done(s.node("MatMul", inputs, "y", name="qk"))
    found = verdicts(model_of(proto, tmp_path), engine(kernel("_gemm_mha_v2_0", "qk")), None)
    assert [(v.verdict, v.precision) for v in found] == [(Verdict.ATTENTION, precision)]


def test_a_fallback_without_a_visible_cause_says_so(tmp_path):
    layers = engine(*(kernel(f"{node}_myl0_1", node, precision=DType.FLOAT16) for node in ("c1", "c2", "c3")))
    found = verdicts(model_of(fine(), tmp_path), layers, asked("c1", "c2", "c3"))
    assert all("no cause is visible" in verdict.reason for verdict in found)


@pytest.mark.parametrize("ignored", ["QDQ201", "fallback"])
def test_ignored_checks_find_nothing(tmp_path, ignored: str):
    layers = engine(kernel("c1_myl0_1", "c1", precision=DType.FLOAT16))
    model = model_of(fine(), tmp_path)
    assert any(finding.check == "fallback" for finding in audit(model, layers).findings)
    assert not any(
        finding.check == "fallback" for finding in audit(model, layers, ignore=(ignored,)).findings
    )


def test_a_node_inside_a_region_without_listed_kernels_is_unknown_not_guessed(tmp_path):
    region = replace(kernel("{ForeignNode[c1...c3]}", role=Role.OTHER), kind="Myelin")
    found = verdicts(model_of(fine(), tmp_path), engine(region), None)
    assert {v.verdict for v in found} == {Verdict.UNKNOWN}
    assert all("{ForeignNode[c1...c3]}, whose kernels are not listed" in v.reason for v in found)
    assert {v.certainty for v in found} == {Certainty.INFERRED}


def test_what_only_one_builder_refuses_is_not_blamed_on_another(tmp_path):
    layers = engine(kernel("up_myl0_1", "up", precision=DType.FLOAT16))
    classic = engine(*(replace(layer, kind="CaskDeconvolutionV2") for layer in layers.layers))
    model = model_of(transposed_conv(), tmp_path)
    reasons = {
        name: {v.node: v.reason for v in verdicts(model, made, None)}["up"]
        for name, made in (("rtx", layers), ("classic", classic))
    }
    assert "TensorRT for RTX has no ConvTranspose kernel" in reasons["rtx"]
    assert "TensorRT 8 reads axis 0" in reasons["classic"]
