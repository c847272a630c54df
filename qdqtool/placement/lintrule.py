"""What a lint rule is: a function from the flow of INT8 values to what is wrong, with a code and a severity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qdqtool.core.findings import Severity
from qdqtool.errors import UsageError
from qdqtool.placement.flow import Flow

TARGETS = ("8.6", "10", "11", "rtx")
"""Builders that lint knows; TensorRT 8.x and 9.x count as 8.6."""
CLASSIC = frozenset({"8.6", "10", "11"})
EVERYWHERE = frozenset(TARGETS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A finding before it gets its rule's code; `severity` overrides the rule's own."""

    node: str
    reason: str
    effect: str
    fix: str
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LintTarget:
    """What lint was asked for.

    Attributes:
        target: one of `TARGETS`.
        sm: GPU architectures, as "86"; empty when nobody said.
        release: the TensorRT release as far as it was named, (10, 13); empty for the whole family.
    """

    target: str = "rtx"
    sm: tuple[str, ...] = ()
    release: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """How a reader would name the builder: the release, or its family."""
        return ".".join(map(str, self.release)) or self.target

    def is_before(self, *release: int) -> bool:
        """Whether the builder is older; a family without a release counts as its newest member."""
        known = self.release or _NEWEST.get(self.target, release)
        return known < release


_NEWEST = {"8.6": (8, 6), "10": (10, 99), "11": (11, 99)}
_FAMILIES = {8: "8.6", 9: "8.6", 10: "10", 11: "11"}


def builder(word: str, sm: tuple[str, ...] = ()) -> LintTarget:
    """What to ask for a builder as people write it: rtx, 8, 8.6.1, 10.13, 11.0.

    Raises:
        UsageError: no such builder.
    """
    spelled = word.strip().lower()
    if spelled == "rtx":
        return LintTarget(sm=sm)
    numbers = re.fullmatch(r"v?(\d{1,4})((?:\.\d{1,4}){0,3})", spelled, re.ASCII)
    family = _FAMILIES.get(int(numbers[1])) if numbers else None
    if numbers is None or family is None:
        raise UsageError(
            f"lint knows no builder {word!r}",
            fix=f"choose one of {', '.join(TARGETS)}, or a TensorRT release from 8.0 on, as 10.13",
            where="--for",
        )
    release = (int(numbers[1]), *map(int, numbers[2].split(".")[1:]))
    return LintTarget(target=family, sm=sm, release=release if len(release) > 1 else ())


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
    find: Callable[[Flow, LintTarget], Iterable[Violation]]
    targets: frozenset[str] = EVERYWHERE
