"""A drawing of boxes, lines and one-line texts as a PNG picture.

Knows just what the engine graph is made of: `g` with a translation, `rect`, `polyline` and `text`. Colours come from
the classes of the elements.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from PIL import Image, ImageDraw, ImageFont

from qdqtool.errors import UsageError

_TRANSLATE = re.compile(r"translate\((-?[\d.]+)[ ,]+(-?[\d.]+)\)")
_INK, _SOFT, _GREY = "#1b1f24", "#59636e", "#b0b0b0"
_LARGEST = 120_000_000
"""Pixels; a larger picture is better looked at as SVG."""


def png(drawing: Element, colours: Mapping[str, str]) -> bytes:
    """The drawing as PNG bytes.

    Args:
        drawing: an `svg` element with a viewBox.
        colours: colour by class name ("p-int8").

    Raises:
        UsageError: the picture would be too large.
    """
    width, height = (int(float(number)) + 1 for number in drawing.get("viewBox", "0 0 1 1").split()[2:])
    if width * height > _LARGEST:
        raise UsageError(
            f"the picture would have {width} x {height} pixels",
            fix="write .svg or .dot instead",
            where="--out",
        )
    image = Image.new("RGB", (width, height), "white")
    _paint(drawing, ImageDraw.Draw(image), (0.0, 0.0), colours)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _paint(
    parent: Element, pen: ImageDraw.ImageDraw, origin: tuple[float, float], colours: Mapping[str, str]
) -> None:
    moved = _TRANSLATE.search(parent.get("transform", ""))
    if moved:
        origin = origin[0] + float(moved[1]), origin[1] + float(moved[2])
    colour = next((colours[name] for name in parent.get("class", "").split() if name in colours), _GREY)
    for child in parent:
        if child.tag == "rect":
            corner = origin[0] + float(child.get("width", 0)), origin[1] + float(child.get("height", 0))
            pen.rounded_rectangle((origin, corner), radius=5, fill="white", outline=colour, width=2)
        elif child.tag == "polyline":
            own = next((colours[name] for name in child.get("class", "").split() if name in colours), _GREY)
            points = [tuple(map(float, point.split(","))) for point in child.get("points", "").split()]
            pen.line([(origin[0] + x, origin[1] + y) for x, y in points], fill=own, width=2)
        elif child.tag == "text":
            _letter(child, pen, origin)
        else:
            _paint(child, pen, origin, colours)


def _letter(text: Element, pen: ImageDraw.ImageDraw, origin: tuple[float, float]) -> None:
    classes = text.get("class", "").split()
    at = origin[0] + float(text.get("x", 0)), origin[1] + float(text.get("y", 0))
    font = ImageFont.load_default(size=11 if "soft" in classes else 12)
    fill = _SOFT if "soft" in classes else _INK
    pen.text(at, text.text or "", fill=fill, font=font, anchor="ms" if "middle" in classes else "ls")
