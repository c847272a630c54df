"""The builder whose abilities count: TensorRT for RTX, or a release of TensorRT, and the GPU architectures.

One spelling for every command and recipe: `rtx`, a family (`8`, `10`, `11`) or a release (`8.6.1`, `10.13`, `v11.4`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from qdqtool.errors import UsageError

FAMILIES = ("8", "10", "11", "rtx")
"""One target per set of behaviours that rules tell apart; releases 9.x behave as 8.x."""
_NEWEST = {8: (8, 6), 9: (9, 3), 10: (10, 99), 11: (11, 99)}
"""What a family without a release counts as: its newest member."""
_RELEASE = re.compile(r"v?(\d{1,4})((?:\.\d{1,4}){0,3})", re.ASCII)
_SM = re.compile(r"(?:sm)?[_-]?(\d+)\.?(\d)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A builder.

    Attributes:
        kind: "rtx" (TensorRT for RTX) or "trt" (TensorRT, the full one).
        release: the TensorRT release as far as it was named, (10, 13); empty for TensorRT for RTX.
        sm: GPU architectures, as "86"; empty where nobody said.
    """

    kind: str = "rtx"
    release: tuple[int, ...] = ()
    sm: tuple[str, ...] = ()

    @classmethod
    def parse(cls, word: str, sm: Iterable[str] = (), *, where: str = "--target") -> Target:
        """A target as people write it.

        Raises:
            UsageError: no such builder, or no GPU architecture; `where` names the option or the place in a recipe.
        """
        architectures = tuple(_architecture(each, where) for each in sm)
        spelled = word.strip().lower()
        if spelled == "rtx":
            return cls(sm=architectures)
        numbers = _RELEASE.fullmatch(spelled)
        if numbers is None or int(numbers[1]) not in _NEWEST:
            raise UsageError(
                f"there is no builder {word!r}",
                fix=f"choose one of {', '.join(FAMILIES)}, or a TensorRT release from 8.0 on, as 10.13",
                where=where,
            )
        release = (int(numbers[1]), *map(int, numbers[2].split(".")[1:]))
        return cls(kind="trt", release=release, sm=architectures)

    @property
    def is_rtx(self) -> bool:
        """Whether it is TensorRT for RTX."""
        return self.kind == "rtx"

    @property
    def family(self) -> str:
        """One of `FAMILIES`."""
        return "rtx" if self.is_rtx else str(8 if self.release[0] == 9 else self.release[0])

    @property
    def name(self) -> str:
        """How a reader names it: rtx, 10, 10.13."""
        return "rtx" if self.is_rtx else ".".join(map(str, self.release))

    def is_before(self, *release: int) -> bool:
        """Whether a TensorRT is older than `release`; TensorRT for RTX never is."""
        if self.is_rtx:
            return False
        known = self.release if len(self.release) > 1 else _NEWEST[self.release[0]]
        return known < release

    @property
    def scales_transposed_inputs(self) -> bool:
        """Whether the weights of a ConvTranspose are scaled along their first axis, the input channels."""
        if self.is_rtx or self.is_before(8, 4):
            return False
        return self.is_before(9) or (not self.is_before(10) and self.is_before(10, 1))


def _architecture(word: str, where: str) -> str:
    """A GPU architecture as "86", out of "86", "8.6", "SM_86" or "sm86"."""
    spelled = _SM.fullmatch(word.strip())
    if spelled is None or not 2 <= len(spelled[1] + spelled[2]) <= 3:
        raise UsageError(
            f"{word!r} is no GPU architecture",
            fix="write it as 86 or 120",
            where="--sm" if where == "--target" else where,
        )
    return f"{spelled[1]}{spelled[2]}"
