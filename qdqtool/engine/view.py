"""Joins layers with costs, times and a device's roofline."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.buildlog import LogRun
from qdqtool.core.engine import Engine, EngineLayer, Role
from qdqtool.core.explore import Cost, CostModel, Device, EngineView, LayerView
from qdqtool.core.history import Histories
from qdqtool.core.timing import Profile, ProfileRow
from qdqtool.engine.costs import cost
from qdqtool.engine.logged import with_weights
from qdqtool.engine.optimum import about, at_optimum
from qdqtool.engine.timed import join_times
from qdqtool.trt.histories import histories


def view(
    engine: Engine,
    *,
    profile: Profile | None = None,
    cost_model: CostModel = CostModel.EXACT,
    device: Device | None = None,
    log: LogRun | None = None,
) -> EngineView:
    """Every layer of `engine` with what it costs, how long it takes and what limits it, as far as known.

    With the log of its build also how each layer came to be, and the weights that the layer information leaves out.
    """
    told = histories(engine, log) if log else Histories()
    engine = with_weights(engine, log.network) if log else engine
    timed = join_times(engine, profile) if profile else None
    rows = timed.rows if timed else (None,) * len(engine.layers)
    stories = told.layers or (None,) * len(engine.layers)
    tuned = at_optimum(engine)
    layers = tuple(
        replace(_layer(layer, cost(sized, cost_model), row, device), history=history)
        for layer, sized, row, history in zip(engine.layers, tuned.layers, rows, stories, strict=True)
    )
    return EngineView(
        layers=layers,
        bindings=engine.bindings,
        form=engine.form,
        cost_model=cost_model,
        unknown_formats=engine.unknown_formats,
        unread=engine.unread,
        total_ms=profile.total_ms if profile else None,
        matched=timed.matched if timed else None,
        unmatched_rows=tuple(row.name for row in timed.unmatched) if timed else (),
        device=device.name if device else "",
        ledger=log.ledger if log else (),
        unplaced=told.unplaced,
        notes=(*engine.notes, *about(engine), *(timed.notes if timed else ()), *told.notes),
    )


def _layer(layer: EngineLayer, costs: Cost, row: ProfileRow | None, device: Device | None) -> LayerView:
    ms = row.average_ms if row else None
    found = LayerView(
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
        ms=ms,
        elided=row is not None and row.elided,
        bytes=costs.bytes,
        input_bytes=costs.input_bytes,
        weight_bytes=costs.weight_bytes,
        output_bytes=costs.output_bytes,
        macs=costs.macs,
        gemm=costs.gemm,
        intensity=costs.intensity,
        tflops=2 * costs.macs / ms / 1e9 if ms and costs.macs else None,
        gbs=costs.bytes / ms / 1e6 if ms and costs.bytes else None,
    )
    return replace(found, bound=bound(found, device)) if device else found


def bound(layer: LayerView, device: Device) -> str | None:
    """Which roof of `device` the layer meets first: its arithmetic rate ("compute") or its "memory" bandwidth."""
    peak = device.peak(layer.precision)
    if peak is None or layer.intensity is None or layer.role is not Role.COMPUTE:
        return None
    ridge = peak * 1e12 / (device.bandwidth_gbs * 1e9) / 2
    return "compute" if layer.intensity >= ridge else "memory"
