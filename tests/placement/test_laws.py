"""Laws over all models and builders: what placement makes, lint accepts and repair leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.core.findings import Severity
from qdqtool.core.placement import QuantSpec, SlotKind
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.target import FAMILIES, Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.rules.products import WEIGHTS_ALONE
from tests import models
from tests.placement.building import quantized, table
from tests.placement.zoo import FLOAT, downsampling_block
from tests.shared import benchmark

EXPERTS = benchmark("expert_cases").EXPERT_CASES


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", FLOAT)
def test_what_placement_makes_lint_accepts_and_repair_leaves_alone(name, target) -> None:
    model, _ = quantized(FLOAT[name](), target=target)
    assert lint(model, Target.parse(target)).findings == ()
    for asked in (None, Target.parse(target)):
        assert repair(model, asked)[1] == ()


@pytest.mark.parametrize(
    ("format_", "target", "sm"),
    [
        ("fp8", "10", "89"),
        ("fp8", "rtx", "89"),
        ("nvfp4", "rtx", "120"),
        ("int8-weights", "8", "80"),
        ("int4-weights", "11", "80"),
    ],
)
@pytest.mark.parametrize("name", ["attention", "residual_cnn", "gemms"])
def test_the_law_holds_for_every_number_format(name, format_, target, sm) -> None:
    model, _ = quantized(FLOAT[name](), target=target, format=format_, sm=(sm,))
    findings = lint(model, Target.parse(target, (sm,))).findings
    assert [finding for finding in findings if WEIGHTS_ALONE not in finding.fix] == []
    assert repair(model)[1] == ()


_NO_SCALES = ("experts slice", "experts scatter", "experts masked")


@pytest.mark.parametrize("case", [case for case in EXPERTS if any(way in case for way in _NO_SCALES)])
def test_operators_that_take_or_change_weights_without_their_scales_are_named(
    case: str, tmp_path: Path
) -> None:
    make, asked, targets = EXPERTS[case]
    model = load(models.save(make(), tmp_path))
    findings = lint(model, Target.parse("rtx", targets)).findings
    (code,) = {finding.code for finding in findings if finding.severity is not Severity.INFO}
    assert code == ("QDQ184" if asked.endswith("-weights") else "QDQ192")


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("shortcut_first", [False, True])
def test_of_two_quantized_branches_lint_and_repair_keep_the_one_that_placement_keeps(
    shortcut_first, target, tmp_path
) -> None:
    proto = downsampling_block(shortcut_first)
    model = prepare(load(models.save(proto, tmp_path)), PrepareOptions())
    placement = decide(model.view, PlacementOptions(target=target))
    both = replace(
        placement,
        decisions=(
            *(decision for decision in placement.decisions if decision.slot.node != "add"),
            *(
                replace(
                    placement.decisions[0],
                    slot=replace(placement.decisions[0].slot, node="add", index=index),
                    tensor=tensor,
                    op="Add",
                    kind=SlotKind.ACTIVATION,
                    quantize=True,
                    spec=QuantSpec(),
                )
                for index, tensor in enumerate(model.view.by_name["add"].inputs)
            ),
        ),
    )
    doubled = insert(model, both, table(model, both), InsertOptions())
    (finding,) = lint(doubled, Target.parse(target)).findings
    assert (finding.code, finding.node) == ("QDQ127", "add")
    assert "input 0" in finding.reason
    fixed, changes = repair(doubled, Target.parse(target))
    assert [change.subject for change in changes] == [model.view.by_name["add"].inputs[0]]
    assert lint(fixed, Target.parse(target)).findings == ()
    kept = {str(d.slot) for d in placement.quantized if d.slot.node == "add"}
    assert kept <= {"add[1]"}
