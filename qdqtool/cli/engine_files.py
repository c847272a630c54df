"""Pictures and models of an engine, written by the ending of the file."""

from __future__ import annotations

import re
from pathlib import Path

from qdqtool.core.files import write_bytes, write_text
from qdqtool.engine.diff import Explored
from qdqtool.engine.dot import dot
from qdqtool.engine.nodes import node_facts
from qdqtool.engine.raster import png
from qdqtool.errors import UsageError
from qdqtool.graph.annotate import annotate
from qdqtool.graph.load import load
from qdqtool.graph.picture import picture
from qdqtool.graph.save import save
from qdqtool.report import palette
from qdqtool.report.graph import LARGEST, draw, network
from qdqtool.report.layers import layer_rows
from qdqtool.report.svg import standalone

_COLOURS = dict(re.findall(r"\.p-(\w+) \{ --c: (#[0-9a-f]{6})", palette.CLASSES))


def drawn(explored: Explored, out: Path) -> None:
    """The engine graph as .svg, .png or .dot, or as an .onnx file with one node per layer.

    Raises:
        UsageError: another ending, or too many layers for a picture.
    """
    match out.suffix:
        case ".dot":
            write_text(out, dot(explored.view, _COLOURS))
        case ".onnx":
            save(picture(explored.view), out)
        case ".svg" | ".png":
            if len(explored.engine.layers) > LARGEST:
                raise UsageError(
                    f"a picture of {len(explored.engine.layers)} layers cannot be read",
                    fix="write .dot or .onnx",
                )
            drawing = draw(network(layer_rows(explored.engine, explored.view)))
            if out.suffix == ".svg":
                write_text(out, standalone(drawing))
            else:
                write_bytes(out, png(drawing, {f"p-{name}": colour for name, colour in _COLOURS.items()}))
        case other:
            raise UsageError(
                f"cannot draw a {other!r} file", fix="choose .svg, .png, .dot or .onnx", where=str(out)
            )


def annotated(explored: Explored, model: Path, out: Path) -> None:
    """The ONNX model with what the engine says of each node in the node's metadata.

    Raises:
        UsageError: `out` is no .onnx file, or no layer names a node of the model.
    """
    if out.suffix != ".onnx":
        raise UsageError("an annotated model is an .onnx file", fix="pass --out FILE.onnx", where=str(out))
    opened = load(model)
    facts = node_facts(explored.engine, explored.view, frozenset(node.name for node in opened.view.nodes))
    if not facts:
        raise UsageError(
            "no layer names a node of this model",
            fix="pass the model that the engine was built from",
            where=str(model),
        )
    save(annotate(opened, facts), out)
