"""Colours of precisions, the same in graph, charts and tables.

The hues are those of Okabe and Ito, which people who do not see red and green apart can tell from each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.core.dtypes import DType

COLOURS = {
    "int8": "#009e73",
    "fp8": "#cc79a7",
    "int4": "#117a65",
    "fp4": "#a35c86",
    "fp16": "#0072b2",
    "bf16": "#56b4e9",
    "fp32": "#d55e00",
    "fp64": "#8c3f00",
    "other": "#7f8c8d",
    "unknown": "#b0b0b0",
}
"""Colours by precision."""
_ORDER = tuple(COLOURS)


def swatch(dtype: DType) -> str:
    """Return the CSS class of a precision; integer types of indices and shapes share one."""
    return f"p-{dtype.value if dtype.value in COLOURS else 'other'}"


def in_order(dtypes: Iterable[DType]) -> list[DType]:
    """Return each precision once, from narrow to wide, then other and unknown ones."""
    return sorted(
        set(dtypes), key=lambda dtype: (_ORDER.index(swatch(dtype).removeprefix("p-")), dtype.value)
    )


CLASSES = "\n".join(f".p-{name} {{ --c: {colour}; }}" for name, colour in COLOURS.items())
"""CSS that gives every precision its colour as the variable --c."""

_INK = "#1b1f24"
_FILLED = "\n".join(f".bar.p-{name}, .dot.p-{name} {{ fill: {colour}; }}" for name, colour in COLOURS.items())
_LINED = "\n".join(
    f".edge.p-{name}, .node.p-{name} rect {{ stroke: {colour}; }}" for name, colour in COLOURS.items()
)


def _tint(colour: str, share: float = 0.16) -> str:
    """Mix a colour with white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


_TINTED = "\n".join(
    f".computes.p-{name} rect {{ fill: {_tint(colour)}; }}" for name, colour in COLOURS.items()
)
STYLE = f"""
svg {{ font: 12px sans-serif; background: #fff; }}
text {{ fill: {_INK}; }}
.soft {{ fill: #59636e; font-size: 11px; }}
.end {{ text-anchor: end; }}
.middle {{ text-anchor: middle; }}
.inside {{ fill: #fff; }}
.name {{ font-weight: 600; }}
.grid {{ stroke: #d5d9dd; }}
.plain {{ fill: #3b8ec2; }}
.dot {{ fill-opacity: .75; }}
.mark {{ stroke: #d55e00; stroke-width: 1.8; }}
.rival {{ stroke: #59636e; stroke-width: 1; stroke-dasharray: 3 2; }}
.roof {{ fill: none; stroke-dasharray: 6 3; }}
.front {{ fill: none; stroke: #d55e00; stroke-width: 1.5; }}
.node rect {{ fill: #fff; stroke-width: 2; }}
.port rect {{ stroke-dasharray: 4 3; }}
.format {{ fill: #59636e; font-size: 10px; }}
.badge circle {{ fill: #b3261e; }}
.badge text {{ fill: #fff; font-size: 10px; font-weight: 700; text-anchor: middle; }}
.badge.warning circle {{ fill: #8a5a00; }}
.badge.info circle {{ fill: #59636e; }}
.edge {{ fill: none; stroke-width: 1.6; }}
{_FILLED}
{_LINED}
{_TINTED}
"""
"""Style of a standalone drawing, without CSS variables, which many SVG viewers do not support."""
