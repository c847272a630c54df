"""Expressions for the length of a dimension, and how convolutions and pooling change them.

A window that moves in steps of 2 over a height of N ends at `floor((N+1)/2)` or the like, for even and odd sizes: steps
of steps round down once, since floor((floor(x) + m) / n) is floor((x + m) / n).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import onnx

from qdqtool.trt.ops import POOLS

WINDOWED = POOLS | {"Conv", "ConvInteger", "LpPool"}
"""Operators that move a window over their input; step and size of the window determine the length of the result."""


_SAME = frozenset({b"SAME_UPPER", b"SAME_LOWER"})


@dataclass(frozen=True, kw_only=True)
class Length:
    """The length `floor((over * symbol + shift) / under) + offset`; a number if there is no symbol.

    Attributes:
        exact: nothing is rounded off for any size that the model accepts.
    """

    symbol: str = ""
    over: int = 0
    under: int = 1
    shift: int = 0
    offset: int = 0
    exact: bool = True

    def fits(self, size: int, numbers: Mapping[str, int]) -> bool:
        """Return True if a dimension of length `size` agrees with these numbers for symbols."""
        whole = Fraction(self.over * numbers.get(self.symbol, 0) + self.shift, self.under)
        return (whole if self.exact else whole // 1) + self.offset == size

    def text(self) -> str | int:
        """Return the readable form: "N", "4*N", "N/2+1", and "floor((N+1)/2)" if it is rounded."""
        if not self.symbol:
            return self.offset
        text = self.symbol if self.over == 1 else f"{self.over}*{self.symbol}"
        text = f"({text}{self.shift:+d})" if self.shift else text
        text += "" if self.under == 1 else f"/{self.under}"
        text = text if self.exact else f"floor({text})"
        return text + (f"{self.offset:+d}" if self.offset else "")

    def stepped(self, more: int, step: int) -> Length:
        """Return `floor((this + more) / step) + 1`, the length after a window that moves in steps."""
        shift = self.shift + self.under * (self.offset + more)
        common = gcd(self.over, self.under * step)
        under, shift = self.under * step // common, shift // common
        return Length(
            symbol=self.symbol,
            over=self.over // common,
            under=under,
            shift=shift % under,
            offset=shift // under + 1,
            exact=under == 1,
        )


def windowed(
    node: onnx.NodeProto, given: Sequence[Length | None], kernel: Sequence[int]
) -> Iterator[Length | None]:
    """Yield the spatial dimensions after a convolution or pooling; None for unknown ones.

    `kernel` is the shape of the weights without channels, empty for pooling. Source: the operators' specifications.
    """
    if node.op_type not in WINDOWED:
        return
    said = {field.name: onnx.helper.get_attribute_value(field) for field in node.attribute}
    sizes = list(said.get("kernel_shape") or kernel)
    rank = len(sizes)
    steps = list(said.get("strides") or [1] * rank)
    gaps = list(said.get("dilations") or [1] * rank)
    pads = list(said.get("pads") or [0] * 2 * rank)
    mode = said.get("auto_pad", b"NOTSET")
    if {len(given), len(steps), len(gaps), len(pads) // 2} != {rank} or min(*steps, *gaps, *sizes, 1) < 1:
        return
    for place, length in enumerate(given):
        step, reach = steps[place], gaps[place] * (sizes[place] - 1) + 1
        border = 0 if mode == b"VALID" else pads[place] + pads[rank + place]
        more = -1 if mode in _SAME else border - reach
        is_known = length is not None
        if said.get("ceil_mode"):
            more += step - 1
            # a last window that starts behind the input is left out, which is no plain rounding up
            is_known = is_known and mode not in _SAME and not border and step <= reach
        yield length.stepped(more, step) if length is not None and is_known else None
