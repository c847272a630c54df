"""Layers as a table (filtered, sorted, on screen or in a file), facts about each ONNX node, and the engine graph in DOT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from qdqtool.core.buildlog import LayerTuning
from qdqtool.core.engine import Engine, EngineTensor, Role
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.errors import UsageError
from qdqtool.io.escaping import dot_string
from qdqtool.io.tables import Cell, Table
from qdqtool.trt.names import join
from qdqtool.trt.tensor_formats import short

# --- layers ----------------------------------------------------------------------------------------------------------
# Layers as a table: filtered, sorted, as cells or as a table for a file.

_COLUMNS: dict[str, Callable[[LayerView], Cell]] = {
    "name": lambda layer: layer.name,
    "kind": lambda layer: layer.kind,
    "role": lambda layer: layer.role.value,
    "precision": lambda layer: layer.precision.value,
    "certainty": lambda layer: layer.certainty.value,
    "inputs": lambda layer: _tensors(layer.inputs),
    "outputs": lambda layer: _tensors(layer.outputs),
    "ms": lambda layer: layer.ms,
    "elided": lambda layer: layer.elided,
    "bytes": lambda layer: layer.bytes,
    "macs": lambda layer: layer.macs,
    "intensity": lambda layer: layer.intensity,
    "tflops": lambda layer: layer.tflops,
    "gbs": lambda layer: layer.gbs,
    "bound": lambda layer: layer.bound,
    "gemm": lambda layer: "x".join(map(str, layer.gemm)) if layer.gemm else None,
    "input_bytes": lambda layer: layer.input_bytes,
    "weight_bytes": lambda layer: layer.weight_bytes,
    "output_bytes": lambda layer: layer.output_bytes,
    "qdq": lambda layer: len(layer.history.qdq) if layer.history else None,
    "events": lambda layer: len(layer.history.events) if layer.history else None,
    "candidates": lambda layer: None if (tuning := _tuning(layer)) is None else tuning.candidates,
    "tuning_s": lambda layer: None if (tuning := _tuning(layer)) is None else tuning.seconds,
    "tactic": lambda layer: layer.tactic,
    "onnx_nodes": lambda layer: " | ".join(layer.onnx_nodes),
}
COLUMNS = tuple(_COLUMNS)


def select(
    view: EngineView, *, where: tuple[str, ...] = (), sort: str = "", limit: int | None = None
) -> tuple[LayerView, ...]:
    """Return the layers that fit all conditions, in launch order or sorted.

    Args:
        view: the engine.
        where: conditions `column=glob`, for instance "precision=int8" or "name=*conv1*".
        sort: a column; numbers from large to small, unknown ones last, text in alphabetical order.
        limit: the most layers to return.

    Raises:
        UsageError: no such column, or a condition without "=".
    """
    conditions = [_condition(text) for text in where]
    layers = [layer for layer in view.layers if all(fits(layer) for fits in conditions)]
    if sort:
        layers.sort(key=_sort_key(_column(sort, "--sort")))
    return tuple(layers[:limit])


def cells(layers: tuple[LayerView, ...], columns: tuple[str, ...] = COLUMNS) -> list[list[Cell]]:
    """Return one table row of text per engine layer.

    Raises:
        UsageError: no such column.
    """
    getters = [_column(name, "--columns") for name in columns]
    return [[getter(layer) for getter in getters] for layer in layers]


def table_of(layers: tuple[LayerView, ...], columns: tuple[str, ...] = COLUMNS) -> Table:
    """Return the layers as a table for a file.

    Raises:
        UsageError: no such column.
    """
    return Table(columns=columns, rows=cells(layers, columns))


def _condition(text: str) -> Callable[[LayerView], bool]:
    name, equals, pattern = text.partition("=")
    if not equals:
        raise UsageError(
            f"invalid condition {text!r}", fix="write column=glob, such as precision=int8", where="--where"
        )
    getter = _column(name.strip(), "--where")
    glob = pattern.strip().lower().replace("[", "[[]")  # names and shapes contain brackets
    return lambda layer: fnmatchcase(str(getter(layer)).lower(), glob)


def _column(name: str, where: str) -> Callable[[LayerView], Cell]:
    if name not in _COLUMNS:
        raise UsageError(f"unknown column {name!r}", fix=f"choose from {', '.join(COLUMNS)}", where=where)
    return _COLUMNS[name]


def _sort_key(getter: Callable[[LayerView], Cell]) -> Callable[[LayerView], tuple[bool, float, str]]:
    def key(layer: LayerView) -> tuple[bool, float, str]:
        cell = getter(layer)
        number = -float(cell) if isinstance(cell, (int, float)) else 0.0
        return cell is None, number, cell if isinstance(cell, str) else ""

    return key


def _tuning(layer: LayerView) -> LayerTuning | None:
    return layer.history.tuning if layer.history else None


def _tensors(tensors: tuple[EngineTensor, ...]) -> str:
    return " ".join(brief(tensor) for tensor in tensors)


def brief(tensor: EngineTensor) -> str:
    """Return the type and shape of a tensor as short text: `int8[1x64x56x56]`."""
    shape = "?" if tensor.shape is None else "x".join(str(dim) for dim in tensor.shape)
    return f"{tensor.dtype}[{shape}]"


# --- ONNX nodes ------------------------------------------------------------------------------------------------------
# The facts of an engine about every ONNX node: its layer, precision, time and bytes.


def node_facts(engine: Engine, view: EngineView, nodes: frozenset[str]) -> dict[str, dict[str, str]]:
    """Return the facts about each ONNX node as text, by node name. Nodes that no layer names are omitted.

    A node that a compute layer holds gets that layer's precision; the time and the bytes are those of all layers that
    hold it, which several nodes may share.
    """
    facts_of: dict[str, dict[str, str]] = {}
    views = {id(layer): views_of for layer, views_of in zip(engine.layers, view.layers, strict=True)}
    for node, holders in join(engine, nodes).items():
        layers = holders.compute or holders.other
        if not layers:
            continue
        views_of = [views[id(layer)] for layer in layers]
        times = [layer.ms for layer in views_of if layer.ms is not None]
        sizes = [layer.bytes for layer in views_of if layer.bytes is not None]
        facts = {
            "engine.layer": " | ".join(layer.name for layer in layers),
            "engine.precision": " | ".join(dict.fromkeys(str(layer.precision) for layer in layers)),
            "engine.certainty": holders.certainty.value,
        }
        facts |= {"engine.ms": f"{sum(times):.6g}"} if times else {}
        facts |= {"engine.bytes": str(sum(sizes))} if sizes else {}
        facts_of[node] = facts
    return facts_of


# --- graph -----------------------------------------------------------------------------------------------------------
# The engine graph in Graphviz' DOT language: boxes coloured by precision, formats on the edges.


def dot(view: EngineView, colours: Mapping[str, str]) -> str:
    """Return DOT text: boxes are kernels, edges lead from writers to readers. Layers without a kernel are omitted.

    Args:
        view: the engine.
        colours: the colour of each precision, by its name; others are grey.
    """
    layers = [(index, layer) for index, layer in enumerate(view.layers) if layer.role is not Role.NONE]
    makers: dict[str, int] = {}
    lines = [
        "digraph engine {",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=10];',
    ]
    for index, layer in layers:
        colour = colours.get(layer.precision.value, "#b0b0b0")
        lines.append(
            f'  n{index} [label={dot_string(_label(layer))}, fillcolor="{colour}40", color="{colour}"];'
        )
        makers.update({tensor.name: index for tensor in layer.outputs})
    through = _map_passed(view)
    for index, layer in layers:
        for tensor in layer.inputs:
            maker = _maker(tensor.name, makers, through)
            if maker is not None:
                label = f"{brief(tensor)} {short(tensor.format)}".strip()
                lines.append(f"  n{maker} -> n{index} [label={dot_string(label)}, fontsize=8];")
    lines += [*_ports(view.bindings, makers, layers), "}"]
    return "\n".join(lines) + "\n"


def _map_passed(view: EngineView) -> dict[str, str]:
    """Map each output of a layer without a kernel to the layer's first input, which has the same values."""
    return {
        out.name: layer.inputs[0].name
        for layer in view.layers
        if layer.role is Role.NONE and layer.inputs
        for out in layer.outputs
    }


def _maker(name: str, makers: Mapping[str, int], through: Mapping[str, str]) -> int | None:
    """Return the number of the kernel that writes a tensor, looking through layers without a kernel."""
    visited: set[str] = set()
    while name not in makers and name in through and name not in visited:
        visited.add(name)
        name = through[name]
    return makers.get(name)


def _ports(
    bindings: tuple[EngineTensor, ...], makers: Mapping[str, int], layers: list[tuple[int, LayerView]]
) -> list[str]:
    """Return the DOT lines for the engine's own inputs and outputs."""
    lines = []
    for number, binding in enumerate(bindings):
        lines.append(f"  io{number} [label={dot_string(binding.name)}, shape=ellipse, fillcolor=white];")
        if binding.name in makers:
            lines.append(f"  n{makers[binding.name]} -> io{number};")
        readers = [
            index for index, layer in layers if any(tensor.name == binding.name for tensor in layer.inputs)
        ]
        lines += [f"  io{number} -> n{index};" for index in readers if binding.name not in makers]
    return lines


def _label(layer: LayerView) -> str:
    measured = [f"{layer.ms:.4f} ms"] if layer.ms is not None else []
    size = [f"{layer.bytes:,} B"] if layer.bytes is not None else []
    name = layer.name if len(layer.name) <= 48 else f"{layer.name[:24]}...{layer.name[-20:]}"
    return "\n".join([name, " ".join([layer.kind, str(layer.precision), *measured, *size])])
