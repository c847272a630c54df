"""Estimates how long an engine takes, from its layers and the peak rates of a device (a roofline).

Each layer takes the longest of: moving its bytes at memory bandwidth, doing its arithmetic at the peak rate of its
precision, and a floor of 2 microseconds that no kernel undercuts; the sum is divided by the share of the peak that
recorded engines reach. How far the estimate is off is measured by `benchmarks/roofline.py` on recorded pairs of engine
and profile (ResNet-18 in four precisions on an A100, a QAT MobileNet on an RTX 3090); `SPREAD` is the range found there.
"""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Role
from qdqtool.core.explore import Device, EngineView, LayerView

FLOOR_MS = 0.002
"""Shortest time of a kernel in milliseconds: what recorded profiles show for their smallest layers."""
EFFICIENCY = 0.36
"""Share of the roofline that recorded engines reach: the median over the recorded pairs."""
SPREAD = (0.81, 1.28)
"""Measured over estimated time over the same recorded pairs: smallest and largest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """An estimated time of one inference.

    Attributes:
        ms: milliseconds, estimated.
        device: the GPU it is for.
        blind: kernels whose shapes or types are unknown, counted with the floor only.
    """

    ms: float
    device: str
    blind: int


def estimate(view: EngineView, device: Device) -> Estimate:
    """The time of all kernels of `view` on `device`, one after the other."""
    kernels = [layer for layer in view.layers if layer.role is not Role.NONE]
    times = [_time(layer, device) for layer in kernels]
    return Estimate(
        ms=sum(FLOOR_MS if time is None else time for time in times) / EFFICIENCY,
        device=device.name,
        blind=sum(time is None for time in times),
    )


def _time(layer: LayerView, device: Device) -> float | None:
    """Milliseconds of one kernel; None where its bytes are unknown."""
    if layer.bytes is None:
        return None
    moving = layer.bytes / device.bandwidth_gbs / 1e6
    peak = _peak(layer, device)
    computing = 2 * (layer.macs or 0) / peak / 1e9 if peak else 0.0
    return max(moving, computing, FLOOR_MS)


def _peak(layer: LayerView, device: Device) -> float | None:
    """Operations per second in units of 10^12; FP32 products run as TF32, at half the FP16 rate, from SM80 on."""
    if layer.precision is DType.FLOAT32 and device.fp16_tflops and device.sm >= "sm80":
        return device.fp16_tflops / 2
    return device.peak(layer.precision)
