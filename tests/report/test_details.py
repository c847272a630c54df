"""What the page says of one layer, and findings by kind."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.buildlog import BuildLog, LayerTuning, LogRun, Tuning
from qdqtool.core.events import End, EventKind, LedgerRow, OptimizerEvent
from qdqtool.core.findings import Evidence, Severity
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import details, findings_of, marks
from qdqtool.report.rows import groups, places
from tests.report.material import FULL, chain, chain_material, finding

LOG = BuildLog(
    runs=(
        LogRun(
            number=1, front_end="trtexec", version=(8, 6, 1), build="", argv=(), status="passed", first_line=1, lines=9,
            blank=0, foreign=0, unread=0,
            ledger=(LedgerRow(node="q", kind="Q", end=End.INPUT, into="layer2", lines=(7, 9)),),
            events=(OptimizerEvent(line=8, kind=EventKind.FUSED, pass_name="ConvReluFusion", nodes=("layer2", "r")),),
            tuning=Tuning(
                layers=(
                    LayerTuning(
                        layer="layer2", formats=2, candidates=5, seconds=0.25, fastest_ms=0.125, fastest="0x1",
                        runner="Cask", chosen="0x1", chosen_ms=0.125, line=9,
                    ),
                )
            ),
        ),
    )
)  # fmt: skip


def test_a_layer_without_a_log_has_no_history() -> None:
    titles = {title for one in details(assemble(chain_material(3))) for title, _ in one["lists"]}
    assert titles.isdisjoint(
        {"What the optimizer did", "Q and DQ nodes that ended here", "Search for the kernel"}
    )


def test_a_layer_tells_its_q_and_dq_nodes_the_events_and_the_search_for_its_kernel() -> None:
    report = assemble(Material(model_name="m", engine=chain(4), log=LOG))
    lists = dict(details(report)[2]["lists"])
    assert lists["Q and DQ nodes that ended here"] == ["Q q: fused-input layer2 (lines 7, 9)"]
    assert lists["What the optimizer did"] == ["line 8: fused by ConvReluFusion: layer2, r"]
    assert lists["Search for the kernel"] == [
        "line 9: 5 kernels tried in 0.25 s, fastest 0.125 ms (Cask), chosen 0x1 0.125 ms"
    ]
    assert "What the optimizer did" not in dict(details(report)[1]["lists"])


def test_findings_stand_with_the_layers_they_are_about() -> None:
    report = replace(
        assemble(chain_material(4)),
        findings=(finding(Severity.INFO, "layer1"), finding(Severity.ERROR, "t2")),
    )
    assert [len(own) for own in findings_of(report)] == [0, 2, 1, 0]
    assert {number: (mark.count, mark.severity) for number, mark in marks(report).items()} == {
        1: (2, Severity.ERROR),
        2: (1, Severity.ERROR),
    }
    told = details(report)[1]["findings"][0]
    assert (told["severity"], told["fix"]) == ("info", "give it a scale")


def test_findings_of_one_check_are_told_together_with_what_they_cost() -> None:
    small, large = (
        finding(Severity.INFO, "layer0", 10),
        replace(finding(Severity.WARNING, "layer1", 30), hazard="Slow."),
    )
    other = replace(finding(Severity.ERROR), code="QDQ999", check="other")
    report = replace(assemble(chain_material(4)), findings=(small, large, other))
    first, second = groups(report)
    assert (first.code, second.code) == ("QDQ999", "QDQ201")
    assert (second.severity, second.bytes, second.hazard) == (Severity.WARNING, 40, "Slow.")
    assert second.ms == sum(layer.ms or 0 for layer in report.layers[:2]) > 0


def test_no_findings_are_no_groups() -> None:
    assert groups(replace(assemble(FULL), findings=())) == ()


def test_places_of_one_file_stand_together() -> None:
    evidence = (Evidence(file="a", place="1"), Evidence(file="b", place="2"), Evidence(file="a", place="3"))
    assert places(evidence) == [("a", "1, 3"), ("b", "2")]


def test_findings_of_a_check_stand_in_launch_order() -> None:
    report = replace(
        assemble(chain_material(4)),
        findings=tuple(finding(Severity.INFO, name) for name in ("elsewhere", "layer3", "layer1")),
    )
    (group,) = groups(report)
    assert [entry.subject for entry in group.findings] == ["layer1", "layer3", "elsewhere"]
