"""Causes and cures on the page of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.core.sensitivity import CauseKind, Cure, FloatSet, NodeSensitivity, NoiseCause, Sensitivity
from qdqtool.report.assemble import assemble, report_of
from qdqtool.report.html import render
from qdqtool.report.sensitivity_charts import _beginning, bar_chart, lines
from tests.report.material import EVIL, FULL, chain_material


def study(name: str = "conv1") -> Sensitivity:
    cause = NoiseCause(
        kind=CauseKind.CLIPPED,
        clipping=0.9,
        rounding=0.1,
        weights=0.0,
        tensor=name,
        clipped_energy=0.123,
        step=0.1,
        spread=1.0,
        channel=3,
        reach=2.0,
        weight_reach=None,
        samples=16,
    )
    cures = (
        Cure(what="float", settings=("a=1",), gain_db=2.0, gain_low=1.5, gain_high=2.5, samples=16),
        Cure(
            what=f"max for {name}", settings=("b=2",), gain_db=0.5, gain_low=-0.5, gain_high=1.5, samples=16
        ),
    )
    row = NodeSensitivity(
        node=name,
        op="Conv",
        members=(name,),
        share=1.0,
        alone_db=20.0,
        without_db=22.0,
        gain_db=2.0,
        task=None,
        samples=16,
        exact=True,
        cause=cause,
        cures=cures,
    )
    whole = FloatSet(kept=(), sqnr_db=20.0, task=None, int8_nodes=1, total_nodes=1)
    return Sensitivity(
        model="m.onnx", samples=16, meaningful=True, whole=whole, nodes=(row,), curve=(), cures=cures[:1]
    )


def page(found: Sensitivity) -> str:
    return render(assemble(replace(chain_material(8), sensitivity=found)))


def test_the_page_says_why_a_node_is_noisy_and_which_changes_helped() -> None:
    text = page(study())
    assert "clipped: 12 % of the energy of conv1 lies above its range" in text
    assert "+2.00 dB (+1.50 to +2.50)</td><td><code>a=1</code>" in text
    assert "+0.50 dB (-0.50 to +1.50), not significant" in text
    assert "the whole network" in text


@pytest.mark.parametrize("name", ["conv1", EVIL])
def test_a_study_and_a_comparison_have_pages_of_their_own(name: str) -> None:
    found = study(name)
    text = render(report_of(found))
    assert "<h1>Sensitivity of m.onnx</h1>" in text
    assert "INT8: unknown" not in text
    assert 'id="tried-a"' in text
    assert 'class="answers"' not in text
    assert EVIL not in text
    drawn = text[text.index("Gains of what was tried") :]
    assert drawn.count('class="span ') >= len(found.journal.trials) == drawn.count('class="bar p-')
    compared = assemble(FULL).comparison
    assert compared is not None
    text = render(report_of(replace(compared, candidate=name, reference="m.onnx")))
    assert "compared with m.onnx</h1>" in text
    assert EVIL not in text
    assert 'id="accuracy-a"' in text
    assert 'class="verdict' not in text


def test_names_of_the_model_stay_text() -> None:
    assert EVIL not in page(study(EVIL))


def test_rows_fit_into_a_terminal_and_long_names_stay_apart() -> None:
    names = [f"/model/model.0/encoder/layer.{number}/attention/output/dense/MatMul" for number in range(12)]
    rows = [
        replace(study().nodes[0], node=name, exact=number < 2, alone_low=10.0, alone_high=22.5, samples=4)
        for number, name in enumerate(names)
    ]
    told = [*lines(replace(study(), nodes=tuple(rows)))]
    first = told.index("nodes of /model/model.0/encoder/") + 2
    shown = told[first : first + len(names)]
    assert len({line.split()[0] for line in shown}) == len(names)
    assert max(map(len, shown)) <= 80
    assert "~20.0 (10.0 to 22.5)" in shown[-1]
    assert "~" not in shown[0]
    assert "~20.0 (unknown)" in "".join(
        lines(replace(study(), nodes=(replace(rows[-1], alone_low=None, alone_high=None),)))
    )
    assert told[first + len(names)] == "~ is an estimate on 4 samples, with its 95 % interval"


def test_one_name_and_names_that_begin_apart_are_told_whole() -> None:
    for names in (("a/conv1",), ("a/conv1", "b/conv2"), ("conv1", "conv2")):
        rows = tuple(replace(study().nodes[0], node=name) for name in names)
        told = [*lines(replace(study(), nodes=rows))]
        assert not any(line.startswith("nodes of") for line in told)
        assert all(any(line.startswith(f"{name} ") for line in told) for name in names)


def test_the_bars_have_the_order_of_the_table() -> None:
    names = ("b/conv1", "c/conv2", "a/conv3")
    rows = tuple(
        replace(study().nodes[0], node=name, share=share)
        for name, share in zip(names, (0.2, 0.7, 0.1), strict=True)
    )
    labels = [
        word.text for word in bar_chart(replace(study(), nodes=rows)).iter("text") if word.text in names
    ]
    assert labels == list(names)


def test_the_path_that_all_names_share_is_known_though_one_name_begins_another() -> None:
    assert _beginning(["/conv/Conv", "/conv/Conv_1"]) == "/conv/"
