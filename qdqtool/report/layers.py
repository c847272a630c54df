"""Engine layers as rows of the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qdqtool.core.buildlog import LogRun
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.report import LayerRow, Report, TensorRow
from qdqtool.engine.optimum import at_optimum
from qdqtool.trt.histories import histories


def layer_rows(
    engine: Engine, view: EngineView | None = None, log: LogRun | None = None
) -> tuple[LayerRow, ...]:
    """All layers in launch order; `view`, made from the same engine, adds what each costs, `log` how it came to be."""
    sized = at_optimum(engine)
    rows = tuple(
        replace(_row(layer), bytes=_bytes((*tuned.inputs, *tuned.outputs)))
        for layer, tuned in zip(engine.layers, sized.layers, strict=True)
    )
    if view is not None:
        rows = tuple(map(_costed, rows, view.layers))
    if log is None:
        return rows
    told = histories(engine, log).layers
    return tuple(replace(row, history=history) for row, history in zip(rows, told, strict=True))


def timed(report: Report, view: EngineView) -> Report:
    """The report with costs and times of its layers, from a view of the same engine."""
    return replace(
        report, layers=tuple(map(_costed, report.layers, view.layers)), notes=(*report.notes, *view.notes)
    )


def _row(layer: EngineLayer) -> LayerRow:
    return LayerRow(
        name=layer.name,
        kind=layer.kind,
        tactic=layer.tactic,
        onnx_nodes=layer.onnx_nodes,
        inputs=tuple(_tensor(tensor) for tensor in layer.inputs),
        constants=tuple(_tensor(tensor) for tensor in layer.constants),
        outputs=tuple(_tensor(tensor) for tensor in layer.outputs),
        role=layer.role,
        precision=layer.precision,
        certainty=layer.precision_certainty,
        bytes=None,
        weight_bytes=_bytes(layer.constants),
    )


def _costed(row: LayerRow, view: LayerView) -> LayerRow:
    return replace(
        row,
        ms=view.ms,
        weight_bytes=row.weight_bytes if view.weight_bytes is None else view.weight_bytes,
        macs=view.macs,
        gemm=view.gemm,
        intensity=view.intensity,
        tflops=view.tflops,
        gbs=view.gbs,
        bound=view.bound or "",
    )


def _tensor(tensor: EngineTensor) -> TensorRow:
    return TensorRow(
        name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, format=tensor.format, bytes=tensor.bytes
    )


def _bytes(tensors: Iterable[EngineTensor]) -> int | None:
    """The sum; None where there are no tensors or one is not known."""
    sizes = [tensor.bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
