"""Advice on precisions: whether INT8 is faster on a device, the expected order of all precisions, and its uncertainty.

The ratio of INT8 to FP16 time comes from published pairs: times of one network in both precisions on one device
(`benchmarks/data/advice_pairs.tsv`). `benchmarks/advice.py` fits it and judges it on networks that the fit has not seen. It
depends on the generation of the GPU and on how long the arithmetic takes at the peak rate: short work gains little, since
launches and memory decide. Single nodes are judged by the roofline of `engine.roofline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, log10, prod
from typing import Final, Literal

from qdqtool.core.artefacts import Artefact
from qdqtool.core.explore import Device
from qdqtool.core.wording import Command, count_noun
from qdqtool.engine.roofline import ROOF
from qdqtool.errors import UsageError
from qdqtool.graph.sparse import SPARSE_FROM, sparse_nodes, sparsity_words
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import ATTENTIONS, PRODUCTS

Precision = Literal["fp32", "fp16", "int8", "fp8", "mixed"]
Bound = Literal["compute", "memory", "launches"]
Verdict = Literal["faster", "slower", "cannot say"]
Kind = Literal["dense", "separable", "transformer"]
"""Networks by most of their work: convolutions, convolutions with few channels per group, or attention."""

GENERATIONS: Final[Mapping[str, str]] = {
    "sm70": "volta",
    "sm72": "xavier",
    "sm75": "turing",
    "sm80": "ampere",
    "sm86": "geforce ampere",
    "sm87": "orin",
    "sm89": "ada",
    "sm110": "thor",
    "sm120": "blackwell",
    "sm121": "blackwell",
}
"""Architectures with published pairs of INT8 and FP16 times."""
_GAINING: Final = ("orin", "xavier", "geforce ampere", "turing")
"""Generations with a gain that grows with the work; for the others too few sizes were published."""
_SHORTEST, _LONGEST = -1.5, 1.2
"""Range of work with published pairs: decimal logarithms of milliseconds at the peak rate."""

COEFFICIENTS: Final[Mapping[str, float]] = {
    "ada": -0.1264,
    "ampere": -0.1096,
    "blackwell": 0.2325,
    "geforce ampere": -0.2305,
    "one": -0.2018,
    "orin": -0.0454,
    "separable": 0.0549,
    "thor": 0.0849,
    "transformer": 0.1752,
    "turing": -0.0405,
    "volta": 0.1468,
    "work": -0.0938,
    "work, gaining": -0.1183,
    "work, separable": -0.0519,
    "work, volta": 0.3101,
    "xavier": 0.0882,
}
"""Coefficients of the logarithm of INT8 over FP16 time, by feature. `python benchmarks/advice.py --fit`
prints them; a test compares.
"""
SURE: Final = 0.05
"""Smallest logarithm of a ratio that counts as faster or slower; below it, the advice is "cannot say"."""
SPREAD: Final = 0.2
"""Half-width of the expected range, as a logarithm of the ratio; four of five unseen pairs are inside."""
LAUNCHES: Final = 0.9
"""Time share of launch-bound nodes from which on no precision is called faster or slower; a chosen value."""
# A change below this share of a node's time is noise.
_PAYS: Final = 0.03
_FEW_CHANNELS: Final = 8
"""Channels per group up to which a convolution does little arithmetic per byte, as in RegNetY-400MF."""
_SEPARABLE: Final = 0.2
"""Share of the elements that all Conv nodes write, from which on a network is separable: YOLO11, with some
depthwise Conv nodes in its head, stays below it, and MobileNetV3 is above.
"""
FP8_FROM: Final = 89
"""Compute capability of the first GPUs with FP8 tensor cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeWork:
    """One compute node and its estimated cost on a device.

    Attributes:
        node: its name.
        op: its operator.
        macs: multiplications, each with an addition.
        fp16_ms: milliseconds in FP16.
        int8_ms: milliseconds in INT8.
        bound: the largest part of its FP16 time.
        pays: whether INT8 shortens it.
    """

    node: str
    op: str
    macs: int
    fp16_ms: float
    int8_ms: float
    bound: Bound
    pays: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """Estimated time of a whole network in one precision.

    Attributes:
        precision: precision of all compute nodes; "mixed" is INT8 if it is faster, and FP16 elsewhere.
        ratio: expected time over that of FP16.
        low, high: interval with four of five such ratios; None if no ratio was published.
        verdict: against FP16.
        why: the source of the ratio, and the doubt.
    """

    precision: Precision
    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    why: str

    @property
    def words(self) -> str:
        """The verdict in words, with "probably" if the interval contains 1."""
        if self.precision == "fp16":
            return "reference"
        if self.verdict == "cannot say" or self.low is None or self.high is None:
            return self.verdict
        return self.verdict if self.low > 1 or self.high < 1 else f"probably {self.verdict}"

    @property
    def times(self) -> str:
        """The ratio with its interval: "x 0.80 (0.66 to 0.98)"."""
        has_interval = self.low is not None and self.high is not None and self.low != self.high
        return f"x {self.ratio:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if has_interval else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionAdvice:
    """Estimated times of a network on a GPU, by precision.

    Attributes:
        model: file name.
        device: GPU.
        batch: size of the batch.
        gmacs: 10^9 multiplications of one inference.
        options: precisions, the fastest expected one first; precisions that may be slower than FP16 come after it.
        bounds: share of the estimated FP16 time of all compute nodes by bound.
        nodes: compute nodes, the longest first.
        notes: limits of the advice.
    """

    model: str
    device: str
    batch: int
    gmacs: float
    options: tuple[Option, ...]
    bounds: dict[str, float]
    nodes: tuple[NodeWork, ...]
    notes: tuple[str, ...]

    @property
    def int8(self) -> Option:
        """The answer to "is INT8 faster here?"."""
        return next(option for option in self.options if option.precision == "int8")

    @property
    def line(self) -> str:
        """The answer of `advise` in one line: is INT8 faster on this GPU?"""
        says = self.int8
        if says.verdict == "cannot say":
            return f"advise cannot say whether INT8 is faster: {says.why.partition('; otherwise')[0]}"
        return f"advise: INT8 is {says.words}, {says.times} of the FP16 time in {says.why}"


ADVICE: Final = Artefact(kind="advice", schema=1, type=PrecisionAdvice)


def features(generation: str, peak_ms: float | None, kind: Kind) -> dict[str, float]:
    """Return the quantities from which the ratio of INT8 to FP16 time is predicted.

    Args:
        generation: a value of `GENERATIONS`.
        peak_ms: milliseconds of the arithmetic in FP16 at the peak rate; None if the work is unknown.
        kind: which compute nodes do most of the work.
    """
    work = 0.0 if peak_ms is None else max(_SHORTEST, min(_LONGEST, log10(max(peak_ms, 1e-6))))
    quantities = {"one": 1.0, generation: 1.0, "work": work}
    if kind != "dense":
        quantities[kind] = 1.0
    if kind == "separable":
        quantities["work, separable"] = work
    if generation in _GAINING:
        quantities["work, gaining"] = work
    if generation == "volta":
        quantities["work, volta"] = work
    return quantities


def predict_log_ratio(
    quantities: Mapping[str, float], coefficients: Mapping[str, float] | None = None
) -> float:
    """Return the expected logarithm of the ratio of INT8 time to FP16 time."""
    weights = COEFFICIENTS if coefficients is None else coefficients
    return sum(weights.get(name, 0.0) * value for name, value in quantities.items())


def advise(view: GraphView, device: Device, name: str, batch: int = 1) -> PrecisionAdvice:
    """Order the precisions of a float network on a device.

    Raises:
        UsageError: the network has no compute node, or shapes beyond the batch are unknown.
    """
    nodes = tuple(sorted(_works(view, device, batch), key=lambda work: -work.fp16_ms))
    macs = sum(work.macs for work in nodes)
    peak_ms = None if not device.fp16_tflops else 2 * macs / device.fp16_tflops / 1e9
    kind = _kind(view, batch)
    total = sum(work.fp16_ms for work in nodes)
    bounds = {
        bound: sum(work.fp16_ms for work in nodes if work.bound == bound) / total
        for bound in ("compute", "memory", "launches")
    }
    options: tuple[Option, ...] = (
        _int8(device, peak_ms, nodes, kind),
        _fp8(device, nodes),
        _build_mixed_option(nodes),
        _fp32(device, nodes),
    )
    if bounds["launches"] >= LAUNCHES:
        options = tuple(_bind_by_launches(option) for option in options)
    faster = sorted(
        (option for option in options if option.verdict == "faster"), key=lambda option: option.ratio
    )
    slower = sorted(
        (option for option in options if option.verdict != "faster"),
        key=lambda option: (option.verdict == "slower", option.ratio),
    )
    base = Option(precision="fp16", ratio=1.0, low=1.0, high=1.0, verdict="cannot say", why="the reference")
    notes = [
        "the estimate counts compute nodes only; the layers between them are fused or cost the same in all precisions"
    ]
    if bounds["launches"] > max(bounds["compute"], bounds["memory"]):
        notes.append(
            "most of the time is kernel launches: CUDA graphs or a larger batch gain more than another precision"
        )
    sparse = sparse_nodes(view) if device.generation >= SPARSE_FROM else ()
    if sparse:
        notes.append(f"{sparsity_words(sparse)}; the estimate does not count that")
    if kind == "transformer":
        notes.append(
            f"an attention that is one kernel in FP16 may become several kernels with Q/DQ: {Command('run')} shows it (QDQ215)"
        )
    return PrecisionAdvice(
        model=name,
        device=device.name,
        batch=batch,
        gmacs=macs / 1e9,
        options=(*faster, base, *slower),
        bounds=bounds,
        nodes=nodes,
        notes=tuple(notes),
    )


def _bind_by_launches(option: Option) -> Option:
    why = (
        f"nearly all of the time is kernel launches, which precision does not change; otherwise: {option.why}"
    )
    is_known = option.verdict == "faster" or option.ratio != 1.0
    return replace(option, verdict="cannot say", why=why) if is_known else option


def _int8(device: Device, peak_ms: float | None, nodes: Sequence[NodeWork], kind: Kind) -> Option:
    generation = GENERATIONS.get(device.sm)
    if generation is None:
        ratio = _sum(nodes, "int8") / _sum(nodes, "fp16")
        why = f"no published pair of INT8 and FP16 times for {device.sm}; the ratio is an estimate from peak rates and bandwidth (roofline)"
        return Option(precision="int8", ratio=ratio, low=None, high=None, verdict="cannot say", why=why)
    log_ratio = predict_log_ratio(features(generation, peak_ms, kind))
    verdict: Verdict = "cannot say" if abs(log_ratio) < SURE else "faster" if log_ratio < 0 else "slower"
    return Option(
        precision="int8",
        ratio=exp(log_ratio),
        low=exp(log_ratio - SPREAD),
        high=exp(log_ratio + SPREAD),
        verdict=verdict,
        why=f"published pairs of INT8 and FP16 times of the GPU generation {generation}, for a {kind} network",
    )


def _fp8(device: Device, nodes: Sequence[NodeWork]) -> Option:
    if device.generation < FP8_FROM:
        why = f"{device.name} has no FP8 tensor cores"
        return Option(precision="fp8", ratio=1.0, low=None, high=None, verdict="slower", why=why)
    ratio = _sum(nodes, "int8") / _sum(nodes, "fp16")
    why = "almost no published pairs of FP8 and FP16 times; the ratio is an estimate from peak rates and bandwidth (roofline)"
    return Option(precision="fp8", ratio=ratio, low=None, high=None, verdict="cannot say", why=why)


def _build_mixed_option(nodes: Sequence[NodeWork]) -> Option:
    ratio = sum(work.int8_ms if work.pays else work.fp16_ms for work in nodes) / _sum(nodes, "fp16")
    count = sum(work.pays for work in nodes)
    why = f"INT8 for {count} of {count_noun(len(nodes), 'compute node')}; the ratio is an estimate from peak rates and bandwidth (roofline), without conversions between the nodes"
    return Option(precision="mixed", ratio=ratio, low=None, high=None, verdict="cannot say", why=why)


def _fp32(device: Device, nodes: Sequence[NodeWork]) -> Option:
    slower = (
        2.0
        if device.generation >= _TF32_FROM
        else (device.fp16_tflops or device.fp32_tflops) / device.fp32_tflops
    )
    times = [
        hypot(2.0, slower) / hypot(1.0, 1.0) * work.fp16_ms if work.bound != "launches" else work.fp16_ms
        for work in nodes
    ]
    ratio = sum(times) / _sum(nodes, "fp16")
    why = "FP32 moves twice the bytes at a lower peak rate; the ratio is an estimate from peak rates and bandwidth (roofline)"
    verdict: Verdict = "slower" if log(ratio) >= SURE else "cannot say"
    return Option(precision="fp32", ratio=ratio, low=None, high=None, verdict=verdict, why=why)


_TF32_FROM: Final = 80
"""Compute capability of the first GPUs that run FP32 products as TF32, at half the FP16 rate."""


def _sum(nodes: Sequence[NodeWork], precision: Literal["int8", "fp16"]) -> float:
    return sum(work.int8_ms if precision == "int8" else work.fp16_ms for work in nodes)


def _works(view: GraphView, device: Device, batch: int) -> list[NodeWork]:
    works = []
    for node in view.nodes:
        if node.op not in PRODUCTS:
            continue
        macs, elements = _work(view, node, batch)
        times = {
            size: _parts(elements * size, macs, device, peak)
            for size, peak in ((2, device.fp16_tflops), (1, device.int8_tops))
        }
        fp16, int8 = (sum_of(times[size]) for size in (2, 1))
        start, moving, computing = times[2]
        bound: Bound = (
            "launches" if start >= max(moving, computing) else "compute" if computing >= moving else "memory"
        )
        works.append(
            NodeWork(
                node=node.name,
                op=node.op,
                macs=macs,
                fp16_ms=fp16,
                int8_ms=int8,
                bound=bound,
                pays=bound != "launches" and int8 < fp16 * (1 - _PAYS),
            )
        )
    if not works:
        raise UsageError(
            "the network has no compute node", fix="advise needs a network with Conv, Gemm or MatMul"
        )
    return works


def sum_of(parts: tuple[float, float, float]) -> float:
    """Return the milliseconds of a kernel from launch, bytes and arithmetic, which overlap in part."""
    start, moving, computing = parts
    return start + hypot(moving, computing)


def _parts(size: float, macs: int, device: Device, peak: float | None) -> tuple[float, float, float]:
    computing = 2 * macs / ((peak or device.fp32_tflops) * ROOF.arithmetic) / 1e9
    return ROOF.start_ms, size / (device.bandwidth_gbs * ROOF.bandwidth) / 1e6, computing


def _work(view: GraphView, node: Node, batch: int) -> tuple[int, int]:
    """Return the MACs of a node, and how many elements it reads and writes."""
    shapes = [_shape(view, name, batch) for name in (*node.inputs[:2], node.outputs[0])]
    left, right, result = shapes
    if node.op == "ConvTranspose":
        macs = prod(left) * prod(right[1:])
    elif node.op == "Conv":
        macs = prod(result) * prod(right[1:])
    elif node.op == "Gemm":
        macs = prod(result) * (left[0] if node.integer("transA", 0) else left[-1])
    else:
        macs = prod(result) * (left[-1] if left else 1)
    return macs, sum(prod(shape) for shape in shapes)


def _shape(view: GraphView, tensor: str, batch: int) -> tuple[int, ...]:
    declared = view.info(tensor).shape
    if declared is None or any(not isinstance(dim, int) for dim in declared[1:]):
        raise UsageError(
            f"the shape of tensor {tensor!r} is unknown",
            fix="give the model fixed shapes, all but the batch: python -m onnxruntime.tools.make_dynamic_shape_fixed",
        )
    return tuple(dim if isinstance(dim, int) else batch for dim in declared)


def _kind(view: GraphView, batch: int) -> Kind:
    """Return the kind of a network; a transformer has a MatMul of run-time tensors and a Softmax."""
    runtime = (
        node for node in view.nodes if node.op == "MatMul" and not any(map(view.is_constant, node.inputs))
    )
    if any(runtime) and any(node.op in {"Softmax", *ATTENTIONS} for node in view.nodes):
        return "transformer"
    written = {True: 0, False: 0}
    for node in view.nodes:
        if node.op == "Conv":
            few = node.integer("group", 1) > 1 and _shape(view, node.inputs[1], batch)[1] <= _FEW_CHANNELS
            written[few] += prod(_shape(view, node.outputs[0], batch))
    return "separable" if written[True] > _SEPARABLE * sum(written.values()) else "dense"
