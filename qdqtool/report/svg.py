"""SVG elements with all text escaped, whatever the layer names in a model or a dump contain."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from markupsafe import Markup

from qdqtool.io.escaping import xml_line
from qdqtool.report.palette import STYLE

_NAMESPACE = "http://www.w3.org/2000/svg"
Element = ET.Element


def element(tag: str, parent: Element | None = None, /, **attributes: object) -> Element:
    """Create an element and append it to `parent`; `class_` becomes class, other underscores become hyphens."""
    texts = {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()}
    return ET.Element(tag, texts) if parent is None else ET.SubElement(parent, tag, texts)


def canvas(width: float, height: float, **attributes: object) -> Element:
    """Return an empty drawing of this size that scales with its container."""
    return element("svg", viewBox=f"0 0 {_text(width)} {_text(height)}", role="img", **attributes)


def write(parent: Element, words: str, x: float, y: float, **attributes: object) -> Element:
    """Append one line of text."""
    node = element("text", parent, x=x, y=y, **attributes)
    node.text = xml_line(words)
    return node


def hint(parent: Element, words: str) -> None:
    """Add a tooltip to `parent`, which screen readers also read."""
    element("title", parent).text = xml_line(words)


def shorten(words: str, most: int) -> str:
    """Shorten text to `most` characters by removing its middle, because both ends of a layer name are informative."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - (most - 1 - head) :]}"


def inline(drawing: Element) -> Markup:
    """Return the drawing as markup for a page that has its own style."""
    return Markup(ET.tostring(drawing, encoding="unicode"))  # noqa: S704 -- the serializer has escaped it


def standalone(drawing: Element) -> str:
    """Return the drawing as the text of a separate file."""
    copy = ET.Element(drawing.tag, {**drawing.attrib, "xmlns": _NAMESPACE})
    element("style", copy).text = STYLE
    copy.extend(drawing)
    return ET.tostring(copy, encoding="unicode", xml_declaration=False) + "\n"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else xml_line(str(value))
