"""Engines and their differences as text."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.buildlog import LayerHistory
from qdqtool.core.difference import EngineDiff, EngineTotals
from qdqtool.core.events import LedgerRow
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.wording import computing_in, count_noun
from qdqtool.engine.layer_table import brief
from qdqtool.trt.histories import event_words, fate_words, myelin_words, tuning_words

# --- engines ---------------------------------------------------------------------------------------------------------


def cell(value: object) -> str:
    """Format a table cell: unknown values as a question mark, numbers in groups of three digits."""
    if value is None:
        return "?"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def summary(view: EngineView, shown: int) -> list[str]:
    """Summarize the layers, and how well the profile and the log match the layers."""
    lines = [
        f"{shown} of {count_noun(len(view.layers), 'layer')}, form {view.form}",
        f"bytes and MACs follow from the recorded shapes and types (cost model {view.cost_model.value})",
    ]
    if view.total_ms is not None:
        lines.append(
            f"{view.total_ms:.4f} ms over all layers (measured; profiling makes an inference slower)"
        )
        lines.append(f"{view.matched:.0%} of the profile's rows matched, {len(view.unmatched_rows)} did not")
    if view.ledger:
        placed = len(view.ledger) - len(view.unplaced)
        lines.append(f"the log: {placed} of {len(view.ledger)} Q and DQ nodes ended in a layer")
    lines += (
        [f"{count_noun(view.unread, 'record was', 'records were')} not understood"] if view.unread else []
    )
    lines += [
        f"unknown type {words!r}: {count_noun(count, 'tensor')}" for words, count in view.unknown_formats
    ]
    return lines


def _int8(totals: EngineTotals) -> int | None:
    """Return the number of compute layers in INT8; None if no precision is known."""
    return totals.int8 if totals.int8 or totals.others or not totals.compute else None


def difference(diff: EngineDiff) -> Iterator[str]:
    """Yield the comparison of two engines as text: figures, the result in a sentence, and the causes."""
    width = 3 + max(12, len(diff.left.name), len(diff.right.name))
    rows: list[tuple[str, object, object]] = [
        ("kernels", diff.left.kernels, diff.right.kernels),
        ("compute", diff.left.compute, diff.right.compute),
        ("of these INT8", _int8(diff.left), _int8(diff.right)),
    ]
    for name in sorted({*diff.left.others, *diff.right.others}):
        counts = (diff.left.others.get(name, 0), diff.right.others.get(name, 0))
        rows.append((computing_in(name).replace("in ", "of these ", 1), *counts))
    rows += [
        ("conversions", diff.left.conversions, diff.right.conversions),
        ("bytes, recorded", diff.left.bytes, diff.right.bytes),
        ("ms, measured", diff.left.ms, diff.right.ms),
    ]
    first = max(16, *(len(title) + 1 for title, _, _ in rows))
    yield f"{'':<{first}}{diff.left.name:>{width}}{diff.right.name:>{width}}"
    for title, ours, theirs in rows:
        yield f"{title:<{first}}{cell(ours):>{width}}{cell(theirs):>{width}}"
    yield _outcome(diff)
    yield from (f"- {cause.text}" for cause in diff.causes)
    yield from (f"note: {note}" for note in diff.notes)


def _outcome(diff: EngineDiff) -> str:
    """Return the comparison in a sentence: which engine is faster, and how many layers got slower."""
    before, after = diff.left.ms, diff.right.ms
    slower = [pair for pair in diff.pairs if (pair.ms or 0.0) > 0]
    aligned = (
        f"{count_noun(len(diff.pairs), 'group of compute layers is', 'groups of compute layers are')} aligned"
    )
    if not before or after is None:
        return f"{aligned}; pass --profile for times"
    change = 100 * (after - before) / before
    words = f"{abs(change):.1f} % {'slower' if change > 0 else 'faster'}"
    return f"{diff.right.name} is {words} than {diff.left.name}; {aligned}, {len(slower)} of them got slower"


# --- layers ----------------------------------------------------------------------------------------------------------
# All facts about one engine layer, in words.


def stories(view: EngineView, layers: tuple[LayerView, ...]) -> Iterator[str]:
    """Yield lines about these layers: name, facts, and in words what the build log says about each."""
    ledger = {row.node: row for row in view.ledger}
    for layer in layers:
        yield layer.name
        yield from (f"    {name:<10} {value}" for name, value in _facts(layer) if value)
        if layer.history:
            yield from (f"    {line}" for line in _history_lines(layer.history, ledger))


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


def _history_lines(history: LayerHistory, ledger: dict[str, LedgerRow]) -> Iterator[str]:
    if history.tuning:
        yield tuning_words(history.tuning)
    yield from map(myelin_words, history.myelin)
    yield from (fate_words(ledger[node]) for node in history.qdq if node in ledger)
    yield from map(event_words, history.events)
