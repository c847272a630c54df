"""The parsed log of a builder: its runs, everything that each run reports, and the history of every engine layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from qdqtool.core.causes import Degree
from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import ComputeNode, LedgerRow, LedgerSummary, LogRecord, OptimizerEvent, PassCount
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import TensorInfo

# --- history ---------------------------------------------------------------------------------------------------------
# History of every engine layer in a builder's log: Q/DQ nodes, optimizer events, tuning.


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerHistory:
    """History of one engine layer in a build log: fused nodes, Q/DQ, and the kernel search.

    Attributes:
        qdq: names of the Q and DQ nodes that ended in it; the ledger has their stories.
        events: changes of its nodes by the optimizer, in the order of the log; attempts without effect are left
            out.
        tuning: the search for its kernel; None if the log has none.
        myelin: the searches for kernels inside a Myelin region.
    """

    qdq: tuple[str, ...] = ()
    events: tuple[OptimizerEvent, ...] = ()
    tuning: LayerTuning | None = None
    myelin: tuple[MyelinTuning, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """History of all engine layers in a build log.

    Attributes:
        layers: one per layer of the engine, in its order.
        unplaced: Q and DQ nodes of the model that belong to no layer.
        notes: remarks for a reader.
    """

    layers: tuple[LayerHistory, ...] = ()
    unplaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# --- buildlog --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxHeader:
    """Header of the ONNX model as TensorRT's parser prints it; "" for fields that the log does not show."""

    file: str
    ir_version: str = ""
    opset: str = ""
    producer: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogNode:
    """A node of the model, reconstructed from the log lines of its parsing."""

    name: str
    op: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LogNetwork:
    """The model's graph, reconstructed from the log; empty if the log does not show the graph."""

    inputs: tuple[TensorInfo, ...] = ()
    nodes: tuple[LogNode, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FunnelStep:
    """Number of layers that remain after a stage of the builder; a stage can occur more than once."""

    stage: str
    layers: int
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A phase of an engine build and its duration.

    Attributes:
        name: name of the phase.
        line: the line that begins it, or that states its duration.
        seconds: its length.
        stated: whether the log states the length (else it is the difference of time stamps, to the second).
    """

    name: str
    line: int
    seconds: float
    stated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTuning:
    """Kernel search (autotuning) of one layer.

    Attributes:
        layer: its name.
        formats: format combinations and kernel families that were timed.
        candidates: kernels timed.
        seconds: time spent, as stated; None if the release does not print it.
        fastest_ms: fastest kernel over all formats, in milliseconds; None if nothing ran.
        fastest: its tactic id.
        runner: the kernel family of the fastest.
        chosen: tactic id in the finished engine; "" if the log does not list its layers.
        chosen_ms: the time that tactic was measured with; None if it was never the fastest of a combination.
        line: where its tuning begins.
    """

    layer: str
    formats: int
    candidates: int
    seconds: float | None
    fastest_ms: float | None
    fastest: str
    runner: str
    chosen: str
    chosen_ms: float | None
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MyelinTuning:
    """Autotuning of one operation inside a Myelin region.

    Attributes:
        op: its name.
        candidates: kernels timed.
        fastest, fastest_ms, kernel: id, milliseconds and name of the fastest.
        selected, selected_ms: id and milliseconds of the chosen tactic; "" and None if the release does not print
            them.
        line: where its table begins.
    """

    op: str
    candidates: int
    fastest_ms: float | None
    fastest: str
    kernel: str
    selected: str
    selected_ms: float | None
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """All kernel searches (autotuning) of one build.

    Attributes:
        layers: classic layers, slowest to tune first; if times are unknown, most candidates first.
        reformats: all reformatting candidates together.
        myelin: operations of Myelin regions.
        cache_entries: entries of the timing cache; None if not printed.
        cache_hits: times it answered.
    """

    layers: tuple[LayerTuning, ...] = ()
    reformats: LayerTuning | None = None
    myelin: tuple[MyelinTuning, ...] = ()
    cache_entries: int | None = None
    cache_hits: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TacticRow:
    """One kernel that autotuning tried, or refused to try.

    Attributes:
        line: where it is timed or refused.
        layer: the layer, or the operation inside a Myelin region.
        runner: the kernel family.
        formats: the format combination, as printed; "" if none is.
        tactic: its id; "" if a runner has none for these formats.
        kernel: its name, "" if the release does not print it.
        ms: time in milliseconds; None if it was not timed, or failed.
        workspace: bytes that it requested but did not get.
        verdict: "timed", "failed", "fastest" (of its kernels and formats), "chosen", or why it was not tried.
    """

    line: int
    layer: str
    runner: str
    formats: str
    tactic: str
    kernel: str
    ms: float | None
    workspace: int | None
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """All log messages with the same wording.

    Each of `rows` has the line number and the message's fields, in the order of `columns`.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory that a build log reports, in bytes (peaks in MiB); None for values that the log does not print.

    Attributes:
        workspace_limit: the limit that trtexec prints; None for the default.
        skipped, skipped_most, skipped_line: kernels skipped for lack of memory, the most that one asked for, and the line
            of the first.
    """

    host_persistent: int | None = None
    device_persistent: int | None = None
    scratch: int | None = None
    activation: int | None = None
    weights: int | None = None
    peak_cpu_mib: int | None = None
    peak_gpu_mib: int | None = None
    peak_building_cpu_mib: int | None = None
    engine_mib: int | None = None
    workspace_limit: int | None = None
    skipped: int = 0
    skipped_most: int | None = None
    skipped_line: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Times of one metric of trtexec's performance summary, in milliseconds. `percentiles` maps a percentage to a time."""

    min: float | None = None
    max: float | None = None
    mean: float | None = None
    median: float | None = None
    percentiles: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Performance:
    """Throughput and times that trtexec measured, and what limits them.

    Attributes:
        throughput_qps: queries per second.
        metrics: latency, enqueue, h2d, gpu_compute, d2h, end_to_end.
        walltime_s, gpu_total_s: totals in seconds.
        queries: timed queries.
        variance_percent: coefficient of variance of GPU compute time, printed if it is unstable.
        diagnosis: in words.
    """

    throughput_qps: float | None = None
    metrics: dict[str, Times] = field(default_factory=dict)
    walltime_s: float | None = None
    gpu_total_s: float | None = None
    queries: int | None = None
    variance_percent: float | None = None
    diagnosis: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedProfileRow:
    """One row of a layer profile in a log: total, average and median milliseconds, and percent.

    A layer that was optimized away has 0 in all of these numbers.
    """

    layer: str
    total_ms: float
    average_ms: float
    median_ms: float | None
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Reason for a failed build: the message that decides, its meaning and the fix.

    Attributes:
        line, text: the decisive message, complete.
        meaning, fix: from its cause; "" if the cause is unknown.
        cause: the name of the cause.
        degree: "exact" if the reason is known, "general" if only the class of the error is, "unknown" if not even that.
        node: the node or layer in question; "" if none is named.
        evidence: lines of the chain, the decisive line first.
    """

    line: int
    text: str
    meaning: str = ""
    fix: str = ""
    cause: str = ""
    degree: Degree = "exact"
    node: str = ""
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Short answer to the first questions about a build log: did it build, in which types, and why not INT8.

    Attributes:
        built: whether an engine was built; None if the log does not say.
        failed: whether the run failed.
        precision: type of the engine's arithmetic, or the allowed type; "" if the log does not say.
        why_not: why the build failed, or why layers are not in INT8 or another low-bit format; "" without a fault.
        about: subject of why_not. "log": where the log ends. "time": where the time is spent. "ranges": they are not
            calibrated. "program": a decision of the program around the builder. "" otherwise.
        quantized: the format that layers do not have, if why_not says why ("INT8", "FP8"); "" otherwise.
        fix: what to do about it.
        degree: how exactly the reason of a failure is known; "" without a failure.
        evidence: the lines that show it.
    """

    built: bool | None
    failed: bool = False
    precision: str = ""
    why_not: str = ""
    about: Literal["", "log", "program", "ranges", "time"] = ""
    quantized: str = ""
    fix: str = ""
    degree: Degree | Literal[""] = ""
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyLoss:
    """Loss of one output in trtexec's accuracy check (TensorRT 11.1). Losses from different algorithms are not comparable.

    Attributes:
        tensor: the output.
        algorithm: l0, l1, l2, lInf or cos.
        loss: in the unit of the algorithm; None if it is not finite.
        failed_threshold: the threshold that the loss reaches; None if it passed or none was set.
    """

    tensor: str
    algorithm: str
    loss: float | None
    failed_threshold: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """An unrecognised wording: one example, its count, and the line of its first occurrence."""

    text: str
    count: int
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHeader:
    """Program, outcome and parsing statistics of a run. Empty values mean that the log does not say.

    Attributes:
        number: 1 for the first run of the log.
        front_end: trtexec, python, polygraphy, rtx, jetson-inference, deepstream, logger, or unknown.
        version: TensorRT version, (8, 4, 12); None if unknown.
        build: build tag of the banner ("b11").
        argv: the command as words.
        status: passed, failed, waived, built (an engine was generated, no verdict printed), or cut.
        first_line: number of its first line in the log.
        carrier: the prefix format around its lines, learned from the log; "" if the builder's prefix comes first.
        process: the launcher's name of the process that printed it; "" for a single process.
        unread_share: share of the builder's lines that are unknown; above 0.05 the log may be misread.
        lines: all its lines; the read ones are `lines - blank - foreign - unread`.
        blank: empty lines.
        foreign: lines of other programs, recognised by their shape.
        unread: unknown lines.
        unread_lines: the unread ones by wording, most frequent first.
        clipped: records that were counted but not kept, because the run is larger than the memory allowed for it.
        answer: whether it built, in which precision, why not INT8, and what to do.
        options: section of the echo -> option -> value.
        plugins: plug-in creators registered.
        without_scale: tensors that the builder found no scale for -> the nodes that make or read them.
        int8_refused: layers whose INT8 kernels were refused -> the tensor whose scale was missing.
        dla_refused: layers that DLA refused -> why.
        unobeyed: layers for which no kernel has the requested precision.
        overruled: layers that got a faster kernel of a different precision than requested.
        accuracy: what trtexec's accuracy check measured.
        warnings, errors: all wordings.
    """

    number: int
    front_end: str
    version: tuple[int, ...] | None
    build: str
    argv: tuple[str, ...]
    status: str
    first_line: int
    lines: int
    blank: int
    foreign: int
    unread: int
    carrier: str = ""
    process: str = ""
    unread_share: float = 0.0
    unread_lines: tuple[Unread, ...] = ()
    clipped: int = 0
    failure: Failure | None = None
    answer: Answer | None = None
    options: dict[str, dict[str, str]] = field(default_factory=dict)
    onnx: OnnxHeader | None = None
    plugins: int = 0
    passes: dict[str, PassCount] = field(default_factory=dict)
    funnel: tuple[FunnelStep, ...] = ()
    phases: tuple[Phase, ...] = ()
    ledger_summary: LedgerSummary | None = None
    memory: Memory = field(default_factory=Memory)
    performance: Performance | None = None
    without_scale: dict[str, tuple[str, ...]] = field(default_factory=dict)
    int8_refused: dict[str, str] = field(default_factory=dict)
    dla_refused: dict[str, str] = field(default_factory=dict)
    unobeyed: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()
    accuracy: tuple[AccuracyLoss, ...] = ()
    warnings: tuple[LogRecord, ...] = ()
    errors: tuple[LogRecord, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRun(RunHeader):
    """Everything that one run of a builder reports in a log.

    Attributes:
        placement: "GPU" and "DLA" -> layers.
        bindings: the engine's inputs and outputs by name.
        tactics: every kernel that was tried, in the order of the log.
        statements: all other messages, by the name of their wording ("memory-change", "trace-average" ...).
    """

    network: LogNetwork = field(default_factory=LogNetwork)
    events: tuple[OptimizerEvent, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    compute: tuple[ComputeNode, ...] = ()
    tuning: Tuning = field(default_factory=Tuning)
    placement: dict[str, tuple[str, ...]] = field(default_factory=dict)
    engine_layers: tuple[EngineLayer, ...] = ()
    bindings: tuple[str, ...] = ()
    tactics: tuple[TacticRow, ...] = ()
    statements: dict[str, Statements] = field(default_factory=dict)
    profile: tuple[LoggedProfileRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDigest(RunHeader):
    """Digest of a run: counts, and the first twenty entries of each list.

    Attributes:
        nodes: nodes of the model that the log shows.
        kernels_left: Q and DQ nodes that stayed as separate kernels.
        precisions: precision of compute nodes -> how many.
        not_quantized: compute nodes that do not read and write INT8, FP8 or FP4.
        contradictions: compute nodes whose engine layer disagrees with the ledger.
        tuned_layers, candidates: layers tuned and kernels timed.
        slowest: layers that took the builder longest.
        placement: "GPU" and "DLA" -> number of layers.
        layer_kinds: kind of engine layer -> how many.
        layer_precisions: number of compute layers of the engine by precision, for a model without Q/DQ.
        float_layers: names of compute layers with 16 bits or more.
        foreign_nodes: Myelin regions (ForeignNode) -> the ONNX nodes they hold.
        profile: layers that take longest at run time.
    """

    nodes: int = 0
    kernels_left: tuple[str, ...] = ()
    precisions: dict[str, int] = field(default_factory=dict)
    not_quantized: tuple[ComputeNode, ...] = ()
    contradictions: tuple[ComputeNode, ...] = ()
    tuned_layers: int = 0
    candidates: int = 0
    slowest: tuple[LayerTuning, ...] = ()
    myelin: tuple[MyelinTuning, ...] = ()
    placement: dict[str, int] = field(default_factory=dict)
    layer_kinds: dict[str, int] = field(default_factory=dict)
    layer_precisions: dict[str, int] = field(default_factory=dict)
    float_layers: tuple[str, ...] = ()
    foreign_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    profile: tuple[LoggedProfileRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class BuildLog(Displayable):
    """A log: its runs in order, and notes on the decoding of its bytes ("utf-16", "xz", "cut short", ...)."""

    runs: tuple[LogRun, ...]
    notes: tuple[str, ...] = ()
