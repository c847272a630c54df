"""Applies edits to a placement, which is then inserted again, or to a third-party Q/DQ model.

Scales that an edit leaves open come from the graph, from the values of a constant, or from samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import (
    Decision,
    Placement,
    QuantSpec,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotKind,
    SlotStatement,
)
from qdqtool.core.preparation import DynamicRangeReport
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import QuantFormat
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.qdq.insert import insert_for_engine
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.pipeline.conversion import reach_for
from qdqtool.pipeline.recipes import change_recipe
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_model
from qdqtool.trt.ops import find_computed_once

Edits = Mapping[Slot, SlotEdit]
Reach = tuple[DynamicRangeReport | None, tuple[str, ...]]
_RULE = "fix"


@dataclass(frozen=True, kw_only=True, slots=True)
class RangedPlacement:
    """A placement and its ranges, which make the Q/DQ model from the float model."""

    placement: Placement
    table: CalibrationTable


class _Draft:
    """A model whose Q/DQ is edited, with its recipe values and the tensors that overflow its float type.

    Attributes:
        reference: the float model.
        samples: samples that show whether a narrow float type can represent the tensors; None: this is not checked.
    """

    def __init__(self, reference: Model, recipe: Recipe) -> None:
        self.reference = reference
        self.samples: SampleSource | None = None
        self._recipe = recipe
        self._reaches: dict[str, Reach] = {}

    def recipe(self, settings: Sequence[str]) -> Recipe:
        """Return the recipe with these values changed."""
        return change_recipe(self._recipe, settings) if settings else self._recipe

    def reach(self, settings: Sequence[str]) -> Reach:
        """Return the tensors that overflow the float type of these recipe values, with notes if the samples could not show them."""
        options = self.recipe(settings).insert
        if self.samples is None:
            return None, ()
        if options.types not in self._reaches:
            self._reaches[options.types] = reach_for(self.reference, options, self.samples)
        return self._reaches[options.types]


class Foreign(_Draft):
    """A third-party Q/DQ model under edit. Its float model is the same model without Q/DQ pairs.

    Attributes:
        has_meaningful_ranges: true if its scales were calibrated on real samples, as far as known.
    """

    def __init__(self, model: Model, recipe: Recipe) -> None:
        super().__init__(float_graph(model), recipe)
        self._model = model
        self.has_meaningful_ranges = True

    def apply(self, edits: Edits, settings: Sequence[str] = ()) -> Model:
        """Return the model with its edited Q/DQ, and with the float type of these recipe values."""
        model = requantize(self._model, edits.values()) if edits else self._model
        if not settings:
            return model
        reach, _ = self.reach(settings)
        return convert(model, self.recipe(settings).insert, reach)[0]

    def plan(self, edits: Edits, settings: Sequence[str] = ()) -> RangedPlacement | None:
        """Return None: a third-party model has no placement."""
        del edits, settings
        return None

    def allowed_by(self, settings: Sequence[str], edits: Edits) -> tuple[SlotEdit, ...]:
        """Return (): the Q/DQ of a third-party model does not come from a placement that settings could change."""
        del settings, edits
        return ()


class Placed(_Draft):
    """A model under edit that a run folder made: its float model, placement and calibration table.

    Attributes:
        has_meaningful_ranges: true if its ranges were calibrated on real samples.
    """

    def __init__(self, model: Model, placement: Placement, table: CalibrationTable, recipe: Recipe) -> None:
        super().__init__(model, recipe)
        self._decided: dict[tuple[str, ...], Placement] = {}
        self._placement = placement
        self._table = table
        self.has_meaningful_ranges = table.meaningful

    def apply(self, edits: Edits, settings: Sequence[str] = ()) -> Model:
        """Return the float model with the Q/DQ of the edited placement, inserted with these recipe values."""
        plan = self.plan(edits, settings)
        options = self.recipe(settings).insert
        reach, _ = self.reach(settings)
        return insert_for_engine(self.reference, plan.placement, plan.table, options, reach)

    def plan(self, edits: Edits, settings: Sequence[str] = ()) -> RangedPlacement:
        """Return the edited placement and table. A tensor has one range, so the last edit of a tensor counts.

        Inputs that placement leaves float because of the recipe values are float; inputs that it would add are `allowed_by`.
        """
        placed = {decision.slot for decision in self._placement.decisions}
        refused = self._refused_by(settings)
        decisions = [
            _apply_edit(refused.get(decision.slot, decision), edits.get(decision.slot))
            for decision in self._placement.decisions
        ]
        decisions += [self._add_decision(edit) for slot, edit in sorted(edits.items()) if slot not in placed]
        ranges = self._table.by_tensor()
        for decision in decisions:
            edit = edits.get(decision.slot)
            if edit is not None and edit.measured_scales:
                ranges[decision.tensor] = _range(decision.tensor, edit)
        quantized = {decision.slot.node for decision in decisions if decision.quantize}
        return RangedPlacement(
            placement=replace(
                self._placement,
                decisions=tuple(decisions),
                ties=_remaining_ties(self._placement.ties, ranges),
            ),
            table=replace(
                self._table,
                ranges=tuple(ranges[name] for name in sorted(ranges)),
                findings=tuple(entry for entry in self._table.findings if entry.subject in quantized),
            ),
        )

    def allowed_by(self, settings: Sequence[str], edits: Edits) -> tuple[SlotEdit, ...]:
        """Return the edits of float inputs that placement would quantize with these recipe values.

        A tensor with a range keeps it, and shares it with the tensors that have the same scale; other ranges must be
        measured. The result is () if one of the inputs is stored in blocks, for which there are no edits.

        Raises:
            UsageError: the recipe does not allow these values.
        """
        plan = self.plan(edits)
        there = {decision.slot for decision in plan.placement.quantized}
        ranges = plan.table.by_tensor()
        placement = self._decide(settings)
        for tie in placement.ties:
            range_ = next((ranges[name] for name in tie.tensors if name in ranges), None)
            ranges |= {} if range_ is None else {name: ranges.get(name, range_) for name in tie.tensors}
        fresh = [(decision, decision.spec) for decision in placement.quantized if decision.slot not in there]
        if any(spec is None or spec.block is not None for _, spec in fresh):
            return ()
        return tuple(
            _quantizing(decision, spec, ranges.get(decision.tensor)) for decision, spec in fresh if spec
        )

    def _decide(self, settings: Sequence[str]) -> Placement:
        key = tuple(settings)
        if key not in self._decided:
            self._decided[key] = decide(self.reference.view, self.recipe(key).placing)
        return self._decided[key]

    def _refused_by(self, settings: Sequence[str]) -> dict[Slot, Decision]:
        """Return the decisions on inputs that placement quantizes with the present recipe values, but not with these."""
        if self.recipe(settings).placing == self._recipe.placing:
            return {}
        usual = {decision.slot for decision in self._decide(()).quantized}
        changed = self._decide(settings).decisions
        return {
            decision.slot: decision
            for decision in changed
            if decision.slot in usual and not decision.quantize
        }

    def _add_decision(self, edit: SlotEdit) -> Decision:
        """Return the decision on the input of an edit, if placement made no decision on this input."""
        view = self.reference.view
        node = view.by_name[edit.slot.node]
        tensor = node.inputs[edit.slot.index]
        undecided = Decision(
            slot=edit.slot,
            tensor=tensor,
            op=node.op,
            kind=SlotKind.WEIGHT if view.is_constant(tensor) else SlotKind.ACTIVATION,
            quantize=False,
            spec=None,
            opinions=(),
        )
        return _apply_edit(undecided, edit)


DraftModel = Foreign | Placed
"""A Q/DQ model that edits can be applied to."""


def _apply_edit(decision: Decision, edit: SlotEdit | None) -> Decision:
    if edit is None:
        return decision
    opinion = SlotStatement(
        slot=decision.slot,
        rule=_RULE,
        stance=RequestOrVeto.REQUEST if edit.measured_scales else RequestOrVeto.VETO,
        reason=f"the builder ran this input in {edit.format.name.upper()}"
        if edit.measured_scales
        else "the engine is smaller without this pair, or cannot be built with it",
        fix="" if edit.measured_scales else "nothing to do: a build has confirmed the gain",
    )
    return replace(
        decision,
        quantize=bool(edit.measured_scales),
        spec=QuantSpec(format=edit.format, axis=edit.axis) if edit.measured_scales else None,
        opinions=(*decision.opinions, opinion),
    )


def _quantizing(decision: Decision, spec: QuantSpec, range_: TensorRange | None) -> SlotEdit:
    """Return an edit that quantizes an input as `spec` says; the scales come from the range of its tensor."""
    scales = None
    if range_ is not None and range_.axis == spec.axis:
        scales = tuple(amax / spec.format.qmax for amax in range_.amax)
    return SlotEdit(slot=decision.slot, scales=scales, axis=spec.axis, format=spec.format)


def _remaining_ties(
    ties: Iterable[SharedScale], ranges: Mapping[str, TensorRange]
) -> tuple[SharedScale, ...]:
    """Return the groups with a shared scale, without the tensors to which an edit gave a separate range."""
    held = []
    for tie in ties:
        amaxes = Counter(ranges[name].amax for name in tie.tensors if name in ranges)
        usual = amaxes.most_common(1)[0][0] if amaxes else None
        tensors = tuple(name for name in tie.tensors if name not in ranges or ranges[name].amax == usual)
        if len(tensors) > 1:
            held.append(replace(tie, tensors=tensors))
    return tuple(held)


def _range(tensor: str, edit: SlotEdit) -> TensorRange:
    amax = tuple(scale * edit.format.qmax for scale in edit.measured_scales)
    note = "set by a fix that a build confirmed"
    return TensorRange(tensor=tensor, amax=amax, axis=edit.axis, method="fix", note=note, origin=(note,))


def merge_edits(old: Edits, new: Iterable[SlotEdit]) -> dict[Slot, SlotEdit]:
    """Merge edits of node inputs; a later edit of an input replaces an earlier one."""
    return {**old, **{edit.slot: edit for edit in new}}


# --- scales of edits -------------------------------------------------------------------------------------------------

_Key = tuple[str, "int | None"]
_FILLED = 2 / 3
"""Share of a common range that a tensor must fill so that a separate range would gain little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """Edits of node inputs whose scales are all known.

    Attributes:
        edits: the edits that are worth making.
        guessed: tensors whose range comes from random samples. Such a range shows the builder's reaction to the
            edits, and must not be kept.
    """

    edits: tuple[SlotEdit, ...]
    guessed: tuple[str, ...] = ()


class Ranges:
    """Largest magnitudes of the tensors of a float model; each is measured once.

    Args:
        reference: the float model.
        samples: samples on which run-time tensors are measured.
        guesses: whether ranges of random samples count as guesses, because the model has ranges of real samples.
    """

    def __init__(self, reference: Model, samples: SampleSource | None, *, guesses: bool = True) -> None:
        self._model = reference
        self._samples = samples
        self._guesses = guesses and samples is not None and not samples.meaningful
        self._fixed = find_computed_once(reference.view)
        self._known: dict[_Key, NDArray[Any]] = {}

    def resolve(self, edits: Iterable[SlotEdit]) -> Resolved | str:
        """Return the edits with their scales; if a scale cannot be measured, return the reason.

        An edit with a limit is omitted if the tensor fills most of its present range.
        """
        resolved, guessed = [], []
        edits = tuple(edits)
        self._measure(edits)
        for edit in edits:
            if edit.scales is not None:
                resolved.append(edit)
                continue
            scales = self._scales(edit)
            if isinstance(scales, str):
                return scales
            if edit.most is not None and scales[0] >= _FILLED * edit.most:
                continue
            if not all(isfinite(scale) and scale > 0 for scale in scales):
                return f"the range of {edit.slot} is not a positive number"
            resolved.append(
                replace(edit, scales=scales, axis=edit.axis if len(scales) > 1 else None, most=None)
            )
            tensor = self._model.view.by_name[edit.slot.node].inputs[edit.slot.index]
            if self._guesses and not self._is_fixed(tensor):
                guessed.append(tensor)
        return Resolved(edits=tuple(resolved), guessed=tuple(dict.fromkeys(guessed)))

    def _is_fixed(self, tensor: str) -> bool:
        return tensor in self._fixed or self._model.view.is_constant(tensor)

    def _key(self, edit: SlotEdit) -> _Key | None:
        """Return the tensor and the channel axis of an edit; None if the model does not have this input."""
        node = self._model.view.by_name.get(edit.slot.node)
        if node is None or edit.slot.index >= len(node.inputs):
            return None
        return node.inputs[edit.slot.index], edit.axis

    def _scales(self, edit: SlotEdit) -> tuple[float, ...] | str:
        key = self._key(edit)
        if key is None:
            return f"the float model has no input {edit.slot}"
        value = self._model.view.constant(key[0])
        if value is not None:
            return _steps(_amax(value, edit.axis), edit.format, per_channel=edit.axis is not None)
        if key in self._known:
            return _steps(self._known[key], edit.format, per_channel=edit.axis is not None)
        if not self._is_float(key[0]):
            return f"{key[0]!r} does not contain floating-point numbers"
        return f"no samples to measure the range of {key[0]!r}; pass --samples"

    def _is_float(self, tensor: str) -> bool:
        return self._model.view.info(tensor).dtype.is_float

    def _measure(self, edits: Iterable[SlotEdit]) -> None:
        """Measure the magnitudes of the run-time tensors of these edits, in one pass over the samples."""
        keys = {self._key(edit) for edit in edits if edit.scales is None} - self._known.keys() - {None}
        missing = sorted(
            (
                key
                for key in keys
                if key and self._is_float(key[0]) and not self._model.view.is_constant(key[0])
            ),
            key=repr,
        )
        if not missing or self._samples is None:
            return
        tensors = list(dict.fromkeys(tensor for tensor, _ in missing))
        runner = open_model(watching(self._model, tensors), description="probe")
        inputs = {info.name for info in runner.inputs}
        for sample in self._samples:
            values = runner.run({name: array for name, array in sample.feeds.items() if name in inputs})
            for tensor, axis in missing:
                peaks = _amax(values[tensor], axis)
                self._known[tensor, axis] = np.maximum(peaks, self._known.get((tensor, axis), peaks))


def _steps(amax: NDArray[Any], format_: QuantFormat, *, per_channel: bool) -> tuple[float, ...]:
    # A channel with only zeros can have any scale.
    filled = np.where(amax > 0, amax, format_.qmax) if per_channel else amax
    return tuple(float(value) / format_.qmax for value in np.atleast_1d(filled))


def _amax(value: NDArray[Any], axis: int | None) -> NDArray[Any]:
    magnitudes = np.abs(value.astype(np.float64))
    axes = tuple(place for place in range(value.ndim) if place != axis)
    return np.asarray(magnitudes.max(axis=None if axis is None else axes, initial=0.0))
