"""The engine graph in Graphviz' DOT language: boxes coloured by precision, formats on the edges."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.core.engine import EngineTensor, Role
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.engine.layer_table import brief
from qdqtool.io.escaping import dot_string
from qdqtool.trt.tensor_formats import short


def dot(view: EngineView, colours: Mapping[str, str]) -> str:
    """Write one box per kernel and one edge per tensor from its writer to its readers. Layers without a kernel are left out.

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
    """Map each output of a layer without a kernel to the input that it passes on."""
    return {
        out.name: layer.inputs[0].name
        for layer in view.layers
        if layer.role is Role.NONE and layer.inputs
        for out in layer.outputs
    }


def _maker(name: str, makers: Mapping[str, int], through: Mapping[str, str]) -> int | None:
    """Return the kernel that writes a tensor, skipping layers without a kernel."""
    visited: set[str] = set()
    while name not in makers and name in through and name not in visited:
        visited.add(name)
        name = through[name]
    return makers.get(name)


def _ports(
    bindings: tuple[EngineTensor, ...], makers: Mapping[str, int], layers: list[tuple[int, LayerView]]
) -> list[str]:
    """Return the lines for the engine's own inputs and outputs."""
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
