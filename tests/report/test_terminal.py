"""The terminal summary: verdict first, sources named, names never markup."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from qdqtool.core.findings import Severity
from qdqtool.core.report import Report
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.terminal import render, render_comparison
from tests.report.material import AUDIT, COMPARISON, FULL, finding, verdict


def shown(report: Report, measured: dict[str, dict[str, float]] | None = None) -> str:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True, color_system=None)
    render(report, console, measured)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_an_engine_the_verdict_says_so() -> None:
    assert shown(assemble(Material(model_name="m.onnx"))).startswith("INT8: unknown")


def test_the_verdict_comes_first_and_accuracy_next() -> None:
    lines = shown(assemble(FULL)).splitlines()
    assert lines[0] == "Verdict: bad"
    lines = lines[next(number for number, line in enumerate(lines) if line.startswith("INT8:")) :]
    assert lines[0] == "INT8: 1 of 2 compute nodes (50 %)"
    assert lines[1] == "float.onnx -> TensorRT for RTX 1.7.1 for SM86"
    assert "top-1 98.4 % -> 98.1 % (-0.3 points, 95 % interval -0.9 to +0.2), 500 samples" in lines[3]
    assert "within noise" in lines[3]


@pytest.mark.parametrize("words", [
    "SQNR 34.21 dB",
    "PSNR: all values of the reference are equal",
    "5: 2 compute, 3 only quantize, cast or reformat  [recorded]",
    "4.77 MiB [recorded], 1.91 MiB with fused epilogues [estimated]",
    "1 error, 2 warning, 1 info",
    "conv2 (Conv) fp32: no scale",
    "fix: give it a scale",
    "BatchNormalization folded",
    "a substitute for classic TensorRT",
])  # fmt: skip
def test_the_summary_shows(words: str) -> None:
    assert words in shown(assemble(FULL))


def test_costs_of_the_steps_are_shown_as_measured() -> None:
    text = shown(assemble(FULL), {"build": {"seconds": 2.61, "peak_mib": 393.2}, "place": {"seconds": 0.1}})
    assert "build        2.6 s, peak 393 MiB" in text
    assert "place        0.1 s\n" in text


def test_random_samples_are_marked() -> None:
    report = assemble(replace(FULL, comparison=replace(COMPARISON, meaningful=False)))
    assert "[random samples: accuracy meaningless]" in shown(report)
    assert "within noise" in shown(assemble(FULL))
    assert "within noise" not in shown(report)
    assert "[measured]" not in "".join(
        line for line in shown(report).splitlines() if line.startswith("Accuracy")
    )


def test_long_lists_are_cut_and_counted() -> None:
    verdicts = tuple(
        replace(verdict(f"n{i}", AUDIT.verdicts[1].precision), reason=f"reason {i}") for i in range(20)
    )
    assert "and 12 more" in shown(assemble(replace(FULL, audit=replace(AUDIT, verdicts=verdicts))))


def test_nodes_that_are_float_for_one_reason_are_told_once() -> None:
    verdicts = tuple(verdict(f"n{i}", AUDIT.verdicts[1].precision) for i in range(20))
    text = shown(assemble(replace(FULL, audit=replace(AUDIT, verdicts=verdicts))))
    assert "n0 (Conv), n1 (Conv), n2 (Conv) and 17 more fp32: " in text
    assert text.count("n0 (Conv)") == 1


def test_findings_of_one_reason_are_told_once_with_what_they_cost_together() -> None:
    alike = tuple(
        replace(finding(Severity.WARNING, f"n{i}", size=1 << 20), reason="the same") for i in range(5)
    )
    text = shown(replace(assemble(FULL), findings=alike))
    assert "QDQ201 n0, n1, n2 and 2 more: the same [5.00 MiB at stake, estimated]" in text


def test_names_are_text_not_markup_and_control_characters_are_shown() -> None:
    name = "[bold]conv[/nonsense]\x1b[31m:smile:"
    report = assemble(
        replace(FULL, audit=replace(AUDIT, verdicts=(verdict(name, AUDIT.verdicts[1].precision),)))
    )
    text = shown(report)
    assert "[bold]conv[/nonsense]\\x1b[31m:smile:" in text
    assert "\x1b" not in text


def test_a_comparison_alone_lists_the_worst_samples() -> None:
    console = Console(file=io.StringIO(), width=80, soft_wrap=True, color_system=None)
    render_comparison(COMPARISON, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.startswith("float.onnx -> model.qdq.onnx, 500 samples")
    assert "x.npz[17]: SQNR 12.3 dB in logits" in text
