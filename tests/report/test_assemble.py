"""What the report says for every combination of steps that ran."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrators.histogram import Tally, histogram_of
from qdqtool.core.buildlog import BuildLog, FunnelStep, LogRun
from qdqtool.core.comparison import Comparison, Measure, OutputComparison
from qdqtool.core.events import End, LedgerRow
from qdqtool.core.findings import Verdict
from qdqtool.core.kinds import REPORT
from qdqtool.core.placement import Decision, Placement, Slot, SlotKind
from qdqtool.core.report import Report
from qdqtool.core.tensors import DType
from qdqtool.report.assemble import Material, assemble, runs_int8
from qdqtool.report.rows import add_times
from qdqtool.report.words import verdict as verdict_sentence
from tests.report.material import (
    AUDIT,
    BUILD,
    COMPARISON,
    ENGINE,
    FULL,
    TABLE,
    VIEW,
    verdict,
)


def test_nothing_gives_an_empty_report_that_knows_nothing() -> None:
    report = assemble(Material(model_name="m.onnx"))
    assert report.summary.nodes_total is None
    assert report.summary.kernels is None
    assert report.summary.accuracy is None
    assert report.summary.findings == {"info": 0, "warning": 0, "error": 0}
    assert report.notes == ()


@pytest.mark.parametrize(
    "part",
    [
        {"table": TABLE},
        {"build": BUILD},
        {"engine": ENGINE},
        {"audit": AUDIT},
        {"comparison": COMPARISON},
    ],
    ids=lambda part: next(iter(part)),
)
def test_every_step_alone_makes_a_report_that_survives_a_round_trip(
    part: dict[str, object], tmp_path
) -> None:
    report = assemble(Material(model_name="m.onnx", **part))
    REPORT.write(tmp_path / "report.json", report)
    assert REPORT.read(tmp_path / "report.json") == report


def test_summary_has_the_fields_that_scripts_rely_on() -> None:
    summary = assemble(FULL).summary
    assert (summary.nodes_total, summary.nodes_int8, summary.nodes_requested) == (2, 1, 2)
    assert (summary.kernels, summary.compute_kernels, summary.qdq_kernels) == (5, 2, 3)
    assert (summary.activation_bytes_dumped, summary.activation_bytes_fused) == (5_000_000, 2_000_000)
    assert summary.findings == {"info": 1, "warning": 2, "error": 1}
    assert summary.builder == "TensorRT for RTX 1.7.1 for SM86"
    assert summary.accuracy is not None
    assert (summary.accuracy.metric, summary.accuracy.reference, summary.accuracy.int8) == (
        "top1",
        98.4,
        98.1,
    )


def test_every_count_of_formats_has_the_names_of_its_nodes() -> None:
    summary = assemble(FULL).summary
    nodes = {verdict.node for verdict in AUDIT.verdicts}
    for counts, names in (
        (summary.requested, summary.requested_nodes),
        (summary.realised, summary.realised_nodes),
    ):
        assert counts == {word: len(found) for word, found in names.items()}
        assert sorted(name for found in names.values() for name in found) == sorted(nodes)


def test_an_engine_alone_gives_kernels_but_no_nodes_and_no_bytes() -> None:
    summary = assemble(Material(model_name="m", engine=ENGINE)).summary
    assert (summary.kernels, summary.compute_kernels, summary.int8_kernels) == (2, 2, 1)
    assert (summary.nodes_total, summary.activation_bytes_dumped) == (None, None)
    assert verdict_sentence(summary) == "INT8: 1 of 2 compute kernels (50 %)"


def test_a_profile_can_be_added_to_a_finished_report() -> None:
    report = add_times(assemble(FULL), VIEW)
    assert report.layers == assemble(replace(FULL, view=VIEW)).layers


def test_fallbacks_are_the_nodes_that_are_not_int8_with_reason_and_fix() -> None:
    (fallback,) = assemble(FULL).fallbacks
    assert (fallback.node, fallback.op, fallback.precision) == ("conv2", "Conv", "fp32")
    assert (fallback.reason, fallback.fix) == ("no scale", "give it a scale")


@pytest.mark.parametrize(
    ("kind", "precision", "expected"),
    [
        (Verdict.INT8, DType.INT8, True),
        (Verdict.ATTENTION, DType.INT8, True),
        (Verdict.ATTENTION, DType.FLOAT16, False),
        (Verdict.ABSORBED, DType.INT8, True),
        (Verdict.PROLOGUE, DType.INT8, False),
        (Verdict.NOT_FOUND, DType.UNKNOWN, False),
        (Verdict.FP16, DType.FLOAT16, False),
    ],
)
def test_only_int8_arithmetic_counts_as_int8(kind: Verdict, precision: DType, expected: bool) -> None:
    assert runs_int8(verdict("n", precision, kind)) is expected


def test_findings_come_most_severe_first_then_by_bytes() -> None:
    found = assemble(FULL).findings
    assert [entry.severity.value for entry in found] == ["error", "warning", "warning", "info"]
    assert [entry.subject for entry in found[1:3]] == ["large", "small"]


def test_without_labels_the_headline_is_sqnr_of_the_first_output() -> None:
    accuracy = _only_comparison(replace(COMPARISON, task=())).summary.accuracy
    assert accuracy is not None
    assert (accuracy.metric, accuracy.unit, accuracy.reference, accuracy.int8) == (
        "sqnr_db",
        "dB",
        None,
        34.21,
    )


def test_without_sqnr_the_headline_is_the_first_metric_there_is() -> None:
    outputs = (OutputComparison(output="y", measures=(Measure(metric="max_abs", value=0.5),)),)
    accuracy = _only_comparison(replace(COMPARISON, task=(), outputs=outputs)).summary.accuracy
    assert accuracy is not None
    assert (accuracy.metric, accuracy.int8) == ("max_abs", 0.5)


def test_a_comparison_without_any_metric_has_no_headline() -> None:
    assert _only_comparison(replace(COMPARISON, task=(), outputs=())).summary.accuracy is None


def test_notes_say_that_the_builder_is_a_proxy_and_what_was_not_understood() -> None:
    notes = " ".join(assemble(FULL).notes)
    assert "a substitute for classic TensorRT" in notes
    assert "'Weird' (2)" in notes
    assert "random" not in notes


def test_what_the_accuracy_is_worth_is_said_before_anything_else() -> None:
    """A terminal shows eight notes, and counts the rest."""
    others = tuple(f"folded {number}" for number in range(20))
    comparison = replace(COMPARISON, notes=("no task metric: no sample has a label",))
    random = replace(TABLE, meaningful=False)
    notes = assemble(replace(FULL, comparison=comparison, table=random, notes=others)).notes
    first, rest = notes[:3], notes[3:]
    assert rest[:20] == others
    assert [note.partition(" ")[0] for note in first] == ["The", "no", "Accuracy"]
    assert "random" in first[0]
    assert "not by the engine" in first[2]


def test_another_builder_is_no_proxy() -> None:
    report = assemble(Material(model_name="m", build=replace(BUILD, builder="trt")))
    assert report.notes == ()
    assert report.summary.builder == "TensorRT 1.7.1 for SM86"


def test_random_calibration_is_said_once() -> None:
    notes = assemble(replace(FULL, table=replace(TABLE, meaningful=False), notes=("a", "a"))).notes
    assert sum("random" in note for note in notes) == 1
    assert notes.count("a") == 1


def test_ranges_leave_weights_out() -> None:
    assert [row.tensor for row in assemble(FULL).ranges] == ["image"]
    decision = Decision(
        slot=Slot(node="n", index=1), tensor="image", op="Conv", kind=SlotKind.WEIGHT, quantize=True, spec=None, opinions=()
    )  # fmt: skip
    placed = replace(FULL, placement=Placement(decisions=(decision,), ties=()))
    assert assemble(placed).ranges == ()


def test_bytes_of_a_layer_are_known_only_when_all_its_tensors_are() -> None:
    first, second = assemble(FULL).layers
    assert first.bytes == 2 * 128
    assert second.bytes is None


def test_a_histogram_comes_with_its_range_in_at_most_64_bins() -> None:
    seen = histogram_of(np.linspace(0, 0.9, 1000, dtype=np.float32))
    (row,) = assemble(replace(FULL, histograms={"image": seen})).ranges
    assert sum(row.counts) == 1000
    assert len(row.counts) <= 64
    assert row.width * len(row.counts) == pytest.approx(0.9, abs=row.width)
    thresholds = {entry.method: entry.amax for entry in row.thresholds}
    assert thresholds["max"] == pytest.approx(0.9)
    assert {"entropy", "mse", "percentile"} <= set(thresholds)


def test_a_histogram_of_extremes_only_is_not_drawn() -> None:
    tally = Tally()
    tally.add_extremes(np.array([0.5, 1.0], np.float32))
    (row,) = assemble(replace(FULL, histograms={"image": tally.histogram()})).ranges
    assert (row.counts, row.thresholds) == ((), ())


def test_costs_come_from_the_view_of_the_engine() -> None:
    first, second = assemble(replace(FULL, view=VIEW)).layers
    assert (first.ms, first.macs, first.bound) == (0.25, 1000, "memory")
    assert (second.ms, second.macs, second.bound) == (None, None, "")


def test_the_last_run_of_the_log_gives_ledger_and_funnel() -> None:
    row = LedgerRow(node="q1", kind="Q", end=End.OUTPUT, into="conv1")
    step = FunnelStep(stage="After fusion", layers=12, line=7)
    run = LogRun(
        number=1, front_end="rtx", version=None, build="", argv=(), status="built",
        first_line=1, lines=9, blank=0, unread=0, foreign=0, ledger=(row,), funnel=(step,),
    )  # fmt: skip
    report = assemble(replace(FULL, log=BuildLog(runs=(run,))))
    assert report.ledger == (row,)
    assert report.funnel == (step,)


def _only_comparison(comparison: Comparison) -> Report:
    return assemble(Material(model_name="m", comparison=comparison))
