"""The second objective of a sweep: the time of an inference, and how it was determined.

estimated: a roofline over the layers of the engine that TensorRT for RTX builds, for a GPU that need not be here.
engine: the engine itself on this machine's GPU, in turns with the engine of the base recipe.
measured: onnxruntime on the device of the recipe (`compute.device`), in turns with the float model.
none: no time at all; accuracy alone counts.

Times that are measured in turns give a ratio that a busy machine hardly changes. The ratio is multiplied by the time
of the reference on the first worker. So the trials of all workers can be compared.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from qdqtool.backends.gpu import gpus
from qdqtool.backends.timing.measure import OrtClock, TimeRequest, Timing
from qdqtool.backends.timing.measure import measure as time_engines
from qdqtool.backends.timing.series import Effort, TimingVerdict, judge, take_turns
from qdqtool.core.kinds import ENGINE
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.recipe import Format
from qdqtool.core.report import Summary
from qdqtool.engine.roofline import SPREAD, estimate, find_device
from qdqtool.engine.view import view
from qdqtool.errors import MissingPackage
from qdqtool.graph.view import Model
from qdqtool.runtime.device import CPU
from qdqtool.trt.ops import PRODUCTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMATS = frozenset(get_args(Format)) - {"float"}
_ROUNDS, _TURN_S = 10, 0.03
"""Number of turns of each model, and the duration of a turn in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """The result of one configuration of a sweep, without its accuracy.

    Attributes:
        ms: milliseconds of one inference; 0 if no time counts.
        low, high: 95 % interval of a measured time.
        nodes_int8, nodes_total: numbers of compute nodes: in the engine, or as placed if there is no engine.
        kernels: kernels of the engine; None without one.
        formats: compute nodes by their format, those in float left out.
    """

    ms: float
    nodes_int8: int
    nodes_total: int
    low: float | None = None
    high: float | None = None
    kernels: int | None = None
    formats: dict[str, int] = field(default_factory=dict)


class Estimated:
    """Estimates the times of the layers of the real engine with a roofline model."""

    label = "estimated"
    spread = SPREAD

    def __init__(self, device: str) -> None:
        self._device = find_device(device)
        self.device = self._device.name

    def of_run(self, summary: Summary, folder: Path) -> Try:
        """Return the results of a finished run folder, with the estimated time of its engine."""
        ms = estimate(view(ENGINE.read(folder / "layers.json")), self._device).ms
        return in_engine(summary, (ms, None, None))


Times = tuple[float, float, float]
"""Milliseconds of one inference, and the ends of their 95 % interval."""


class OnGpu:
    """Measures the time of the real engine on the GPU here, between CUDA events."""

    label = "measured"
    spread = None

    def __init__(self, _device: str, timer: Callable[[TimeRequest], Timing] = time_engines) -> None:
        """Find the GPU of this machine. `_device`, the GPU for estimates, is not used.

        Raises:
            MissingPackage: there is no GPU.
        """
        devices = gpus()
        if not devices:
            raise MissingPackage(
                "this machine has no NVIDIA GPU to time engines on",
                fix="set sweep.speed=estimated, or run the sweep on a machine with a GPU; see qdqtool doctor",
            )
        self.device = devices[0].name
        self._timer = timer

    def reference(self, engine: Path) -> float:
        """Return the milliseconds of an engine that runs alone."""
        return self._timer(_in_turns(engine)).summaries[0].median

    def of_engines(self, before: Path, after: Path, reference_ms: float) -> Times:
        """Time the engine `after` alternately with the engine `before`, whose time is `reference_ms`."""
        (verdict,) = self._timer(_in_turns(before, after)).verdicts
        return _scale_times(reference_ms, verdict)


class Measured:
    """Measures the latency with onnxruntime at full speed, with the device's own INT8 kernels."""

    label = "measured"
    spread = None

    def __init__(self, device: str) -> None:
        """Measure on a device of onnxruntime. `device` is a value of the recipe key `compute.device`."""
        self._word = device
        self.device = "onnxruntime's CPU" if device == CPU.word else f"onnxruntime on {device}"

    def reference(self, model: Path, feeds: Mapping[str, NDArray[Any]]) -> float:
        """Return the milliseconds of a model that runs alone."""
        clock = OrtClock(model, self._word, feeds)
        (series,) = take_turns([clock], _effort(clock))
        return median(series.times)

    def of_models(
        self, before: Path, after: Path, feeds: Mapping[str, NDArray[Any]], reference_ms: float
    ) -> Times:
        """Time the model `after` alternately with the model `before`, whose time is `reference_ms`."""
        clocks = [OrtClock(path, self._word, feeds) for path in (before, after)]
        plain, quantized = take_turns(clocks, _effort(clocks[0]))
        return _scale_times(reference_ms, judge(plain, quantized))


class Untimed:
    """Measures no time: only accuracy counts."""

    label = "not timed"
    device = ""
    spread = None

    def __init__(self, _device: str) -> None:
        """Ignore the GPU."""


Speed = Estimated | OnGpu | Measured | Untimed
SPEEDS: dict[str, Callable[[str], Speed]] = {
    "estimated": Estimated,
    "engine": OnGpu,
    "measured": Measured,
    "none": Untimed,
}


def in_engine(summary: Summary, times: tuple[float, float | None, float | None]) -> Try:
    """Return the result of a configuration whose engine was built."""
    ms, low, high = times
    return Try(
        ms=ms,
        low=low,
        high=high,
        nodes_int8=summary.nodes_int8 or 0,
        nodes_total=summary.nodes_total or 0,
        kernels=summary.kernels,
        formats={name: count for name, count in summary.realised.items() if name in _FORMATS},
    )


def count_placed(model: Model, placement: Placement) -> tuple[dict[str, int], int]:
    """Count the compute nodes that placement requests in each format, and all compute nodes."""
    compute = {node.name for node in model.view.nodes if node.op in PRODUCTS}
    slots: dict[str, dict[SlotKind, str]] = {}
    for decision in placement.quantized:
        if decision.slot.node in compute and decision.spec is not None:
            slots.setdefault(decision.slot.node, {})[decision.kind] = decision.spec.format.name
    alone = Counter(
        kinds.get(SlotKind.ACTIVATION) or f"{kinds[SlotKind.WEIGHT]}-weights" for kinds in slots.values()
    )
    return dict(sorted(alone.items())), len(compute)


def _in_turns(*engines: Path) -> TimeRequest:
    """Return the request to time engines alternately. They are trusted, because this sweep built them."""
    return TimeRequest(candidates=engines, trust=True)


def _effort(clock: OrtClock) -> Effort:
    """Return rounds, warm-up, and inferences per turn: about `_TURN_S` seconds, but 1 to 100 inferences."""
    start = time.perf_counter()
    clock.warm_up(0.0)
    once = time.perf_counter() - start
    iterations = max(1, min(100, round(_TURN_S / once)))
    return Effort(rounds=_ROUNDS, iterations=iterations, warm_up_ms=100 * _TURN_S)


def _scale_times(reference_ms: float, verdict: TimingVerdict) -> Times:
    slow, fast = verdict.low or verdict.speedup, verdict.high or verdict.speedup
    return reference_ms / verdict.speedup, reference_ms / fast, reference_ms / slow
