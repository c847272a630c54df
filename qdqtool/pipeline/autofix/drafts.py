"""Where edits are applied: to a placement that is inserted again, or to somebody else's Q/DQ model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.conversion import DynamicRangeReport
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Decision, Opinion, Placement, QuantSpec, Slot, SlotKind, Stance, Tie
from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.insert import insert_for_engine
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.unquantize import float_graph

Edits = Mapping[Slot, SlotEdit]
_RULE = "fix"


@dataclass(frozen=True, kw_only=True, slots=True)
class RangedPlacement:
    """A placement and its ranges: together with the float model they give the Q/DQ model again."""

    placement: Placement
    table: CalibrationTable


class DraftModel(Protocol):
    """A Q/DQ model that edits can be applied to."""

    @property
    def reference(self) -> Model:
        """The float model."""

    @property
    def has_meaningful_ranges(self) -> bool:
        """Whether the scales that it has were calibrated on real samples, as far as known."""

    def apply(self, edits: Edits) -> Model:
        """The Q/DQ model with these edits."""

    def plan(self, edits: Edits) -> RangedPlacement | None:
        """What reproduces it from the float model; None for somebody else's Q/DQ."""


class Foreign:
    """Somebody else's Q/DQ model; its float form is what remains when all pairs are taken out."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.reference = float_graph(model)
        self.has_meaningful_ranges = True

    def apply(self, edits: Edits) -> Model:
        """The model with the edited inputs."""
        return requantize(self._model, edits.values()) if edits else self._model

    def plan(self, edits: Edits) -> RangedPlacement | None:
        """There is none."""
        del edits
        return None


class Placed:
    """A run folder's float model, placement and table.

    Attributes:
        reach: which tensors a narrow float type cannot hold, where samples were run to see that.
        notes: why `reach` is missing although samples were run.
    """

    def __init__(
        self, model: Model, placement: Placement, table: CalibrationTable, options: InsertOptions
    ) -> None:
        self.reach: DynamicRangeReport | None = None
        self.notes: tuple[str, ...] = ()
        self.reference = model
        self._placement = placement
        self._table = table
        self._options = options
        self.has_meaningful_ranges = table.meaningful

    def apply(self, edits: Edits) -> Model:
        """The float model with the Q/DQ of the edited placement."""
        plan = self.plan(edits)
        return insert_for_engine(self.reference, plan.placement, plan.table, self._options, self.reach)

    def plan(self, edits: Edits) -> RangedPlacement:
        """The edited placement and table; a tensor has one range, so the last edit of a tensor counts."""
        known = {decision.slot for decision in self._placement.decisions}
        decisions = [_decided(decision, edits.get(decision.slot)) for decision in self._placement.decisions]
        decisions += [self._added(edit) for slot, edit in sorted(edits.items()) if slot not in known]
        ranges = self._table.by_tensor()
        for decision in decisions:
            edit = edits.get(decision.slot)
            if edit is not None and edit.known:
                ranges[decision.tensor] = _range(decision.tensor, edit)
        return RangedPlacement(
            placement=replace(
                self._placement, decisions=tuple(decisions), ties=_held(self._placement.ties, ranges)
            ),
            table=replace(self._table, ranges=tuple(ranges[name] for name in sorted(ranges))),
        )

    def _added(self, edit: SlotEdit) -> Decision:
        """A decision for an input that placement had not thought of."""
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
        return _decided(undecided, edit)


def _decided(decision: Decision, edit: SlotEdit | None) -> Decision:
    if edit is None:
        return decision
    opinion = Opinion(
        slot=decision.slot,
        rule=_RULE,
        stance=Stance.REQUEST if edit.known else Stance.VETO,
        reason=f"the builder ran it in {edit.format.name.upper()}"
        if edit.known
        else "the engine is leaner, or only possible, without this pair",
        fix="" if edit.known else "nothing to do: a build has shown it",
    )
    return replace(
        decision,
        quantize=bool(edit.known),
        spec=QuantSpec(format=edit.format, axis=edit.axis) if edit.known else None,
        opinions=(*decision.opinions, opinion),
    )


def _held(ties: Iterable[Tie], ranges: Mapping[str, TensorRange]) -> tuple[Tie, ...]:
    """The ties without the tensors that an edit gave a range of their own."""
    held = []
    for tie in ties:
        known = Counter(ranges[name].amax for name in tie.tensors if name in ranges)
        usual = known.most_common(1)[0][0] if known else None
        tensors = tuple(name for name in tie.tensors if name not in ranges or ranges[name].amax == usual)
        if len(tensors) > 1:
            held.append(replace(tie, tensors=tensors))
    return tuple(held)


def _range(tensor: str, edit: SlotEdit) -> TensorRange:
    amax = tuple(scale * edit.format.qmax for scale in edit.known)
    note = "set by a proven fix"
    return TensorRange(tensor=tensor, amax=amax, axis=edit.axis, method="fix", note=note, origin=(note,))


def merged(old: Edits, new: Iterable[SlotEdit]) -> dict[Slot, SlotEdit]:
    """Both, later edits of a slot in the place of earlier ones."""
    return {**old, **{edit.slot: edit for edit in new}}
