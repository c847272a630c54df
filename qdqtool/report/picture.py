"""Drawings as files: SVG, or PNG with the extra `png`."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

from qdqtool.errors import MissingPackage, UsageError
from qdqtool.io.files import write_bytes, write_text
from qdqtool.report.svg import Element, standalone

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
        write_bytes(path, _png(text, zoom))
    else:
        write_text(path, text)


def check_picture(path: Path) -> None:
    """Refuse a picture path that cannot be written, so that hours of work do not end with this error.

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


def _png(text: str, zoom: float) -> bytes:
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=text, zoom=zoom, background="#ffffff"))
