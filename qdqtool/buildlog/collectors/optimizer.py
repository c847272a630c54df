"""Attempts and effects of the graph optimizer, as a log prints them."""

from __future__ import annotations

from collections.abc import Callable

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.records import LoggedNames
from qdqtool.core.buildlog import FunnelStep
from qdqtool.core.events import EventKind, OptimizerEvent, PassCount

RecordedEvent = tuple[int, EventKind, str, str, str, str]
"""Line, kind, pass, text that names nodes, into, detail."""
ResolvedEvent = tuple[int, EventKind, str, tuple[str, ...], str, str]
"""A recorded event with separated node names, before it becomes an `OptimizerEvent`."""


class OptimizerCollector:
    """Keeps every message of the graph optimizer in order."""

    def __init__(self) -> None:
        self._recorded: list[RecordedEvent] = []
        self.funnel: list[FunnelStep] = []

    def __len__(self) -> int:
        return len(self._recorded) + len(self.funnel)

    def handlers(self) -> dict[str, Handler]:
        return {
            "attempt": self._attempt,
            "attempt-unnamed": lambda line, name: self._attempt(line, name, ""),
            "fused": lambda line, name, nodes: self._say(line, EventKind.FUSED, name, nodes),
            "fused-unnamed": lambda line, nodes: self._say(line, EventKind.FUSED, "", nodes),
            "quantize-into": lambda line, name, nodes, into: self._say(
                line, EventKind.QUANTIZED, name, nodes, into
            ),
            "swapped": lambda line, nodes: self._say(line, EventKind.SWAPPED, "", nodes),
            "squeeze-case": self._squeeze_layer,
            "duplicate": self._duplicate,
            "removed": self._remove_node,
            "layer-converted": self._retype_node,
            "layer-swapped": self._retype_node,
            "merged": lambda line, nodes: self._say(line, EventKind.MERGED, "", nodes),
            "slice-retargeted": lambda line, node, text: self._say(line, EventKind.SLICE, "", node, "", text),
            "slice-copied": lambda line, node, text: self._say(line, EventKind.COPIED, "", node, "", text),
            "concat-gone": lambda line, node: self._say(line, EventKind.CONCAT, "", node),
            "retargeted": lambda line, text: self._say(line, EventKind.RETARGETED, "", text),
            "copy-made": lambda line, text, reason: self._say(line, EventKind.COPIED, "", text, "", reason),
            "split-constant": lambda line, nodes: self._say(line, EventKind.SPLIT, "ConstantSplit", nodes),
            "qdq-banner": lambda line, step: self._say(
                line, EventKind.BANNER, "", "", "", step.removeprefix("- ")
            ),
            "qdq-optimization": lambda line: self._say(
                line, EventKind.BANNER, "", "", "", "optimization pass"
            ),
            "layers-original": lambda line, layers: self._layers(line, "original", layers),
            "layers-after": self._layers,
        }

    def resolved(self, names: LoggedNames) -> list[ResolvedEvent]:
        """Return the optimizer's messages in order, with joined node names separated."""
        events: list[ResolvedEvent] = []
        for line, kind, name, text, into, detail in self._recorded:
            split = _SPLIT.get(kind)
            if split is None:
                events.append((line, kind, name, (text,) if text else (), into, detail))
                continue
            nodes, result = split(names, text)
            events.append((line, kind, name, nodes, into or result, detail))
            if result:
                names.add(result)
        return events

    def _say(
        self, line: int, kind: EventKind, name: str, nodes: str, into: str = "", detail: str = ""
    ) -> None:
        self._recorded.append((line, kind, name, nodes, into, detail))

    def _attempt(self, line: int, name: str, node: str) -> None:
        self._recorded.append((line, EventKind.ATTEMPT, name, node, "", ""))

    def _remove_node(self, line: int, node: str) -> None:
        self._recorded.append((line, EventKind.REMOVED, "", node, "", ""))

    def _duplicate(self, line: int, node: str, _kind: str, original: str) -> None:
        self._recorded.append((line, EventKind.DUPLICATE, "", node, original, ""))

    def _squeeze_layer(self, line: int, case: str, source: str, squeeze: str, reader: str) -> None:
        """Record that a Squeeze swaps with the layer that reads it. Releases up to 8.0 print only this."""
        name = f"SqueezePushDown{case.removeprefix('kSQUEEZE_').capitalize()}"
        self._say(line, EventKind.SWAPPED, name, f"{squeeze} with {reader}", "", f"after {source}")

    def _retype_node(self, line: int, node: str, before: str, after: str) -> None:
        self._recorded.append((line, EventKind.RETYPED, "", node, "", f"{before} -> {after}"))

    def _layers(self, line: int, stage: str, layers: int) -> None:
        self.funnel.append(FunnelStep(stage=stage, layers=layers, line=line))
        self._recorded.append((line, EventKind.LAYERS, "", "", stage, str(layers)))


def _read_fused(names: LoggedNames, text: str) -> tuple[tuple[str, ...], str]:
    first, second = names.split(text, " with ")
    if not second:
        return (first,), ""
    return (first, second), f"{first} + {second}"


def _read_swapped(names: LoggedNames, text: str) -> tuple[tuple[str, ...], str]:
    first, second = names.split(text, " with ")
    return ((first, second) if second else (first,)), ""


def _read_quantized(names: LoggedNames, text: str) -> tuple[tuple[str, ...], str]:
    if text.startswith("(") and text.endswith(")") and " and " in text:
        first, second = names.split(text[1:-1], " and ")
        return (first, second), ""
    return (text,), ""


def _read_merged(_names: LoggedNames, text: str) -> tuple[tuple[str, ...], str]:
    return tuple(text.split(" || ")), text


def _read_moved(names: LoggedNames, text: str) -> tuple[tuple[str, ...], str]:
    first, second = names.split(text, " to ")
    return ((first,) if first else ()), second


_SPLIT: dict[EventKind, Callable[[LoggedNames, str], tuple[tuple[str, ...], str]]] = {
    EventKind.FUSED: _read_fused,
    EventKind.SWAPPED: _read_swapped,
    EventKind.QUANTIZED: _read_quantized,
    EventKind.MERGED: _read_merged,
    EventKind.RETARGETED: _read_moved,
    EventKind.COPIED: _read_moved,
}


_EFFECTS = frozenset(
    {
        EventKind.FUSED,
        EventKind.QUANTIZED,
        EventKind.SWAPPED,
        EventKind.DUPLICATE,
        EventKind.REMOVED,
        EventKind.RETYPED,
        EventKind.SPLIT,
    }
)


_SWAPPING = ("Swap", "PushDown", "QuantizeConvWithResidualAdd")
"""Parts of the names of passes that print swaps. Another attempt directly before a swap means that lines were cut."""


def events_of(events: list[ResolvedEvent]) -> tuple[OptimizerEvent, ...]:
    """Return the optimizer messages as `OptimizerEvent` values."""
    return tuple(
        OptimizerEvent(line=line, kind=kind, pass_name=name, nodes=nodes, into=into, detail=detail)
        for line, kind, name, nodes, into, detail in events
    )


def count_passes(events: list[ResolvedEvent], silent: frozenset[int]) -> dict[str, PassCount]:
    """Count attempts and effects of every optimizer pass.

    An effect line without a pass name belongs to the attempt before it, up to the next attempt, banner or count.

    Args:
        events: everything a run's optimizer said.
        silent: lines of attempts that had an effect without printing it (a Q split over a Concat leaves its clones).
    """
    attempts: dict[str, int] = {}
    effects: dict[str, int] = {}
    first: dict[str, int] = {}
    current = ""
    done: set[str] = set()
    for line, kind, name, _, _, _ in events:
        if kind is EventKind.ATTEMPT:
            attempts[name] = attempts.get(name, 0) + 1
            first.setdefault(name, line)
            current, done = name, set()
            if line in silent:
                effects[name] = effects.get(name, 0) + 1
        elif kind in _EFFECTS:
            swapped = kind is EventKind.SWAPPED and not any(part in current for part in _SWAPPING)
            credited = {name} if swapped else {name or current, current}
            for credit in credited - {""} - done:
                done.add(credit)
                effects[credit] = effects.get(credit, 0) + 1
                first.setdefault(credit, line)
            if not current:
                done = set()
        elif kind is EventKind.BANNER or kind is EventKind.LAYERS:
            current, done = "", set()
    return {
        name: PassCount(attempts=attempts.get(name, 0), effects=effects.get(name, 0), first_line=line)
        for name, line in sorted(first.items(), key=lambda item: item[1])
    }
