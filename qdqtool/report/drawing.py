"""The engine as a drawing: one box per layer, one line per tensor between layers."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import graphlay

from qdqtool.core.engine import Role, first_ends
from qdqtool.core.findings import Severity
from qdqtool.core.report import LayerRow, TensorRow
from qdqtool.core.tensors import DType
from qdqtool.report import words
from qdqtool.report.svg import Element, canvas, element, hint, shorten, swatch, write
from qdqtool.trt.tensor_formats import short

# --- boxes and lines -------------------------------------------------------------------------------------------------
# The engine as a drawing: one box per layer, one line per tensor that goes from layer to layer.

LARGEST = 4000
"""Largest number of layers that is drawn; a larger drawing would be unreadable and slow to open."""
_BOX = (216, 62)
_PORT = (150, 26)
_PORTS = 40
"""Largest number of engine inputs and outputs that are drawn; in a dump with names only, every tensor would be one."""
_MARGIN = 12
_LETTERS = 27
_SMALL_LETTERS = 33
_LABEL_LETTER = 6
"""Width of a letter of the label of a line, in pixels."""
_CONVERSION = re.compile(r"quantizelinear|cast|reshape|transpose", re.IGNORECASE)
"""Pattern of nodes that are poor names for a layer, because the tensors already show what these nodes do."""
_GENERATED = re.compile(r"__myl_(\w+?)_myl\d+_\d+")
"""Pattern of kernel names that list their operations: `__myl_MulMinMaxRounCast_myl0_0`."""
_ROLES = {Role.COMPUTE: "computes", Role.QDQ: "converts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxMark:
    """The mark of a box: how many findings its layer has, and the worst of their severities."""

    count: int
    severity: Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """A tensor between two boxes of an engine drawing; `source` and `target` are the numbers of the boxes."""

    source: int
    target: int
    tensor: TensorRow


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGraph:
    """The graph of an engine drawing: boxes of layers, then of inputs and outputs, and tensors between boxes.

    Attributes:
        layers: layers that launch a kernel; box number i is layers[i].
        numbers: place of each in the launch order of all layers.
        ports: tensors that enter or leave the engine; box number len(layers) + i is ports[i].
        wires: sorted by source, target and tensor name.
    """

    layers: tuple[LayerRow, ...]
    numbers: tuple[int, ...]
    ports: tuple[TensorRow, ...]
    wires: tuple[Wire, ...]


def network(rows: Sequence[LayerRow]) -> LayerGraph:
    """Connect layers by their tensors: from earlier writers of a tensor, or from all writers if there are none.

    Layers that write parts of one tensor (a Concat made in place) all feed its readers. Layers that launch nothing
    are left out, and their neighbours are connected. So a Reshape without a kernel does not divide the drawing.
    """
    numbers = tuple(number for number, row in enumerate(rows) if row.role is not Role.NONE)
    layers = tuple(rows[number] for number in numbers)
    silent = Silent(rows)
    writers: dict[str, list[int]] = defaultdict(list)
    for number, layer in enumerate(layers):
        for tensor in layer.outputs:
            writers[tensor.name].append(number)
    wires: list[Wire] = []
    fed: dict[str, tuple[TensorRow, list[int]]] = {}
    read: set[str] = set()
    for number, layer in enumerate(layers):
        for tensor in layer.inputs:
            for origin in silent.before(tensor):
                read.add(origin.name)
                sources = _sources(writers.get(origin.name, []), number)
                if not sources:
                    fed.setdefault(origin.name, (origin, []))[1].append(number)
                wires.extend(Wire(source=source, target=number, tensor=tensor) for source in sources)
    left = {
        end.name: (end, number)
        for number, layer in enumerate(layers)
        for tensor in layer.outputs
        if tensor.name not in read
        for end in silent.after(tensor)
    }
    ports, more = _ports(len(layers), fed, left)
    return LayerGraph(layers=layers, numbers=numbers, ports=ports, wires=_sort_wires([*wires, *more]))


def _ports(
    first: int, fed: dict[str, tuple[TensorRow, list[int]]], left: dict[str, tuple[TensorRow, int]]
) -> tuple[tuple[TensorRow, ...], list[Wire]]:
    """Return the engine's inputs (tensors without a writer) and outputs (tensors without a reader), and their wires."""
    if len(fed) + len(left) > _PORTS:
        return (), []
    entering = [
        Wire(source=first + port, target=reader, tensor=tensor)
        for port, (tensor, readers) in enumerate(fed.values())
        for reader in readers
    ]
    leaving = [
        Wire(source=writer, target=first + len(fed) + port, tensor=tensor)
        for port, (tensor, writer) in enumerate(left.values())
    ]
    tensors = (*(tensor for tensor, _ in fed.values()), *(tensor for tensor, _ in left.values()))
    return tensors, [*entering, *leaving]


def _sources(writers: list[int], reader: int) -> list[int]:
    """Return the layers that write a tensor before the reader; in a loop, all writers except the reader."""
    before = writers[: bisect_left(writers, reader)]
    return before or [writer for writer in writers if writer != reader]


def _sort_wires(wires: list[Wire]) -> tuple[Wire, ...]:
    return tuple(sorted(wires, key=lambda wire: (wire.source, wire.target, wire.tensor.name)))


def draw(net: LayerGraph, marks: Mapping[int, BoxMark] = MappingProxyType({})) -> Element:
    """Draw the engine. Boxes have the number of their layer in data-layer, in launch order from 0.

    Filled boxes compute, round boxes only convert, dashed boxes are inputs and outputs. Every tensor shows its type
    and format once.

    Args:
        net: the drawn network.
        marks: findings, by layer number.
    """
    bundles: dict[tuple[int, int], list[TensorRow]] = defaultdict(list)
    for wire in net.wires:
        bundles[wire.source, wire.target].append(wire.tensor)
    sizes = [_BOX] * len(net.layers) + [_PORT] * len(net.ports)
    layout = lay_out(sizes, list(bundles))
    drawing = canvas(
        layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN, class_="graph", aria_label="Engine graph"
    )
    sheet = element("g", drawing, transform=f"translate({_MARGIN} {_MARGIN})")
    labels: dict[tuple[int, str, DType], tuple[Place, TensorRow]] = {}
    for (source, _), path, tensors in zip(bundles, layout.paths, bundles.values(), strict=True):
        corners = " ".join(f"{x},{y}" for x, y in path)
        line = element("polyline", sheet, points=corners, class_=f"edge {swatch(tensors[0].dtype)}")
        hint(line, "\n".join(map(describe, tensors)))
        key = source, tensors[0].name, tensors[0].dtype
        labels[key] = min(
            labels.get(key, (path[0], tensors[0])), (path[0], tensors[0]), key=lambda pair: pair[0]
        )
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)  # begin and end of texts, by their height
    for (left, top), tensor in sorted(labels.values(), key=lambda pair: pair[0]):
        text = _format(tensor)
        width = _LABEL_LETTER * len(text)
        beside = (left - 5 - width, left + 5)
        places = [(start, top + below) for below in (13, 24) for start in beside]
        start, height = next((place for place in places if _is_free(place, width, layout, rows)), places[1])
        rows[height].append((start, start + width))
        is_left = start < left
        write(
            sheet, text, left + (-5 if is_left else 5), height, class_="format end" if is_left else "format"
        )
    _boxes(sheet, net, layout, marks)
    return drawing


def _is_free(place: Place, width: int, layout: Layout, rows: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
    """Return True if a text of this width stays inside the drawing, and covers no other text of its row."""
    start, height = place
    inside = 0 <= start <= layout.width - width
    return inside and all(start >= end or start + width <= begin for begin, end in rows.get(height, ()))


def _format(tensor: TensorRow) -> str:
    if tensor.format.startswith("scale "):  # a Q/DQ pair, which has no shape if a dimension is dynamic
        return f"{tensor.dtype.value} {tensor.format}"
    return f"{tensor.dtype.value} {short(tensor.format)}".strip() if tensor.shape is not None else ""


def _boxes(sheet: Element, net: LayerGraph, layout: Layout, marks: Mapping[int, BoxMark]) -> None:
    for number, layer, centre in zip(net.numbers, net.layers, layout.centres, strict=False):
        style = f"node {_ROLES.get(layer.role, '')} {swatch(layer.precision)}"
        box = _box(sheet, centre, _BOX, style, round_=_BOX[1] // 2 if layer.role is Role.QDQ else 5)
        box.set("data-layer", str(number))
        hint(box, layer.name)
        left = 20 if layer.role is Role.QDQ else 10
        most = (_BOX[0] - 2 * left) / _BOX[0]
        write(box, label(layer, int(_LETTERS * most) + 1), left, 18, class_="name")
        write(box, shorten(_kind(layer), int(_SMALL_LETTERS * most)), left, 35, class_="soft")
        facts = [layer.precision.value, words.size(layer.bytes) if layer.bytes is not None else ""]
        facts += [] if layer.ms is None else [f"{layer.ms:.3g} ms"]
        write(box, " \N{MIDDLE DOT} ".join(part for part in facts if part), left, 51, class_="soft")
        if number in marks:
            _badge(box, marks[number])
    for tensor, centre in zip(net.ports, layout.centres[len(net.layers) :], strict=True):
        box = _box(sheet, centre, _PORT, f"node port {swatch(tensor.dtype)}")
        hint(box, describe(tensor))
        write(box, shorten(tensor.name, 20), _PORT[0] / 2, 17, class_="middle")


def _badge(box: Element, mark: BoxMark) -> None:
    badge = element("g", box, class_=f"badge {mark.severity.value}", transform=f"translate({_BOX[0] - 8} 4)")
    element("circle", badge, r=9)
    write(badge, str(mark.count), 0, 3.5)


def _box(sheet: Element, centre: Place, size: tuple[int, int], style: str, *, round_: int = 5) -> Element:
    left, top = centre[0] - size[0] // 2, centre[1] - size[1] // 2
    box = element("g", sheet, class_=style, transform=f"translate({left} {top})")
    element("rect", box, width=size[0], height=size[1], rx=round_)
    return box


def describe(tensor: TensorRow) -> str:
    """Return a tensor as text: `name: int8 1x64x56x56, Row major, 196 KiB`."""
    shape = "?" if tensor.shape is None else "x".join(map(str, tensor.shape)) or "scalar"
    parts = [
        f"{tensor.dtype.value} {shape}",
        tensor.format,
        words.size(tensor.bytes) if tensor.bytes is not None else "",
    ]
    return f"{tensor.name}: {', '.join(part for part in parts if part)}"


def label(layer: LayerRow, most: int = _LETTERS) -> str:
    """Return the main ONNX node of the layer and the number of its other nodes; without nodes, the name of the layer."""
    more = f" +{len(layer.onnx_nodes) - 1}" if len(layer.onnx_nodes) > 1 else ""
    return f"{shorten(main_node(layer) or layer.name, most - len(more))}{more}"


def main_node(layer: LayerRow) -> str | None:
    """Return the first ONNX node that is not only a conversion; else the first node; None if there are no nodes."""
    nodes = layer.onnx_nodes
    return next((node for node in nodes if not _CONVERSION.search(node)), nodes[0] if nodes else None)


def _kind(layer: LayerRow) -> str:
    """Return the layer's type; for a generated kernel also the operations in its name."""
    match = _GENERATED.fullmatch(layer.name)
    return f"{layer.kind} {match[1]}" if match else layer.kind


# --- places ----------------------------------------------------------------------------------------------------------
# Positions of the boxes and lines of a layered drawing: top to bottom, few crossings, and always the same.

_OPTIONS = {
    "direction": "topbottom",
    "spacing": {"layer_gap": 40.0, "node_gap": 26.0, "dummy_gap": 14.0},
}
Place = tuple[int, int]
"""x and y in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The positions and sizes in a drawing, which starts at (0, 0).

    Attributes:
        centres: of the boxes, in the order given.
        paths: corners of every line from border to border, in the order given.
        width: of the whole drawing in pixels.
        height: of the whole drawing.
    """

    centres: tuple[Place, ...]
    paths: tuple[tuple[Place, ...], ...]
    width: int
    height: int


def lay_out(sizes: Sequence[tuple[int, int]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes with these sizes (width, height in pixels); edges (from, to) connect the boxes.

    Cycles, loops and separate parts are allowed. Its time grows a little faster than the number of boxes.
    """
    graph = graphlay.Graph()
    for width, height in sizes:
        graph.node(width=width, height=height)
    for source, target in edges:
        graph.edge(source, target)
    drawn = graphlay.layout(graph, options=_OPTIONS)
    low, high = drawn.bounds["min"], drawn.bounds["max"]

    def place(point: dict[str, float]) -> Place:
        return round(point["x"] - low["x"]), round(point["y"] - low["y"])

    return Layout(
        centres=tuple(place(node["center"]) for node in drawn.nodes),
        paths=tuple(tuple(place(point) for point in edge["points"]) for edge in drawn.edges),
        width=round(high["x"] - low["x"]),
        height=round(high["y"] - low["y"]),
    )


# --- layers that launch nothing --------------------------------------------------------------------------------------
# Layers that launch no kernel: the tensor before them, and the tensor after them.


class Silent:
    """Connects tensors through layers that launch no kernel, such as NoOp and Constant."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self._before: dict[str, list[TensorRow]] = defaultdict(list)
        self._after: dict[str, list[TensorRow]] = defaultdict(list)
        writers = {tensor.name for row in rows if row.role is not Role.NONE for tensor in row.outputs}
        for row in rows:
            if row.role is Role.NONE:
                names = {tensor.name for tensor in row.inputs}
                for tensor in row.outputs:
                    if tensor.name not in writers | names:
                        self._before[tensor.name] += row.inputs
                for tensor in row.inputs:
                    self._after[tensor.name] += [end for end in row.outputs if end.name not in names]

    def before(self, tensor: TensorRow) -> list[TensorRow]:
        """Return the tensors that layers without a kernel turn into `tensor`; if there are none, `tensor`."""
        return first_ends(
            [tensor], lambda row: self._before[row.name], lambda row: row.name not in self._before
        )

    def after(self, tensor: TensorRow) -> list[TensorRow]:
        """Return the tensors that layers without a kernel make from `tensor`; if there are none, `tensor`."""
        return first_ends(
            [tensor], lambda row: self._after[row.name], lambda row: row.name not in self._after
        )
