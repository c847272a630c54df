"""The second objective of a sweep: how long an inference takes, and where that figure comes from.

estimated: a roofline over the layers of the engine that TensorRT for RTX builds, for a GPU that need not be here.
measured: onnxruntime on this machine's CPU. Float and Q/DQ model take turns, and the ratio of their medians, which a
busy machine hardly moves, is multiplied by the float model's time of the first trial: so trials can be compared.
none: no time at all; accuracy alone counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from qdqtool.backends.timing.ort import OrtClock
from qdqtool.backends.timing.rounds import Effort, take_turns
from qdqtool.backends.timing.verdict import judge
from qdqtool.core.artefacts import canonical, read_json
from qdqtool.core.files import write_text
from qdqtool.core.kinds import ENGINE
from qdqtool.core.placement import Placement
from qdqtool.core.report import Summary
from qdqtool.engine.devices import find_device
from qdqtool.engine.estimate import SPREAD, estimate
from qdqtool.engine.view import view
from qdqtool.graph.model import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_ROUNDS, _TURN_S = 10, 0.03
"""Turns of each model, and how long one should be in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """What one configuration came to, beside its accuracy.

    Attributes:
        ms: milliseconds of one inference; 0 where no time counts.
        low, high: 95 % interval of a measured time.
        nodes_int8, nodes_total: compute nodes: in the engine, or as placed where there is none.
        kernels: kernels of the engine; None without one.
    """

    ms: float
    nodes_int8: int
    nodes_total: int
    low: float | None = None
    high: float | None = None
    kernels: int | None = None


class Estimated:
    """Time of the real engine's layers by a roofline."""

    label = "estimated"
    spread = SPREAD

    def __init__(self, device: str) -> None:
        self._device = find_device(device)
        self.device = self._device.name

    def of_run(self, summary: Summary, folder: Path) -> Try:
        """The engine in a finished run folder."""
        return Try(
            ms=estimate(view(ENGINE.read(folder / "layers.json")), self._device).ms,
            nodes_int8=summary.nodes_int8 or 0,
            nodes_total=summary.nodes_total or 0,
            kernels=summary.kernels,
        )


class Measured:
    """Latency on onnxruntime's CPU, as fast as onnxruntime can."""

    label = "measured"
    device = "onnxruntime's CPU"
    spread = None

    def __init__(self, _device: str) -> None:
        """The GPU of the estimate does not matter here."""

    def of_models(
        self, before: Path, after: Path, feeds: Mapping[str, NDArray[Any]]
    ) -> tuple[float, float, float]:
        """Milliseconds of the model `after`, and the ends of their 95 % interval."""
        clocks = [OrtClock(path, "cpu", feeds) for path in (before, after)]
        start = time.perf_counter()
        clocks[0].warm_up(0.0)
        once = time.perf_counter() - start
        effort = Effort(
            rounds=_ROUNDS, iterations=max(1, min(100, round(_TURN_S / once))), warm_up_ms=100 * _TURN_S
        )
        plain, quantized = take_turns(clocks, effort)
        verdict = judge(plain, quantized)
        reference = _first(before.parent / "float.ms.json", median(plain.times))
        slow, fast = verdict.low or verdict.speedup, verdict.high or verdict.speedup
        return reference / verdict.speedup, reference / fast, reference / slow


class Untimed:
    """No time: accuracy alone counts."""

    label = "not timed"
    device = ""
    spread = None

    def __init__(self, _device: str) -> None:
        """No GPU matters here."""


SPEEDS: dict[str, type[Estimated | Measured | Untimed]] = {
    "estimated": Estimated,
    "measured": Measured,
    "none": Untimed,
}


def placed(model: Model, placement: Placement) -> tuple[int, int]:
    """How many compute nodes placement wants in INT8, and how many there are."""
    compute = {node.name for node in model.view.nodes if node.op in _COMPUTE}
    wanted = {decision.slot.node for decision in placement.quantized}
    return len(compute & wanted), len(compute)


def _first(path: Path, ms: float) -> float:
    """The time that the first trial found for the float model."""
    known = read_json(path) if path.is_file() else None
    if isinstance(known, float) and known > 0:
        return known
    write_text(path, canonical(ms))
    return ms
