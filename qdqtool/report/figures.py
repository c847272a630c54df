"""The charts of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.core.comparison import OutputComparison
from qdqtool.core.engine import Role
from qdqtool.core.explore import Device
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.report import LayerRow, RangeRow, Report
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.report import words
from qdqtool.report.charts import (
    Axis,
    Bar,
    Extent,
    ExtentRow,
    Point,
    Stack,
    ValueMark,
    axis_over,
    bars,
    draw_stacks,
    histogram,
    intervals,
    legend,
    scatter,
    trace,
)
from qdqtool.report.drawing import LARGEST, draw, label, network
from qdqtool.report.sensitivity_charts import bar_chart, curve_chart
from qdqtool.report.svg import Element, in_order, swatch, write_picture

# --- charts of a report ----------------------------------------------------------------------------------------------

# Largest number of bars that a reader can distinguish, and of histograms that a page draws without delay.
_SHOWN = 25
_HISTOGRAMS = 48


def figures(report: Report) -> tuple[Figure, ...]:
    """Return all charts for which the report has data."""
    layers = [layer for layer in report.layers if layer.role is not Role.NONE]
    charts = [
        _shares(layers),
        *_by_layer(layers),
        _by_kind(layers),
        roofline(layers, report.device),
        _funnel(report),
    ]
    charts += [_noise(report.comparison.tensors) if report.comparison else None]
    charts += _sensitivity(report.sensitivity) if report.sensitivity else []
    searches = report.sections.get("tried", {}).get("searches", ())
    charts += [_gains(number, search) for number, search in enumerate(searches, 1)]
    charts.append(_ranges(report.ranges))
    return tuple(figure for figure in charts if figure is not None)


def charts(report: Report) -> dict[str, Element]:
    """Return every chart and the engine graph by their names."""
    drawings = {
        f"{figure.name}-{number}" if len(figure.drawings) > 1 else figure.name: drawing
        for figure in figures(report)
        for number, drawing in enumerate(figure.drawings)
    }
    net = network(report.layers)
    if 0 < len(net.layers) <= LARGEST:
        drawings["engine-graph"] = draw(net)
    return drawings


def write_figures(report: Report, folder: Path, suffix: str) -> tuple[Path, ...]:
    """Write every chart and the engine graph as `suffix` files ("svg" or "png"); return the written paths.

    Raises:
        UsageError: another suffix.
        MissingPackage: PNG without the extra `png`.
    """
    drawings = charts(report)
    paths = {folder / f"{name}.{suffix}": drawing for name, drawing in drawings.items()}
    for path, drawing in paths.items():
        write_picture(path, drawing)
    return tuple(paths)


def _shares(layers: Sequence[LayerRow]) -> Figure | None:
    if not layers:
        return None
    weighings: tuple[tuple[str, Callable[[LayerRow], float], Callable[[float], str]], ...] = (
        ("kernels", lambda _: 1, lambda value: f"{value:.0f}"),
        ("bytes", lambda layer: layer.bytes or 0, lambda value: words.size(round(value))),
        ("time", lambda layer: layer.ms or 0.0, lambda value: f"{value:.3g} ms"),
    )
    rows = []
    for name, weigh, tell in weighings:
        sums: dict[DType, float] = defaultdict(float)
        for layer in layers:
            sums[layer.precision] += weigh(layer)
        if any(sums.values()):
            order = in_order(dtype for dtype, value in sums.items() if value)
            parts = (Bar(label=str(d), value=sums[d], text=tell(sums[d]), style=swatch(d)) for d in order)
            rows.append(Stack(label=name, parts=tuple(parts)))
    return Figure(
        name="precision-shares",
        title="Precision shares",
        caption="Type of the arithmetic of compute kernels, and of the output of the others.",
        source="recorded, time measured" if any(layer.ms for layer in layers) else "recorded",
        drawings=(draw_stacks(rows, "Precision shares"),),
    )


def _by_layer(layers: Sequence[LayerRow]) -> Iterator[Figure | None]:
    yield _longest(layers, "time", "Time by layer", lambda layer: layer.ms, lambda value: f"{value:.4g} ms")
    yield _longest(
        layers,
        "bytes",
        "Activation bytes by layer",
        lambda layer: layer.bytes,
        lambda value: words.size(round(value)),
    )


def _longest(
    layers: Sequence[LayerRow],
    name: str,
    title: str,
    measure: Callable[[LayerRow], float | None],
    tell: Callable[[float], str],
) -> Figure | None:
    measured = [(value, layer) for layer in layers if (value := measure(layer))]
    if not measured:
        return None
    top = sorted(measured, key=lambda pair: -pair[0])[:_SHOWN]
    rows = [
        Bar(
            label=label(layer, 34),
            value=value,
            text=tell(value),
            style=swatch(layer.precision),
            more=f"{layer.name}, {layer.kind}, {layer.precision}",
        )
        for value, layer in top
    ]
    whole = sum(value for value, _ in measured)
    share = words.percent(round(sum(value for value, _ in top) * 1000 / whole), 1000)
    return Figure(
        name=f"{name}-by-layer",
        title=title,
        caption=f"The {len(rows)} largest of {len(layers)}; together {share} of all.",
        source="measured" if name == "time" else "recorded",
        drawings=(bars(rows, title),),
    )


def _by_kind(layers: Sequence[LayerRow]) -> Figure | None:
    timed = any(layer.ms for layer in layers)
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for layer in layers:
        sums[layer.kind] += (layer.ms if timed else layer.bytes) or 0
        counts[layer.kind] += 1
    rows = [
        Bar(
            label=kind or "unnamed",
            value=value,
            text=f"{value:.4g} ms" if timed else words.size(round(value)),
            more=f"{count_noun(counts[kind], 'layer')}",
        )
        for kind, value in sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:_SHOWN]
        if value
    ]
    title = "Time by layer type" if timed else "Activation bytes by layer type"
    if not rows:
        return None
    return Figure(
        name="by-type",
        title=title,
        caption="Layer types with the names that the engine uses.",
        source="measured" if timed else "recorded",
        drawings=(bars(rows, title),),
    )


def _funnel(report: Report) -> Figure | None:
    if not report.funnel:
        return None
    steps = [
        step
        for number, step in enumerate(report.funnel)
        if number == 0 or step.layers != report.funnel[number - 1].layers
    ]
    rows = [Bar(label=step.stage, value=step.layers, text=f"{step.layers}") for step in steps]
    return Figure(
        name="layer-funnel",
        title="Layers left after each stage of the builder",
        caption="Stages that changed the number of layers, in the order of the log.",
        source="recorded",
        drawings=(bars(rows, "Layers left after each stage"),),
    )


def _noise(tensors: Iterable[OutputComparison]) -> Figure | None:
    levels = [(entry.output, level) for entry in tensors if (level := words.sqnr(entry)) is not None]
    if not levels:
        return None
    points = [
        Point(x=number, y=level, text=f"{name}: {level:.1f} dB", radius=3.0)
        for number, (name, level) in enumerate(levels)
    ]
    across = Axis(label="tensors in graph order", low=-1, high=len(levels), whole=True)
    up = axis_over("SQNR, dB", [level for _, level in levels])
    return Figure(
        name="noise-by-tensor",
        title="Signal to quantization noise by tensor",
        caption="Each point is a tensor inside the model; the model loses accuracy at the points after which the curve is lower.",
        source="measured",
        drawings=(scatter(points, across, up, "SQNR by tensor"),),
    )


def _sensitivity(study: Sensitivity) -> list[Figure]:
    charts = [
        Figure(
            name="sensitivity",
            title="Sensitivity by node",
            caption="Share of the output's quantization noise that each node causes alone. Nodes with the largest gain when kept float come first.",
            source="measured",
            drawings=(bar_chart(study),),
        )
    ]
    curve = curve_chart(study)
    if curve is not None:
        charts.append(
            Figure(
                name="float-curve",
                title="SQNR when the most sensitive nodes are kept float",
                caption="One more node at a time, most sensitive first.",
                source="measured",
                drawings=(curve,),
            )
        )
    return charts


def _gains(number: int, search: Mapping[str, Any]) -> Figure | None:
    """Draw the gain of every candidate of a search with its interval."""
    gains = search.get("gains", ())[:_SHOWN]
    if not gains:
        return None
    rows = [
        ExtentRow(
            name=what,
            values=(Extent(value=gain, ends=None if low is None or high is None else (low, high)),),
            style=_OUTCOMES.get(outcome, "p-other"),
            text=f"{what}: {gain:+.2f} {search['unit']}, {outcome}",
        )
        for what, outcome, gain, low, high in gains
    ]
    ends = [
        end for row in rows for extent in row.values if extent for end in (extent.value, *(extent.ends or ()))
    ]
    axis = axis_over(f"gain, {search['unit']}", [0.0, *ends])
    return Figure(
        name=f"tried-{number}",
        title=f"Gains of what was tried: {search['search']}",
        caption=f"By {search['objective']}, with 95 % intervals where they are known. Green: kept or significantly better; grey: not. {len(gains)} of {count_noun(len(search['gains']), 'candidate')}.",
        source="measured",
        drawings=(intervals(rows, [axis], "Gains"),),
    )


_OUTCOMES = {TrialOutcome.KEPT.value: "p-int8", TrialOutcome.BETTER.value: "p-int8"}


def _ranges(ranges: Sequence[RangeRow]) -> Figure | None:
    """Draw histograms of the most clipped tensors, the worst first."""
    counted_rows = [row for row in ranges if row.counts]
    if not counted_rows:
        return None
    worst = sorted(counted_rows, key=lambda row: (row.amax / _reach(row), row.tensor))[:_HISTOGRAMS]
    return Figure(
        name="ranges",
        title="Calibration ranges",
        caption=f"Magnitudes above the chosen range are clipped. {len(worst)} of {count_noun(len(counted_rows), 'tensor')}, most clipped first.",
        source="measured",
        drawings=(legend(_RANGE_LEGEND), *(_histogram(row) for row in worst)),
    )


_RANGE_LEGEND = (
    ("plain", "magnitudes of the calibration data, logarithmic counts"),
    ("mark", "chosen range"),
    ("mark rival", "other calibrators"),
)


def _histogram(row: RangeRow) -> Element:
    """Draw the histogram of one tensor. The chosen range is drawn last, on top of the others."""
    marks = [
        ValueMark(value=entry.amax, text=f"{entry.method} {entry.amax:.4g}", chosen=False)
        for entry in row.thresholds
    ]
    marks.append(ValueMark(value=row.amax, text=f"{row.method} {row.amax:.4g}"))
    rivals = "".join(
        f", {entry.method} {entry.amax:.4g}" for entry in row.thresholds if entry.method != row.method
    )
    more = f"largest {_reach(row):.4g}, {row.amax:.4g} kept ({row.method}){rivals}"
    return histogram(row.tensor, row.counts, row.width, marks, more)


def _reach(row: RangeRow) -> float:
    bounds = [abs(value) for value in (row.low, row.high) if value is not None]
    return max(bounds, default=0.0) or row.width * len(row.counts) or row.amax


# --- roofline --------------------------------------------------------------------------------------------------------
# Arithmetic intensity against speed, with the roofline of a GPU if it is known.

_Roof = tuple[tuple[tuple[float, float], ...], str, str]
"""Corners, text and CSS classes of a roof line."""


def roofline(layers: Sequence[LayerRow], device: Device | None) -> Figure | None:
    """Plot intensity against speed if layers were timed, otherwise against work; None if both are unknown."""
    timed = any(layer.tflops for layer in layers)
    placed = [
        (layer, layer.intensity, layer.tflops if timed else (layer.macs or 0) / 1e6)
        for layer in layers
        if layer.intensity
    ]
    unit = "TFLOP/s" if timed else "million MACs"
    points = [
        Point(
            x=across,
            y=up,
            text=f"{label(layer)}: {across:.3g} MACs/byte, {up:.4g} {unit}{_describe_bound(layer)}",
            style=swatch(layer.precision),
        )
        for layer, across, up in placed
        if across and up
    ]
    if not points:
        return None
    shown = [layer for layer, across, up in placed if across and up]
    peaks = (
        [device.peak(dtype) or 0.0 for dtype in {layer.precision for layer in shown}]
        if device and timed
        else []
    )
    up = axis_over(unit, [*(point.y for point in points), *peaks], log=True)
    across = axis_over("arithmetic intensity, MACs per byte", [point.x for point in points], log=True)
    drawing = scatter(points, across, up, "Arithmetic intensity")
    roofs = _roofs(shown, device, across) if device and timed else []
    for corners, text, style in roofs:
        trace(drawing, across, up, corners, text, style)
    return Figure(
        name="intensity",
        title="Roofline" if roofs else "Arithmetic intensity",
        caption=_caption(device if roofs else None),
        source="measured" if timed else "estimated",
        drawings=(drawing,),
    )


def _roofs(layers: Sequence[LayerRow], device: Device, across: Axis) -> list[_Roof]:
    """Return one roofline per precision: the bandwidth up to the ridge, then the peak rate."""
    roofs: list[_Roof] = []
    for dtype in in_order(layer.precision for layer in layers):
        peak = device.peak(dtype)
        if not peak:
            continue
        slope = 2 * device.bandwidth_gbs / 1000
        ridge = min(max(peak / slope, across.low), across.high)
        corners = tuple((x, min(peak, slope * x)) for x in (across.low, ridge, across.high))
        text = f"{dtype} on {device.name}: at most {peak:.4g} TFLOP/s, from {peak / slope:.3g} MACs/byte on"
        roofs.append((corners, text, f"roof edge {swatch(dtype)}"))
    return roofs


def _caption(device: Device | None) -> str:
    if device is None:
        return "Layers to the left are limited by memory, layers to the right by arithmetic."
    return (
        f"Lines: the limits of {device.name} ({device.bandwidth_gbs:g} GB/s, {device.source}). "
        "Layers under the slope are limited by memory, layers under the flat part by arithmetic."
    )


def _describe_bound(layer: LayerRow) -> str:
    return f", bound by {layer.bound}" if layer.bound else ""


# --- a chart with its words ------------------------------------------------------------------------------------------
# A chart with its words.


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart with its title and caption.

    Attributes:
        name: for file names and links.
        title: title of the figure.
        caption: how to read it.
        source: measured, recorded or estimated.
        drawings: a single drawing, or many small ones side by side.
    """

    name: str
    title: str
    caption: str
    source: str
    drawings: tuple[Element, ...]
