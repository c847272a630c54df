"""Estimates how long an engine takes, from its layers and the peak rates of a device (a roofline).

Each kernel takes a fixed time to start and end, plus the longer of moving its bytes at a share of the memory bandwidth
and doing its arithmetic at a share of the peak rate of its precision. The three figures are fitted to recorded pairs
of engine and profile by `benchmarks/roofline.py`: ResNet-18 in four precisions on an A100, two QAT MobileNets on a
TITAN RTX, ResNet-18 and AlexNet in FP16 on an RTX 3060 Laptop. `SPREAD` says how far estimates are off for a network
that the fit has not seen: each of the four in turn was left out of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Role
from qdqtool.core.explore import Device, EngineView, LayerView


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """What engines reach of a device.

    Attributes:
        start_ms: milliseconds that every kernel takes whatever it does.
        bandwidth: share of the peak memory bandwidth.
        arithmetic: share of the peak arithmetic rate.
    """

    start_ms: float
    bandwidth: float
    arithmetic: float


# Fitted to recorded profiles of public engines; `benchmarks/roofline.py` fits and judges it.
ROOF = Roof(start_ms=0.007, bandwidth=0.8, arithmetic=0.55)
SPREAD = (0.6, 1.7)
"""Recorded over estimated time of networks that were left out of the fit: smallest and largest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """An estimated time of one inference.

    Attributes:
        ms: milliseconds, estimated.
        device: the GPU it is for.
        blind: kernels whose shapes or types are unknown, counted with their start only.
    """

    ms: float
    device: str
    blind: int


def estimate(view: EngineView, device: Device, roof: Roof = ROOF) -> Estimate:
    """The time of all kernels of `view` on `device`, one after the other."""
    kernels = [layer for layer in view.layers if layer.role is not Role.NONE]
    times = [_time(layer, device, roof) for layer in kernels]
    return Estimate(
        ms=sum(roof.start_ms + (time or 0.0) for time in times),
        device=device.name,
        blind=sum(time is None for time in times),
    )


def _time(layer: LayerView, device: Device, roof: Roof) -> float | None:
    """Milliseconds that one kernel works; None where its bytes are unknown."""
    if layer.bytes is None:
        return None
    moving = layer.bytes / (device.bandwidth_gbs * roof.bandwidth) / 1e6
    peak = _peak(layer, device)
    computing = 2 * (layer.macs or 0) / (peak * roof.arithmetic) / 1e9 if peak else 0.0
    return max(moving, computing)


def _peak(layer: LayerView, device: Device) -> float | None:
    """Operations per second in units of 10^12; FP32 products run as TF32, at half the FP16 rate, from SM80 on."""
    if layer.precision is DType.FLOAT32 and device.fp16_tflops and device.generation >= 80:
        return device.fp16_tflops / 2
    return device.peak(layer.precision)
