"""A fix that quantizes more nodes says what it costs in kernels, and a build agrees."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.api.engines import audit as api_audit
from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.calibration import LOST_CHANNELS, CalibrationTable, NodeShift
from qdqtool.core.findings import Audit, Finding, KernelCounts, Severity
from qdqtool.core.kinds import AUDIT
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import PrepareOptions, Recipe
from qdqtool.core.tensors import DType
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline.costs import (
    FixCosts,
    SettingCost,
    _complete_ranges,
    describe_difference,
    saves_nothing,
    with_recorded,
)
from qdqtool.pipeline.recipes import change_recipe
from qdqtool.pipeline.recipes import load as load_recipe
from qdqtool.pipeline.request import NullProgress, RunContext, RunFolder, RunRequest
from qdqtool.placement.decide import decide
from tests import models
from tests.placement import graphs
from tests.report.material import verdict


def built(model: Path, out: Path, *words: str) -> dict:
    arguments = [
        "run",
        str(model),
        "--recipe",
        "conv-int8",
        "--samples",
        "random:2",
        "--sm",
        "86",
        "--out",
        str(out),
    ]
    assert run([*arguments, *words]) == 0
    return json.loads((out / "report.json").read_text())["data"]


@pytest.mark.parametrize("make", [graphs.excite, graphs.two_gates])
def test_a_setting_that_quantizes_more_tells_the_kernels_that_a_build_then_has(make, tmp_path: Path) -> None:
    path = models.save(make(), tmp_path)
    before = built(path, tmp_path / "before")
    fixes = {entry["fix"] for entry in before["fallbacks"] if "place.skip_rules" in entry["fix"]}
    assert fixes
    for number, fix in enumerate(sorted(fixes)):
        told = re.search(
            r"built: (\d+) of \d+ compute nodes quantized.*?, (?:(\d+) kernels? (more|fewer)|in the same number of kernels)",
            fix,
        )
        assert told is not None
        words = [word for setting in settings_in(fix) for word in ("--set", setting)]
        after = built(path, tmp_path / f"after{number}", *words)
        nodes = sum(
            count for name, count in after["summary"]["realised"].items() if name not in {"float", "unknown"}
        )
        assert nodes == int(told[1])
        more = int(told[2] or 0) * (-1 if told[3] == "fewer" else 1)
        assert after["summary"]["kernels"] == before["summary"]["kernels"] + more


def low_nodes(data: dict) -> int:
    return data["summary"]["nodes_int8"]


@pytest.mark.parametrize(
    ("make", "loses"),
    [
        (models.depthwise_cnn, True),
        (models.unet, True),
        (models.silu_cnn, True),
        (models.attention, True),
        (graphs.excite, True),
    ],
)
def test_no_fix_takes_nodes_out_of_low_bits_in_silence(make, loses: bool, tmp_path: Path) -> None:
    """FP16 beside INT8 makes depthwise and transposed convolutions float: the fix that asks for FP16 has to say so."""
    path = models.save(make(), tmp_path)
    before = built(path, tmp_path / "before")
    entries = (*before["fallbacks"], *before["findings"])
    fixes = {settings: entry["fix"] for entry in entries if (settings := settings_in(entry["fix"]))}
    lost = False
    for number, (settings, fix) in enumerate(sorted(fixes.items())):
        words = [word for setting in settings for word in ("--set", setting)]
        after = low_nodes(built(path, tmp_path / f"after{number}", *words))
        told = re.search(r"(\d+) of \d+ compute nodes? quantized instead of (\d+)", fix)
        expected = (int(told[1]), int(told[2])) if told else (low_nodes(before),) * 2
        assert (after, low_nodes(before)) == expected, fix
        lost |= after < low_nodes(before)
    assert lost is loses


@pytest.mark.parametrize(
    ("kernels", "size", "told"),
    [
        (13, 1000, ", 1 kernel more"),
        (10, 1000, ", 2 kernels fewer"),
        (12, 800, ", in the same number of kernels, about 20% fewer activation bytes"),
        (13, 1300, ", 1 kernel more, about 30% more activation bytes"),
        (12, None, ", in the same number of kernels"),
        (None, None, ""),
    ],
)
def test_a_cost_is_told_as_far_as_it_is_known(kernels: int | None, size: int | None, told: str) -> None:
    before = SettingCost(inputs=1, quantized=1, nodes=3, kernels=12, bytes=1000)
    after = SettingCost(inputs=2, quantized=2, nodes=3, kernels=kernels, bytes=size)
    assert describe_difference(before, after) == f"2 of 3 compute nodes quantized instead of 1{told}"


@pytest.mark.parametrize("kernels", [11, 12, 13])
@pytest.mark.parametrize("size", [900, 1000, 1100])
def test_a_cost_in_words_is_read_as_it_was_meant(kernels: int, size: int) -> None:
    before = SettingCost(inputs=1, quantized=1, nodes=3, kernels=12, bytes=1000)
    words = describe_difference(before, replace(before, quantized=2, kernels=kernels, bytes=size))
    assert saves_nothing(f"--set place.last_layer=int8 (built: {words})") is (kernels >= 12 and size >= 1000)
    assert not saves_nothing(f"--set place.last_layer=int8 (predicted: {words}, kernels unknown)")


def added_to(fix: str, changes: list[str], path: Path) -> str:
    """Return a fix with its cost, as an audit of a run with these changes has it. No builder is asked."""
    model = prepare(load(path), PrepareOptions())
    recipe = load_recipe("conv-int8", changes)
    audit = Audit(
        verdicts=(verdict("gate", DType.FLOAT32, fix=fix),),
        findings=(),
        counts=KernelCounts(
            kernels=9, compute=3, qdq=1, activation_bytes_dumped=None, activation_bytes_fused=None
        ),
    )
    request = BuildRequest(model=path.parent / "m.onnx", folder=path.parent)
    work = RunContext(
        RunRequest(
            model=model.path,
            recipe=recipe,
            samples="random:2",
            eval_samples=None,
            labels=None,
            out=path.parent,
        ),
        RunFolder(path.parent),
        NullProgress(),
    )
    costs = FixCosts(model, work, CalibrationTable(ranges=()), None, request)
    (entry,) = costs.added_to(audit).verdicts
    return entry.fix


def test_without_a_builder_the_kernels_are_unknown(tmp_path: Path) -> None:
    path = models.save(graphs.excite(), tmp_path)
    fix = added_to("--set 'place.skip_rules=[squeeze_excite]'", [], path)
    assert "(predicted: " in fix
    assert fix.endswith("kernels unknown: `qdqtool fix` builds it)")


def test_a_setting_that_exchanges_two_nodes_changes_something(tmp_path: Path) -> None:
    """As many nodes are quantized with it as without it."""
    path = models.save(models.conv_chain(), tmp_path)
    first, second = [node.name for node in load(path).view.nodes if node.op == "Conv"][:2]
    for name, idle in ((first, True), (second, False)):
        fix = added_to(f"--set 'place.exclude=[{name}]'", [f"place.exclude=[{first}]"], path)
        assert fix.endswith("(this setting alone changes nothing)") is idle, fix


def test_the_other_engine_has_the_bias_corrections_of_the_run(tmp_path: Path) -> None:
    """Without them it has other kernels than a run with the same setting."""
    model = prepare(load(models.save(models.conv_chain(), tmp_path)), PrepareOptions())
    node = next(node for node in model.view.nodes if node.op == "Conv")
    shift = NodeShift(node=node.name, shift=(0.5,) * (model.view.constant_shape(node.inputs[1]) or (1,))[0])
    table = CalibrationTable(ranges=(), shifts=(shift,), source="samples")
    completed = _complete_ranges(model, decide(model.view), table)
    assert replace(completed, ranges=()) == table
    assert {entry.tensor for entry in completed.ranges} == {
        decision.tensor for decision in decide(model.view).quantized
    }


def test_a_setting_that_changes_nothing_alone_says_so(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    settings = ["--set", "place.ops=[MatMul]", "--set", "place.format=float"]
    found = built(path, tmp_path / "out", "--recipe", "conv-int8", *settings)
    fixes = {entry["fix"] for entry in found["fallbacks"] if "place.ops" in entry["fix"]}
    assert fixes
    assert all("this setting alone changes nothing" in fix for fix in fixes)


def test_two_settings_of_one_node_are_priced_together(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    found = built(path, tmp_path / "out", "--recipe", "llm-int4-weights")
    (fix,) = {entry["fix"] for entry in found["fallbacks"]}
    assert fix.startswith("--set 'place.formats={")
    assert "--set 'place.ops=[Gemm, MatMul, Conv]'" in fix
    assert "(built: 2 of 2 compute nodes quantized instead of 0" in fix


def test_changes_of_a_recipe_are_those_of_the_command_line() -> None:
    recipe = change_recipe(Recipe(), ["place.skip_rules=[gemv]", "build.sm=89"])
    assert recipe.place.skip_rules == ("gemv",)
    assert recipe.build.sm == ("89",)
    with pytest.raises(UsageError, match=r"place\.nothing"):
        change_recipe(Recipe(), ["place.nothing=1"])


def test_an_audit_of_a_run_folder_prints_the_costs_of_the_run(tmp_path: Path, capsys) -> None:
    path = models.save(models.depthwise_cnn(), tmp_path)
    recorded = built(path, tmp_path / "run")
    capsys.readouterr()
    assert run(["audit", str(tmp_path / "run"), "--json"]) == 0
    audit = json.loads(capsys.readouterr().out)["data"]
    costly = {entry["fix"] for entry in recorded["findings"] if settings_in(entry["fix"])}
    assert costly
    assert {entry["fix"] for entry in audit["findings"] if settings_in(entry["fix"])} == costly
    assert api_audit(tmp_path / "run").findings == AUDIT.read(tmp_path / "run" / "findings.json").findings
    # layers of another file are not those of the run: their costs are unknown, and the audit says where they come from
    assert run(["audit", str(tmp_path / "run"), "--layers", str(tmp_path / "run" / "layers.json")]) == 0
    assert "note: costs of settings: `qdqtool run` builds and prints them" in capsys.readouterr().out


def test_recorded_costs_are_those_of_the_finding_with_this_reason() -> None:
    fix = "set --set place.min_channels=0"
    first, second = (
        Finding(code="QDQ1", check="a", severity=Severity.INFO, subject="conv", reason=reason, fix=fix)
        for reason in ("one branch", "another branch")
    )
    ranges = replace(first, code=LOST_CHANNELS[0], check=LOST_CHANNELS[1])
    counts = KernelCounts(
        kernels=1, compute=1, qdq=0, activation_bytes_dumped=None, activation_bytes_fused=None
    )
    found = Audit(verdicts=(), findings=(first, second), counts=counts)
    costly = tuple(replace(entry, fix=f"{fix} (built: {entry.reason})") for entry in found.findings)
    recorded = replace(found, findings=(*costly, ranges))
    assert with_recorded(found, recorded).findings == (ranges, *costly)
    assert with_recorded(found, recorded, LOST_CHANNELS[:1]).findings == costly


def test_a_large_model_says_why_it_has_no_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.pipeline.costs._LARGE_FOR_FIXES", 1)
    recorded = built(models.save(models.depthwise_cnn(), tmp_path), tmp_path / "run")
    fixes = {entry["fix"] for entry in recorded["findings"] if settings_in(entry["fix"])}
    assert fixes
    assert all("cost not computed: the weights take " in fix for fix in fixes)
