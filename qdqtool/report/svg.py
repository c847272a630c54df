"""SVG with all text escaped, the colours of precisions, and drawings as SVG or PNG files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from xml.etree import ElementTree as ET

from markupsafe import Markup

from qdqtool.core.tensors import DType
from qdqtool.errors import MissingPackage, UsageError
from qdqtool.io.escaping import xml_line
from qdqtool.io.files import path_of, write_bytes, write_text

# --- palette ---------------------------------------------------------------------------------------------------------
# Colours of precisions, the same in graph, charts and tables.
#
# They are from Okabe and Ito, whose colours people with red-green blindness can distinguish.


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
    """Return the CSS class of a precision. Integer types of indices and shapes share one class."""
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
    f".edge.p-{name}, .span.p-{name}, .node.p-{name} rect {{ stroke: {colour}; }}"
    for name, colour in COLOURS.items()
)


def _tint(colour: str) -> str:
    """Mix 16 % of a colour with white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.16 * (255 - part)):02x}" for part in parts)


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


# --- svg -------------------------------------------------------------------------------------------------------------


_NAMESPACE = "http://www.w3.org/2000/svg"
Element = ET.Element


def element(tag: str, parent: Element | None = None, /, **attributes: object) -> Element:
    """Create an SVG element and append it to `parent`. `class_` becomes class; other underscores become hyphens."""
    texts = {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()}
    return ET.Element(tag, texts) if parent is None else ET.SubElement(parent, tag, texts)


def canvas(width: float, height: float, **attributes: object) -> Element:
    """Return an empty SVG drawing of this size, which scales with its container."""
    return element("svg", viewBox=f"0 0 {_text(width)} {_text(height)}", role="img", **attributes)


def write(parent: Element, words: str, x: float, y: float, **attributes: object) -> Element:
    """Append one line of text to a drawing."""
    node = element("text", parent, x=x, y=y, **attributes)
    node.text = xml_line(words)
    return node


def hint(parent: Element, words: str) -> None:
    """Add a tooltip to an SVG element; screen readers also read it."""
    element("title", parent).text = xml_line(words)


def shorten(words: str, most: int, *, head_share: int = 2) -> str:
    """Shorten text to `most` characters by removing its middle: both ends of a layer name are informative.

    The part before the gap has one part in `head_share` of the remaining characters: 2 means a half, 3 a third.
    """
    if len(words) <= most:
        return words
    head = (most - 1) // head_share
    return f"{words[:head]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - (most - 1 - head) :]}"


def inline(drawing: Element) -> Markup:
    """Return an SVG drawing as markup for a page that has its own style."""
    return Markup(ET.tostring(drawing, encoding="unicode"))  # noqa: S704 -- the serializer has escaped it


def standalone(drawing: Element) -> str:
    """Return an SVG drawing as the text of a separate file."""
    copy = ET.Element(drawing.tag, {**drawing.attrib, "xmlns": _NAMESPACE})
    element("style", copy).text = STYLE
    copy.extend(drawing)
    return ET.tostring(copy, encoding="unicode", xml_declaration=False) + "\n"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else xml_line(str(value))


# --- picture ---------------------------------------------------------------------------------------------------------
# Drawings as files: SVG, or PNG with the extra `png`.


_ZOOM = 2.0
"""Pixels per SVG unit; 2 keeps text sharp."""
_LARGEST = 60_000_000
"""Largest number of pixels of a picture; a larger picture is scaled down."""
_LEAST = 0.5
"""Pixels per SVG unit below which text is unreadable."""


def write_picture(path: Path, drawing: Element) -> None:
    """Write a drawing to a .svg or .png file.

    Raises:
        UsageError: another suffix, or a PNG that would be too large to be read.
        MissingPackage: PNG without the extra `png`.
    """
    is_png = path.suffix.lower() == ".png"
    zoom = _zoom(drawing, path) if is_png else 1.0
    check_picture(path)
    text = standalone(drawing)
    if is_png:
        from resvg_py import svg_to_bytes

        write_bytes(path, bytes(svg_to_bytes(svg_string=text, zoom=zoom, background="#ffffff")))
    else:
        write_text(path, text)


def check_picture(path: Path) -> None:
    """Refuse a picture that is neither SVG nor PNG, or a PNG without its package, before long work.

    Raises:
        UsageError: neither .svg nor .png.
        MissingPackage: PNG without the extra `png`.
    """
    if path.suffix.lower() not in {".svg", ".png"}:
        raise UsageError(
            f"cannot write pictures as {path.suffix!r}", fix="name a .svg or .png file", where=str(path)
        )
    if path.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise MissingPackage("PNG needs resvg-py", fix="pip install 'qdqtool[png]', or ask for SVG")


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart that a notebook shows."""

    drawing: Element

    def _repr_svg_(self) -> str:
        return standalone(self.drawing)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the chart as .svg or .png and return its path.

        Raises:
            UsageError: another suffix.
            MissingPackage: PNG without the extra `png`.
        """
        place = path_of(path)
        write_picture(place, self.drawing)
        return place


def _zoom(drawing: Element, path: Path) -> float:
    width, height = (float(number) for number in drawing.get("viewBox", "0 0 1 1").split()[2:])
    fitting = math.sqrt(_LARGEST / (width * height))
    if fitting < _LEAST:
        raise UsageError(
            f"the picture would have {width:.0f} x {height:.0f} pixels",
            fix="write .svg or .dot instead",
            where=str(path),
        )
    return min(_ZOOM, fitting)
