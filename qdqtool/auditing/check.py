"""Checks: functions that turn an audit context into drafts of findings, with a code and a severity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Assertion, Claim
from qdqtool.core.findings import Evidence, Severity

ENGINE = "the engine"
"""Subject of findings about the engine as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A finding before it gets the code and name of its check.

    Attributes:
        subject: the node, the layer, or ENGINE.
        reason: what is the matter.
        fix: what to do; where nothing in it can be typed, the command that leaves the nodes of `layers` float is added.
        severity: overrides the check's own.
        bytes: what it costs.
        evidence: where to look.
        layers: names of the layers that could be float instead; () for the subject.
        claims: the parts of the reason that a build can contradict.
    """

    subject: str
    reason: str
    fix: str
    severity: Severity | None = None
    bytes: int | None = None
    evidence: tuple[Evidence, ...] = ()
    layers: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A check, as a plug-in of the registry.

    Attributes:
        code: stable identifier, "QDQ201".
        severity: how much its findings matter unless a draft says otherwise.
        find: the drafts of its findings, in a stable order.
        says: what every reason of it says of the engine; None if no layer information without times shows it.
    """

    code: str
    severity: Severity
    find: Callable[[AuditContext], Iterable[Draft]]
    says: Assertion | None = None
