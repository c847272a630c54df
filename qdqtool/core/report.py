"""The public structure of `report.json`, which scripts may rely on, and the verdict of a run.

The verdict has three questions, the evidence of each answer, and one word derived from them by a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from qdqtool.core.buildlog import FunnelStep, LayerHistory
from qdqtool.core.comparison import Assumption, Comparison
from qdqtool.core.engine import Certainty, Role
from qdqtool.core.events import LedgerRow
from qdqtool.core.explore import Device
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun

# --- verdict ---------------------------------------------------------------------------------------------------------


State = Literal["yes", "no", "unknown"]
GOOD, DOUBTFUL, BAD = VERDICTS = ("good", "doubtful", "bad")
"""All verdicts, best first."""

ASKED, ACCURATE, WORTH = QUESTIONS = ("asked", "accurate", "worth")
TITLES: Final = {ASKED: "As asked", ACCURATE: "Accurate", WORTH: "Worth it"}
_LEVELS: Final[dict[str, dict[State, str]]] = {
    ASKED: {"yes": GOOD, "unknown": DOUBTFUL, "no": DOUBTFUL},
    ACCURATE: {"yes": GOOD, "unknown": DOUBTFUL, "no": BAD},
    WORTH: {"yes": GOOD, "unknown": DOUBTFUL, "no": DOUBTFUL},
}
"""The best verdict that each answer allows. A wrong result must not be used. A result that is not in the
requested format, or not faster than FP16, can be used.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to one question about a run: does it compute as requested, is it accurate, is it worth it?

    Attributes:
        state: "yes", "no" or "unknown".
        evidence: the figures or the finding for it, in one sentence.
        settle: command that would answer an unknown; None if no such command is known. For `run` these are the
            options to add to the run.
    """

    state: State
    evidence: str
    settle: Command | None = None

    def level(self, question: str) -> str:
        """Return the answer as "good", "doubtful", "bad" or "unknown", which selects its colour."""
        return "unknown" if self.state == "unknown" else _LEVELS[question][self.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVerdict:
    """The verdict on the result of a run: whether it can be used.

    Attributes:
        answer: "good", "doubtful" or "bad": the worst value of the three answers.
        asked: whether the engine computes in the requested formats.
        accurate: whether the outputs or the task metric are good enough.
        worth: whether the engine is faster than the network in FP16.
        settle: the one command that answers the first unknown question; None if none is unknown.
    """

    answer: str
    asked: Reply
    accurate: Reply
    worth: Reply
    settle: Command | None = None

    @property
    def answers(self) -> tuple[tuple[str, Reply], ...]:
        """The questions "asked", "accurate" and "worth" with their answers, in this order."""
        return ((ASKED, self.asked), (ACCURATE, self.accurate), (WORTH, self.worth))


def verdict_of(as_asked: Reply, accurate: Reply, worth: Reply, settle: Command | None = None) -> RunVerdict:
    """Return the verdict of a run: the worst level of its three answers."""
    levels = (
        _LEVELS[question][answer.state]
        for question, answer in zip(QUESTIONS, (as_asked, accurate, worth), strict=True)
    )
    return RunVerdict(
        answer=max(levels, key=VERDICTS.index), asked=as_asked, accurate=accurate, worth=worth, settle=settle
    )


_NOT_CHECKED = Reply(state="unknown", evidence="not checked")
UNDECIDED: Final = verdict_of(_NOT_CHECKED, _NOT_CHECKED, _NOT_CHECKED)
"""The verdict of a run that was not judged yet."""


def is_judged(answer: str, limit: str) -> bool:
    """Return True if the verdict `answer` is `limit` or worse."""
    return VERDICTS.index(answer) >= VERDICTS.index(limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """Times of an engine and of the same network in FP16.

    Attributes:
        source: "measured" or "estimated"; "unknown" if there are no times, and `note` says why.
        device: the GPU that the times are for.
        ms: milliseconds of one inference of the engine; None if unknown.
        fp16_ms: milliseconds of the network in FP16.
        low: smallest speed-up over FP16 that the figures allow: 95 % interval if measured, else of four of five published
            times and the estimate, or the recorded errors of estimates.
        high: largest speed-up.
        kernels: kernels of both engines, the quantized one first; None if unknown.
        more: kinds of kernels of which the quantized engine has more (`engine.costs.kinds`).
        note: why the times are unknown, or say little.
        advice: published times of other networks with INT8, in one line; empty if there are none.
    """

    source: str
    device: str = ""
    ms: float | None = None
    fp16_ms: float | None = None
    low: float | None = None
    high: float | None = None
    kernels: tuple[int, int] | None = None
    more: dict[str, int] = field(default_factory=dict)
    note: str = ""
    advice: str = ""


# --- report ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracySummary:
    """The headline metric: a task metric if there are labels, else SQNR of the outputs.

    Attributes:
        metric: its name.
        unit: "%", "dB" or "".
        reference: of the float model; None if the metric is of both together.
        int8: of the quantized model.
        samples: how many were compared.
        meaningful: False when they were random.
        sqnr_db: signal to noise of the outputs in dB, whatever the headline is; None if the two are equal.
        interval: 95 % interval of the headline: of the change in points for a task metric, of the value in dB for
            SQNR; None if it is not known.
    """

    metric: str
    unit: str
    reference: float | None
    int8: float | None
    samples: int
    meaningful: bool
    sqnr_db: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The summary of a run, readable in ten seconds.

    Attributes:
        model: file name of the float model.
        builder: builder, its version and its targets in words; "" if no engine was built.
        nodes_total: compute nodes (Conv, ConvTranspose, Gemm, MatMul, attention); None without an audit.
        nodes_int8: compute nodes that run INT8 in the engine.
        nodes_requested: compute nodes that placement asked for.
        requested: number of nodes by the format that their Q/DQ nodes ask for ("fp8", "int4-weights", "float").
        realised: number of nodes by the format that they run in; empty, like `requested`, without an audit.
        requested_nodes: the names of the nodes that `requested` counts, by format, in graph order.
        realised_nodes: names of the nodes that `realised` counts.
        kernels: kernels in the engine.
        compute_kernels: kernels with a compute node.
        int8_kernels: compute kernels whose arithmetic is INT8.
        kernel_types: how many compute kernels compute in which type ("int8", "fp8", "fp16").
        qdq_kernels: kernels that only quantize, dequantize, cast or reformat.
        activation_bytes_dumped: bytes written and read between kernels, as dumped.
        activation_bytes_fused: activation bytes if conv and gemm epilogues are fused (estimated).
        engine_bytes: size of the plan; None if no engine was built.
        findings: count by severity.
        accuracy: None without a comparison.
        verdict: whether the result can be used, by three questions.
        assumptions: assumptions behind the result: preparation of inputs, shapes of dynamic dimensions.
    """

    model: str
    builder: str
    nodes_total: int | None
    nodes_int8: int | None
    nodes_requested: int | None
    kernels: int | None
    compute_kernels: int | None
    int8_kernels: int | None
    qdq_kernels: int | None
    activation_bytes_dumped: int | None
    activation_bytes_fused: int | None
    engine_bytes: int | None
    findings: dict[str, int]
    accuracy: AccuracySummary | None
    verdict: RunVerdict
    requested: dict[str, int] = field(default_factory=dict)
    realised: dict[str, int] = field(default_factory=dict)
    requested_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    realised_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kernel_types: dict[str, int] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """A compute node that does not run INT8, with the reason and the fix."""

    node: str
    op: str
    precision: str
    reason: str
    fix: str
    requested: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The largest magnitude that one calibrator would keep."""

    method: str
    amax: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow:
    """The range of one activation tensor in a report.

    Attributes:
        tensor: the tensor's name in the float model.
        amax: the largest magnitude that is kept; larger values are clipped.
        low: smallest value seen; None if unknown.
        high: largest value seen.
        method: the calibrator that chose `amax`.
        note: anything a reader must know.
        counts: histogram of the magnitudes seen, in bins of `width` from 0 on; () if there is none.
        width: width of a bin.
        thresholds: ranges of other calibrators on this histogram, sorted by `method`.
    """

    tensor: str
    amax: float
    low: float | None
    high: float | None
    method: str
    note: str
    counts: tuple[int, ...] = ()
    width: float = 0.0
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRow:
    """An input, constant or output of an engine layer. Values that the dump does not contain are None, UNKNOWN or ""."""

    name: str
    shape: tuple[int, ...] | None
    dtype: DType
    format: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRow:
    """One engine layer in a report.

    Attributes:
        name: as dumped.
        kind: LayerType in the dump's own words.
        tactic: kernel name, or "".
        onnx_nodes: names of the ONNX nodes inside.
        inputs: run-time inputs.
        constants: weights and other constants.
        outputs: results.
        role: what the layer is for.
        precision: type of the arithmetic of a compute layer, type of the output of the others.
        certainty: how `precision` is known.
        bytes: run-time inputs and outputs together; None if a shape or type is unknown.
        weight_bytes: constants together; None if unknown.
        ms: time of one inference in milliseconds as profiled; None if it was not.
        macs: multiply-accumulate operations of one inference; None if not known.
        gemm: the product as a matrix product, (M, N, K); None if not known.
        intensity: MACs per byte.
        tflops: achieved 10^12 operations per second (two per MAC), if timed.
        gbs: achieved GB/s, if timed.
        bound: "compute" or "memory" by the roofline of a device, "" if unknown.
        history: how it came to be, if the builder's log shows it.
    """

    name: str
    kind: str
    tactic: str
    onnx_nodes: tuple[str, ...]
    inputs: tuple[TensorRow, ...]
    constants: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    role: Role
    precision: DType
    certainty: Certainty
    bytes: int | None
    weight_bytes: int | None = None
    ms: float | None = None
    macs: int | None = None
    gemm: tuple[int, int, int] | None = None
    intensity: float | None = None
    tflops: float | None = None
    gbs: float | None = None
    bound: str = ""
    history: LayerHistory | None = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Report(Displayable):
    """All data of the report page; the HTML is generated from this alone.

    Attributes:
        summary: the short version.
        fallbacks: compute nodes that are not quantized in the engine, or not in the format asked for.
        verdicts: all compute nodes.
        findings: most severe first.
        comparison: accuracy against the float model; None without a comparison.
        ranges: activation ranges, sorted by tensor.
        layers: engine layers in launch order.
        notes: notes of all steps for the reader.
        ledger: how every Q and DQ node ended, if the builder's log shows it.
        funnel: layers left after each stage of the builder, if its log shows it.
        sensitivity: accuracy cost of each node; None without a study.
        device: the GPU whose roofs the layers are compared with, if one was named.
        sections: values of third-party sections, by name of the section.
    """

    summary: Summary
    fallbacks: tuple[Fallback, ...]
    verdicts: tuple[NodeVerdict, ...]
    findings: tuple[Finding, ...]
    comparison: Comparison | None
    ranges: tuple[RangeRow, ...]
    layers: tuple[LayerRow, ...]
    notes: tuple[str, ...]
    ledger: tuple[LedgerRow, ...] = ()
    funnel: tuple[FunnelStep, ...] = ()
    sensitivity: Sensitivity | None = None
    device: Device | None = None
    sections: dict[str, Any] = field(default_factory=dict)

    def headline(self) -> str:
        """Return the model, the verdict of the run with its three answers, and the number of findings."""
        verdict = self.summary.verdict
        answers = ", ".join(
            f"{TITLES[question].lower()}: {answer.state}" for question, answer in verdict.answers
        )
        return (
            f"{self.summary.model}: {verdict.answer} ({answers}), {count_noun(len(self.findings), 'finding')}"
        )

    @property
    def verdict(self) -> str:
        """The verdict of the run: good, doubtful or bad."""
        return self.summary.verdict.answer
