"""Check whether an engine that is called INT8 really computes in INT8."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class NoOpVerdict(str, Enum):
    """The verdict on an INT8 engine: all INT8, partly INT8, another low-bit format, float (no-op), or unknown."""

    INT8 = "int8"
    PARTLY = "partly int8"
    OTHER = "another format"
    NO_OP = "no-op"
    UNKNOWN = "unknown"


class Vote(str, Enum):
    """The conclusion that an observation supports."""

    INT8 = "int8"
    NO_OP = "no-op"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One observation about the engine.

    Attributes:
        text: what was seen, with its figures.
        points: what it speaks for.
    """

    text: str
    points: Vote


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOpReport:
    """The verdict on an engine that is called INT8, and all observations for it.

    Attributes:
        verdict: the kernels decide; where they do not tell, size and outputs do.
        int8: compute kernels that multiply in INT8.
        compute: all compute kernels.
        unknown: compute kernels whose type is not known.
        others: compute kernels in other formats than float, by format ("fp8", "int4-weights").
        signs: the observations, those on kernels first.
    """

    verdict: NoOpVerdict
    int8: int
    compute: int
    unknown: int
    signs: tuple[Observation, ...]
    others: dict[str, int] = field(default_factory=dict)
