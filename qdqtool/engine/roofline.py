"""Estimates the time of an engine from its layers and the peak rates of a device (a roofline).

Each kernel takes a fixed time to start and end, and the root of the sum of squares of two times: moving its bytes at
a share of the memory bandwidth, and doing its arithmetic at a share of the peak rate of its precision. They overlap,
but not completely: the longer of the two is too short if both are about equal. Kernels that compute no product
(quantizing, reformatting, pooling) reach a lower share of the bandwidth: about half of the share of products, among
the recorded ones. So an engine with many of them can be slower than FP16 although its products are faster.

The figures are fitted to recorded pairs of engine and profile by `benchmarks/roofline.py`: ResNet-18 in four
precisions on an A100, two QAT MobileNets on a TITAN RTX, ResNet-18 and AlexNet in FP16 on an RTX 3060 Laptop.
`SPREAD` is the error of estimates for a network that was not fitted, and `RATIO_ERROR` the error of the ratio of two
builds of such a network. For both, each of the four networks in turn was left out of the fit. The form of the model
was chosen on the same eight profiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import hypot
from pathlib import Path
from typing import Any

from qdqtool.core.engine import Role
from qdqtool.core.explore import Device, EngineView, LayerView
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.json_files import number, parse_json
from qdqtool.io.text import text_of

# --- devices ---------------------------------------------------------------------------------------------------------
# Peak rates of common GPUs for the roofline.
#
# A peak is multiprocessors times boost clock times dense operations per multiprocessor and clock. The last factor is a
# property of the architecture (NVIDIA's architecture whitepapers: Turing, GA100, GA10x, AD10x, GH100, GB100, GB20x;
# Jetson Orin and Thor briefs); GeForce boards multiply FP16 with FP32 accumulation at half the rate of professional
# boards. Multiprocessors, clocks and bandwidths are those of the datasheets named with each GPU, dense figures
# throughout.


_RATES = {
    # architecture: operations per multiprocessor and clock: INT8 tensor, FP16 tensor, FP32
    # INT8 without tensor cores on sm70: four products per lane and clock (DP4A)
    "sm70": (512, 1024, 128),
    "sm72": (2048, 1024, 128),
    "sm75": (2048, 1024, 128),
    "sm80": (4096, 2048, 128),
    "sm86": (2048, 1024, 256),
    "sm87": (4096, 2048, 256),
    "sm89": (2048, 1024, 256),
    "sm90": (8192, 4096, 256),
    "sm100": (16384, 8192, 256),
    "sm110": (16384, 8192, 256),
    "sm120": (2048, 1024, 256),
    "sm121": (2048, 1024, 256),
}
_GPUS = (
    # name, architecture, multiprocessors, clock in GHz, GB/s, GeForce, source
    ("NVIDIA T4", "sm75", 40, 1.59, 320.0, False, "NVIDIA T4 datasheet (2019)"),
    ("NVIDIA A100-SXM4-80GB", "sm80", 108, 1.41, 2039.0, False, "NVIDIA A100 datasheet (2021)"),
    ("NVIDIA A100 80GB PCIe", "sm80", 108, 1.41, 1935.0, False, "NVIDIA A100 datasheet (2021)"),
    ("NVIDIA A100-SXM4-40GB", "sm80", 108, 1.41, 1555.0, False, "NVIDIA A100 datasheet (2020)"),
    ("NVIDIA A30", "sm80", 56, 1.44, 933.0, False, "NVIDIA A30 datasheet (2021)"),
    ("NVIDIA A10", "sm86", 72, 1.695, 600.0, False, "NVIDIA A10 datasheet (2021)"),
    ("NVIDIA A40", "sm86", 84, 1.74, 696.0, False, "NVIDIA A40 datasheet (2021)"),
    ("NVIDIA GeForce RTX 3090", "sm86", 82, 1.695, 936.0, True, "GA102 whitepaper (2020)"),
    ("Jetson AGX Orin 64GB", "sm87", 16, 1.3, 204.8, False, "Jetson AGX Orin technical brief (2022)"),
    ("Jetson AGX Orin 32GB", "sm87", 14, 0.93, 204.8, False, "Jetson AGX Orin technical brief (2022)"),
    ("Jetson Orin NX 16GB", "sm87", 8, 0.918, 102.4, False, "Jetson Orin NX datasheet (2022)"),
    ("Jetson Orin Nano 8GB", "sm87", 8, 0.625, 68.0, False, "Jetson Orin Nano datasheet (2023)"),
    ("NVIDIA L4", "sm89", 58, 2.04, 300.0, False, "NVIDIA L4 datasheet (2023)"),
    ("NVIDIA L40S", "sm89", 142, 2.52, 864.0, False, "NVIDIA L40S datasheet (2023)"),
    ("NVIDIA GeForce RTX 4090", "sm89", 128, 2.52, 1008.0, True, "Ada whitepaper (2022)"),
    ("NVIDIA GeForce RTX 4080", "sm89", 76, 2.505, 716.8, True, "Ada whitepaper (2022)"),
    ("NVIDIA GeForce RTX 4070", "sm89", 46, 2.475, 504.0, True, "GeForce RTX 4070 specifications (2023)"),
    ("NVIDIA GeForce RTX 4060", "sm89", 24, 2.46, 272.0, True, "GeForce RTX 4060 specifications (2023)"),
    ("NVIDIA H100 80GB HBM3", "sm90", 132, 1.83, 3350.0, False, "NVIDIA H100 datasheet (2023)"),
    ("NVIDIA H200", "sm90", 132, 1.83, 4800.0, False, "NVIDIA H200 datasheet (2024)"),
    ("NVIDIA B200", "sm100", 148, 1.85, 8000.0, False, "NVIDIA Blackwell architecture brief (2024)"),
    ("Jetson AGX Thor T5000", "sm110", 20, 1.575, 273.0, False, "Jetson Thor datasheet (2025)"),
    ("NVIDIA GeForce RTX 5090", "sm120", 170, 2.407, 1792.0, True, "Blackwell RTX whitepaper (2025)"),
    ("NVIDIA GeForce RTX 5080", "sm120", 84, 2.617, 960.0, True, "Blackwell RTX whitepaper (2025)"),
    ("NVIDIA GeForce RTX 5070 Ti", "sm120", 70, 2.452, 896.0, True, "Blackwell RTX whitepaper (2025)"),
    ("NVIDIA GeForce RTX 5070", "sm120", 48, 2.512, 672.0, True, "Blackwell RTX whitepaper (2025)"),
    ("NVIDIA V100", "sm70", 80, 1.53, 900.0, False, "NVIDIA V100 datasheet (2018)"),
    ("Jetson AGX Xavier", "sm72", 8, 1.377, 136.5, False, "Jetson AGX Xavier datasheet (2019)"),
    ("Jetson Xavier NX", "sm72", 6, 1.1, 51.2, False, "Jetson Xavier NX datasheet (2019)"),
    ("NVIDIA GeForce RTX 2060", "sm75", 30, 1.68, 336.0, True, "Turing whitepaper (2018)"),
    ("NVIDIA GeForce RTX 2080 Ti", "sm75", 68, 1.545, 616.0, True, "Turing whitepaper (2018)"),
    ("NVIDIA GeForce RTX 3060", "sm86", 28, 1.777, 360.0, True, "GeForce RTX 3060 specifications (2021)"),
    ("NVIDIA GeForce RTX 3060 Laptop", "sm86", 30, 1.425, 336.0, True, "trtexec logs of a laptop (2021)"),
    ("NVIDIA GeForce RTX 3080 12GB", "sm86", 70, 1.71, 912.0, True, "GeForce RTX 3080 specifications (2022)"),
    ("Jetson Orin Nano Super", "sm87", 8, 1.02, 102.4, False, "Jetson Orin Nano Super datasheet (2024)"),
    ("NVIDIA GeForce RTX 4070 Laptop", "sm89", 36, 2.175, 256.0, True, "GeForce RTX 40 laptops (2023)"),
    ("NVIDIA RTX PRO 6000 Blackwell", "sm120", 188, 2.6, 1792.0, False, "RTX PRO 6000 datasheet (2025)"),
    # the datasheet gives one petaflop of sparse FP4, at 8192 operations per multiprocessor: the clock follows
    ("NVIDIA GB10", "sm121", 48, 2.543, 273.0, False, "NVIDIA DGX Spark datasheet (2025)"),
)


def devices() -> tuple[Device, ...]:
    """Return all known GPUs."""
    return tuple(
        _device(name, sm, sms, clock, bandwidth, geforce=geforce, source=source)
        for name, sm, sms, clock, bandwidth, geforce, source in _GPUS
    )


def usual_device(sm: Sequence[str]) -> str:
    """Return the first known GPU of the first known architecture in `sm` ("86"); without one, a GPU of SM86."""
    names = {device.sm: device.name for device in reversed(devices())}
    generations = (f"sm{word.removeprefix('sm')}" for word in (*sm, "86"))
    return next(names[word] for word in generations if word in names)


def find_device(words: str) -> Device:
    """Return the GPU whose name contains `words`, or the GPU in the metadata file `words`.

    A name that ends with the words has priority: "A10" is not an A100, and "RTX 3060" is not the laptop's.

    Raises:
        UsageError: no GPU or several have such a name.
        InputFileError: the file is not trtexec metadata.
    """
    if words.endswith(".json"):
        return device_of_metadata(Path(words))
    matching = [device for device in devices() if words.lower() in device.name.lower()]
    exact = [device for device in matching if f" {device.name}".lower().endswith(f" {words}".lower())]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    names = [device.name for device in matching or devices()]
    close = get_close_matches(words, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(
        f"{'several GPUs match' if matching else 'no GPU matches'} {words!r}",
        fix=f"{hint}choose one of {', '.join(names)}; or pass the metadata JSON of a trtexec run",
        where="name of the GPU",
    )


def device_of_metadata(path: Path) -> Device:
    """Return the GPU that the metadata JSON of a trtexec run describes (`device_information`).

    Raises:
        InputFileError: unreadable, or without the figures that are needed.
    """
    try:
        value = parse_json(text_of(path), str(path))
    except (ValueError, RecursionError) as error:
        raise _no_device(path) from error
    fields = value.get("device_information") if isinstance(value, Mapping) else _as_trtexec(value)
    device = _read_device(fields, path.name) if isinstance(fields, Mapping) else None
    if device is None:
        raise _no_device(path)
    return device


def _as_trtexec(value: Any) -> dict[str, Any] | None:
    """Convert the device metadata of NVIDIA's explorer (CUDA attributes, clocks in kHz) to trtexec's names."""
    fields = value[0] if isinstance(value, list) and value and isinstance(value[0], Mapping) else {}
    capability = fields.get("ComputeCapability")
    clocks = [number(fields.get(name)) for name in ("CLOCK_RATE", "MEMORY_CLOCK_RATE")]
    if not isinstance(capability, list) or len(capability) != 2 or None in clocks:
        return None
    return {
        "Selected Device": fields.get("Name"),
        "Compute Capability": capability[0] + capability[1] / 10,
        "SMs": fields.get("MULTIPROCESSOR_COUNT"),
        "Compute Clock Rate": (clocks[0] or 0.0) / 1e6,
        "Memory Clock Rate": (clocks[1] or 0.0) / 1e6,
        "Memory Bus Width": fields.get("GLOBAL_MEMORY_BUS_WIDTH"),
    }


def _read_device(fields: Mapping[str, Any], source: str) -> Device | None:
    name, capability = fields.get("Selected Device"), _figure(fields.get("Compute Capability"))
    clock = _figure(fields.get("Compute Clock Rate") or fields.get("Application Compute Clock Rate"))
    memory = _figure(fields.get("Memory Clock Rate") or fields.get("Application Memory Clock Rate"))
    sms, width = _figure(fields.get("SMs")), _figure(fields.get("Memory Bus Width"))
    sm = f"sm{round(capability * 10)}" if capability else ""
    if not isinstance(name, str) or not (clock and memory and sms and width) or sm not in _RATES:
        return None
    # Each line of the bus makes two transfers per clock.
    bandwidth = width / 8 * memory * 2
    return _device(name, sm, int(sms), clock, bandwidth, geforce="GeForce" in name, source=source)


def _figure(value: Any) -> float | None:
    """Parse a number with an optional unit, as in "1.425 GHz" or "192 bits"."""
    match = re.match(r"\d+(\.\d+)?", value) if isinstance(value, str) else None
    return float(match.group()) if match else number(value)


def _device(
    name: str, sm: str, sms: int, clock: float, bandwidth: float, *, geforce: bool, source: str
) -> Device:
    int8, fp16, fp32 = _RATES[sm]
    giga = sms * clock / 1000
    return Device(
        name=name,
        sm=sm,
        sms=sms,
        clock_ghz=clock,
        bandwidth_gbs=bandwidth,
        int8_tops=giga * int8,
        fp16_tflops=giga * fp16 / (2 if geforce else 1),
        fp32_tflops=giga * fp32,
        source=source,
    )


def _no_device(path: Path) -> InputFileError:
    return InputFileError(
        "the file lacks the name, clocks, bus width or SM count of a GPU, or has an unknown compute capability",
        fix="pass the metadata JSON of a trtexec run, with device_information",
        where=str(path),
    )


# --- estimate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """The shares of a device's peak rates that real engines reach, and the launch time of a kernel.

    Attributes:
        start_ms: milliseconds that every kernel takes to start.
        bandwidth: share of the peak memory bandwidth that kernels with products reach.
        moving: share of the peak memory bandwidth that all other kernels reach.
        arithmetic: share of the peak arithmetic rate.
    """

    start_ms: float
    bandwidth: float
    moving: float
    arithmetic: float


# Fitted to recorded profiles of public engines by `benchmarks/roofline.py`, which also judges the fit.
ROOF = Roof(start_ms=0.006, bandwidth=0.9, moving=0.4, arithmetic=0.6)
LEAST_START_MS = 0.001
"""Time that a kernel takes at least if a CUDA graph starts it: an order of magnitude, not fitted to any profile."""
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
    """Return the time of all kernels of `view` on `device`, in sequence."""
    kernels = [layer for layer in view.layers if layer.role is not Role.NONE]
    times = [_time(layer, device, roof) for layer in kernels]
    return Estimate(
        ms=sum(roof.start_ms + (time or 0.0) for time in times),
        device=device.name,
        blind=sum(time is None for time in times),
    )


def _time(layer: LayerView, device: Device, roof: Roof) -> float | None:
    """Return the milliseconds of a kernel without its launch; None if its bytes are unknown."""
    if layer.bytes is None:
        return None
    bandwidth = roof.bandwidth if layer.role is Role.COMPUTE else roof.moving
    moving = layer.bytes / (device.bandwidth_gbs * bandwidth) / 1e6
    peak = device.peak(layer.precision)
    computing = 2 * (layer.macs or 0) / (peak * roof.arithmetic) / 1e9 if peak else 0.0
    return hypot(moving, computing)
