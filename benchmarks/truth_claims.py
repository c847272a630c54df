"""Judges the claims of printed sentences by the engine that was built and by one that an experiment builds.

A claim is typed where its sentence is made (`qdqtool/core/claims.py`), so no word is read here. A sentence without a claim is
untested, and so is one whose experiment does not build or whose node the dump parser does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from truth_engine import BEFORE, Kernel, realised

PROVEN, CONTRADICTED, UNTESTED = "proven", "contradicted", "untested"
REASON, FIX, COST = "reason", "fix", "cost"


@dataclass(frozen=True)
class Built:
    """An engine, the formats that its model asks for by node, and the findings of its audit."""

    kernels: Sequence[Kernel]
    asked: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[tuple[str, str], ...] = ()

    def is_low(self, node: str) -> bool | None:
        """Whether a node multiplies low-bit values or reads stored weights in its kernel; None if that is not known."""
        made = realised(self.kernels).get(node)
        return None if made is None else made != "float" and BEFORE not in made

    def asks(self, node: str) -> bool:
        """Whether Q/DQ feeds the node."""
        return self.asked.get(node, "float") != "float"


def judged(claim: Mapping[str, Any], subject: tuple[str, str], before: Built, after: Built | None) -> str:
    """Whether the experiment bears out the claim.

    Args:
        claim: as an artefact has it.
        subject: the code of the finding, "" for a verdict, and what it is about.
        before: the engine that the sentence is about.
        after: the engine with the node quantized (claims of reasons) or with the fix applied; None if it does not build.
    """
    if after is None:
        return UNTESTED
    return _of(_STATES[claim["says"]](claim, subject, before, after))


def _of(true: bool | None) -> str:
    return UNTESTED if true is None else PROVEN if true else CONTRADICTED


def _more_kernels(_: Mapping[str, Any], subject: tuple[str, str], before: Built, after: Built) -> bool | None:
    return len(after.kernels) > len(before.kernels) if after.is_low(subject[1]) else None


def _no_kernel(_: Mapping[str, Any], subject: tuple[str, str], __: Built, after: Built) -> bool | None:
    low = after.is_low(subject[1])
    return None if low is None or not after.asks(subject[1]) else not low


def _runs(_: Mapping[str, Any], subject: tuple[str, str], __: Built, after: Built) -> bool | None:
    return after.is_low(subject[1])


def _gone(_: Mapping[str, Any], subject: tuple[str, str], before: Built, after: Built) -> bool | None:
    """Layers get new names in every build, so the number of findings of the code must shrink too."""
    had, has = (Counter(code for code, _ in one.findings)[subject[0]] for one in (before, after))
    return subject not in after.findings and has < had


def _kernels(claim: Mapping[str, Any], _: tuple[str, str], before: Built, after: Built) -> bool | None:
    return bool(len(after.kernels) - len(before.kernels) == claim["kernels"])


_STATES = {
    "more_kernels": _more_kernels,
    "no_kernel": _no_kernel,
    "runs_quantized": _runs,
    "finding_gone": _gone,
    "kernels": _kernels,
}


def together(states: Iterable[str]) -> str:
    """The state of a sentence with several claims: contradicted if one is, proven if all are, else untested."""
    found = set(states)
    if CONTRADICTED in found:
        return CONTRADICTED
    return PROVEN if found == {PROVEN} else UNTESTED
