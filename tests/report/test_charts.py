"""Axes, bars, scatter plots and histograms; and which of them a report gives."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.histogram import histogram_of
from qdqtool.core.buildlog import FunnelStep
from qdqtool.core.comparison import Measure, OutputComparison
from qdqtool.io.escaping import xml_line
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.charts import Axis, Bar, Point, ValueMark, axis_over, bars, histogram, scatter, short
from qdqtool.report.figures import figures
from qdqtool.report.svg import shorten, standalone
from tests.report.material import COMPARISON, EVIL, FULL, chain_material

POSITIVE = st.floats(1e-6, 1e12)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans())
def test_values_lie_on_their_axis_and_ticks_too(values: list[float], log: bool) -> None:
    axis = axis_over("x", values, log=log)
    assert all(0 <= axis.at(value) <= 1 for value in values)
    assert 1 <= len(axis.ticks()) <= 12
    assert all(-1e-6 <= axis.at(tick) <= 1 + 1e-6 for tick in axis.ticks())


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis(label="", low=0, high=10), (0, 2, 4, 6, 8, 10)),
        (Axis(label="", low=0.9, high=110, log=True), (1, 2, 5, 10, 20, 50, 100)),
        (Axis(label="", low=1, high=1e6, log=True), (1, 10, 100, 1e3, 1e4, 1e5, 1e6)),
        (Axis(label="", low=3, high=3), (3,)),
        (Axis(label="", low=-0.5, high=10.5, whole=True), (0, 5, 10)),
        (Axis(label="", low=-0.5, high=2.5, whole=True), (0, 1, 2)),
        (Axis(label="", low=0, high=120, whole=True), (0, 25, 50, 75, 100)),
    ],
    ids=[
        "linear",
        "short logarithmic",
        "long logarithmic",
        "a single value",
        "counts",
        "few counts",
        "many counts",
    ],
)
def test_ticks_are_round(axis: Axis, expected: tuple[float, ...]) -> None:
    assert axis.ticks() == pytest.approx(expected)


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (20_000, "20k"), (3e6, "3M"), (2e9, "2G")])
def test_ticks_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_the_longest_bar_is_three_times_one_of_a_third() -> None:
    drawing = bars([Bar(label="a", value=3, text="3"), Bar(label="b", value=1, text="1")], "t")
    long, short_one = (float(rect.get("width") or 0) for rect in drawing.iter("rect"))
    assert long == pytest.approx(3 * short_one, rel=1e-2)


def test_bars_of_zero_draw() -> None:
    assert len(list(bars([Bar(label="a", value=0, text="0")], "t").iter("rect"))) == 1


def test_points_further_right_and_up_are_drawn_there() -> None:
    axis = Axis(label="x", low=0, high=10)
    drawing = scatter([Point(x=1, y=1, text="a"), Point(x=9, y=9, text="b")], axis, axis, "t")
    first, second = drawing.iter("circle")
    assert float(first.get("cx") or 0) < float(second.get("cx") or 0)
    assert float(first.get("cy") or 0) > float(second.get("cy") or 0)


def test_points_in_one_place_share_a_label() -> None:
    axis = Axis(label="x", low=0, high=10)
    points = [
        Point(x=1, y=1, text="a", label="FP32"),
        Point(x=9, y=9, text="b", label="INT8"),
        Point(x=1, y=1.05, text="c", label="FP16"),
    ]
    told = [text.text for text in scatter(points, axis, axis, "t").iter("text")]
    assert {"FP32, FP16", "INT8"} <= set(told)
    assert not {"FP32", "FP16"} & set(told)


def test_a_mark_beyond_the_histogram_gets_room() -> None:
    drawing = histogram("t", [5, 0, 1], 1.0, [ValueMark(value=6.0, text="max")], "")
    mark = next(line for line in drawing.iter("line") if line.get("class") == "mark")
    assert 0 < float(mark.get("x1") or 0) < 220
    assert len(list(drawing.iter("rect"))) == 2


def test_a_drawing_alone_is_xml_with_its_style_and_evil_names_are_text() -> None:
    text = standalone(bars([Bar(label=EVIL + "\x1f", value=1, text="1")], EVIL))
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in text
    assert ".p-int8" in text


@given(st.text(max_size=60), st.integers(3, 40))
def test_shortened_words_fit_and_keep_both_ends(words: str, most: int) -> None:
    short_words = shorten(words, most)
    assert len(short_words) <= most
    assert short_words == words or (words.startswith(short_words[0]) and words.endswith(short_words[-1]))


@given(st.text())
def test_clean_words_can_stand_in_xml(words: str) -> None:
    ET.fromstring(f"<a>{xml_line(words).replace('&', '').replace('<', '')}</a>")


def names(material: Material) -> set[str]:
    return {figure.name for figure in figures(assemble(material))}


def test_an_empty_report_has_no_charts() -> None:
    assert names(Material(model_name="m")) == set()


def test_a_full_report_has_a_chart_for_everything_known() -> None:
    noise = OutputComparison(output="inner", measures=(Measure(metric="sqnr_db", value=20.0, unit="dB"),))
    material = replace(
        chain_material(20),
        comparison=replace(COMPARISON, tensors=(noise,)),
        histograms={"image": histogram_of(np.linspace(0, 1, 100, dtype=np.float32))},
    )
    assert names(material) == {
        "precision-shares", "time-by-layer", "bytes-by-layer", "by-type", "intensity", "noise-by-tensor", "ranges",
    }  # fmt: skip


def test_the_funnel_is_drawn_where_the_log_tells_it() -> None:
    report = replace(assemble(FULL), funnel=(FunnelStep(stage="After fusion", layers=9, line=1),))
    assert "layer-funnel" in {figure.name for figure in figures(report)}


def test_what_was_not_timed_is_never_called_measured() -> None:
    sources = {figure.name: figure.source for figure in figures(assemble(replace(FULL, comparison=None)))}
    assert set(sources.values()) <= {"recorded", "estimated"}
