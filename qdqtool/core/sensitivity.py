"""Accuracy cost of each quantized node, and the nodes to keep float."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Annotated

from pydantic import Field

from qdqtool.core.comparison import TaskAccuracy
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.showing import Displayable
from qdqtool.core.wording import count_noun


class CauseKind(str, Enum):
    """The main cause of a node's noise."""

    CLIPPED = "clipped"
    COARSE = "too coarse"
    OUTLIER = "outlier channel"
    WEIGHTS = "weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseCause:
    """Causes of a node's noise, measured at its own output with float inputs.

    Attributes:
        kind: main cause of the noise.
        clipping: the part (0 to 1) of the noise at its output that clipping its inputs makes.
        rounding: the part that rounding them makes.
        weights: the part that its quantized weights make.
        tensor: the quantized input that loses most; "" if only weights are quantized.
        clipped_energy: share of the input's energy that is beyond its range (0 to 1).
        step: quantization step of that input.
        spread: standard deviation of its values in the median channel; None if channels are not known.
        channel: the channel with the largest magnitude.
        reach: the largest magnitude in that channel, in largest magnitudes of the median channel.
        weight_reach: as `reach`, of the channels of the weights, if all share one step; None if each channel has a step, or the weights have no axis of channels.
        samples: number of samples used.
    """

    kind: CauseKind
    clipping: float
    rounding: float
    weights: float
    tensor: str
    clipped_energy: float
    step: float
    spread: float | None
    channel: int | None
    reach: float | None
    weight_reach: float | None
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cure:
    """A change that was tried to reduce a node's noise, and its gain at the outputs.

    Attributes:
        what: in words.
        settings: the change, as values for `--set`.
        gain_db: SQNR of the outputs with the change minus SQNR without it; None if no noise is left.
        gain_low: lower end of the 95 % interval over samples, which both models ran; None if it is not known.
        gain_high: upper end.
        samples: number of samples used.
    """

    what: str
    settings: tuple[str, ...]
    gain_db: float | None
    gain_low: float | None
    gain_high: float | None
    samples: int

    @property
    def helps(self) -> bool:
        """True if the gain is significant; without an interval, if it is positive or no noise is left."""
        if self.gain_low is not None:
            return self.gain_low > 0
        return self.gain_db is None or self.gain_db > 0

    @property
    def level(self) -> float:
        """The gain of a change as a sortable number; infinite if no noise is left."""
        return inf if self.gain_db is None else self.gain_db


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSensitivity:
    """The effect on the model's outputs if one node, or one group of nodes, is quantized.

    Attributes:
        node: name of the node; for a group, the names of its nodes are in `members`.
        op: operator type; "group" for a group.
        members: nodes that are switched together.
        share: part (0 to 1) of the node in the summed noise of all nodes, each quantized alone.
        alone_db: SQNR of the outputs if only this node is quantized; None if it makes no noise.
        without_db: SQNR if all other nodes are quantized; None if not measured.
        gain_db: gain of keeping it float: `without_db` minus the SQNR of the whole; None if not measured.
        task: accuracy when everything but this node is quantized, against the float model; None without labels.
        samples: number of samples used: few for an estimate, all for an exact run.
        exact: whether all samples were used.
        alone_low: lower end of the 95 % interval of `alone_db`; None if unknown. For an estimate, the interval is at
            least as wide as the measured errors of estimates.
        alone_high: upper end.
        cause: why it is noisy; None if it was not analysed: for nodes with an estimate, and for groups.
        cures: tried changes for this node, the best first.
    """

    node: str
    op: str
    members: tuple[str, ...]
    share: float
    alone_db: float | None
    without_db: float | None
    gain_db: float | None
    task: TaskAccuracy | None
    samples: int
    exact: bool
    alone_low: float | None = None
    alone_high: float | None = None
    cause: NoiseCause | None = None
    cures: tuple[Cure, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSet:
    """The result of keeping some nodes float.

    Attributes:
        kept: names of the nodes kept float, most sensitive first.
        sqnr_db: SQNR of the outputs; None if there is no noise left.
        task: accuracy against the float model; None without labels.
        int8_nodes: compute nodes that stay quantized.
        total_nodes: compute nodes of the model.
        least_db: SQNR of other samples, with the requested confidence; None if none was requested, or if there are too
            few samples.
        worst_drop: points that they lose at most with that confidence; None without labels, too.
        gain_low: lower end of the 95 % interval of the gain over every node quantized: points of the task if a drop is
            limited, else dB; None if it is not known.
        gain_high: upper end.
    """

    kept: tuple[str, ...]
    sqnr_db: float | None
    task: TaskAccuracy | None
    int8_nodes: int
    total_nodes: int
    least_db: float | None = None
    worst_drop: float | None = None
    gain_low: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    gain_high: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Sensitivity(Displayable):
    """The result of a sensitivity study.

    Attributes:
        model: file name of the Q/DQ model.
        samples: samples of the exact runs.
        meaningful: False when the samples were random.
        whole: with every node quantized.
        nodes: most sensitive first.
        curve: accuracy with the most sensitive nodes float, one more node at each point, up to the last measured one.
        advice: the smallest set that meets the limit; None without a limit, or if no set meets it.
        notes: remarks that a reader needs.
        cures: tried changes for the whole network, the best first.
        excluded: patterns of the nodes that the recipe keeps float in any case.
    """

    model: str
    samples: int
    meaningful: bool
    whole: FloatSet
    nodes: tuple[NodeSensitivity, ...]
    curve: tuple[FloatSet, ...]
    advice: FloatSet | None = None
    notes: tuple[str, ...] = ()
    cures: tuple[Cure, ...] = ()
    excluded: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()

    def headline(self) -> str:
        """Return the model, its SQNR, and the nodes that cause most noise."""
        worst = sorted(self.nodes, key=lambda row: -row.share)[:3]
        level = "no noise" if self.whole.sqnr_db is None else f"SQNR {self.whole.sqnr_db:.1f} dB"
        shares = ", ".join(f"{row.node} {row.share:.0%}" for row in worst)
        return f"{self.model}: {level}{f'; noise by {shares}' if shares else ''}"

    @property
    def journal(self) -> Journal:
        """The tried changes as rows of a journal. A study does not change the model, so no row has the outcome "kept"."""
        tried = [(row.node, cure) for row in self.nodes for cure in row.cures]
        tried += [("the whole network", cure) for cure in self.cures]
        return Journal(
            search="cures",
            objective="SQNR of the outputs",
            unit="dB",
            trials=tuple(_cure_record(about, cure) for about, cure in tried),
        )


def _cure_record(about: str, cure: Cure) -> TrialRecord:
    is_worse = cure.gain_high is not None and cure.gain_high < 0
    outcome, why = (
        (TrialOutcome.BETTER, "no noise remains" if cure.gain_db is None else "significant gain")
        if cure.helps
        else (TrialOutcome.REJECTED, "significant loss")
        if is_worse
        else (TrialOutcome.TIED, "no significant gain")
    )
    return TrialRecord(
        what=f"{about}: {cure.what}",
        outcome=outcome,
        why=why,
        settings=cure.settings,
        gain=cure.gain_db,
        low=cure.gain_low,
        high=cure.gain_high,
        samples=cure.samples,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCost:
    """Number of kernels, activation bytes and size of a built engine.

    Attributes:
        nodes_int8: compute nodes that run as their Q/DQ asks.
        kernels: kernels.
        activation_bytes: bytes written and read between kernels; None if a shape or type is unknown.
        engine_bytes: size of the plan.
    """

    nodes_int8: int | None
    kernels: int | None
    activation_bytes: int | None
    engine_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One choice of types (FP8, FP16, float) for the nodes that leave INT8, with its accuracy and cost.

    Attributes:
        formats: by node "fp8" or "fp16", or "float" for the type of the float part.
        sqnr_db: SQNR of the outputs of the model as it was written; None if there is no noise left.
        task: accuracy against the float model; None without labels.
        keeps: whether the limit holds.
        cost: its engine; None if none was built.
        ms: milliseconds of one inference with that engine (estimated).
        folder: its run folder inside that of the run; "" without an engine.
    """

    formats: dict[str, str]
    sqnr_db: float | None
    task: TaskAccuracy | None
    keeps: bool
    cost: EngineCost | None = None
    ms: float | None = None
    folder: str = ""

    @property
    def is_float(self) -> bool:
        """True if every node that left INT8 has the type of the float part."""
        return set(self.formats.values()) <= {"float"}


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FloatLimit(Displayable):
    """An accuracy limit, the smallest set of float nodes found that keeps it, and the cost of that set.

    Attributes:
        max_drop: points of the task metric that may be lost; None sets no limit.
        min_sqnr: SQNR in dB that must be kept; None sets no limit.
        samples: evaluation samples on which the limit was checked; all figures of a set come from them.
        whole: every node quantized.
        path: the sets that were checked on all samples, in order; the first has all nodes float.
        chosen: the set that is kept float; None if not even all nodes float meet the limit, or the built model misses it.
        evaluations: number of measured subsets; each ran all samples of `choosing`.
        built: result of the model built with the found set, if it does not meet the limit.
        before: the engine with every node quantized; None if none was built.
        after: the chosen engine.
        alternatives: formats that were tried for the chosen nodes, in order; () if there was no choice.
        formats: their formats in the chosen engine; {} if there was no choice.
        device: the GPU for which the times of alternatives are estimated; "" if there was no choice.
        confidence: required confidence (0 to 1) that other samples meet the limit; 0 checks these samples only.
        choosing: calibration samples on which single nodes and sets of them were measured.
        calibrated: whether these samples were also used for calibration, so they say little about other samples.
        enough: samples needed to confirm the drop, if other samples lose as much as these. None without a limit of
            the drop, and if the loss of these samples already exceeds it.
    """

    max_drop: float | None
    min_sqnr: float | None
    samples: int
    whole: FloatSet
    path: tuple[FloatSet, ...]
    chosen: FloatSet | None
    evaluations: int
    built: FloatSet | None = None
    before: EngineCost | None = None
    after: EngineCost | None = None
    alternatives: tuple[Alternative, ...] = ()
    formats: dict[str, str] = field(default_factory=dict)
    device: str = ""
    confidence: float = 0.0
    choosing: int = 0
    calibrated: bool = False
    enough: int | None = None

    @property
    def journal(self) -> Journal:
        """The checked sets of float nodes, and the tried types of their nodes, as rows of a journal."""
        in_points = self.max_drop is not None and self.whole.task is not None
        return Journal(
            search="limit of accuracy",
            objective=f"{self.whole.task.metric} of the task"
            if in_points and self.whole.task
            else "SQNR of the outputs",
            unit="points" if in_points else "dB",
            trials=(
                *(self._record(float_set, in_points=in_points) for float_set in self.path),
                *(self._alternative(float_set, in_points=in_points) for float_set in self.alternatives),
            ),
        )

    def _record(self, float_set: FloatSet, *, in_points: bool) -> TrialRecord:
        outcome, why = TrialOutcome.REJECTED, "does not meet the limit"
        if self.chosen is not None and float_set.kept == self.chosen.kept:
            outcome, why = TrialOutcome.KEPT, "the smallest set found that meets the limit"
        elif self.chosen is not None and len(float_set.kept) > len(self.chosen.kept):
            why = "a smaller set meets the limit"
        value, gain = self._measure_gain(float_set, in_points=in_points)
        if value is None and not in_points:
            why += "; no noise remains"
        return TrialRecord(
            what=f"{count_noun(len(float_set.kept), 'node')} float",
            outcome=outcome,
            why=why,
            settings=(f"place.kept_float={json.dumps(float_set.kept)}",),
            value=value,
            gain=gain,
            low=float_set.gain_low,
            high=float_set.gain_high,
            samples=self.samples,
        )

    def _alternative(self, alternative: Alternative, *, in_points: bool) -> TrialRecord:
        words = sorted(set(alternative.formats.values()))
        is_kept = alternative.formats == self.formats
        why = "slower than another set that meets the limit"
        if not alternative.keeps:
            why = "no other set meets the limit" if is_kept else "does not meet the limit"
        elif is_kept:
            why = "fastest of the sets that meet the limit"
        value, gain = self._measure_gain(alternative, in_points=in_points)
        return TrialRecord(
            what=f"{count_noun(len(alternative.formats), 'node')} in {' and '.join(words)}",
            outcome=TrialOutcome.KEPT if is_kept else TrialOutcome.REJECTED,
            why=why,
            value=value,
            gain=gain,
            samples=self.samples,
        )

    def _measure_gain(
        self, float_set: FloatSet | Alternative, *, in_points: bool
    ) -> tuple[float | None, float | None]:
        """Return the task metric or the SQNR in dB, and its gain over the fully quantized network.

        The metric is used if `in_points`. None for an unknown value.
        """
        whole = self.whole
        if in_points:
            if float_set.task is None or whole.task is None:
                return None, None
            return float_set.task.candidate, float_set.task.candidate - whole.task.candidate
        if float_set.sqnr_db is None or whole.sqnr_db is None:
            return float_set.sqnr_db, None
        return float_set.sqnr_db, float_set.sqnr_db - whole.sqnr_db
