"""Joins a builder's log to the layers of its engine: Q/DQ nodes, optimizer events and kernel searches per layer.

Log and layer information name equal things in different words. The log names `Conv_10 + Relu_11` before the weights
are fused, and the engine names the layer `conv1.weight + QuantizeLinear_8 + Conv_10 + Relu_11`. Names are split and
compared piece by piece. For a Q that was merged into an equal one, or split over the inputs of a Concat, the result
follows the equal one or the clones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from qdqtool.core.buildlog import Histories, LayerHistory, LayerTuning, LogRun, MyelinTuning
from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.events import End, EventKind, LedgerRow, OptimizerEvent
from qdqtool.core.wording import count_noun
from qdqtool.trt.names import normalize_name, parts, stem

_NO_EFFECT = frozenset({EventKind.ATTEMPT, EventKind.BANNER, EventKind.LAYERS})
_HOPS = 8
"""Largest number of replacements to follow, such as twins of twins."""


def histories(engine: Engine, run: LogRun) -> Histories:
    """Collect what `run` reports about each layer of `engine`. If the log is from another engine, add a note."""
    places = _Places(engine.layers)
    rows = {row.node: row for row in run.ledger}
    fates = {node: _fate(row, rows, places) for node, row in rows.items()}
    events = _events(run.events, places, fates)
    qdq: dict[int, list[str]] = defaultdict(list)
    for node, layers_of_node in fates.items():
        for place in layers_of_node:
            qdq[place].append(node)
    tuned = {row.layer: row for row in reversed(run.tuning.layers)}
    myelin: dict[str, list[MyelinTuning]] = defaultdict(list)
    for search in run.tuning.myelin:
        myelin[stem(search.op)].append(search)
    return Histories(
        layers=tuple(
            LayerHistory(
                qdq=tuple(qdq.get(place, ())),
                events=tuple(events.get(place, ())),
                tuning=tuned.get(layer.name) or tuned.get(normalize_name(layer.name)),
                myelin=tuple(myelin.get(stem(layer.name), ())),
            )
            for place, layer in enumerate(engine.layers)
        ),
        unplaced=tuple(
            node for node, layers_of_node in fates.items() if not layers_of_node and not rows[node].clone_of
        ),
        notes=_notes(engine, run, places),
    )


def fate_words(row: LedgerRow) -> str:
    """Describe what became of a Q or DQ node, with the line numbers of the log."""
    several = "s" if len(row.lines) > 1 else ""
    lines = f" (line{several} {', '.join(map(str, row.lines))})" if row.lines else ""
    return f"{row.kind} {row.node}: {row.end}{f' {row.into}' if row.into else ''}{lines}"


def event_words(event: OptimizerEvent) -> str:
    """Describe an optimizer event, with its line number in the log."""
    by = f" by {event.pass_name}" if event.pass_name else ""
    into = f" -> {event.into}" if event.into else ""
    return f"line {event.line}: {event.kind}{by}: {', '.join(event.nodes)}{into}"


def tuning_words(tuning: LayerTuning) -> str:
    """Describe the search for the kernel of a layer."""
    spent = "" if tuning.seconds is None else f" in {tuning.seconds:.3g} s"
    best = "" if tuning.fastest_ms is None else f", fastest {tuning.fastest_ms:.4g} ms ({tuning.runner})"
    chosen = "" if tuning.chosen_ms is None else f", chosen {tuning.chosen} {tuning.chosen_ms:.4g} ms"
    return f"line {tuning.line}: {count_noun(tuning.candidates, 'kernel')} tried{spent}{best}{chosen}"


def myelin_words(search: MyelinTuning) -> str:
    """Describe the search for a kernel inside a Myelin region."""
    best = "" if search.fastest_ms is None else f" {search.fastest_ms:.4g} ms"
    return f"line {search.line}: {count_noun(search.candidates, 'kernel')} tried for {search.op}, fastest{best} {search.kernel}"


class _Places:
    """An index from names in a log to the layers of an engine."""

    def __init__(self, layers: tuple[EngineLayer, ...]) -> None:
        self._whole: dict[str, list[int]] = defaultdict(list)
        self._parts: dict[str, set[int]] = defaultdict(set)
        self._nodes: dict[str, set[int]] = defaultdict(set)
        for place, layer in enumerate(layers):
            self._whole[normalize_name(layer.name)].append(place)
            # A reformat has the name of the layer for which it reformats, and contains no node of it.
            for part in () if layer.name.startswith("Reformat") else parts(layer.name):
                self._parts[part].add(place)
            for node in layer.onnx_nodes:
                self._nodes[node].add(place)

    def of(self, name: str) -> tuple[int, ...]:
        """Return the layers with this name; else the layers with all its parts; else the layers with these ONNX nodes."""
        if not name:
            return ()
        whole = self._whole.get(normalize_name(name))
        if whole:
            return tuple(whole)
        pieces = parts(name)
        for index in (self._parts, self._nodes):
            matches = [index[piece] for piece in pieces if piece in index]
            common = set.intersection(*matches) if matches else set()
            if common:
                return tuple(sorted(common))
        return ()

    def __contains__(self, name: str) -> bool:
        return bool(self.of(name))


def _fate(row: LedgerRow, rows: dict[str, LedgerRow], places: _Places) -> tuple[int, ...]:
    """Return the layers in which a Q or DQ node ended."""
    met = {row.node}
    waiting = [row]
    for _ in range(_HOPS):
        layers = {place for met_row in waiting for place in _here(met_row, places)}
        if layers:
            return tuple(sorted(layers))
        names = {name for met_row in waiting for name in _stand_ins(met_row, rows)} - met
        met |= names
        waiting = [rows[name] for name in sorted(names)]
        if not waiting:
            break
    return ()


def _here(row: LedgerRow, places: _Places) -> tuple[int, ...]:
    """Return the layers that contain a node; empty if other nodes replaced it."""
    if row.end in {End.MERGED, End.SPLIT, End.CANCELLED}:
        return ()
    return places.of(row.into) or places.of(row.node)


def _stand_ins(row: LedgerRow, rows: dict[str, LedgerRow]) -> list[str]:
    """Return the nodes that replaced a Q or DQ: its clones, or its partner in a merge or cancellation."""
    if row.end is End.SPLIT:
        return [clone.node for clone in rows.values() if clone.clone_of == row.node]
    return [row.into] if row.into in rows else []


def _events(
    events: Iterable[OptimizerEvent], places: _Places, fates: dict[str, tuple[int, ...]]
) -> dict[int, list[OptimizerEvent]]:
    """Group the optimizer's events by the layers that contain their nodes."""
    by_layer: dict[int, list[OptimizerEvent]] = defaultdict(list)
    for event in events:
        if event.kind in _NO_EFFECT:
            continue
        names = [name for name in (*event.nodes, event.into) if name]
        for place in sorted({place for name in names for place in fates.get(name) or places.of(name)}):
            by_layer[place].append(event)
    return by_layer


def _notes(engine: Engine, run: LogRun, places: _Places) -> tuple[str, ...]:
    """Return a note if the log describes no layers, or if it belongs to a different engine."""
    named = {layer.name for layer in run.engine_layers} or {row.layer for row in run.tuning.layers}
    shared = sum(name in places for name in named)
    if not (named or run.ledger or run.events or run.tuning.layers or run.tuning.myelin):
        return ("the log has no information about layers; use the log of a build with --verbose",)
    if not named:
        return ("the log does not name the layers of its engine, so it cannot be compared with this engine",)
    if engine.layers and 2 * shared < len(named):
        share = f"{shared} of the {count_noun(len(named), 'layer')} it names are among the {count_noun(len(engine.layers), 'layer')} of this engine"
        return (f"the log belongs to another engine: {share}",)
    return ()
