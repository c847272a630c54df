"""Results of a sweep: its trials, and the Pareto front."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.report import RunVerdict
from qdqtool.core.showing import Displayable
from qdqtool.core.wording import count_noun

Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration of a sweep and its results.

    Attributes:
        settings: the recipe keys that differ from the base, as values for `--set`.
        accuracy: the metric of the sweep on the evaluation samples (measured).
        ms: time of one inference; its source is `Sweep.speed`.
        nodes_int8: compute nodes that run INT8 in the engine; without an engine, that are placed so.
        formats: compute nodes by the format in which the engine runs them, or, without an engine, of their placement:
            "int8", "fp8", "int4-weights". Float nodes are left out.
        nodes_total: all compute nodes.
        kernels: kernels of the engine; None without one.
        kept_float: the nodes that were kept float on purpose.
        ms_low: lower end of the 95 % interval of a measured time.
        ms_high: upper end.
        accuracy_low: lower end of the 95 % interval of `accuracy` over samples, of a task metric as the float model's
            value and the interval of the paired difference; None if it is not known.
        accuracy_high: upper end.
        sqnr_db: signal to noise of the outputs against the float model in dB, with any metric; None if they are
            equal, or if it is unknown.
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
    formats: dict[str, int] = field(default_factory=dict)
    sqnr_db: float | None = None

    @property
    def quantized(self) -> int:
        """Number of compute nodes in any low-bit format."""
        return sum(self.formats.values()) if self.formats else self.nodes_int8


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The accuracy of a trial on held-out samples, which did not choose among trials.

    Attributes:
        accuracy: the metric of the sweep.
        low, high: 95 % interval over samples; None if it is not known.
        samples: how many.
    """

    accuracy: float
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPoint:
    """Accuracy and time of the network without quantized nodes.

    Attributes:
        name: "FP32" or "FP16".
        accuracy: the metric of the sweep; None if that is noise against FP32, and there is none.
        low, high: 95 % interval; None if it is not known.
        ms: time of one inference, as of the trials.
        ms_low, ms_high: 95 % interval of a measured time.
    """

    name: str
    accuracy: float | None
    low: float | None
    high: float | None
    ms: float
    ms_low: float | None = None
    ms_high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One trial of a sweep: its configuration, state and results.

    Attributes:
        number: as the study counts.
        state: "complete", "failed" or "running".
        outcome: None unless complete.
        reason: why it failed; "" for others.
        settings: the tried settings, as values for `--set`; () if the study does not record them.
        checked: its accuracy on held-out samples; None without held-out samples, or outside the Pareto front.
        verdict: the verdict of `run` on it: as asked, accurate, worth it against FP16; None without an engine, or outside
            the Pareto front.
    """

    number: int
    state: str
    outcome: Outcome | None = None
    reason: str = ""
    settings: tuple[str, ...] = ()
    checked: Checked | None = None
    verdict: RunVerdict | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Sweep(Displayable):
    """The results of a complete sweep: all trials, the Pareto front and the reference.

    Attributes:
        model: file name of the float model.
        metric: metric of `accuracy` ("top1", "sqnr_db", ...).
        unit: its unit.
        reference: the metric of the float model; None for metrics that need two runners.
        device: GPU of the times; "" without times.
        spread: recorded over estimated time on recorded engines, smallest and largest; None for other times.
        pareto: trials of the Pareto front of accuracy and time, fastest first.
        trials: all of them.
        speed: "estimated", "measured" or "not timed".
        floats: the network in FP32 and in FP16, for comparison.
        launch_bound: numbers of trials for which the CPU takes longer to launch the kernels than the GPU to run them.
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
    floats: tuple[FloatPoint, ...] = ()
    launch_bound: Annotated[tuple[int, ...], Field(exclude_if=lambda value: not value)] = ()

    def headline(self) -> str:
        """Return the model, the number of trials, and the Pareto front."""
        front = "; ".join(
            f"trial {trial.number}: {trial.outcome.accuracy:.2f} {self.unit}"
            + (f" in {trial.outcome.ms:.4f} ms" if trial.outcome.ms else "")
            for trial in self.pareto[:3]
            if trial.outcome is not None
        )
        return f"{self.model}: {count_noun(len(self.trials), 'trial')}, {self.metric}, {self.speed}: {front}"

    @property
    def journal(self) -> Journal:
        """The trials as rows of a journal. Pareto points have the outcome "kept"; gains are relative to the first trial."""
        done = [trial.outcome.accuracy for trial in self.trials if trial.outcome is not None]
        front = {trial.number for trial in self.pareto}
        return Journal(
            search="recipes",
            objective=f"{self.metric} and time ({self.speed})",
            unit=self.unit or self.metric,
            trials=tuple(_record(trial, front, done) for trial in self.trials),
        )


def _record(trial: Trial, front: set[int], done: list[float]) -> TrialRecord:
    outcome = trial.outcome
    settings = ", ".join(trial.settings) or f"trial {trial.number}"
    if outcome is None:
        why = trial.reason or f"trial {trial.number} is {trial.state}"
        return TrialRecord(what=settings, outcome=TrialOutcome.NOT_TRIED, why=why, settings=trial.settings)
    is_kept = trial.number in front
    time = f"{outcome.ms:.4g} ms"
    return TrialRecord(
        what=settings,
        outcome=TrialOutcome.KEPT if is_kept else TrialOutcome.REJECTED,
        why=f"{time}; no trial is as fast and more accurate"
        if is_kept
        else f"{time}; another trial is at least as fast and as accurate",
        settings=trial.settings,
        value=outcome.accuracy,
        gain=outcome.accuracy - done[0],
    )
