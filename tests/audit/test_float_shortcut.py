"""The residual stream behind normalizations stays float; what that costs is told, and a build after the fix agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.auditing.checks.float_nodes import find_float_shortcut as find
from qdqtool.auditing.checks.fusion import _may_be_softmax
from qdqtool.auditing.context import stage
from qdqtool.auditing.explanations import why_float
from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.engine import Role
from qdqtool.core.placement import Slot
from qdqtool.core.recipe import PlacementOptions
from qdqtool.placement.decide import decide
from tests import models
from tests.audit.scenes import engine, kernel
from tests.placement import graphs
from tests.placement.building import quantized


@pytest.mark.parametrize("written_out", [False, True])
def test_the_shortcut_behind_a_normalization_is_float_until_the_rule_is_skipped(written_out: bool) -> None:
    view = graphs.view(graphs.normalized_stream(written_out))
    for skipped, added in (((), set()), (("residual_stream",), {"add1", "add2"})):
        placement = decide(view, PlacementOptions(skip_rules=skipped))
        assert {decision.slot.node for decision in placement.quantized if decision.op == "Add"} == added


def test_the_shortcut_beside_convolutions_is_int8_with_the_recipe_for_transformers(
    tmp_path: Path, capsys
) -> None:
    path = models.save(models.residual_cnn(), tmp_path)
    assert run(["place", str(path), "--recipe", "transformer-int8", "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["data"]["decisions"]
    assert any(decision["quantize"] for decision in decisions if decision["op"] == "Add")


@pytest.mark.rtx
@pytest.mark.slow
def test_the_bytes_at_stake_are_those_that_the_engine_moves_less_after_the_fix(tmp_path: Path, capfd) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")
    path = models.save(graphs.normalized_stream(), tmp_path)

    def moved(name: str, *words: str) -> tuple[int, list[dict]]:
        out = tmp_path / name
        line = ["run", str(path), "--recipe", "transformer-int8", "--samples", "random:2", "--sm", "86"]
        assert run([*line, "--out", str(out), *words]) == 0
        data = json.loads((out / "findings.json").read_text())["data"]
        return data["counts"]["activation_bytes_dumped"], data["findings"]

    before, findings = moved("before")
    printed = " ".join(capfd.readouterr().out.split())
    page = (tmp_path / "before" / "report.html").read_text("utf-8")
    (told,) = (finding for finding in findings if finding["code"] == "QDQ219")
    words = [word for setting in settings_in(told["fix"]) for word in ("--set", setting)]
    after, left = moved("after", *words)
    assert before - after == told["bytes"] > 0
    assert "Kept float" in printed
    assert "more [estimated]; without: --set 'place.skip_rules=[residual_stream]'" in printed
    assert "Bytes kept float" in page
    assert "Kept float" not in capfd.readouterr().out
    assert not [finding for finding in left if finding["code"] == "QDQ219"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclude_ops": ("Add",)}, "place.exclude_ops lists Add (rule user)"),
        ({"exclude": ("conv1",)}, "no other layer reads these values in INT8"),
        ({"skip_rules": ("residual_add",)}, "no rule asks to quantize this input"),
    ],
)
def test_every_float_shortcut_has_a_reason(options: dict[str, tuple[str, ...]], words: str) -> None:
    """A rule refuses it, or it follows from another node that stays float, or no rule asks to quantize this input."""
    model, placement = quantized(models.residual_cnn(), **options)
    context = stage(engine(kernel("conv1_k", "conv1")), model, placement)
    (told,) = find(context)
    assert (told.subject, told.fix != "") == ("add1", True)
    assert words in told.reason
    cause = why_float(Slot(node="add1", index=1), placement)
    assert cause is not None
    assert cause.reason.replace("add1[1]", "this input") in told.reason


def test_an_input_that_is_quantized_has_no_reason_to_be_float() -> None:
    _, placement = quantized(models.residual_cnn())
    assert why_float(Slot(node="add1", index=1), placement) is None
    reasons = [why_float(decision.slot, placement) for decision in placement.decisions]
    assert [cause is None for cause in reasons] == [each.quantize for each in placement.decisions]


def test_a_constant_is_no_shortcut(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.input("x", (1, 8, 16, 16))
    first = sketch.conv("conv1", x, (8, 8))
    sketch.output(
        sketch.node("Add", [first, sketch.constant("zeros", np.zeros((1, 8, 1, 1), np.float32))], "y")
    )
    model, placement = quantized(sketch.model())
    shared = tuple(replace(one, tensor="zeros") for one in placement.decisions)
    context = stage(engine(kernel("conv1_k", "conv1")), model, replace(placement, decisions=shared))
    assert not list(find(context))


def test_a_kernel_without_a_softmax_is_no_attention() -> None:
    model, placement = quantized(models.residual_cnn())
    node = next(node.name for node in model.view.nodes if node.op == "Add")
    layer = replace(kernel("__myl_MaxrSubExpSumDiv", node), role=Role.OTHER)
    context = stage(engine(layer), model, placement)
    assert not _may_be_softmax(context, layer)
    assert _may_be_softmax(context, replace(layer, onnx_nodes=()))
