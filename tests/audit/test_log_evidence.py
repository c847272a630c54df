"""Findings point to the lines of the build's log that tell how their layer came to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.auditing import examine, stage
from qdqtool.core.buildlog import LogRun
from qdqtool.core.events import ComputeNode, End, EventKind, LedgerRow, OptimizerEvent
from qdqtool.core.findings import Evidence
from qdqtool.engine import read
from tests.audit.scenes import engine, kernel
from tests.audit.test_engine_checks import conv, reformat, tensor
from tests.audit.test_engine_checks import engine as dumped
from tests.buildlog.logs import BEVFUSION, BEVFUSION_JSON, shared_run
from tests.shared import shared


def run(**more: tuple) -> LogRun:
    return LogRun(
        number=1, front_end="trtexec", version=(8, 6, 1), build="", argv=(), status="passed", first_line=1, lines=9,
        blank=0, foreign=0, unread=0, **more,
    )  # fmt: skip


def places(evidence: tuple[Evidence, ...]) -> list[str]:
    return [entry.place for entry in evidence]


LEDGER = (LedgerRow(node="q", kind="Q", end=End.OUTPUT, into="conv", lines=(3, 5)),)
EVENTS = (
    OptimizerEvent(
        line=4, kind=EventKind.FUSED, pass_name="ConvReluFusion", nodes=("conv", "relu"), into="conv + relu"
    ),
    OptimizerEvent(line=6, kind=EventKind.ATTEMPT, pass_name="ConvReluFusion", nodes=("conv",)),
)


def test_without_a_log_there_is_nothing_to_point_at():
    assert stage(engine(kernel("conv", "conv"))).in_log("conv") == ()


def test_a_layer_points_to_the_last_word_on_its_q_and_dq_nodes_and_to_its_events():
    scene = replace(
        stage(engine(kernel("conv + relu", "conv", "relu"))),
        log=run(ledger=LEDGER, events=EVENTS),
        log_file="b",
    )
    assert places(scene.in_log("conv + relu")) == ["line 5", "line 4"]
    assert {entry.file for entry in scene.in_log("conv + relu")} == {"b"}


def test_a_node_points_to_what_the_log_says_of_it_first():
    compute = (ComputeNode(node="conv", op="Conv", precision="float", reason="r", lines=(8,)),)
    scene = replace(stage(engine(kernel("k", "conv"))), log=run(ledger=LEDGER, compute=compute))
    assert places(scene.in_log("conv")) == ["line 8", "line 5"]


def test_a_name_that_nothing_bears_has_no_evidence():
    assert replace(stage(engine(kernel("k", "conv"))), log=run(ledger=LEDGER)).in_log("elsewhere") == ()


def test_findings_carry_the_lines_and_the_hazard_of_their_check():
    first, second = tensor("y", "Half"), tensor("z")
    seen = dumped(
        conv("w + conv", tensor("x"), first),
        reformat("q", first, second, "QDQ"),
        conv("last", second, tensor("end")),
    )
    ledger = (LedgerRow(node="q", kind="Q", end=End.COPY, into="q", lines=(11,)),)
    (trip,) = [
        one for one in examine(replace(stage(seen), log=run(ledger=ledger))).findings if one.code == "QDQ207"
    ]
    assert places(trip.evidence)[-1] == "line 11"
    assert trip.hazard == "A low-precision kernel writes floats, and the next kernel turns them back."


@pytest.mark.shared
def test_findings_on_bevfusion_point_into_its_log():
    scene = replace(stage(read(shared(BEVFUSION_JSON))), log=shared_run(BEVFUSION))
    handed = [one for one in examine(scene).findings if one.check == "int8_in_float_out"]
    assert handed
    assert all(any(entry.file == "build.log" for entry in one.evidence) for one in handed)
