"""Names of any kind stay names: one law over every form of output."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qdqtool.io import ci, escaping
from qdqtool.io.json_files import canonical
from qdqtool.io.tables import Table, csv_of

EVIL = (
    '=HYPERLINK("http://x")',
    "@SUM(A1)",
    "+1+1",
    "  =1+1",
    "-2+3",
    "\uff1d1+1",
    "\x1b]0;title\x07",
    "\x9b31mred",
    "a\r\n::error::injected",
    "a|b`c<script>![x](y)",
    "]]>&\ufffe\x00",
    "\ud800half",
    "\u202egnp.exe",
    "%0A::warning::x",
    'quote" \\ back\n',
)
NAMES = st.text(st.characters(codec=None, exclude_categories=()), max_size=40) | st.sampled_from(EVIL)


def report(name: str) -> ci.CiReport:
    rule = ci.CiRule(code="QDQ1", name="a_rule", level="warning", page=name)
    result = ci.CiResult(
        code="QDQ1",
        level="warning",
        subject=name,
        reason=name,
        fix=name,
        evidence=((name, name),),
        fingerprint="1",
    )
    return ci.CiReport(
        tool="audit",
        source=name,
        headline=name,
        rules=(rule,),
        results=(result,),
        notes=(name,),
        category="rtx",
    )


def steers(text: str) -> bool:
    """Whether a terminal would do something with it, or a person read it in another order."""
    return (
        re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]", text)
        is not None
    )


@settings(deadline=None)
@given(NAMES, st.sampled_from(("junit", "markdown", "github")))
@example(EVIL[5], "markdown")
@example(EVIL[5], "github")
def test_no_form_for_reading_steers_a_terminal(name: str, form: str):
    text = ci.write(report(name), form)
    text.encode("utf-8")
    assert not steers(text)


@settings(deadline=None)
@given(NAMES)
@example(EVIL[7])
def test_a_github_finding_is_one_command_of_one_line(name: str):
    text = ci.write(report(name), "github")
    assert text.count("\n") == 1
    head, _, _ = text.removeprefix("::warning file=").partition(",title=")
    assert ":" not in head


@settings(deadline=None)
@given(NAMES)
def test_a_markdown_row_keeps_its_five_cells(name: str):
    rows = [line for line in ci.write(report(name), "markdown").splitlines() if line.startswith("| warning")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", rows[0])) == 6


@settings(deadline=None)
@given(NAMES)
def test_junit_and_sarif_can_be_parsed(name: str):
    assert ET.fromstring(ci.write(report(name), "junit").encode("utf-8")).tag == "testsuites"
    found = json.loads(ci.write(report(name), "sarif").encode("utf-8"))
    assert found["runs"][0]["results"][0]["locations"][0]["logicalLocations"][0]["name"] == name


@settings(deadline=None)
@given(NAMES)
def test_json_gives_back_what_it_was_given_as_utf8(name: str):
    text = canonical({"name": name})
    assert json.loads(text.encode("utf-8"))["name"] == name
    assert not steers(text)


@settings(deadline=None)
@given(NAMES)
def test_a_csv_cell_is_one_line_that_no_spreadsheet_calculates(name: str):
    text = csv_of(Table(columns=("name", "bytes"), rows=[(name, -3)]))
    assert not steers(text)
    text.encode("utf-8")
    (cell, number) = list(csv.reader(io.StringIO(text)))[1]
    assert number == "-3"
    inside = cell.lstrip(" ")
    assert not inside.startswith(("=", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"))
    assert not inside.startswith(("+", "-")) or re.fullmatch(r"[+-][0-9.eE+-]+ *", inside)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        (True, "true"),
        (0.1, "0.1"),
        (-1.5, "-1.5"),
        ("-0x12", "'-0x12"),
        ("-17", "-17"),
        ("+1e-3", "+1e-3"),
    ],
)
def test_numbers_stay_numbers_in_csv(cell, text: str):
    assert escaping.csv_cell(cell) == text


@given(NAMES)
def test_plain_text_is_left_as_it_is(name: str):
    plain = re.sub(r"[^A-Za-z0-9/.: ]", "", name).strip()
    assert escaping.printable(plain) == escaping.xml_line(plain) == plain
    assert escaping.dot_string(plain) == f'"{plain}"'


@given(NAMES)
def test_a_dot_string_ends_where_it_ends(name: str):
    text = escaping.dot_string(name)
    assert re.fullmatch(r'"(?:[^"\\\n]|\\.)*"', text)
