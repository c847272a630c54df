"""Arithmetic intensity against speed, under the roofs of a GPU where one is named."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.core.explore import Device
from qdqtool.core.report import LayerRow
from qdqtool.report.charts.axis import Axis, axis_over
from qdqtool.report.charts.scatter import Point, scatter, trace
from qdqtool.report.figure import Figure
from qdqtool.report.graph import label
from qdqtool.report.palette import in_order, swatch

_Roof = tuple[tuple[tuple[float, float], ...], str, str]
"""Corners, the words for the line, and its CSS classes."""


def roofline(layers: Sequence[LayerRow], device: Device | None) -> Figure | None:
    """Intensity against speed where layers were timed, else against work; None where neither is known."""
    timed = any(layer.tflops for layer in layers)
    found = [
        (layer, layer.intensity, layer.tflops if timed else (layer.macs or 0) / 1e6)
        for layer in layers
        if layer.intensity
    ]
    unit = "TFLOP/s" if timed else "million MACs"
    points = [
        Point(
            x=across,
            y=up,
            text=f"{label(layer)}: {across:.3g} MACs/byte, {up:.4g} {unit}{_bound(layer)}",
            style=swatch(layer.precision),
        )
        for layer, across, up in found
        if across and up
    ]
    if not points:
        return None
    shown = [layer for layer, across, up in found if across and up]
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
    """One roof per precision: bandwidth up to the ridge, then the peak rate."""
    found: list[_Roof] = []
    for dtype in in_order(layer.precision for layer in layers):
        peak = device.peak(dtype)
        if not peak:
            continue
        slope = 2 * device.bandwidth_gbs / 1000
        ridge = min(max(peak / slope, across.low), across.high)
        corners = tuple((x, min(peak, slope * x)) for x in (across.low, ridge, across.high))
        text = f"{dtype} on {device.name}: at most {peak:.4g} TFLOP/s, from {peak / slope:.3g} MACs/byte on"
        found.append((corners, text, f"roof edge {swatch(dtype)}"))
    return found


def _caption(device: Device | None) -> str:
    if device is None:
        return "Layers to the left wait for memory, layers to the right for arithmetic."
    return (
        f"Lines: what {device.name} can reach at most ({device.bandwidth_gbs:g} GB/s, {device.source}). "
        "Layers under the slope wait for memory, layers under the level part for arithmetic."
    )


def _bound(layer: LayerRow) -> str:
    return f", bound by {layer.bound}" if layer.bound else ""
