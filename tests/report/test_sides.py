"""What differs between two runs."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.comparison import BOXES, TaskAccuracy
from qdqtool.core.findings import Severity
from qdqtool.core.report import RangeRow, Report
from qdqtool.core.tensors import DType
from qdqtool.core.wording import metric
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from qdqtool.report.sides import compare_sides
from tests.report.material import AUDIT, FULL, VIEW, chain_material, finding, verdict


def test_a_run_beside_itself_differs_in_nothing() -> None:
    sides = compare_sides(assemble(FULL), assemble(FULL))
    assert sides.nodes == ()
    assert sides.costs == ()
    assert {row.change for row in sides.figures} <= {"", "+0", "+0.0 %", "+0.00 dB", "+0.00 points"}


def test_nodes_whose_verdict_differs_are_listed_with_the_reason() -> None:
    better = replace(
        AUDIT, verdicts=(AUDIT.verdicts[0], verdict("conv2", DType.INT8), verdict("new", DType.INT8))
    )
    sides = compare_sides(assemble(FULL), assemble(replace(FULL, audit=better)))
    assert [(pair.node, pair.first, pair.second, pair.reason) for pair in sides.nodes] == [
        ("conv2", "fp32", "int8", "no scale"),
        ("new", "absent", "int8", ""),
    ]


def test_slower_nodes_come_first() -> None:
    first = assemble(replace(FULL, view=VIEW))
    slower = replace(first, layers=(replace(first.layers[0], ms=0.75), *first.layers[1:]))
    sides = compare_sides(first, slower)
    assert [(cost.node, cost.first_ms, cost.second_ms) for cost in sides.costs] == [("conv1", 0.25, 0.75)]
    assert any(
        row.name == "Time of all layers (measured)" and row.change == "+200.0 %" for row in sides.figures
    )


def test_changes_of_figures_are_signed() -> None:
    sides = compare_sides(assemble(chain_material(20)), assemble(chain_material(10)))
    changes = {row.name: row.change for row in sides.figures}
    assert changes["Compute nodes"] == "-10"


def with_settings(report: Report, **values: str) -> Report:
    return replace(report, sections={**report.sections, "settings": values})


def test_settings_that_differ_come_first_and_name_the_cause() -> None:
    first = assemble(FULL)
    same = {"name": "conv-int8", "seed": "1"}
    for changed, words in (
        ({}, "No setting differs"),
        ({"method": "max"}, "Only method differs"),
        ({"method": "max", "first": "float"}, "2 settings differ"),
    ):
        left = with_settings(first, **same, **dict.fromkeys(changed, "auto"))
        right = with_settings(first, **same, **changed)
        sides = compare_sides(left, right)
        assert {row.name: (row.first, row.second) for row in sides.settings} == {
            key: ("auto", value) for key, value in changed.items()
        }
        assert sides.cause.startswith(words)
        page = render(left, right)
        heads = ["Settings that differ", "Answers", "Figures", "Findings"]
        places = [page.index(f"<h2>{head}</h2>") for head in heads]
        assert places == sorted(places)


def test_unknown_settings_are_no_equal_settings() -> None:
    first = assemble(FULL)
    for sides in (compare_sides(first, first), compare_sides(first, with_settings(first, method="max"))):
        assert sides.cause.startswith("The settings are unknown")
        assert sides.settings == ()


def test_every_measure_of_accuracy_is_compared() -> None:
    def task(metric: str, value: float) -> TaskAccuracy:
        return TaskAccuracy(
            metric=metric, unit="%", reference=90.0, candidate=value, low=None, high=None, samples=9
        )

    report = assemble(FULL)
    assert report.comparison is not None
    sides = compare_sides(
        *(
            replace(
                report,
                comparison=replace(report.comparison, task=(task("top1", value), task(BOXES, value / 2))),
            )
            for value in (80.0, 70.5)
        )
    )
    changes = {row.name: row.change for row in sides.figures}
    assert changes["top-1 (measured)"] == "-9.50 points"
    assert changes[f"{metric(BOXES)} (measured)"] == "-4.75 points"
    assert any(name.startswith("SQNR") for name in changes)


def test_a_range_and_a_zero_point_are_causes() -> None:
    def with_range(tensor: str, amax: float, note: str) -> RangeRow:
        return RangeRow(tensor=tensor, amax=amax, low=0.0, high=amax, method="max", note=note)

    first, second = (
        replace(
            assemble(FULL),
            ranges=(with_range("same", 1.0, ""), with_range("a", 2.0, note), with_range("b", wide, "")),
        )
        for note, wide in (("", 3.0), ("zero point -128", 6.0))
    )
    sides = compare_sides(first, second)
    assert [(row.name, row.change) for row in sides.ranges] == [("a", ""), ("b", "x 2")]
    assert sides.ranges[0].second == "2 (max, zero point -128)"


def test_runs_without_a_common_node_are_paired_by_their_compute_layers() -> None:
    first = assemble(chain_material(4))
    renamed = tuple(
        replace(layer, name=f"other {number}", onnx_nodes=(), bytes=1)
        for number, layer in enumerate(first.layers)
    )
    sides = compare_sides(first, replace(first, layers=renamed))
    assert {cost.node for cost in sides.costs} == {f"layer{number} / other {number}" for number in range(4)}


def test_figures_that_neither_run_knows_are_left_out() -> None:
    bare = assemble(Material(model_name="m"))
    assert compare_sides(bare, bare).figures == ()


def test_findings_of_two_runs_stand_side_by_side() -> None:
    first = assemble(FULL)
    second = replace(
        first,
        findings=(
            *first.findings[1:],
            finding(Severity.WARNING, "new_myl0_7"),
            finding(Severity.WARNING, "new_myl0_9"),
        ),
    )
    found = compare_sides(first, second)
    (kind,) = [pair for pair in found.findings if pair.code == "QDQ201"]
    assert kind.second == kind.first + 1
    assert kind.gone == (first.findings[0].subject,)
    assert kind.new == ("new", "new")


def test_the_number_of_a_kernel_makes_no_finding_new() -> None:
    first = replace(assemble(FULL), findings=(finding(Severity.WARNING, "Q_myl0_7"),))
    second = replace(first, findings=(finding(Severity.WARNING, "Q_myl0_31"),))
    (kind,) = compare_sides(first, second).findings
    assert (kind.gone, kind.new) == ((), ())


def test_bytes_that_one_run_does_not_know_are_unknown_and_not_none() -> None:
    first = assemble(FULL)
    blind = replace(first, layers=tuple(replace(layer, bytes=None) for layer in first.layers))
    sides = compare_sides(first, blind)
    assert sides.costs
    assert all(cost.second_bytes is None for cost in sides.costs)
    assert "unknown</td>" in render(first, blind)
