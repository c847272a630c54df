"""Bars: one figure per name, shares of a whole, or a small histogram with the thresholds that calibrators chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.report.svg import Element, canvas, element, hint, shorten, write

# --- rows of bars ----------------------------------------------------------------------------------------------------

_WIDTH, _ROW, _LABEL, _VALUE = 720, 22, 250, 90
_LETTERS = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar: label, length, text for the length, CSS class, and a longer text for the tooltip."""

    label: str
    value: float
    text: str
    style: str = "plain"
    more: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A row of parts that make a whole; the length of a part is its `value`."""

    label: str
    parts: tuple[Bar, ...]


def bars(rows: Sequence[Bar], title: str) -> Element:
    """Draw one bar per row; the longest has the full width."""
    drawing = canvas(_WIDTH, _ROW * len(rows) + 4, aria_label=title, class_="chart")
    longest = max((abs(row.value) for row in rows), default=0.0) or 1.0
    room = _WIDTH - _LABEL - _VALUE
    for number, row in enumerate(rows):
        group = element("g", drawing)
        hint(group, f"{row.label}: {row.text}{f' - {row.more}' if row.more else ''}")
        top = number * _ROW + 2
        length = room * abs(row.value) / longest
        write(group, shorten(row.label, _LETTERS), _LABEL - 8, top + 14, class_="end")
        element(
            "rect",
            group,
            x=_LABEL,
            y=top + 2,
            width=max(1.0, length),
            height=_ROW - 6,
            class_=f"bar {row.style}",
        )
        write(group, row.text, _LABEL + length + 6, top + 14)
    return drawing


def stacked(rows: Sequence[Stack], title: str) -> Element:
    """Draw rows of stacked parts, each row over the full width; a part is labelled if its text fits."""
    drawing = canvas(_WIDTH, 30 * len(rows) + 4, aria_label=title, class_="chart")
    room = _WIDTH - 130
    for number, row in enumerate(rows):
        top = 30 * number + 2
        write(drawing, row.label, 122, top + 18, class_="end")
        whole = sum(part.value for part in row.parts) or 1.0
        left = 130.0
        for part in row.parts:
            width = room * part.value / whole
            group = element("g", drawing)
            hint(group, f"{row.label}: {part.label} {part.text}")
            element(
                "rect", group, x=left, y=top + 2, width=max(0.5, width), height=24, class_=f"bar {part.style}"
            )
            words = f"{part.label} {part.text}"
            if width > 7 * len(words):
                write(group, words, left + width / 2, top + 18, class_="middle inside")
            left += width
    return drawing


# --- histogram -------------------------------------------------------------------------------------------------------
# A small histogram of magnitudes with the thresholds that calibrators chose.

_PICTURE, _HEIGHT, _FLOOR, _CEILING = 220, 96, 78, 18


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMark:
    """A value that is marked by a line across the histogram, with its text; the chosen one is highlighted."""

    value: float
    text: str
    chosen: bool = True


def histogram(
    label: str, counts: Sequence[int], width: float, marks: Sequence[ValueMark], more: str
) -> Element:
    """Draw a histogram with counts on a logarithmic scale, one bar per bin from 0 on.

    The axis extends to marks beyond the last bin.
    """
    drawing = canvas(_PICTURE, _HEIGHT, aria_label=f"{label}: {more}", class_="chart small")
    hint(drawing, f"{label}: {more}")
    write(drawing, shorten(label, _LETTERS), 0, 11)
    reach = max([width * len(counts), *(mark.value * 1.05 for mark in marks)], default=0.0) or 1.0
    tallest = math.log1p(max(counts, default=0)) or 1.0
    for number, count in enumerate(counts):
        if count:
            height = (_FLOOR - _CEILING) * math.log1p(count) / tallest
            left, step = _PICTURE * number * width / reach, _PICTURE * width / reach
            element(
                "rect",
                drawing,
                x=left,
                y=_FLOOR - height,
                width=max(0.5, step - 0.3),
                height=height,
                class_="plain",
            )
    element("line", drawing, x1=0, y1=_FLOOR, x2=_PICTURE, y2=_FLOOR, class_="grid")
    for mark in marks:
        x = _PICTURE * mark.value / reach
        line = element(
            "line",
            drawing,
            x1=x,
            y1=_CEILING - 2,
            x2=x,
            y2=_FLOOR,
            class_="mark" if mark.chosen else "mark rival",
        )
        hint(line, mark.text)
    write(drawing, "0", 0, _HEIGHT - 4, class_="soft")
    write(drawing, f"{reach:.3g}", _PICTURE, _HEIGHT - 4, class_="end soft")
    return drawing
