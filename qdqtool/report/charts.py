"""Charts as SVG: bars, stacked shares, small histograms and scatter plots, with their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qdqtool.report.svg import Element, canvas, element, hint, shorten, write

# --- axis ------------------------------------------------------------------------------------------------------------
# Axes of charts: positions of values, and round numbers as ticks.


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A range of values and its label. On a logarithmic axis, values are positive; on a whole axis, they are counts."""

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 at the low end to 1 at the high end."""
        low, high, place = (self._scale_value(number) for number in (self.low, self.high, value))
        return (place - low) / (high - low) if high > low else 0.5

    def ticks(self) -> tuple[float, ...]:
        """Return about five round numbers inside the range."""
        if self.log:
            return self._decades()
        if not self.high > self.low:
            return (self.low,)
        rough = (self.high - self.low) / 5
        if self.whole:
            rough = max(rough, 1.0)
        unit = 10.0 ** math.floor(math.log10(rough))
        steps = (factor * unit for factor in _STEPS)
        step = next(step for step in steps if step >= rough * (1 - 1e-9) and not (self.whole and step % 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(round(number * step, 12) for number in range(first, last + 1))

    def _decades(self) -> tuple[float, ...]:
        """Return powers of ten. If the range is short, also return their multiples by 2 and 5."""
        low, high = math.log10(self.low), math.log10(self.high)
        first, last = math.floor(low), math.ceil(high)
        factors = (1.0, 2.0, 5.0) if high - low < 3 else (1.0,)
        every = max(1, (last - first) // 6)
        ticks = (factor * 10.0**power for power in range(first, last + 1, every) for factor in factors)
        return tuple(tick for tick in ticks if self.low <= tick <= self.high)

    def _scale_value(self, value: float) -> float:
        return math.log10(value) if self.log else value


def axis_over(label: str, values: Iterable[float], *, log: bool = False) -> Axis:
    """Return an axis that covers all the values. A logarithmic axis ignores values that are not positive."""
    shown = [value for value in values if not log or value > 0]
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    if log:
        return Axis(label=label, low=low / 1.6, high=high * 1.6, log=True)
    margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return Axis(label=label, low=low - margin, high=high + margin)


def short(value: float) -> str:
    """Format a number for a tick: 1.5, 20k, 3M, 1e-05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


# --- rows of bars ----------------------------------------------------------------------------------------------------

_WIDTH = 440
"""Width of all charts but the small ones: on a phone of 390 pixels their text is 10 pixels high."""
_ROW, _LETTERS, _VALUE = 34, 60, 90
"""Height of a row with its name above it, the longest name in letters, and the room after the longest bar."""
_SMALL_LETTERS = 34


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
    """A row of stacked parts in a chart; the length of a part is its `value`."""

    label: str
    parts: tuple[Bar, ...]


def bars(rows: Sequence[Bar], title: str) -> Element:
    """Draw a bar chart: one bar per row, below the name of the row."""
    drawing = canvas(_WIDTH, _ROW * len(rows) + 4, aria_label=title, class_="chart")
    longest = max((abs(row.value) for row in rows), default=0.0) or 1.0
    room = _WIDTH - _VALUE
    for number, row in enumerate(rows):
        group = element("g", drawing)
        hint(group, f"{row.label}: {row.text}{f' - {row.more}' if row.more else ''}")
        top = number * _ROW + 2
        length = room * abs(row.value) / longest
        write(group, shorten(row.label, _LETTERS), 0, top + 12)
        element("rect", group, x=0, y=top + 16, width=max(1.0, length), height=14, class_=f"bar {row.style}")
        write(group, row.text, length + 6, top + 27)
    return drawing


def draw_stacks(rows: Sequence[Stack], title: str) -> Element:
    """Draw rows of stacked parts; each row has the full width. A part has a label if its text fits."""
    drawing = canvas(_WIDTH, 30 * len(rows) + 4, aria_label=title, class_="chart")
    room = _WIDTH - 90
    for number, row in enumerate(rows):
        top = 30 * number + 2
        write(drawing, row.label, 82, top + 18, class_="end")
        whole = sum(part.value for part in row.parts) or 1.0
        left = 90.0
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
# A small histogram of magnitudes with the thresholds of the calibrators.

_PICTURE, _BAR_HEIGHT, _FLOOR, _CEILING = 220, 96, 78, 18


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMark:
    """A value with a line across the histogram, and its text. The chosen value is highlighted."""

    value: float
    text: str
    chosen: bool = True


def histogram(
    label: str, counts: Sequence[int], width: float, marks: Sequence[ValueMark], more: str
) -> Element:
    """Draw a histogram with one bar per bin, from 0 on. Counts have a logarithmic scale.

    The axis extends to marks beyond the last bin.
    """
    drawing = canvas(_PICTURE, _BAR_HEIGHT, aria_label=f"{label}: {more}", class_="chart small")
    hint(drawing, f"{label}: {more}")
    write(drawing, shorten(label, _SMALL_LETTERS), 0, 11)
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
    write(drawing, "0", 0, _BAR_HEIGHT - 4, class_="soft")
    write(drawing, f"{reach:.3g}", _PICTURE, _BAR_HEIGHT - 4, class_="end soft")
    return drawing


def legend(entries: Sequence[tuple[str, str]]) -> Element:
    """Draw a legend: a sample and its text for each entry (CSS class, text)."""
    drawing = canvas(_WIDTH, 20 * len(entries), aria_label="Legend", class_="chart")
    for number, (style, text) in enumerate(entries):
        top = 20 * number
        if style == "plain":
            element("rect", drawing, x=4, y=top + 5, width=10, height=11, class_=style)
        else:
            element("line", drawing, x1=9, y1=top + 3, x2=9, y2=top + 18, class_=style)
        write(drawing, text, 22, top + 15)
    return drawing


# --- scatter ---------------------------------------------------------------------------------------------------------
# Scatter plots with axes, a text for every point, and an optional line through some of the points.


_PLOT_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 44


_LETTER, _LINE = 8, 14
"""Width of a letter and height of a line of a label, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of a scatter plot: position, text, CSS class, radius in pixels, and a label."""

    x: float
    y: float
    text: str
    style: str = "plain"
    radius: float = 4.0
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A horizontal line of a scatter plot at `y`, and its text."""

    y: float
    text: str


def scatter(
    points: Sequence[Point],
    across: Axis,
    up: Axis,
    title: str,
    front: Sequence[tuple[float, float]] = (),
    level: Level | None = None,
) -> Element:
    """Draw the points, a line through the positions in `front` in this order, and a dashed line at `level`."""
    drawing = canvas(_WIDTH, _PLOT_HEIGHT, aria_label=title, class_="chart")
    _grid(drawing, across, up)
    if level is not None:
        y = _y(up, level.y)
        element("line", drawing, x1=_LEFT, y1=y, x2=_WIDTH - _RIGHT, y2=y, class_="rival")
        if level.text:
            write(drawing, level.text, _WIDTH - _RIGHT, y - 5, class_="end soft")
    if len(front) > 1:
        path = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in front)
        element("polyline", drawing, points=path, class_="front")
    for point in points:
        dot = element(
            "circle",
            drawing,
            cx=_x(across, point.x),
            cy=_y(up, point.y),
            r=point.radius,
            class_=f"dot {point.style}",
        )
        hint(dot, point.text)
    for (x, y), names in _labels(points, across, up):
        label = ", ".join(names)
        fits = x + _LETTER * len(label) < _WIDTH
        write(drawing, label, x + 6 if fits else x - 6, y - 6, class_="soft" if fits else "end soft")
    return drawing


def _labels(points: Sequence[Point], across: Axis, up: Axis) -> list[tuple[tuple[float, float], list[str]]]:
    """Return positions and texts of point labels. Points whose labels would overlap share one label."""
    labels: list[tuple[tuple[float, float], list[str]]] = []
    for point in points:
        if not point.label:
            continue
        x, y = _x(across, point.x), _y(up, point.y)
        near = (
            names
            for (left, top), names in labels
            if abs(x - left) < _LETTER * (len(point.label) + 1) and abs(y - top) < _LINE
        )
        if (names := next(near, None)) is not None:
            names.append(point.label)
        else:
            labels.append(((x, y), [point.label]))
    return labels


# --- intervals -------------------------------------------------------------------------------------------------------
# Values with their intervals, one row per name, so that none covers another.

_COLUMN_GAP = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """A value and its interval; None for unknown parts."""

    value: float
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtentRow:
    """A row of an interval chart: its name, a value for each axis (None for a gap), a CSS class, and a longer text."""

    name: str
    values: tuple[Extent | None, ...]
    style: str
    text: str


def intervals(rows: Sequence[ExtentRow], axes: Sequence[Axis], title: str) -> Element:
    """Draw a row for each name, with the name above the row, and a column for each axis."""
    bottom = 24 + _ROW * len(rows)
    drawing = canvas(_WIDTH, bottom + 40, aria_label=title, class_="chart")
    width = (_WIDTH - _COLUMN_GAP) / len(axes) - _COLUMN_GAP * (len(axes) - 1) / len(axes)

    def across(column: int, value: float) -> float:
        return _COLUMN_GAP / 2 + column * (width + _COLUMN_GAP) + axes[column].at(value) * width

    for column, axis in enumerate(axes):
        for tick in axis.ticks()[:: len(axes)]:
            x = across(column, tick)
            element("line", drawing, x1=x, y1=18, x2=x, y2=bottom, class_="grid")
            write(drawing, short(tick), x, bottom + 14, class_="middle soft")
        label = shorten(axis.label, round(width / _LETTER))
        write(drawing, label, across(column, axis.low) + width / 2, bottom + 32, class_="middle")
    for number, row in enumerate(rows):
        group = element("g", drawing)
        hint(group, row.text)
        y = 44 + number * _ROW
        write(group, shorten(row.name, _LETTERS), 0, y - 10)
        for column, spread in enumerate(row.values):
            if spread is None:
                continue
            if spread.ends is not None:
                low, high = (across(column, end) for end in spread.ends)
                element("line", group, x1=low, y1=y, x2=high, y2=y, class_=f"span {row.style}")
            element("circle", group, cx=across(column, spread.value), cy=y, r=4.0, class_=f"bar {row.style}")
    return drawing


def below(first: Element, second: Element, title: str) -> Element:
    """Return a drawing with the first drawing above the second."""
    (_, _, width, top), (_, _, _, height) = (
        map(float, part.get("viewBox", "").split()) for part in (first, second)
    )
    drawing = canvas(width, top + height, aria_label=title, class_="chart")
    for number, part in enumerate((first, second)):
        element("g", drawing, transform=f"translate(0 {number * round(top)})").extend(list(part))
    return drawing


def trace(
    drawing: Element, across: Axis, up: Axis, corners: Sequence[tuple[float, float]], text: str, style: str
) -> None:
    """Draw a line through `corners` over a finished plot, with its text and a CSS class."""
    path = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in corners)
    hint(element("polyline", drawing, points=path, class_=style), text)


def _grid(drawing: Element, across: Axis, up: Axis) -> None:
    bottom = _PLOT_HEIGHT - _BOTTOM
    for tick in across.ticks():
        x = _x(across, tick)
        element("line", drawing, x1=x, y1=_TOP, x2=x, y2=bottom, class_="grid")
        write(drawing, short(tick), x, bottom + 16, class_="middle soft")
    for tick in up.ticks():
        y = _y(up, tick)
        element("line", drawing, x1=_LEFT, y1=y, x2=_WIDTH - _RIGHT, y2=y, class_="grid")
        write(drawing, short(tick), _LEFT - 6, y + 4, class_="end soft")
    write(drawing, across.label, (_LEFT + _WIDTH - _RIGHT) / 2, _PLOT_HEIGHT - 8, class_="middle")
    middle = (_TOP + bottom) / 2
    write(drawing, up.label, 14, middle, class_="middle", transform=f"rotate(-90 14 {middle:.0f})")


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _PLOT_HEIGHT - _BOTTOM - axis.at(value) * (_PLOT_HEIGHT - _TOP - _BOTTOM)
