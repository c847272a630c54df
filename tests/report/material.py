"""A small run's results, made by hand: one INT8 convolution, one fallback, one finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.comparison import Comparison, Measure, OutputComparison, SampleError, TaskAccuracy
from qdqtool.core.engine import Certainty, Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.findings import Audit, Evidence, Finding, KernelCounts, NodeVerdict, Severity, Verdict
from qdqtool.core.protocols import BuildResult
from qdqtool.core.tensors import DType
from qdqtool.report.assemble import Material

EVIL = '<script>alert("x")</script>'


def tensor(
    name: str, dtype: DType = DType.INT8, shape: tuple[int, ...] | None = (1, 8, 4, 4)
) -> EngineTensor:
    return EngineTensor(name=name, shape=shape, dtype=dtype, format="Linear")


def layer(
    name: str,
    reads: tuple[EngineTensor, ...],
    writes: tuple[EngineTensor, ...],
    precision: DType = DType.INT8,
) -> EngineLayer:
    return EngineLayer(
        name=name,
        kind="correlation",
        inputs=reads,
        outputs=writes,
        tactic="sm80_int8",
        onnx_nodes=(name,),
        certainty=Certainty.STATED,
        role=Role.COMPUTE,
        precision=precision,
        precision_certainty=Certainty.STATED,
    )


def verdict(node: str, precision: DType, kind: Verdict | None = None, **words: str) -> NodeVerdict:
    return NodeVerdict(
        node=node,
        op="Conv",
        verdict=kind or Verdict(precision.value),
        precision=precision,
        requested=True,
        **words,
    )


def finding(severity: Severity, subject: str = "conv2", size: int | None = None) -> Finding:
    return Finding(
        code="QDQ201",
        check="float_fallback",
        severity=severity,
        subject=subject,
        reason=f"{subject} runs FP32",
        fix="give it a scale",
        bytes=size,
        evidence=(Evidence(file="layers.json", place="/data/layers/1"),),
    )


COMPARISON = Comparison(
    reference="float.onnx",
    candidate="model.qdq.onnx",
    samples=500,
    meaningful=True,
    outputs=(
        OutputComparison(
            output="logits",
            measures=(
                Measure(metric="cosine", value=0.99981),
                Measure(metric="sqnr_db", value=34.21, unit="dB"),
                Measure(metric="psnr", value=None, unit="dB", note="all values of the reference are equal"),
            ),
        ),
    ),
    task=(
        TaskAccuracy(
            metric="top1", unit="%", reference=98.4, candidate=98.1, samples=500, low=-0.9, high=0.25
        ),
    ),
    worst=(SampleError(sample="x.npz[17]", output="logits", sqnr_db=12.34),),
)

TABLE = CalibrationTable(
    ranges=(
        TensorRange(tensor="image", amax=(1.0,), low=0.0, high=1.0, method="entropy"),
        TensorRange(tensor="w1", amax=(0.5, 0.25), axis=0),
    ),
    samples=100,
    source="calibration.npz",
)

BUILD = BuildResult(
    builder="rtx", version="1.7.1", targets=("sm86",), engine="e", log="l", layers="d", engine_bytes=4_300_000
)

ENGINE = Engine(
    layers=(
        layer("conv1", (tensor("image"),), (tensor("a"),)),
        layer("conv2", (tensor("a", DType.FLOAT32),), (tensor("b", DType.UNKNOWN),), DType.FLOAT32),
    ),
    form="rtx-dump",
    unknown_formats=(("Weird", 2),),
)


def cost(layer: EngineLayer, **figures: Any) -> LayerView:
    return LayerView(
        name=layer.name,
        kind=layer.kind,
        role=layer.role,
        inputs=layer.inputs,
        constants=layer.constants,
        outputs=layer.outputs,
        precision=layer.precision,
        certainty=layer.precision_certainty,
        tactic=layer.tactic,
        onnx_nodes=layer.onnx_nodes,
        **figures,
    )


VIEW = EngineView(
    layers=(
        cost(ENGINE.layers[0], ms=0.25, macs=1000, intensity=4.0, tflops=0.5, gbs=12.0, bound="memory"),
        cost(ENGINE.layers[1]),
    )
)

AUDIT = Audit(
    verdicts=(
        verdict("conv1", DType.INT8),
        verdict("conv2", DType.FLOAT32, reason="no scale", fix="give it a scale"),
    ),
    findings=(
        finding(Severity.INFO),
        finding(Severity.WARNING, "small", 10),
        finding(Severity.WARNING, "large", 1000),
        finding(Severity.ERROR),
    ),
    counts=KernelCounts(
        kernels=5, compute=2, qdq=3, activation_bytes_dumped=5_000_000, activation_bytes_fused=2_000_000
    ),
)

FULL = Material(
    model_name="float.onnx",
    table=TABLE,
    build=BUILD,
    engine=ENGINE,
    audit=AUDIT,
    comparison=COMPARISON,
    notes=("BatchNormalization folded",),
)


def chain(length: int) -> Engine:
    """An engine of that many layers in a row, every fifth one with a shortcut and every third in FP32."""
    layers = []
    for number in range(length):
        dtype = DType.FLOAT32 if number % 3 == 2 else DType.INT8
        reads = [tensor(f"t{number}", dtype)]
        if number % 5 == 4:
            reads.append(tensor(f"t{number - 3}", dtype))
        writes = (tensor(f"t{number + 1}", dtype),)
        layers.append(layer(f"layer{number}", tuple(reads), writes, dtype))
    return Engine(layers=tuple(layers), form="rtx-dump")


def chain_material(length: int) -> Material:
    """A whole run on `chain(length)`."""
    engine = chain(length)
    verdicts = tuple(verdict(entry.name, entry.precision, reason="no scale") for entry in engine.layers)
    view = EngineView(
        layers=tuple(
            cost(entry, ms=0.01 * (number % 7), macs=1000 * number, intensity=number / 10 or None)
            for number, entry in enumerate(engine.layers)
        )
    )
    return replace(FULL, engine=engine, view=view, audit=replace(AUDIT, verdicts=verdicts))
