"""The engine as a drawing: one box per layer, one line per tensor that goes from layer to layer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from qdqtool.core.engine import Role
from qdqtool.core.findings import Severity
from qdqtool.core.report import LayerRow, TensorRow
from qdqtool.report import words
from qdqtool.report.layout import Layout, Place, lay_out
from qdqtool.report.palette import swatch
from qdqtool.report.silent import Silent
from qdqtool.report.svg import Element, canvas, element, hint, shorten, write
from qdqtool.trt.tensor_formats import short

LARGEST = 4000
"""Layers; a drawing of more would neither be read nor open quickly."""
_BOX = (216, 62)
_PORT = (150, 26)
_PORTS = 40
"""Engine inputs and outputs that are drawn; names-only dumps would make every tensor one."""
_MARGIN = 12
_LETTERS = 27
_SMALL_LETTERS = 33
_CONVERSION = re.compile(r"quantizelinear|cast|reshape|transpose", re.IGNORECASE)
"""Nodes that name a layer badly: what they do is seen from the tensors."""
_GENERATED = re.compile(r"__myl_(\w+?)_myl\d+_\d+")
"""Kernels that are named after their operations: `__myl_MulMinMaxRounCast_myl0_0`."""
_ROLES = {Role.COMPUTE: "computes", Role.QDQ: "converts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxMark:
    """What a box is marked with: how many findings its layer has, and the worst of their severities."""

    count: int
    severity: Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """A tensor on its way from box `source` to box `target`; boxes after the layers are inputs and outputs."""

    source: int
    target: int
    tensor: TensorRow


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGraph:
    """Layers, the engine's own inputs and outputs as boxes behind them, and the tensors between.

    Attributes:
        layers: those that launch something; box number i is layers[i].
        numbers: place of each in the launch order of all layers.
        ports: tensors that enter or leave the engine; box number len(layers) + i is ports[i].
        wires: sorted by source, target and tensor name.
    """

    layers: tuple[LayerRow, ...]
    numbers: tuple[int, ...]
    ports: tuple[TensorRow, ...]
    wires: tuple[Wire, ...]


def network(rows: Sequence[LayerRow]) -> LayerGraph:
    """Who feeds whom: a tensor comes from its writers before the reader, else from any writer.

    Layers that write parts of one tensor (a Concat made in place) all feed its readers. Layers that launch nothing
    are left out, and what they hand on comes from where they have it: a reshape of nothing but words does not cut the
    drawing in two.
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
    return LayerGraph(layers=layers, numbers=numbers, ports=ports, wires=_sorted([*wires, *more]))


def _ports(
    first: int, fed: dict[str, tuple[TensorRow, list[int]]], left: dict[str, tuple[TensorRow, int]]
) -> tuple[tuple[TensorRow, ...], list[Wire]]:
    """Tensors that nobody writes, with their readers, and tensors that nobody reads."""
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
    """Writers before the reader; where there are none, the others (a loop) except the reader itself."""
    before = writers[: bisect_left(writers, reader)]
    return before or [writer for writer in writers if writer != reader]


def _sorted(wires: list[Wire]) -> tuple[Wire, ...]:
    return tuple(sorted(wires, key=lambda wire: (wire.source, wire.target, wire.tensor.name)))


def draw(net: LayerGraph, marks: Mapping[int, BoxMark] = MappingProxyType({})) -> Element:
    """The drawing; boxes carry their layer number in data-layer, in launch order from 0.

    Filled boxes compute, round ones only convert, dashed ones enter or leave the engine; every tensor tells its type
    and format once.

    Args:
        net: what is drawn.
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
    told: dict[tuple[int, str], tuple[Place, TensorRow]] = {}
    for (source, _), path, tensors in zip(bundles, layout.paths, bundles.values(), strict=True):
        _line(sheet, path, tensors)
        key = source, tensors[0].name
        told[key] = min(told.get(key, (path[0], tensors[0])), (path[0], tensors[0]), key=lambda pair: pair[0])
    for (left, top), tensor in told.values():
        write(sheet, _format(tensor), left - 5, top + 13, class_="format end")
    _boxes(sheet, net, layout, marks)
    return drawing


def _format(tensor: TensorRow) -> str:
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
        write(box, _about(layer), left, 51, class_="soft")
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


def _line(sheet: Element, path: tuple[Place, ...], tensors: list[TensorRow]) -> None:
    corners = " ".join(f"{x},{y}" for x, y in path)
    line = element("polyline", sheet, points=corners, class_=f"edge {swatch(tensors[0].dtype)}")
    hint(line, "\n".join(map(describe, tensors)))


def describe(tensor: TensorRow) -> str:
    """`name: int8 1x64x56x56, Row major, 196 KiB`."""
    shape = "?" if tensor.shape is None else "x".join(map(str, tensor.shape)) or "scalar"
    parts = [
        f"{tensor.dtype.value} {shape}",
        tensor.format,
        words.size(tensor.bytes) if tensor.bytes is not None else "",
    ]
    return f"{tensor.name}: {', '.join(part for part in parts if part)}"


def label(layer: LayerRow, most: int = _LETTERS) -> str:
    """The layer's main ONNX node and how many there are besides; else its own name."""
    more = f" +{len(layer.onnx_nodes) - 1}" if len(layer.onnx_nodes) > 1 else ""
    return f"{shorten(main_node(layer) or layer.name, most - len(more))}{more}"


def main_node(layer: LayerRow) -> str | None:
    """The first ONNX node that is more than a conversion, else the first; None where there are none."""
    nodes = layer.onnx_nodes
    return next((node for node in nodes if not _CONVERSION.search(node)), nodes[0] if nodes else None)


def _kind(layer: LayerRow) -> str:
    """The layer's type; of a generated kernel also the operations that its name is made of."""
    made = _GENERATED.fullmatch(layer.name)
    return f"{layer.kind} {made[1]}" if made else layer.kind


def _about(layer: LayerRow) -> str:
    known = [layer.precision.value, words.size(layer.bytes) if layer.bytes is not None else ""]
    known += [] if layer.ms is None else [f"{layer.ms:.3g} ms"]
    return " \N{MIDDLE DOT} ".join(part for part in known if part)
