"""A small histogram of magnitudes with the thresholds that calibrators chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.report.svg import Element, canvas, element, hint, shorten, write

_WIDTH, _HEIGHT, _FLOOR, _CEILING = 220, 96, 78, 18
_LETTERS = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMark:
    """A value that gets a line across the histogram, with words for it; the chosen one stands out."""

    value: float
    text: str
    chosen: bool = True


def histogram(
    label: str, counts: Sequence[int], width: float, marks: Sequence[ValueMark], more: str
) -> Element:
    """Bars on a logarithmic scale of counts, one per bin from 0 on; marks beyond the last bin get room."""
    drawing = canvas(_WIDTH, _HEIGHT, aria_label=f"{label}: {more}", class_="chart small")
    hint(drawing, f"{label}: {more}")
    write(drawing, shorten(label, _LETTERS), 0, 11)
    reach = max([width * len(counts), *(mark.value * 1.05 for mark in marks)], default=0.0) or 1.0
    tallest = math.log1p(max(counts, default=0)) or 1.0
    for number, count in enumerate(counts):
        if count:
            height = (_FLOOR - _CEILING) * math.log1p(count) / tallest
            left, step = _WIDTH * number * width / reach, _WIDTH * width / reach
            element(
                "rect",
                drawing,
                x=left,
                y=_FLOOR - height,
                width=max(0.5, step - 0.3),
                height=height,
                class_="plain",
            )
    element("line", drawing, x1=0, y1=_FLOOR, x2=_WIDTH, y2=_FLOOR, class_="grid")
    for mark in marks:
        x = _WIDTH * mark.value / reach
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
    write(drawing, f"{reach:.3g}", _WIDTH, _HEIGHT - 4, class_="end soft")
    return drawing
