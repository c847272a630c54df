"""Data of `qdqtool engine`: every layer with its bytes, operations and measured time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import fsum

from qdqtool.core.buildlog import LayerHistory
from qdqtool.core.engine import Certainty, EngineTensor, Role
from qdqtool.core.events import LedgerRow
from qdqtool.core.tensors import DType


class CostModel(str, Enum):
    """The method of counting the bytes that layers move.

    TREX counts as NVIDIA's trt-engine-explorer does: one input of a convolution, weights in the input's type, no bias
    and no padding. EXACT counts every input, weights and bias in their own types, and padded channels.
    """

    TREX = "trex"
    EXACT = "exact"


_TF32_FROM = 80
"""The first SM architecture that runs FP32 products as TF32."""
_FP8_FROM = 89
"""The first SM architecture with FP8 tensor cores."""
_FP4_FROM = 100
"""The first SM architecture with FP4 tensor cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Bytes and multiplications of a layer; None if the dump does not contain them.

    Attributes:
        bytes: inputs, weights and outputs together.
        input_bytes: run-time inputs.
        weight_bytes: weights and other constants.
        output_bytes: results.
        macs: multiply-accumulate operations of a compute layer.
        gemm: the product as a matrix product: (M, N, K).
    """

    bytes: int | None = None
    input_bytes: int | None = None
    weight_bytes: int | None = None
    output_bytes: int | None = None
    macs: int | None = None
    gemm: tuple[int, int, int] | None = None

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: multiply-accumulate operations (MACs) per byte."""
        return self.macs / self.bytes if self.macs and self.bytes else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Peak rates of a GPU.

    Attributes:
        name: as trtexec prints it.
        sm: architecture, "sm86".
        sms: streaming multiprocessors.
        clock_ghz: boost clock.
        bandwidth_gbs: memory bandwidth in GB/s.
        int8_tops: dense INT8 tensor-core rate in 10^12 operations per second; None if there is none.
        fp16_tflops: dense FP16 tensor-core rate with FP32 accumulation.
        fp32_tflops: rate of the CUDA cores.
        source: source of the figures.
    """

    name: str
    sm: str
    sms: int
    clock_ghz: float
    bandwidth_gbs: float
    int8_tops: float | None
    fp16_tflops: float | None
    fp32_tflops: float
    source: str

    @property
    def generation(self) -> int:
        """Compute capability as a number: 86 for "sm86", 120 for "sm120"."""
        return int(self.sm.removeprefix("sm"))

    def peak(self, dtype: DType) -> float | None:
        """Return operations per second in units of 10^12 for arithmetic in `dtype`; None if no rate is known.

        FP8 arithmetic with FP32 accumulation runs at twice the FP16 rate from SM89 on (whitepapers of Ada and
        Hopper). FP4 arithmetic runs at twice the INT8 rate from SM100 on (Blackwell's whitepaper). From SM80 on, FP32
        products run as TF32: half the FP16 rate.
        """
        if dtype is DType.INT8:
            return self.int8_tops
        if dtype in {DType.FLOAT16, DType.BFLOAT16}:
            return self.fp16_tflops
        if dtype in {DType.FLOAT8, DType.FLOAT8_E5M2}:
            return 2 * self.fp16_tflops if self.fp16_tflops and self.generation >= _FP8_FROM else None
        if dtype is DType.FLOAT4:
            return 2 * self.int8_tops if self.int8_tops and self.generation >= _FP4_FROM else None
        if dtype is DType.FLOAT32 and self.fp16_tflops and self.generation >= _TF32_FROM:
            return self.fp16_tflops / 2
        return self.fp32_tflops if dtype is DType.FLOAT32 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerView:
    """One engine layer with its bytes, operations and time.

    Attributes:
        name: as dumped.
        kind: LayerType in the dump's own words.
        role: purpose of the layer.
        inputs: run-time inputs.
        constants: weights and other constants.
        outputs: results.
        precision: type of the arithmetic.
        certainty: how `precision` is known.
        tactic: kernel name.
        onnx_nodes: the ONNX nodes it holds.
        ms: average time of one inference in milliseconds (measured); None without a profile.
        elided: whether the profile says that it takes no time at all.
        bytes: see `Cost`.
        input_bytes: see `Cost`.
        weight_bytes: see `Cost`.
        output_bytes: see `Cost`.
        macs: see `Cost`.
        gemm: see `Cost`.
        intensity: MACs per byte.
        tflops: achieved 10^12 operations per second (two per MAC), if timed.
        gbs: achieved GB/s, if timed.
        bound: "compute" or "memory" by the roofline of a device, if known.
        history: how it came to be, if a log of its build was read.
    """

    name: str
    kind: str
    role: Role
    inputs: tuple[EngineTensor, ...]
    constants: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    precision: DType
    certainty: Certainty
    tactic: str
    onnx_nodes: tuple[str, ...]
    ms: float | None = None
    elided: bool = False
    bytes: int | None = None
    input_bytes: int | None = None
    weight_bytes: int | None = None
    output_bytes: int | None = None
    macs: int | None = None
    gemm: tuple[int, int, int] | None = None
    intensity: float | None = None
    tflops: float | None = None
    gbs: float | None = None
    bound: str | None = None
    history: LayerHistory | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineView:
    """All layers of an engine with their costs.

    Attributes:
        layers: in launch order.
        bindings: the engine's own inputs and outputs.
        form: which form of layer information was read.
        cost_model: how bytes were counted.
        unknown_formats: unknown type words, with their counts.
        unread: records that were not understood.
        total_ms: sum of all layer times (measured); larger than the time of one undisturbed inference.
        matched: share of the profile's rows that belong to a layer; None without a profile.
        unmatched_rows: names of the profile's rows that belong to no layer.
        device: the GPU whose roofline was used, or "".
        ledger: what happened to every Q and DQ node, if a log of the build was read.
        unplaced: Q and DQ nodes of the ledger that ended in no layer.
        notes: remarks for a reader.
    """

    layers: tuple[LayerView, ...]
    bindings: tuple[EngineTensor, ...] = ()
    form: str = ""
    cost_model: CostModel = CostModel.EXACT
    unknown_formats: tuple[tuple[str, int], ...] = ()
    unread: int = 0
    total_ms: float | None = None
    matched: float | None = None
    unmatched_rows: tuple[str, ...] = ()
    device: str = ""
    ledger: tuple[LedgerRow, ...] = ()
    unplaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# --- times -----------------------------------------------------------------------------------------------------------
# Measured times of layers and of whole inferences.


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRow:
    """The measured time of one engine layer.

    Attributes:
        name: layer name as the profiler writes it.
        average_ms: mean over the iterations.
        median_ms: median, if the profile has it.
        total_ms: sum over the iterations, if the profile has it.
        percent: share of the whole, if the profile has it.
    """

    name: str
    average_ms: float
    median_ms: float | None = None
    total_ms: float | None = None
    percent: float | None = None

    @property
    def elided(self) -> bool:
        """True if the layer took no time: it was optimized away, which is not the same as being fast."""
        return self.average_ms == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Times of all layers, in the order of the file.

    The layers of a profiled engine run one by one with a measurement between them, so their sum is larger than the
    time of one undisturbed inference.

    Attributes:
        rows: one per layer.
        iterations: number of inferences; None if the file does not say.
        form: which form was read.
        unread: rows that were not understood.
        notes: remarks for a reader.
    """

    rows: tuple[ProfileRow, ...]
    iterations: int | None = None
    form: str = ""
    unread: int = 0
    notes: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        """Sum of the average times of all layers."""
        return fsum(row.average_ms for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpread:
    """Statistics, in milliseconds, of one time over many inferences."""

    name: str
    count: int
    low: float
    high: float
    mean: float
    median: float
    p99: float
