"""Tables on a terminal of 80 columns: numbers whole, names cut in the middle, one reason once."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from qdqtool.cli.screen import fit_table, show_text

NAME = "/backbone/stage_{}/block_{}/conv_depthwise/Conv_output_quantized"
WHY = "placement kept the node float: its result is read by a residual Add whose other branch is float"


def table(rows: int = 6) -> Table:
    made = Table("node", "op", "bytes", "ms", "because", box=None)
    for number in range(rows):
        made.add_row(
            NAME.format(number, number * 7), "Conv", f"{3211264 + number:,}", f"{0.5 + number:.4f}", WHY
        )
    return made


def printed(made: Table, width: int) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None, emoji=False)
    with console.capture() as shown:
        console.print(fit_table(made, width)[0])
    return shown.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_numbers_are_never_broken_and_no_line_is_too_long(width: int) -> None:
    lines = printed(table(), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for number in range(6):
        assert f"{3211264 + number:,}" in text
        assert f"{0.5 + number:.4f}" in text


def test_a_long_name_keeps_both_ends() -> None:
    made = Table("node", "bytes", box=None)
    for number in range(6):
        made.add_row(f"/model.{number}/{NAME}", "12")
    for number, line in enumerate(printed(made, 40)[1:]):
        assert re.match(rf"/model.{number}\S*\u2026\S*tized ", line), line


@given(
    names=st.lists(st.text("ab/.", min_size=1, max_size=90), unique=True, max_size=8),
    width=st.integers(30, 120),
)
def test_different_names_stay_different_at_any_width(names: list[str], width: int) -> None:
    made = Table("node", "bytes", box=None)
    for name in names:
        made.add_row(name, "12")
    cells = fit_table(made, width)[0].columns[0].cells
    assert len({cell.plain for cell in cells}) == len(names)  # type: ignore[union-attr]
    assert max(map(len, printed(made, width))) <= width


def test_a_reason_that_repeats_is_told_once() -> None:
    text = " ".join(" ".join(printed(table(), 80)).split())
    assert text.count("placement") == 1


def test_a_table_that_fits_is_not_changed() -> None:
    made = Table("node", "bytes", box=None)
    made.add_row("conv1", "12")
    assert [line.split() for line in printed(made, 80)] == [["node", "bytes"], ["conv1", "12"]]


@given(
    rows=st.lists(st.tuples(st.text("abc/", max_size=90), st.integers(0, 10**12)), max_size=8),
    width=st.integers(60, 200),
)
def test_any_number_survives_any_width(rows: list[tuple[str, int]], width: int) -> None:
    made = Table("name", "count", box=None)
    for name, number in rows:
        made.add_row(name, f"{number:,}")
    text = "\n".join(printed(made, width))
    assert all(f"{number:,}" in text for _, number in rows)


def test_many_columns_of_numbers_leave_little_for_names_and_stay_whole() -> None:
    made = Table("bytes", "macs", "intensity", "precision", "kind", "inputs", "outputs", "name", box=None)
    for number in range(4):
        size = f"{98765 + number:,}"
        made.add_row(
            size, "589,824", "29.92", "int8", "correlation", "int8[1,64,56,56]", "fp32[1,64,56,56]", NAME
        )
    lines = printed(made, 80)
    assert max(map(len, lines)) <= 80
    assert all(f"{98765 + number:,} " in lines[number + 1] for number in range(4))
    assert all("589,824" in line and "29.92" in line for line in lines[1:])


def test_titles_wrap_at_words_and_are_never_cut() -> None:
    made = Table("", "median ms", "mean", "p90", "p99", "spread", "runs", box=None)
    for name in ("resnet50-int8.onnx on cpu", "resnet50.onnx on cpu"):
        made.add_row(name, "12.0672", "12.6549", "10.1170", "120.3244", "696.9 % unstable", "1000")
    text = " ".join(" ".join(printed(made, 72)).split())
    for word in ("median", "ms", "mean", "spread", "runs", "p90", "p99"):
        assert word in text


def test_columns_that_can_be_spared_go_before_names_are_cut_to_nothing() -> None:
    made = Table("name", "inputs", "outputs", "bytes", box=None)
    for number in range(3):
        made.add_row(NAME.format(number, number), "int8[1,64,56,56]" * 2, "fp32[1,64,56,56]" * 2, "3,211,264")
    assert fit_table(made, 200, ("outputs", "inputs"))[1] == ()
    shown, left_out = fit_table(made, 44, ("outputs", "inputs"))
    assert left_out == ("outputs", "inputs")
    assert [column.header.plain for column in shown.columns] == ["name", "bytes"]


def test_a_terminal_gets_prose_wrapped_at_words_and_drawings_line_by_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "many words of prose " * 8
    drawing = "    Conv (INT8)            one kernel\n    Relu                   one more"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show_text(f"{words}\n{words}\n\n{drawing}\n", prose=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "\n".join(lines).endswith(drawing)
    assert " ".join(lines[: lines.index("")]).split() == [*words.split(), *words.split()]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    show_text(f"{words}\n", prose=True)
    assert capsys.readouterr().out == f"{words}\n"
