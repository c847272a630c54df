"""The ledger: what became of every Q and DQ node, step by step, from the optimizer's messages.

Each event adds a step to the rows it names, and most steps settle a row's end:

    ConstWeightsQuantizeFusion: Fusing W with Q      Q becomes part of the weight ...
    ConstWeightsFusion: Fusing W + Q with N          ... which becomes part of N
    X: fusing Q into N                               Q is the output of N
    X: fusing (DQ and DQ) into N                     DQ are inputs of N: the activation's and the weight's
    Swapping M with Q                                Q moved through M and moves further
    Eliminating Q which duplicates (Q) P             P replaces Q
    Running: SplitQAcrossPrecedingFanIn on C         Q after the Concat C became a clone at each of its inputs
    Running: DqQFusion on DQ                         DQ cancelled with the Q after it
    Swap the layer type of Q from QUANTIZE to kQDQ   Q stays, as a kernel of its own
    Removing DQ, while a pass works on N             the pass took DQ into N

If the events do not show how a node ended, the finished engine may: a layer with this name, a layer whose name or metadata
contains the name, or a Myelin region that lists it.
"""

from __future__ import annotations

from collections import Counter

from qdqtool.buildlog.collectors.optimizer import ResolvedEvent
from qdqtool.buildlog.records import Graph, LoggedLayer, LoggedNames, Region
from qdqtool.core.events import End, EventKind, LedgerRow, LedgerStep, LedgerSummary

_FOLD, _SPLIT = "ConstQDQInitializersFusion", "SplitQAcrossPrecedingFanIn"
_CANCEL, _QUANTIZE_WEIGHT, _FUSE_WEIGHT = "DqQFusion", "ConstWeightsQuantizeFusion", "ConstWeightsFusion"
_OPEN = frozenset({End.UNKNOWN, End.MOVED})
_WEIGHT_FOLDED = "became part of a weight, quantized at build time"


class Row:
    """The history of one Q or DQ node while a log is read; `LedgerRow` is the finished history."""

    __slots__ = ("clone_of", "end", "into", "kind", "node", "steps")

    def __init__(self, node: str, kind: str, clone_of: str = "") -> None:
        self.node = node
        self.kind = kind
        self.clone_of = clone_of
        self.end = End.UNKNOWN
        self.into = ""
        self.steps: list[tuple[int, str]] = []

    @property
    def lines(self) -> list[int]:
        """Log lines of all steps of a Q or DQ node, each once, in order."""
        return sorted({line for line, _ in self.steps})

    def take(self, line: int, step: str, end: End, into: str) -> None:
        """Record a step that decides what becomes of a Q or DQ node."""
        self.steps.append((line, step))
        self.end, self.into = end, into

    def value(self) -> LedgerRow:
        """Return the history of one Q or DQ node after the log was read."""
        return LedgerRow(
            node=self.node,
            kind=self.kind,
            end=self.end,
            into=self.into,
            lines=tuple(self.lines),
            steps=tuple(LedgerStep(line=line, what=step) for line, step in sorted(self.steps)),
            clone_of=self.clone_of,
        )


class Ledger:
    """Histories of the Q and DQ nodes of a run: call `read` with all optimizer events, then `settle`.

    Attributes:
        rows: node -> row, the model's nodes first, in its order.
        effective: lines of attempts that print no effect, but had one.
    """

    def __init__(self, graph: Graph, names: LoggedNames) -> None:
        self._graph = graph
        self._names = names
        self._attempt: tuple[str, str] = ("", "")
        self._splits: list[tuple[int, str]] = []
        self.effective: set[int] = set()
        self.rows: dict[str, Row] = {
            name: Row(name, "Q" if op == "QuantizeLinear" else "DQ") for name, op in graph.qdq
        }

    def read(self, events: list[ResolvedEvent]) -> None:
        """Add the steps that optimizer events report to the histories of Q and DQ nodes."""
        for event in events:
            write = _WRITERS.get(event[1])
            if write is not None and event[3]:
                write(self, event)
        for line, concat in self._splits:
            self._split(line, concat)

    def settle(self, layers: tuple[LoggedLayer, ...], regions: list[Region]) -> None:
        """Look up Q and DQ nodes with an unknown end in the finished engine.

        Args:
            layers: the finished engine, as far as the log prints it.
            regions: Myelin regions whose nodes the log states.
        """
        waiting = [row for row in self.rows.values() if row.end in _OPEN]
        if not waiting:
            return
        owners = _owners(layers, regions, self._names)
        for row in waiting:
            owner = owners.get(row.node)
            if owner is not None:
                end, into, line = owner
                row.take(line, f"{end.value}: {into}", end, into)

    def summary(self) -> LedgerSummary | None:
        """Count what became of the Q and DQ nodes, clones separately; None if there are none."""
        if not self.rows:
            return None
        model = [row for row in self.rows.values() if not row.clone_of]
        ends = Counter(row.end.value for row in self.rows.values())
        return LedgerSummary(
            q=sum(row.kind == "Q" for row in model),
            dq=sum(row.kind == "DQ" for row in model),
            clones=len(self.rows) - len(model),
            ends=dict(sorted(ends.items())),
            accounted=sum(row.end is not End.UNKNOWN for row in model),
        )

    def attempted(self, event: ResolvedEvent) -> None:
        """Record the log line `Running: X on Y`."""
        line, _, name, (node, *_), _, _ = event
        self._attempt = (name, node)
        if name == _FOLD:
            self._row(node, _kind_by_name(node)).steps.append((line, "scale and zero point became constants"))
        elif name == _SPLIT:
            self._splits.append((line, node))
        elif name == _CANCEL:
            self.effective.add(line)
            behind = self._graph.quantizer_behind(node)
            self._row(node, "DQ").take(line, "cancelled with the Q after it", End.CANCELLED, behind)

    def fused(self, event: ResolvedEvent) -> None:
        """Record a fusion line if it puts a Q into a weight, or a weight with a folded Q into a layer."""
        line, _, name, nodes, _, _ = event
        if len(nodes) < 2:
            return
        first, second = nodes
        if name == _QUANTIZE_WEIGHT:
            self._row(second, "Q").take(line, _WEIGHT_FOLDED, End.FOLDED, first)
        elif name == _FUSE_WEIGHT:
            for part in self._names.parts(first):
                row = self.rows.get(part)
                if row is not None and row.end is End.FOLDED:
                    row.take(line, f"the weight became part of {second}", End.WEIGHT, second)

    def quantized(self, event: ResolvedEvent) -> None:
        """Record the log lines `X: fusing Q into N` and `X: fusing (DQ and DQ) into N`."""
        line, _, name, nodes, into, _ = event
        for place, node in enumerate(nodes):
            row = self._row(node, "DQ" if len(nodes) > 1 else _kind_by_name(node))
            end = self._side(row, place)
            row.take(line, f"{end.value} of {into} ({name})", end, into)

    def swapped(self, event: ResolvedEvent) -> None:
        """Record the log line `Swapping M with Q`."""
        line, _, _, nodes, _, _ = event
        for node, partner in zip(nodes, reversed(nodes), strict=True):
            if node in self.rows or _looks_quantizing(node):
                row = self._row(node, _kind_by_name(node))
                row.steps.append((line, f"moved through {partner}"))
                if row.end in _OPEN:
                    row.end, row.into = End.MOVED, partner

    def duplicate(self, event: ResolvedEvent) -> None:
        """Record the log line `Eliminating Q which duplicates (Q) P`."""
        line, _, _, (node, *_), original, _ = event
        self._row(node, "Q").take(line, f"merged into its duplicate {original}", End.MERGED, original)

    def removed(self, event: ResolvedEvent) -> None:
        """Record the log line `Removing X`; without a stated reason, the current pass has fused X."""
        line, _, _, (node, *_), _, _ = event
        row = self.rows.get(node)
        if row is None:
            return
        row.steps.append((line, "removed"))
        name, into = self._attempt
        if row.end in _OPEN and into:
            end = End.FOLDED if name.startswith("Const") else self._side(row, 0)
            row.take(line, f"{end.value} of {into} ({name})", end, into)

    def retyped(self, event: ResolvedEvent) -> None:
        """Record the log line `Swap the layer type of Q from QUANTIZE to kQDQ`."""
        line, _, _, (node, *_), _, detail = event
        if detail.endswith("kQDQ"):
            row = self._row(node, "DQ" if detail.startswith("DEQUANTIZE") else "Q")
            row.take(line, "remains as a separate kernel", End.COPY, node)

    def _side(self, row: Row, place: int) -> End:
        """Return the side of a compute node into which a Q or DQ was fused: input, weight or output."""
        if row.kind == "Q":
            return End.OUTPUT
        weight = self._graph.is_weight(row.node)
        if weight is None:
            weight = place == 1
        return End.WEIGHT if weight else End.INPUT

    def _split(self, line: int, concat: str) -> None:
        """Record that the Q after a Concat was split, unless it was merged before."""
        for parent in self._graph.quantizers_of_output(concat):
            row = self.rows.get(parent)
            if row is not None and row.end in _OPEN:
                self.effective.add(line)
                row.take(line, f"split over {concat}", End.SPLIT, concat)
                self._add_clones(line, parent, concat)

    def _add_clones(self, line: int, parent: str, concat: str) -> None:
        for number, source in enumerate(self._graph.producers_of_inputs(concat)):
            clone = self._row(f"{parent}_clone_{number}", "Q")
            clone.steps.append((line, f"created from {parent} before {concat}"))
            met = self.rows.get(source)
            if clone.end in _OPEN and met is not None and met.end is End.CANCELLED:
                clone.take(met.steps[-1][0], f"met {source}", End.CANCELLED, source)
                met.into = clone.node

    def _row(self, node: str, kind: str) -> Row:
        row = self.rows.get(node)
        if row is not None:
            return row
        base, is_clone, number = node.rpartition("_clone_")
        parent = self.rows.get(base) if is_clone and number.isdecimal() else None
        row = self.rows[node] = Row(node, parent.kind if parent else kind, base if number.isdecimal() else "")
        return row


_WRITERS = {
    EventKind.ATTEMPT: Ledger.attempted,
    EventKind.FUSED: Ledger.fused,
    EventKind.QUANTIZED: Ledger.quantized,
    EventKind.SWAPPED: Ledger.swapped,
    EventKind.DUPLICATE: Ledger.duplicate,
    EventKind.REMOVED: Ledger.removed,
    EventKind.RETYPED: Ledger.retyped,
}


def _owners(
    layers: tuple[LoggedLayer, ...], regions: list[Region], names: LoggedNames
) -> dict[str, tuple[End, str, int]]:
    """Return where each node ended in the finished engine: how, in which layer, and the log line."""
    owners: dict[str, tuple[End, str, int]] = {}
    for line, region, nodes in regions:
        owners.update(dict.fromkeys(nodes, (End.KERNEL, region, line)))
    for layer in layers:
        owners.update(dict.fromkeys(layer.onnx_nodes, (End.KERNEL, layer.name, layer.line)))
    for layer in layers:
        parts = names.parts(layer.name)
        if len(parts) > 1:
            inside = (End.WEIGHT, layer.name, layer.line)
            owners.update({part: inside for part in parts if _looks_quantizing(part)})
    for layer in layers:
        owners[layer.name] = (End.COPY, layer.name, layer.line)
    return owners


def _kind_by_name(node: str) -> str:
    return "DQ" if "dequant" in node.lower() else "Q"


def _looks_quantizing(node: str) -> bool:
    return "quantizelinear" in node.lower()
