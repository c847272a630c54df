"""The page: one file, no network, everything escaped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.findings import Audit, KernelCounts, Severity
from qdqtool.core.report import Fallback, RangeRow
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from tests.report.material import AUDIT, ENGINE, EVIL, FULL, finding, layer, tensor, verdict


def test_an_empty_report_is_a_page_too() -> None:
    assert "INT8: unknown" in render(assemble(Material(model_name="m.onnx")))


@pytest.mark.parametrize(
    "words", ["1 of 2 compute nodes (50 %)", "98.4 → 98.1 %", "conv2", "give it a scale", "image"]
)
def test_the_page_shows(words: str) -> None:
    assert words in render(assemble(FULL))


def test_the_page_asks_the_network_for_nothing() -> None:
    page = render(assemble(FULL))
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_names_from_models_and_dumps_are_text() -> None:
    evil = replace(
        FULL,
        model_name=EVIL,
        notes=(EVIL,),
        engine=replace(ENGINE, layers=(layer(EVIL, (tensor(EVIL),), (tensor(EVIL),)),)),
        audit=replace(
            AUDIT,
            verdicts=(verdict(EVIL, AUDIT.verdicts[1].precision, reason=EVIL, fix=EVIL),),
            findings=(finding(Severity.ERROR, EVIL),),
        ),
    )
    page = render(assemble(evil))
    assert "alert" in page
    assert EVIL not in page


@pytest.mark.parametrize("against", [None, FULL], ids=["one run", "two runs"])
def test_every_place_of_the_page_has_a_name_of_its_own(against: Material | None) -> None:
    other = None if against is None else assemble(against)
    names = re.findall(r'\bid="([^"]+)"', render(assemble(FULL), other))
    assert any(name.startswith("chart-") for name in names)
    assert len(names) == len(set(names))


def test_where_there_is_nothing_to_fix_the_page_says_so() -> None:
    clean = replace(assemble(FULL), findings=(), fallbacks=())
    assert "Nothing: every compute node runs as requested" in render(clean)
    assert "Nothing: every compute node" not in render(assemble(FULL))
    assert "What to fix" not in render(assemble(Material(model_name="m.onnx")))


def test_layers_without_tensors_are_a_table_and_nothing_is_claimed_of_them() -> None:
    named = Engine(layers=(EngineLayer(name="conv1", kind=""), EngineLayer(name="pool", kind="")))
    audited = Audit(verdicts=(), findings=(), counts=KernelCounts(
        kernels=2, compute=0, qdq=0, activation_bytes_dumped=0, activation_bytes_fused=0
    ))  # fmt: skip
    report = assemble(Material(model_name="m", engine=named, audit=audited))
    page = render(report)
    assert report.summary.activation_bytes_dumped is None
    assert "INT8: unknown, because the layer information shows no compute kernel" in page
    assert "not their tensors" in page
    assert 'class="graph"' not in page


def test_commands_in_sentences_are_code_and_what_surrounds_them_stays_text() -> None:
    page = render(replace(assemble(FULL), notes=("`qdqtool fix` takes <b>all</b>",)))
    assert "<code>qdqtool fix</code> takes &lt;b&gt;all&lt;/b&gt;" in page


def test_two_runs_of_one_model_are_told_apart_by_the_names_that_are_given() -> None:
    page = render(assemble(FULL), assemble(FULL), names=("runs/first", "runs/<second>"))
    assert "Run A: runs/first" in page
    assert "Run B: runs/&lt;second&gt;" in page


def test_nodes_with_one_reason_share_a_row() -> None:
    report = assemble(FULL)
    entry = Fallback(
        node="", op="Conv", precision="fp32", reason="the last layer", fix="--set a=b", requested=False
    )
    heads = tuple(replace(entry, node=f"head{number}") for number in range(9))
    other = replace(entry, node="stem", reason="the first layer")
    page = render(replace(report, fallbacks=(*heads, other), findings=()))
    table = page[page.index("Compute nodes that are not quantized") :]
    table = table[: table.index("</table>")]
    assert table.count("<tr><td>") == 2
    assert "and 3 more" in table
    assert all(f"head{number}" in table for number in range(9))


def test_histograms_have_a_legend() -> None:
    row = RangeRow(
        tensor="t", amax=1.0, low=0.0, high=2.0, method="max", note="", counts=(3, 2, 1), width=0.5
    )
    page = render(replace(assemble(FULL), ranges=(row,)))
    assert page.index(">chosen range<") < page.index('aria-label="t: largest')
