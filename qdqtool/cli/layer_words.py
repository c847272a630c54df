"""Everything that is known of one engine layer, in words."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.events import LedgerRow
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.history import LayerHistory
from qdqtool.engine.layer_table import brief
from qdqtool.trt.histories import event_words, fate_words, myelin_words, tuning_words


def stories(view: EngineView, layers: tuple[LayerView, ...]) -> Iterator[str]:
    """Lines about each of `layers`: facts, then what the log of the build tells of it."""
    ledger = {row.node: row for row in view.ledger}
    for layer in layers:
        yield layer.name
        yield from (f"    {name:<10} {value}" for name, value in _facts(layer) if value)
        if layer.history:
            yield from (f"    {line}" for line in _told(layer.history, ledger))


def _facts(layer: LayerView) -> Iterator[tuple[str, str]]:
    yield "kind", f"{layer.kind}, {layer.role.value}"
    yield "precision", f"{layer.precision} ({layer.certainty.value})"
    yield "nodes", ", ".join(layer.onnx_nodes)
    yield "inputs", ", ".join(f"{tensor.name} {brief(tensor)} {tensor.format}" for tensor in layer.inputs)
    yield "constants", ", ".join(f"{tensor.name} {brief(tensor)}" for tensor in layer.constants)
    yield "outputs", ", ".join(f"{tensor.name} {brief(tensor)} {tensor.format}" for tensor in layer.outputs)
    yield "kernel", layer.tactic
    yield "time", "" if layer.ms is None else f"{layer.ms:.4f} ms{', elided' if layer.elided else ''}"
    yield "bytes", _sizes(layer)
    yield "MACs", "" if layer.macs is None else f"{layer.macs:,}"
    yield "as GEMM", "M={} N={} K={}".format(*layer.gemm) if layer.gemm else ""
    yield "intensity", "" if layer.intensity is None else f"{layer.intensity:.4g} MACs/byte"
    yield "bound by", layer.bound or ""


def _sizes(layer: LayerView) -> str:
    parts = (("in", layer.input_bytes), ("weights", layer.weight_bytes), ("out", layer.output_bytes))
    split = ", ".join(f"{name} {size:,}" for name, size in parts if size)
    return "" if layer.bytes is None else f"{layer.bytes:,} ({split})"


def _told(history: LayerHistory, ledger: dict[str, LedgerRow]) -> Iterator[str]:
    if history.tuning:
        yield tuning_words(history.tuning)
    yield from map(myelin_words, history.myelin)
    yield from (fate_words(ledger[node]) for node in history.qdq if node in ledger)
    yield from map(event_words, history.events)
