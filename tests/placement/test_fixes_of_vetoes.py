"""What a veto says to do is a setting that the command takes as printed, and after it the rule vetoes no more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.advice import join_fixes, settings_in
from qdqtool.core.claims import Assertion, of_reason
from qdqtool.core.placement import Placement, RequestOrVeto
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide
from tests import models
from tests.placement.building import build, quantized
from tests.placement.zoo import FLOAT

RECIPES = (
    (),
    ("place.first_layer=float", "place.last_layer=float"),
    ("place.min_channels=64", "place.exclude_ops=[MatMul, Gemm]"),
    ("place.exclude=['*1*', '*2*']", "place.skip_rules=[gemm]"),
    ("place.only=['*1*']",),
    ("place.ops=[Conv]",),
    ("place.format=fp8", "place.sm=[89]"),
    ("place.format=int4-weights", "place.sm=[86]"),
    ("place.format=nvfp4", "place.sm=[120]", "place.formats={'*1*': fp8}"),
)


def placed(path: Path, settings: Sequence[str]) -> Placement:
    return decide(load(path).view, recipes.load(None, list(settings)).place)


def vetoes(placement: Placement) -> dict[tuple[str, str, str], str]:
    """Slot, rule and reason -> fix."""
    return {
        (str(decision.slot), opinion.rule, opinion.reason): opinion.fix
        for decision in placement.decisions
        for opinion in decision.opinions
        if opinion.stance is RequestOrVeto.VETO and settings_in(opinion.fix)
    }


@pytest.mark.parametrize("name", sorted(FLOAT))
def test_after_the_printed_setting_the_rule_vetoes_no_more(name: str, tmp_path: Path) -> None:
    path = models.save(FLOAT[name](), tmp_path)
    by_name = json.dumps({node.name: "nvfp4" for node in load(path).view.nodes})
    for settings in (*RECIPES, ("place.sm=[120]", f"place.formats={by_name}")):
        for (slot, rule, reason), fix in vetoes(placed(path, settings)).items():
            change = settings_in(fix)
            if any(setting.startswith("insert.types") for setting in change):
                continue
            after = vetoes(placed(path, [*settings, *change]))
            assert (slot, rule, reason) not in after, fix


@pytest.mark.parametrize("chosen", ["place.exclude=['a*', '*conv*']", "place.only=['b*']"])
def test_after_the_printed_settings_a_node_with_any_name_is_quantized(chosen: str, tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.conv("a/conv[1]", s.input("x", [1, 32, 14, 14]), (32, 32)), None)
    path = models.save(s.model(), tmp_path)
    fixes = join_fixes(vetoes(placed(path, [chosen])).values())
    assert not vetoes(placed(path, [chosen, *settings_in(fixes)]))


def test_the_command_takes_the_setting_as_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    place = ["place", str(path), "--recipe", "conv-int8", "--json", "--set", "optional=['it''s']"]
    assert run([*place, "--set", "place.exclude=[conv1, 'it''s']"]) == 0
    fixes = {
        opinion["fix"]
        for decision in json.loads(capfd.readouterr().out)["data"]["decisions"]
        for opinion in decision["opinions"]
        if opinion["stance"] == "veto"
    }
    (fix,) = fixes
    options = [part for setting in settings_in(fix) for part in ("--set", setting)]
    assert run([*place, *options]) == 0
    decisions = json.loads(capfd.readouterr().out)["data"]["decisions"]
    assert "conv1" in {decision["slot"]["node"] for decision in decisions if decision["quantize"]}


@pytest.mark.parametrize(("squeezed", "kernel"), [(4, False), (5, True)])
def test_gates_are_said_to_be_quantized_by_a_setting_where_their_convolutions_then_run_in_int8(
    squeezed: int, kernel: bool, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = models.Sketch()
    y = s.conv("c1", s.input("x", [1, 32, 14, 14]), (32, 32))
    gate = s.node("GlobalAveragePool", [y], "mean", name="mean")
    gate = s.relu("act", s.conv("squeeze", gate, (32, squeezed), kernel=1))
    gate = s.node("Sigmoid", [s.conv("excite", gate, (squeezed, 32), kernel=1)], "gate", name="gate")
    s.output(s.conv("c2", s.node("Mul", [y, gate], "gated", name="gated"), (32, 32)), [1, 32, 14, 14])
    path = models.save(s.model(), tmp_path)
    both = "place.skip_rules=[squeeze_excite, gemv]"
    for settings in ((), ("place.skip_rules=[squeeze_excite]",)):
        said = vetoes(placed(path, settings))
        assert any(slot.startswith("excite") for slot, _, _ in said) is kernel
    assert not any(slot.startswith("excite") for slot, _, _ in vetoes(placed(path, (both,))))
    model, _ = quantized(s.model(), skip_rules=("squeeze_excite", "gemv"))
    assert (dict(build(model.proto).precision)["excite"] == "int8") is kernel


def small_product(before: str, is_shared: bool) -> onnx.ModelProto:
    """A small matrix multiplies a vector, alone or beside a large matrix that reads this vector too."""
    s = models.Sketch(7)
    x = s.input("x", [1, 1024])
    if before == "Gemm":
        x = s.node("Gemm", [x, s.weight("before_w", 1024, 1024)], "before_y", name="before")
    elif before:
        x = s.node(before, [x], "before_y", name="before")
    s.output(s.node("Gemm", [x, s.weight("small_w", 1024, 64)], "y", name="small"), [1, 64])
    if is_shared:
        s.output(s.node("Gemm", [x, s.weight("large_w", 1024, 512)], "z", name="large"), [1, 512])
    return s.model()


VECTORS = {
    f"{before or 'input'}, {'shared' if is_shared else 'alone'}": partial(small_product, before, is_shared)
    for before in ("", "Relu", "Softmax", "Gemm")
    for is_shared in (False, True)
}


@pytest.mark.parametrize("name", sorted(FLOAT.keys() | VECTORS.keys()))
def test_a_node_that_is_said_to_need_a_q_adds_one(name: str) -> None:
    network = {**FLOAT, **VECTORS}[name]
    claim = of_reason(Assertion.QUANTIZES_MORE)
    model, placement = quantized(network())
    claimed = {
        (opinion.rule, decision.slot.node)
        for decision in placement.decisions
        for opinion in decision.opinions
        if opinion.stance is RequestOrVeto.VETO and claim == opinion.claim
    }
    assert name not in VECTORS or bool(claimed) == name.endswith("alone")
    for rule, node in claimed:
        others = tuple(sorted({other for _, other in claimed} - {node}))
        after, placed_after = quantized(network(), skip_rules=(rule,), exclude=others)
        if node in {decision.slot.node for decision in placed_after.quantized}:
            assert count_quantizers(after) > count_quantizers(model)


def count_quantizers(model: Model) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in model.proto.graph.node)
