"""The verdict: three questions, one table, and one word wherever it is read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from rich.console import Console

from qdqtool.cli.verdict import exit_code
from qdqtool.core.comparison import (
    BOXES,
    Assumption,
    Comparison,
    Measure,
    OutputComparison,
    SqnrEstimate,
    TaskAccuracy,
)
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.kinds import REPORT
from qdqtool.core.recipe import AuditOptions, Recipe
from qdqtool.core.report import QUESTIONS, TITLES, VERDICTS, Reply, Report, Worth, verdict_of
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, actions
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from qdqtool.report.judgement import Limits
from qdqtool.report.terminal import render as print_report
from qdqtool.report.words import settling
from tests.report.material import AUDIT, ENGINE, FULL, verdict

QUANTIZED = replace(
    AUDIT,
    findings=(),
    verdicts=tuple(
        verdict(f"conv{number}", DType.INT8, realised="int8", asked="int8") for number in range(4)
    ),
)
FASTER = Worth(
    source="estimated", device="NVIDIA A10", ms=1.0, fp16_ms=2.0, low=1.5, high=2.6, kernels=(9, 8)
)
SOUND = replace(FULL, audit=QUANTIZED, worth=FASTER)


def _task(low: float | None, high: float | None, drop: float = 0.0, metric: str = "top1") -> TaskAccuracy:
    return TaskAccuracy(
        metric=metric, unit="%", reference=90.0, candidate=90.0 - drop, samples=500, low=low, high=high
    )


def _outputs(level: float | None, low: float | None = None, samples: int = 500, **more: object) -> Comparison:
    measure = Measure(metric="sqnr_db", value=level, unit="dB")
    equal = Measure(metric="max_abs", value=0.0 if level is None else 1.0)
    overall = None if level is None else SqnrEstimate(output="y", sqnr_db=level, low=low, high=level)
    found = OutputComparison(output="y", measures=(measure, equal))
    return Comparison(
        reference="float",
        candidate="Q/DQ",
        samples=samples,
        meaningful=True,
        outputs=(found,),
        sqnr=overall,
        **more,
    )


def _compared(*tasks: TaskAccuracy) -> Comparison:
    return replace(_outputs(30.0), task=tasks)


def _finding(code: str, severity: Severity) -> Finding:
    return Finding(code=code, check="c", severity=severity, subject="s", reason="r", fix="f")


def _with(*found: Finding) -> Material:
    return replace(SOUND, audit=replace(QUANTIZED, findings=found))


def test_a_sound_run_is_good() -> None:
    judged = assemble(SOUND).summary.verdict
    assert [reply.state for _, reply in judged.answers] == ["yes"] * 3
    assert (judged.answer, judged.settle) == ("good", None)


@pytest.mark.parametrize("states", list(product(("yes", "no", "unknown"), repeat=3)), ids="-".join)
def test_good_needs_three_times_yes_and_wrong_outputs_are_bad(states: tuple[str, str, str]) -> None:
    judged = verdict_of(*(Reply(state=state, evidence="e") for state in states))
    assert (judged.answer == "good") == (set(states) == {"yes"})
    assert (judged.answer == "bad") == (states[1] == "no")
    levels = [reply.level(question) for question, reply in judged.answers]
    assert max((level for level in levels if level != "unknown"), key=VERDICTS.index, default="good") in {
        judged.answer,
        "good",
    }
    assert [level == "unknown" for level in levels] == [state == "unknown" for state in states]


CASES: dict[str, tuple[Material, str, str]] = {
    "nothing quantized": (
        replace(
            SOUND, audit=replace(QUANTIZED, verdicts=(replace(verdict("c", DType.FLOAT32), requested=False),))
        ),
        "asked",
        "no",
    ),
    "no compute node": (
        replace(SOUND, audit=replace(QUANTIZED, verdicts=()), placement=None),
        "asked",
        "unknown",
    ),
    "one node not as asked": (replace(SOUND, audit=replace(AUDIT, findings=())), "asked", "no"),
    "nothing audited": (replace(SOUND, audit=None, engine=None), "asked", "unknown"),
    "layers alone, one of two float": (replace(SOUND, audit=None, engine=ENGINE), "asked", "unknown"),
    "nothing compared": (replace(SOUND, comparison=None), "accurate", "unknown"),
    "random samples": (
        replace(SOUND, comparison=replace(_outputs(30.0), meaningful=False)),
        "accurate",
        "unknown",
    ),
    "correct on none": (
        replace(SOUND, comparison=_compared(replace(_task(-1.0, 1.0), reference=0.0, candidate=0.0))),
        "accurate",
        "no",
    ),
    "thirteen pictures": (
        replace(SOUND, comparison=_compared(_task(-41.5, -3.6, 21.0))),
        "accurate",
        "unknown",
    ),
    "an interval that spans everything": (
        replace(SOUND, comparison=_compared(_task(-30.0, 30.0))),
        "accurate",
        "unknown",
    ),
    "no interval": (replace(SOUND, comparison=_compared(_task(None, None))), "accurate", "unknown"),
    "two points lost for sure": (
        replace(SOUND, comparison=_compared(_task(-3.0, -1.2, 2.0))),
        "accurate",
        "unknown",
    ),
    "two points lost, three allowed": (
        replace(SOUND, comparison=_compared(_task(-3.0, -1.2, 2.0)), limits=Limits(max_drop=3.0)),
        "accurate",
        "yes",
    ),
    "two points lost, one allowed": (
        replace(SOUND, comparison=_compared(_task(-3.0, -1.2, 2.0)), limits=Limits(max_drop=1.0)),
        "accurate",
        "no",
    ),
    "ten points lost for sure": (
        replace(SOUND, comparison=_compared(_task(-12.0, -8.0, 10.0))),
        "accurate",
        "no",
    ),
    "most boxes lost": (
        replace(SOUND, comparison=_compared(_task(-0.5, 0.5), _task(-60.0, -40.0, 50.0, BOXES))),
        "accurate",
        "no",
    ),
    "clean outputs": (replace(SOUND, comparison=_outputs(34.0, 31.0)), "accurate", "yes"),
    "equal outputs": (replace(SOUND, comparison=_outputs(None)), "accurate", "yes"),
    "one of two outputs equal": (
        replace(
            SOUND,
            comparison=replace(
                _outputs(None),
                outputs=(
                    *_outputs(None).outputs,
                    OutputComparison(output="z", measures=(Measure(metric="max_abs", value=3.0),)),
                ),
            ),
        ),
        "accurate",
        "unknown",
    ),
    "outputs between": (replace(SOUND, comparison=_outputs(17.0, 16.0)), "accurate", "unknown"),
    "clean outputs of three samples": (
        replace(SOUND, comparison=_outputs(34.0, 31.0, 3)),
        "accurate",
        "unknown",
    ),
    "an interval of outputs that spans much": (
        replace(SOUND, comparison=_outputs(34.0, 9.0)),
        "accurate",
        "unknown",
    ),
    "ruined outputs": (replace(SOUND, comparison=_outputs(4.0, 3.0)), "accurate", "no"),
    "outputs below the limit": (
        replace(SOUND, comparison=_outputs(34.0, 31.0), limits=Limits(min_sqnr=40.0)),
        "accurate",
        "no",
    ),
    "outputs above the limit": (
        replace(SOUND, comparison=_outputs(17.0, 16.0), limits=Limits(min_sqnr=15.0)),
        "accurate",
        "yes",
    ),
    "an error of the data": (_with(_finding("DAT105", Severity.ERROR)), "accurate", "no"),
    "an error of the engine": (_with(_finding("QDQ201", Severity.ERROR)), "accurate", "no"),
    "a doubt about the data": (_with(_finding("DAT101", Severity.WARNING)), "accurate", "unknown"),
    "a doubt about the ranges": (_with(_finding("CAL104", Severity.WARNING)), "accurate", "unknown"),
    "a kernel that costs time": (_with(_finding("QDQ205", Severity.WARNING)), "accurate", "yes"),
    "a guessed scale that labels confirm": (
        replace(SOUND, assumptions=(Assumption(what="scale", value="1", source="guessed"),)),
        "accurate",
        "yes",
    ),
    "a guessed scale": (
        replace(
            SOUND,
            comparison=_outputs(34.0, 31.0),
            assumptions=(Assumption(what="scale", value="1", source="guessed"),),
        ),
        "accurate",
        "unknown",
    ),
    "one class for all samples": (
        replace(SOUND, comparison=replace(_outputs(34.0, 31.0), one_answer=True)),
        "accurate",
        "unknown",
    ),
    "one class for all samples, and wrong outputs": (
        replace(SOUND, comparison=replace(_outputs(4.0, 3.0), one_answer=True)),
        "accurate",
        "no",
    ),
    "one class for all samples, which the labels confirm": (
        replace(SOUND, comparison=replace(SOUND.comparison or _outputs(34.0, 31.0), one_answer=True)),
        "accurate",
        "yes",
    ),
    "a scale that was read": (
        replace(SOUND, assumptions=(Assumption(what="scale", value="1", source="read from m.onnx"),)),
        "accurate",
        "yes",
    ),
    "no times": (replace(SOUND, worth=None), "worth", "unknown"),
    "no FP16": (replace(SOUND, worth=Worth(source="unknown", note="refused")), "worth", "unknown"),
    "starts of kernels": (replace(SOUND, worth=replace(FASTER, low=None, high=None)), "worth", "unknown"),
    "slower for sure": (replace(SOUND, worth=replace(FASTER, low=0.5, high=0.9)), "worth", "no"),
    "published times alone": (
        replace(SOUND, worth=Worth(source="unknown", low=1.1, high=1.4, advice="INT8 is faster")),
        "worth",
        "yes",
    ),
    "advice without an interval": (
        replace(SOUND, worth=Worth(source="unknown", note="refused", advice="cannot say")),
        "worth",
        "unknown",
    ),
    "perhaps faster": (replace(SOUND, worth=replace(FASTER, low=0.9, high=1.4)), "worth", "unknown"),
}


@pytest.mark.parametrize(("material", "question", "state"), CASES.values(), ids=CASES)
def test_each_question_has_its_answer(material: Material, question: str, state: str) -> None:
    judged = assemble(material).summary.verdict
    reply = getattr(judged, question)
    assert reply.state == state, reply
    assert reply.evidence
    if state != "yes":
        assert judged.answer != "good"
    if question != "asked" and state == "unknown":
        assert judged.settle is not None, judged
        assert judged.settle.name in {"run", "explain"}
        assert actions(str(judged.settle)) == (judged.settle,)


@pytest.mark.parametrize(
    ("code", "fix", "typed"),
    [
        ("DAT108", "--recipe audio-int8, or `qdqtool recipe new MODEL`", "--recipe audio-int8"),
        (
            "DAT112",
            "keep these nodes FP32: --set 'insert.keep_nodes=[a]' (measured); or FP32: --set insert.types=fp32",
            "--set 'insert.keep_nodes=[a]'",
        ),
        ("DAT112", "keep the float part FP32: --set insert.types=fp32", "--set insert.types=fp32"),
    ],
)
def test_a_doubt_is_settled_by_a_run_with_its_fix(code: str, fix: str, typed: str) -> None:
    doubt = replace(_finding(code, Severity.WARNING), fix=fix)
    settle = assemble(_with(doubt)).summary.verdict.settle
    assert settle is not None
    assert settle.line == f"qdqtool run float.onnx --samples DATA {typed}"


def test_of_two_metrics_with_one_answer_the_worse_is_its_evidence() -> None:
    # The class of the best box says nothing of a quarter of the boxes.
    metrics = _task(-8.6, 0.0, 2.9, "agreement"), _task(-39.0, -12.0, 24.8, BOXES)
    for task in (metrics, metrics[::-1]):
        judged = assemble(replace(SOUND, comparison=_compared(*task))).summary.verdict
        assert judged.accurate.evidence.startswith("boxes")


def _texts(report: Report) -> Iterator[str]:
    """What each form of the report says, as "answer state state state"."""
    if report.comparison is None:  # an audit says no more than it knows
        assert report.verdict != "good"
        yield report.verdict
        return
    told = io.StringIO()
    print_report(report, Console(file=told, width=200))
    lines = told.getvalue().splitlines()
    states = [
        next(line.split(":")[1].split()[0] for line in lines if line.startswith(f"  {TITLES[name]}:"))
        for name in QUESTIONS
    ]
    yield " ".join([lines[0].removeprefix("Verdict: "), *states])
    data = json.loads(REPORT.dump(report))["data"]["summary"]["verdict"]
    yield " ".join([data["answer"], *(data[name]["state"] for name in QUESTIONS)])
    page = render(report)
    badge = re.search(r'<p class="verdict (\w+)"><strong>(\w+)</strong>', page)
    assert badge is not None
    assert badge[1] == badge[2]
    yield " ".join([badge[1], *re.findall(r"<li class=\"\w+\">[\w ]+ <b>(\w+)</b> <span>", page)[:3]])
    both = render(report, report)
    table = both[both.index('class="answers-table"') :]
    cells = re.findall(r'<b class="level \w+">(\w+)</b>', table[: table.index("</table>")])
    assert cells[::2] == cells[1::2]
    yield " ".join(cells[::2])


@pytest.mark.parametrize("name", CASES)
def test_terminal_json_page_comparison_and_fail_on_say_the_same(name: str) -> None:
    report = assemble(CASES[name][0])
    said = set(_texts(report))
    assert len(said) == 1, said
    answer = said.pop().split()[0]
    assert answer == report.verdict
    worse = VERDICTS.index(answer)
    for limit in VERDICTS[1:]:
        # errors make a run bad, and only the verdict is asked here
        recipe = Recipe(name="r", audit=AuditOptions(fail_on=limit))
        assert exit_code(report, recipe) == (worse >= VERDICTS.index(limit))


def test_the_command_that_settles_goes_on_from_the_one_that_was_typed() -> None:
    material = replace(SOUND, worth=None, typed=Command("run", ("m.onnx", "--samples", "x")))
    settle = assemble(material).summary.verdict.settle
    assert settle == Command("run", ("m.onnx", "--samples", "x", "--builder", "trtexec"))
    assert (
        settling(settle) == "qdqtool run m.onnx --samples x --builder trtexec  # on the machine with the GPU"
    )
    limit = replace(material, comparison=_compared(_task(-3.0, -1.2, 2.0)))
    assert assemble(limit).summary.verdict.settle == Command(
        "run", ("m.onnx", "--samples", "x", "--max-drop", "3.0")
    )


@pytest.mark.parametrize(
    ("typed", "options", "line"),
    [
        (("m.onnx", "--samples", "random:4"), ("--samples", "DATA"), "m.onnx --samples DATA"),
        (("m.onnx", "--samples", "a.npz", "--json"), ("--labels", "LABELS"), "m.onnx --samples a.npz --json --labels LABELS"),
        (("m.onnx", "--set", "a=1"), ("--set", "b=2"), "m.onnx --set a=1 --set b=2"),
    ],
)  # fmt: skip
def test_a_command_that_settles_names_every_option_once(
    typed: tuple[str, ...], options: tuple[str, ...], line: str
) -> None:
    assert Command("run", typed).replacing(options).line == f"qdqtool run {line}"
