"""Drawings as files: SVG, or PNG with the extra `png`."""

from __future__ import annotations

from pathlib import Path

from qdqtool.core.files import write_bytes, write_text
from qdqtool.errors import MissingPackage, UsageError
from qdqtool.report.svg import Element, standalone

_ZOOM = 2.0
"""Pixels per SVG unit, so that text stays sharp."""


def write_picture(path: Path, drawing: Element) -> None:
    """Write a drawing to a .svg or .png file.

    Raises:
        UsageError: another suffix.
        MissingPackage: PNG without the extra `png`.
    """
    text = standalone(drawing)
    if path.suffix.lower() == ".svg":
        write_text(path, text)
    elif path.suffix.lower() == ".png":
        write_bytes(path, _png(text))
    else:
        raise UsageError(
            f"pictures are not written as {path.suffix!r}", fix="name a .svg or .png file", where=str(path)
        )


def _png(text: str) -> bytes:
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise MissingPackage(
            "PNG needs resvg-py", fix="pip install 'qdqtool[png]', or ask for SVG"
        ) from error
    return bytes(svg_to_bytes(svg_string=text, zoom=_ZOOM, background="#ffffff"))
