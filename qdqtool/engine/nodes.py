"""What an engine says of every ONNX node: its layer, precision, time and bytes."""

from __future__ import annotations

from qdqtool.core.engine import Engine
from qdqtool.core.explore import EngineView
from qdqtool.trt.join import join


def node_facts(engine: Engine, view: EngineView, nodes: frozenset[str]) -> dict[str, dict[str, str]]:
    """Facts by node name, as text; nodes that no layer names are left out.

    A node that a compute layer holds gets that layer's precision; the time and the bytes are those of all layers that
    hold it, which several nodes may share.
    """
    found: dict[str, dict[str, str]] = {}
    views = {id(layer): seen for layer, seen in zip(engine.layers, view.layers, strict=True)}
    for node, holders in join(engine, nodes).items():
        layers = holders.compute or holders.other
        if not layers:
            continue
        seen = [views[id(layer)] for layer in layers]
        times = [layer.ms for layer in seen if layer.ms is not None]
        sizes = [layer.bytes for layer in seen if layer.bytes is not None]
        facts = {
            "engine.layer": " | ".join(layer.name for layer in layers),
            "engine.precision": " | ".join(dict.fromkeys(str(layer.precision) for layer in layers)),
            "engine.certainty": holders.certainty.value,
        }
        facts |= {"engine.ms": f"{sum(times):.6g}"} if times else {}
        facts |= {"engine.bytes": str(sum(sizes))} if sizes else {}
        found[node] = facts
    return found
