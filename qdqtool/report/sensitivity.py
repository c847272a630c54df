"""Sensitivity in words and as charts."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.sensitivity import NodeSensitivity, Sensitivity
from qdqtool.report import words
from qdqtool.report.charts.axis import Axis, axis_over
from qdqtool.report.charts.bars import Bar, bars
from qdqtool.report.charts.scatter import Point, scatter
from qdqtool.report.svg import Element

_SHOWN = 25


def lines(found: Sensitivity) -> Iterator[str]:
    """The study on a terminal, most sensitive node first."""
    yield f"{found.model}, {found.samples} samples, with every node quantized: {words.float_set(found.whole)}  [measured]"
    yield ""
    yield f"{'keep float':<44} {'noise share':>11} {'alone dB':>9} {'gain dB':>8}  accuracy without it"
    for row in found.nodes[:_SHOWN]:
        gain = "" if row.gain_db is None else f"{row.gain_db:+.2f}"
        yield (
            f"{row.node[:44]:<44} {100 * row.share:>10.1f}% {_level(row.alone_db):>9} {gain:>8}  "
            f"{'' if row.task is None else words.shift(row.task)}{'' if row.exact else _estimate(row)}"
        )
    if len(found.nodes) > _SHOWN:
        yield f"and {len(found.nodes) - _SHOWN} more"
    if found.curve:
        yield ""
        yield "keeping the most sensitive ones float, one more at a time:"
    for entry in found.curve:
        yield f"  {len(entry.kept):>3} float: {words.float_set(entry)}"


def advice(found: Sensitivity) -> str:
    """What to do; "" where no limit was set or nothing meets it."""
    if found.advice is None:
        return ""
    if not found.advice.kept:
        return "the limit is met with every node quantized"
    names = ", ".join(f'"{name}"' for name in found.advice.kept)
    return f"keep {len(found.advice.kept)} nodes float ({words.float_set(found.advice)}): --set 'place.exclude=[{names}]'"


def bar_chart(found: Sensitivity) -> Element:
    """Share of the noise by node."""
    rows = [
        Bar(label=row.node, value=row.share, text=f"{100 * row.share:.1f} %", more=_more(row))
        for row in sorted(found.nodes, key=lambda row: -row.share)[:_SHOWN]
    ]
    return bars(rows, "Share of the quantization noise by node")


def curve_chart(found: Sensitivity) -> Element | None:
    """SQNR against the number of nodes kept float."""
    known = [(len(entry.kept), entry.sqnr_db, entry) for entry in (found.whole, *found.curve)]
    points = [(count, level, entry) for count, level, entry in known if level is not None]
    if len(points) < 2:
        return None
    across = Axis(
        label="nodes kept float", low=-0.5, high=max(count for count, _, _ in points) + 0.5, whole=True
    )
    up = axis_over("SQNR, dB", [level for _, level, _ in points])
    dots = [
        Point(x=count, y=level, text=f"{count} float: {words.float_set(entry)}")
        for count, level, entry in points
    ]
    return scatter(dots, across, up, "SQNR by nodes kept float", [(dot.x, dot.y) for dot in dots])


def _more(row: NodeSensitivity) -> str:
    gain = "" if row.gain_db is None else f", keeping it float brings {row.gain_db:+.2f} dB"
    return f"{row.op}, alone {_level(row.alone_db)} dB{gain}"


def _estimate(row: NodeSensitivity) -> str:
    ends = "" if row.alone_low is None else f", alone {row.alone_low:.1f} to {row.alone_high:.1f} dB (95 %)"
    return f"estimate on {row.samples} samples{ends}"


def _level(level: float | None) -> str:
    return "no noise" if level is None else f"{level:.1f}"
