"""Scatter plots with axes, a text for every point, and an optional line through some of the points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.report.charts.axis import Axis, short
from qdqtool.report.svg import Element, canvas, element, hint, write

_WIDTH, _HEIGHT = 720, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 12, 44


_LETTER, _LINE = 8, 14
"""Width of a letter and height of a line of a label, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point: position, text, CSS class, radius in pixels, intervals of `x` (`span`) and `y` (`rise`), and a label."""

    x: float
    y: float
    text: str
    style: str = "plain"
    radius: float = 4.0
    span: tuple[float, float] | None = None
    rise: tuple[float, float] | None = None
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A horizontal line at `y` and its text; the text is "" if something else on the line is labelled."""

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
    """Draw the points, a line through the positions of `front` in the given order, and a dashed line at `level`."""
    drawing = canvas(_WIDTH, _HEIGHT, aria_label=title, class_="chart")
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
        if point.span is not None:
            low, high = (_x(across, end) for end in point.span)
            height = _y(up, point.y)
            element("line", drawing, x1=low, y1=height, x2=high, y2=height, class_=f"span {point.style}")
        if point.rise is not None:
            place = _x(across, point.x)
            low, high = (_y(up, end) for end in point.rise)
            element("line", drawing, x1=place, y1=low, x2=place, y2=high, class_=f"span {point.style}")
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
        write(drawing, ", ".join(names), x + 6, y - 6, class_="soft")
    return drawing


def _labels(points: Sequence[Point], across: Axis, up: Axis) -> list[tuple[tuple[float, float], list[str]]]:
    """Return positions and texts of the labels; points share a position if their labels would overlap."""
    found: list[tuple[tuple[float, float], list[str]]] = []
    for point in points:
        if not point.label:
            continue
        x, y = _x(across, point.x), _y(up, point.y)
        near = (
            names
            for (left, top), names in found
            if abs(x - left) < _LETTER * (len(point.label) + 1) and abs(y - top) < _LINE
        )
        if (names := next(near, None)) is not None:
            names.append(point.label)
        else:
            found.append(((x, y), [point.label]))
    return found


def trace(
    drawing: Element, across: Axis, up: Axis, corners: Sequence[tuple[float, float]], text: str, style: str
) -> None:
    """Draw a line through `corners` over a finished plot, with its text and a CSS class."""
    path = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in corners)
    hint(element("polyline", drawing, points=path, class_=style), text)


def _grid(drawing: Element, across: Axis, up: Axis) -> None:
    bottom = _HEIGHT - _BOTTOM
    for tick in across.ticks():
        x = _x(across, tick)
        element("line", drawing, x1=x, y1=_TOP, x2=x, y2=bottom, class_="grid")
        write(drawing, short(tick), x, bottom + 16, class_="middle soft")
    for tick in up.ticks():
        y = _y(up, tick)
        element("line", drawing, x1=_LEFT, y1=y, x2=_WIDTH - _RIGHT, y2=y, class_="grid")
        write(drawing, short(tick), _LEFT - 6, y + 4, class_="end soft")
    write(drawing, across.label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, class_="middle")
    middle = (_TOP + bottom) / 2
    write(drawing, up.label, 14, middle, class_="middle", transform=f"rotate(-90 14 {middle:.0f})")


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.at(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.at(value) * (_HEIGHT - _TOP - _BOTTOM)
