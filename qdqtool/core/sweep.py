"""What a sweep finds: trials, and the ones that nothing beats."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.showing import Shown

Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration and what came of it.

    Attributes:
        settings: the recipe keys that differ from the base, as `--set` takes them.
        accuracy: the metric of the sweep on the evaluation samples (measured).
        ms: time of one inference; `Sweep.speed` says where it comes from.
        nodes_int8: compute nodes that run INT8 in the engine; without an engine, that are placed so.
        nodes_total: all compute nodes.
        kernels: kernels of the engine; None without one.
        kept_float: the nodes that were kept float on purpose.
        ms_low: lower end of the 95 % interval of a measured time.
        ms_high: upper end.
        accuracy_low: lower end of the 95 % interval of `accuracy` over samples, of a task metric as the float model's
            value and the interval of the paired difference; None where it is not known.
        accuracy_high: upper end.
    """

    settings: tuple[str, ...]
    accuracy: float
    ms: float
    nodes_int8: int
    nodes_total: int
    kernels: int | None
    kept_float: tuple[str, ...] = ()
    ms_low: float | None = None
    ms_high: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial of the study.

    Attributes:
        number: as the study counts.
        state: "complete", "failed" or "running".
        outcome: None unless complete.
        reason: why it failed.
    """

    number: int
    state: str
    outcome: Outcome | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Sweep(Shown):
    """A whole study.

    Attributes:
        model: file name of the float model.
        metric: what `accuracy` is ("top1", "sqnr_db", ...).
        unit: its unit.
        reference: the metric of the float model; None for metrics that need two runners.
        device: what the times are for; "" where nothing is timed.
        spread: recorded over estimated time on recorded engines, smallest and largest; None for other times.
        pareto: trials that no other beats in both accuracy and time, fastest first.
        trials: all of them.
        speed: "estimated", "measured" or "not timed".
    """

    model: str
    metric: str
    unit: str
    reference: float | None
    device: str
    spread: tuple[float, float] | None
    pareto: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    speed: str = "estimated"
