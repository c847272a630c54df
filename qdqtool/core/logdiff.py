"""Differences between two builds of a model, read from their logs."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.events import OptimizerEvent
from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class PassChange:
    """Number of effects of a pass in the first and in the second log."""

    name: str
    first: int
    second: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChange:
    """A property of a node that differs: its value in the first and in the second log, "" if a log does not have it."""

    node: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeChange:
    """A time in the first and in the second log, in the unit that `what` names; None if a log does not have it."""

    what: str
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class LogDiff(Displayable):
    """A comparison of two runs.

    Attributes:
        versions: of the builders, "8.6.0"; "?" if unknown.
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
