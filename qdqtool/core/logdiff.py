"""How two builds of a model differ, as their logs tell."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.events import OptimizerEvent
from qdqtool.core.showing import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class PassChange:
    """Effects of a pass in the first and in the second log."""

    name: str
    first: int
    second: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChange:
    """Something about a node that is not the same: what it was and what it is ("" if one log does not have it)."""

    node: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeChange:
    """A time in the first and in the second log, in the unit that `what` names; None if one does not have it."""

    what: str
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class LogDiff(Shown):
    """Two runs compared.

    Attributes:
        versions: of the builders, "8.6.0"; "?" where unknown.
        layers: in the finished engine, by the last count of the funnel; None if there is none.
        passes: passes with different numbers of effects.
        only_first, only_second: effects that one log has and the other has not, as often as it has them.
        parting: the first decision in which the two logs differ (None if one of them has ended);
            None if they never differ.
        precisions: compute nodes whose precision changed.
        ledger: Q and DQ nodes whose end changed.
        times: what was timed in both, and took different time.
    """

    versions: tuple[str, str]
    layers: tuple[int | None, int | None]
    passes: tuple[PassChange, ...]
    only_first: tuple[OptimizerEvent, ...]
    only_second: tuple[OptimizerEvent, ...]
    parting: tuple[OptimizerEvent | None, OptimizerEvent | None] | None
    precisions: tuple[NodeChange, ...]
    ledger: tuple[NodeChange, ...]
    times: tuple[TimeChange, ...]
