"""Repairs somebody else's Q/DQ model: first into the form that TensorRT reads, then by the fixes of all rules."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.normalize.run import normalize
from qdqtool.matching.registry import rulebook

_MOST_ROUNDS = 4
"""Rounds over all rules; one fix may make room for another, and each is idempotent."""


def repair(model: Model, target: Target | None = None) -> tuple[Model, tuple[Change, ...]]:
    """The model after all repairs, and every change; the model itself where nothing was changed.

    Args:
        model: any ONNX model.
        target: leave out fixes that this builder does not need; without, all are applied.

    Raises:
        InputFileError: the model contradicts itself, such as scales that do not fit their axis.
    """
    ready, changes = normalize(model)
    ready, more = fixed(ready, target)
    return ready, (*changes, *more)


def fixed(
    model: Model, target: Target | None = None, only: Sequence[str] = ()
) -> tuple[Model, tuple[Change, ...]]:
    """The model after the fixes of all rules, or of `only` some, and every change."""
    book = rulebook()
    changes: list[Change] = []
    for _ in range(_MOST_ROUNDS):
        before = len(changes)
        for name, rule in book.rules.items():
            for_target = target is None or target.family in rule.targets
            if rule.fix is None or not for_target or (only and name not in only):
                continue
            context = RepairContext(model)
            told = tuple(book.asked(name, lambda fix=rule.fix, context=context: fix(context)))  # type: ignore[misc]
            if told:
                changes += told
                context.edit.prune()
                model = context.edit.finish(retyped=True)
        if len(changes) == before:
            break
    return model, tuple(changes)
