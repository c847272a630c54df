"""What a lint rule is: a function from the flow of INT8 values to what is wrong, with a code and a severity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qdqtool.core.findings import Severity
from qdqtool.core.target import FAMILIES, Target
from qdqtool.placement.flow import Flow

CLASSIC = frozenset({"8", "10", "11"})
EVERYWHERE = frozenset(FAMILIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A finding before it gets its rule's code; `severity` overrides the rule's own."""

    node: str
    reason: str
    effect: str
    fix: str
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LintRule:
    """A plug-in of the shelf.

    Attributes:
        code: stable identifier, "QDQ122".
        severity: how much its findings matter unless one says otherwise.
        find: what is wrong, in graph order.
        targets: builders that mind.
    """

    code: str
    severity: Severity
    find: Callable[[Flow, Target], Iterable[Violation]]
    targets: frozenset[str] = EVERYWHERE
