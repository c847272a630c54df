"""The ledger: what became of every Q and DQ node, step by step, from the optimizer's own words.

Each event adds a step to the rows it names, and most steps settle a row's end:

    ConstWeightsQuantizeFusion: Fusing W with Q      Q becomes part of the weight ...
    ConstWeightsFusion: Fusing W + Q with N          ... which becomes part of N
    X: fusing Q into N                               Q is the output of N
    X: fusing (DQ and DQ) into N                     DQ are inputs of N: the activation's and the weight's
    Swapping M with Q                                Q moved through M and goes on
    Eliminating Q which duplicates (Q) P             P stands for Q
    Running: SplitQAcrossPrecedingFanIn on C         Q behind the Concat C became a clone above each of its inputs
    Running: DqQFusion on DQ                         DQ met the Q behind it
    Swap the layer type of Q from QUANTIZE to kQDQ   Q stays, as a kernel of its own
    Removing DQ, while a pass works on N             the pass took DQ into N

What the events leave open, the finished engine may answer: a layer of that name, a layer whose name or metadata holds
it, a Myelin region that was told to hold it.
"""

from __future__ import annotations

import re

from qdqtool.buildlog.graph import Graph
from qdqtool.buildlog.names import Names
from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import End, EventKind, LedgerRow, LedgerStep, LedgerSummary, OptimizerEvent

_CLONE = re.compile(r"(?P<base>.+)_clone_(?P<number>\d{1,6})")
_FOLD, _SPLIT = "ConstQDQInitializersFusion", "SplitQAcrossPrecedingFanIn"
_CANCEL, _QUANTIZE_WEIGHT = "DqQFusion", "ConstWeightsQuantizeFusion"
_OPEN = frozenset({End.UNKNOWN, End.MOVED})
_WEIGHT_FOLDED = "became part of a weight, quantized at build time"


class Ledger:
    """Rows of one run; `read` the events, then `settle` with the finished engine.

    Attributes:
        effective: lines of attempts that print no effect of their own, and had one.
    """

    def __init__(self, graph: Graph, names: Names) -> None:
        self._graph = graph
        self._names = names
        self._rows: dict[str, _Row] = {}
        self._attempt: OptimizerEvent | None = None
        self._splits: list[OptimizerEvent] = []
        self.effective: set[int] = set()
        for node in graph.qdq:
            self._rows[node.name] = _Row(node.name, "Q" if node.op == "QuantizeLinear" else "DQ")

    def read(self, events: tuple[OptimizerEvent, ...]) -> None:
        """Write the events' steps into the rows."""
        for event in events:
            write = _WRITERS.get(event.kind)
            if write is not None:
                write(self, event)
        for event in self._splits:
            self._split(event)

    def settle(
        self, layers: tuple[EngineLayer, ...], regions: dict[str, tuple[str, ...]]
    ) -> tuple[LedgerRow, ...]:
        """All rows with their ends.

        Args:
            layers: the finished engine, as far as the log prints it.
            regions: Myelin region -> ONNX nodes that it was told to hold.
        """
        owners = _owners(layers, regions, self._names)
        for row in self._rows.values():
            if row.end in _OPEN:
                owner = owners.get(row.node)
                if owner is not None:
                    row.finish(*owner)
        return tuple(row.value() for row in self._rows.values())

    def _attempted(self, event: OptimizerEvent) -> None:
        self._attempt = event
        node = event.nodes[0] if event.nodes else ""
        if event.pass_name == _FOLD:
            self._row(node, _kind_by_name(node)).step(event.line, "scale and zero point became constants")
        elif event.pass_name == _SPLIT:
            self._splits.append(event)
        elif event.pass_name == _CANCEL:
            self.effective.add(event.line)
            row = self._row(node, "DQ")
            row.step(event.line, "met the Q behind it")
            row.finish(End.CANCELLED, self._graph.quantizer_behind(node))

    def _fused(self, event: OptimizerEvent) -> None:
        if len(event.nodes) < 2:
            return
        first, second = event.nodes
        if event.pass_name == _QUANTIZE_WEIGHT:
            row = self._row(second, "Q")
            row.step(event.line, _WEIGHT_FOLDED)
            row.finish(End.FOLDED, first)
            return
        for part in self._names.parts(first):
            folded = self._rows.get(part)
            if folded is not None and folded.end is End.FOLDED:
                folded.step(event.line, f"the weight became part of {second} ({event.pass_name})")
                folded.finish(End.WEIGHT, second)

    def _quantized(self, event: OptimizerEvent) -> None:
        for place, node in enumerate(event.nodes):
            kind = "DQ" if len(event.nodes) > 1 else _kind_by_name(node)
            row = self._row(node, kind)
            end = self._side(row, place)
            row.step(event.line, f"{end} of {event.into} ({event.pass_name})")
            row.finish(end, event.into)

    def _side(self, row: _Row, place: int) -> End:
        """Which side of its compute node a fused Q or DQ is."""
        if row.kind == "Q":
            return End.OUTPUT
        weight = self._graph.is_weight(row.node)
        if weight is None:
            weight = place == 1
        return End.WEIGHT if weight else End.INPUT

    def _swapped(self, event: OptimizerEvent) -> None:
        for node, other in zip(event.nodes, reversed(event.nodes), strict=True):
            if node in self._rows or _looks_quantizing(node):
                row = self._row(node, _kind_by_name(node))
                row.step(event.line, f"moved through {other}")
                if row.end in _OPEN:
                    row.finish(End.MOVED, other)

    def _duplicate(self, event: OptimizerEvent) -> None:
        row = self._row(event.nodes[0], "Q")
        row.step(event.line, f"merged into its duplicate {event.into}")
        row.finish(End.MERGED, event.into)

    def _removed(self, event: OptimizerEvent) -> None:
        row = self._rows.get(event.nodes[0])
        if row is None:
            return
        row.step(event.line, "removed")
        if row.end in _OPEN and self._attempt is not None and self._attempt.nodes:
            into, name = self._attempt.nodes[0], self._attempt.pass_name
            if name.startswith("Const"):
                row.finish(End.FOLDED, "")
            else:
                end = self._side(row, 0)
                row.step(event.line, f"{end} of {into} ({name})")
                row.finish(end, into)

    def _retyped(self, event: OptimizerEvent) -> None:
        if not event.detail.endswith("kQDQ"):
            return
        node = event.nodes[0]
        row = self._row(node, "DQ" if event.detail.startswith("DEQUANTIZE") else "Q")
        row.step(event.line, "left as a kernel of its own (QDQToCopy)")
        row.finish(End.COPY, node)

    def _split(self, event: OptimizerEvent) -> None:
        """Find whom a split attempt split: the Q behind that Concat, or one that has clones."""
        concat = event.nodes[0] if event.nodes else ""
        for parent in self._graph.quantizers_of_output(concat):
            row = self._rows.get(parent)
            if row is None or row.end not in _OPEN:
                continue
            self.effective.add(event.line)
            row.step(event.line, f"split over {concat}")
            row.finish(End.SPLIT, concat)
            self._add_clones(row, event, concat)

    def _add_clones(self, parent: _Row, event: OptimizerEvent, concat: str) -> None:
        for number, source in enumerate(self._graph.producers_of_inputs(concat)):
            clone = self._row(f"{parent.node}_clone_{number}", "Q")
            clone.step(event.line, f"made from {parent.node} above {concat}")
            met = self._rows.get(source)
            if clone.end in _OPEN and met is not None and met.end is End.CANCELLED:
                clone.step(met.steps[-1].line, f"met {met.node}")
                clone.finish(End.CANCELLED, met.node)
                met.finish(End.CANCELLED, clone.node)

    def _row(self, node: str, kind: str) -> _Row:
        row = self._rows.get(node)
        if row is not None:
            return row
        found = _CLONE.fullmatch(node)
        base = found["base"] if found else ""
        row = self._rows[node] = _Row(node, kind, clone_of=base)
        parent = self._rows.get(base)
        if parent is not None:
            row.kind = parent.kind
        return row


class _Row:
    """A row while it is written."""

    __slots__ = ("clone_of", "end", "into", "kind", "node", "steps")

    def __init__(self, node: str, kind: str, clone_of: str = "") -> None:
        self.node = node
        self.kind = kind
        self.clone_of = clone_of
        self.end = End.UNKNOWN
        self.into = ""
        self.steps: list[LedgerStep] = []

    def step(self, line: int, what: str) -> None:
        self.steps.append(LedgerStep(line=line, what=what))

    def finish(self, end: End, into: str) -> None:
        self.end, self.into = end, into

    def value(self) -> LedgerRow:
        steps = tuple(sorted(self.steps, key=lambda step: step.line))
        return LedgerRow(
            node=self.node,
            kind=self.kind,
            end=self.end,
            into=self.into,
            lines=tuple(dict.fromkeys(step.line for step in steps)),
            steps=steps,
            clone_of=self.clone_of,
        )


_WRITERS = {
    EventKind.ATTEMPT: Ledger._attempted,  # noqa: SLF001 -- its own methods, by kind of event
    EventKind.FUSED: Ledger._fused,  # noqa: SLF001
    EventKind.QUANTIZED: Ledger._quantized,  # noqa: SLF001
    EventKind.SWAPPED: Ledger._swapped,  # noqa: SLF001
    EventKind.DUPLICATE: Ledger._duplicate,  # noqa: SLF001
    EventKind.REMOVED: Ledger._removed,  # noqa: SLF001
    EventKind.RETYPED: Ledger._retyped,  # noqa: SLF001
}


def summarize(rows: tuple[LedgerRow, ...]) -> LedgerSummary:
    """The ledger counted; clones are counted apart from the nodes of the model."""
    model = [row for row in rows if not row.clone_of]
    ends: dict[str, int] = {}
    for row in rows:
        ends[str(row.end)] = ends.get(str(row.end), 0) + 1
    return LedgerSummary(
        q=sum(row.kind == "Q" for row in model),
        dq=sum(row.kind == "DQ" for row in model),
        clones=len(rows) - len(model),
        ends=dict(sorted(ends.items())),
        accounted=sum(row.end is not End.UNKNOWN for row in model),
    )


def _owners(
    layers: tuple[EngineLayer, ...], regions: dict[str, tuple[str, ...]], names: Names
) -> dict[str, tuple[End, str]]:
    """Node -> what the finished engine says of it; weaker statements first, so that stronger ones replace them."""
    owners: dict[str, tuple[End, str]] = {}
    for region, nodes in regions.items():
        owners.update(dict.fromkeys(nodes, (End.KERNEL, region)))
    for layer in layers:
        owners.update(dict.fromkeys(layer.onnx_nodes, (End.KERNEL, layer.name)))
    for layer in layers:
        parts = names.parts(layer.name)
        if len(parts) > 1:
            owners.update({part: (End.WEIGHT, layer.name) for part in parts if _looks_quantizing(part)})
    for layer in layers:
        owners[layer.name] = (End.COPY, layer.name)
    return owners


def _kind_by_name(node: str) -> str:
    return "DQ" if "dequant" in node.lower() else "Q"


def _looks_quantizing(node: str) -> bool:
    return "quantizelinear" in node.lower()
