"""What a setting that quantizes more nodes costs in kernels, foreseen before anybody follows it.

Who counts INT8 nodes alone is led to a slower engine: a gate in INT8 has a kernel more than one in float. Both sides are
predicted from placements of the same model, with the ranges of the run and 1 where the run has none, so that what the
prediction gets wrong it gets wrong on both sides, mostly: where it is off for the engine that was built, that is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from qdqtool.core.advice import settings_in
from qdqtool.core.audit import Audit
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Decision, Placement, SlotKind
from qdqtool.core.recipe import Recipe
from qdqtool.core.wording import counted
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline.recipes import changed
from qdqtool.placement.decide import decide
from qdqtool.prediction.run import predict
from qdqtool.trt.ops import COMPUTE

_SECTION = "place."
_LARGE = 512 << 20
"""Bytes of weights from which on nothing is foreseen: each setting quantizes the whole model once more."""

_TRUSTED = 0.15
"""Share of an engine's kernels by which a prediction may be off whose differences are still told."""
_FORESEEN, _FEWER, _UNKNOWN = "predicted: ", " fewer", "in an unknown number of kernels"
"""Words that are printed, and read again where commands are proposed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreseen:
    """What is predicted of one setting: kernels, whether their number is exact, quantized inputs and compute nodes of all `nodes`."""

    kernels: int | None
    exact: bool
    inputs: int
    asked: int
    nodes: int


def with_costs(audit: Audit, model: Model, recipe: Recipe, table: CalibrationTable) -> Audit:
    """The audit with what each setting of placement that it proposes makes of the whole engine.

    Args:
        audit: what was found.
        model: the prepared float model.
        recipe: the recipe of the run.
        table: the ranges of the run.
    """
    fixes = {entry.fix for entry in audit.verdicts} | {entry.fix for entry in audit.findings}
    wanted = {fix: settings for fix in fixes if (settings := _settings(fix))}
    if not wanted or weight_bytes(model) >= _LARGE:
        return audit
    before = _foreseen(model, recipe, table)
    told = {
        fix: f"{fix} ({_compared(before, _foreseen_with(model, recipe, table, wanted[fix]), audit.counts.kernels)})"
        for fix in sorted(wanted)
    }
    return replace(
        audit,
        verdicts=tuple(replace(entry, fix=told.get(entry.fix, entry.fix)) for entry in audit.verdicts),
        findings=tuple(replace(entry, fix=told.get(entry.fix, entry.fix)) for entry in audit.findings),
    )


def _settings(fix: str) -> tuple[str, ...]:
    found = settings_in(fix)
    return found if all(text.startswith(_SECTION) for text in found) else ()


def _foreseen_with(
    model: Model, recipe: Recipe, table: CalibrationTable, settings: Iterable[str]
) -> Foreseen | QdqError:
    try:
        return _foreseen(model, changed(recipe, settings), table)
    except QdqError as error:
        return error


def _compared(before: Foreseen, after: Foreseen | QdqError, built: int) -> str:
    """What a setting changes, in words, for an engine of `built` kernels."""
    if isinstance(after, QdqError):
        return f"what it costs is not known: {after.what}"
    if after == before:
        return f"{_FORESEEN}it changes nothing by itself"
    nodes = f"{after.asked} of {counted(after.nodes, 'compute node')} quantized instead of {before.asked}"
    if after.asked == before.asked:
        nodes = f"{counted(after.inputs, 'input')} quantized instead of {before.inputs}"
    return f"{_FORESEEN}{nodes}, {more_kernels(before, after, built)}"


def saves_no_kernel(fix: str) -> bool:
    """Whether a fix was priced by `with_costs`, and no engine of fewer kernels is foreseen for it.

    >>> saves_no_kernel("--set place.last_layer=int8 (predicted: 2 of 2 compute nodes quantized instead of 1, in as many kernels)")
    True
    >>> saves_no_kernel("--set place.last_layer=int8"), saves_no_kernel("(predicted: ..., about 1 kernel fewer)")
    (False, False)
    """
    _, foreseen, words = fix.rpartition(_FORESEEN)
    return bool(foreseen) and _FEWER not in words and _UNKNOWN not in words


def more_kernels(before: Foreseen, after: Foreseen, built: int) -> str:
    """How many kernels a setting adds: a number where both are foreseen exactly, about as many where they are not."""
    if before.kernels is None or after.kernels is None:
        return _UNKNOWN
    off, more = built - before.kernels, after.kernels - before.kernels
    about = "" if before.exact and after.exact and not off else "about "
    if abs(off) > _TRUSTED * built:
        kernels = _UNKNOWN
    elif abs(more) <= abs(off):
        kernels = f"in {about}as many kernels"
    else:
        kernels = f"{about}{counted(abs(more), 'kernel')}{' more' if more > 0 else _FEWER}"
    doubt = f"; this engine has {counted(built, 'kernel')}, and {before.kernels} were foreseen" if off else ""
    return f"{kernels}{doubt}"


def _foreseen(model: Model, recipe: Recipe, table: CalibrationTable) -> Foreseen:
    placement = decide(model.view, recipe.placing)
    made = insert(model, placement, _completed(model, placement, table), recipe.insert)
    found = predict(made, recipe.placing.builder)
    nodes = [node for node in found.nodes if node.op in COMPUTE]
    return Foreseen(
        kernels=found.kernels,
        exact=found.exact,
        inputs=len(placement.quantized),
        asked=sum(node.realised not in {"float", "unknown"} for node in nodes),
        nodes=len(nodes),
    )


def _completed(model: Model, placement: Placement, table: CalibrationTable) -> CalibrationTable:
    """The table with ranges for everything that is quantized."""
    ranges = table.by_tensor()
    for decision in placement.quantized:
        known = ranges.get(decision.tensor)
        if known is None or known.axis != (decision.spec.axis if decision.spec else None):
            ranges[decision.tensor] = _made_up(model, decision)
    return CalibrationTable(ranges=tuple(ranges[name] for name in sorted(ranges)))


def _made_up(model: Model, decision: Decision) -> TensorRange:
    axis = decision.spec.axis if decision.spec else None
    shape = model.view.constant_shape(decision.tensor) if decision.kind is SlotKind.WEIGHT else None
    count = shape[axis] if shape is not None and axis is not None else 1
    return TensorRange(tensor=decision.tensor, amax=tuple(np.ones(count).tolist()), axis=axis)
