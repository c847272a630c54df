"""Estimates how long an engine takes, from its layers and the peak rates of a device (a roofline).

Each kernel takes a fixed time to start and end, and the root of the sum of squares of two times: moving its bytes at a
share of the memory bandwidth, and doing its arithmetic at a share of the peak rate of its precision. They overlap, though
not entirely: the longer of the two alone is too short where they are alike. Kernels that compute no product (quantizing,
reformatting, pooling) reach a share of the bandwidth of their own: of the recorded ones about half of what products
reach, which is why an engine with many of them can be slower than FP16 although its products are faster.

The figures are fitted to recorded pairs of engine and profile by `benchmarks/roofline.py`: ResNet-18 in four precisions
on an A100, two QAT MobileNets on a TITAN RTX, ResNet-18 and AlexNet in FP16 on an RTX 3060 Laptop. `SPREAD` says how far
estimates are off for a network that the fit has not seen, `RATIO_ERROR` how far the ratio of two builds of such a network:
each of the four in turn was left out of the fit. The form of the model was chosen on the same eight profiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Role
from qdqtool.core.explore import Device, EngineView, LayerView


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """Shares of a device's peak rates that engines reach, and the start time of a kernel.

    Attributes:
        start_ms: milliseconds that every kernel takes whatever it does.
        bandwidth: share of the peak memory bandwidth that kernels with products reach.
        moving: the same of all other kernels.
        arithmetic: share of the peak arithmetic rate.
    """

    start_ms: float
    bandwidth: float
    moving: float
    arithmetic: float


# Fitted to recorded profiles of public engines; `benchmarks/roofline.py` fits and judges it.
ROOF = Roof(start_ms=0.006, bandwidth=0.9, moving=0.4, arithmetic=0.6)
SPREAD = (0.65, 1.6)
"""Recorded over estimated time of networks that were left out of the fit: smallest and largest."""
RATIO_ERROR = (0.17, 0.32)
"""Error of the estimated time ratio of two builds of a network left out of the fit, as a share of the
recorded ratio: median and largest.
"""


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
    """Return the time of all kernels of `view` on `device`, one after the other."""
    kernels = [layer for layer in view.layers if layer.role is not Role.NONE]
    times = [_time(layer, device, roof) for layer in kernels]
    return Estimate(
        ms=sum(roof.start_ms + (time or 0.0) for time in times),
        device=device.name,
        blind=sum(time is None for time in times),
    )


def _time(layer: LayerView, device: Device, roof: Roof) -> float | None:
    """Return the milliseconds of one kernel after its start; None if its bytes are unknown."""
    if layer.bytes is None:
        return None
    bandwidth = roof.bandwidth if layer.role is Role.COMPUTE else roof.moving
    moving = layer.bytes / (device.bandwidth_gbs * bandwidth) / 1e6
    peak = _peak(layer, device)
    computing = 2 * (layer.macs or 0) / (peak * roof.arithmetic) / 1e9 if peak else 0.0
    return hypot(moving, computing)


def _peak(layer: LayerView, device: Device) -> float | None:
    """Return the peak rate in 10^12 operations per second. FP32 products run as TF32, at half the FP16 rate, from SM80 on."""
    if layer.precision is DType.FLOAT32 and device.fp16_tflops and device.generation >= 80:
        return device.fp16_tflops / 2
    return device.peak(layer.precision)
