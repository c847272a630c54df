"""A run while its log is read: its books, and the value they become."""

from __future__ import annotations

import re
from collections.abc import Callable

from qdqtool.buildlog.books.identity import IdentityBook
from qdqtool.buildlog.books.layers import LayersBook
from qdqtool.buildlog.books.measured import MeasuredBook
from qdqtool.buildlog.books.memory import MemoryBook
from qdqtool.buildlog.books.network import NetworkBook
from qdqtool.buildlog.books.optimizer import OptimizerBook, count_passes
from qdqtool.buildlog.books.options import OptionsBook
from qdqtool.buildlog.books.phases import PhasesBook
from qdqtool.buildlog.books.troubles import TroublesBook
from qdqtool.buildlog.books.tuning import TuningBook
from qdqtool.buildlog.compute import Precisions
from qdqtool.buildlog.grammar import Hear
from qdqtool.buildlog.graph import Graph
from qdqtool.buildlog.ledger import Ledger, summarize
from qdqtool.buildlog.names import Names
from qdqtool.core.buildlog import LogNetwork, LogRun, Unread

KEEP = 96 << 20
"""Bytes that the records of one run may take, estimated; beyond it they are counted and dropped."""
RECORD = 200
"""Bytes that a kept record costs besides its text."""

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_WORDINGS = 2000
_EXAMPLE = 200


class Run:
    """One run being read.

    Args:
        number: 1 for the first run of the log.
        first_line: where it begins.
        candidates: how many timed kernels the log has shown so far.
        now: the time stamp of the line being heard.
    """

    def __init__(
        self, number: int, first_line: int, candidates: Callable[[], int], now: Callable[[], str]
    ) -> None:
        self.number = number
        self.first_line = first_line
        self.lines = 0
        self.blank = 0
        self.unread = 0
        self.clipped = 0
        self.prefixed = False
        self.last_stamp = ""
        self._kept = 0
        self._wordings: dict[str, Unread] = {}
        self.identity = IdentityBook()
        self.options = OptionsBook()
        self.network = NetworkBook()
        self.optimizer = OptimizerBook()
        self.tuning = TuningBook(candidates)
        self.memory = MemoryBook()
        self.layers = LayersBook()
        self.measured = MeasuredBook()
        self.troubles = TroublesBook()
        self.phases = PhasesBook(now)
        self._small = (self.identity, self.options, self.measured, self.phases)
        self._large = (self.network, self.optimizer, self.tuning, self.memory, self.layers)

    def ears(self) -> dict[str, Hear]:
        """Who hears which sentence; a run that is full hears only what takes no room."""
        books = self._small if self.full else (*self._small, *self._large)
        ears: dict[str, Hear] = {}
        for book in books:
            for name, hear in book.ears().items():
                ears[name] = _both(ears[name], hear) if name in ears else hear
        return ears

    @property
    def full(self) -> bool:
        """Whether its records have taken all the memory they may take."""
        return self._kept > KEEP

    def keep(self, records: int, text: int) -> bool:
        """Account for records about to be kept; True when this makes the run full."""
        before = self.full
        self._kept += records * RECORD + text
        if before:
            self.clipped += records
        return self.full and not before

    def miss(self, line: int, body: str) -> None:
        """Count a line that no sentence fits."""
        self.unread += 1
        key = _CHANGING.sub("#", body[:_EXAMPLE])
        known = self._wordings.get(key)
        if known is not None:
            self._wordings[key] = Unread(text=known.text, count=known.count + 1, line=known.line)
        elif len(self._wordings) < _WORDINGS:
            self._wordings[key] = Unread(text=body[:_EXAMPLE], count=1, line=line)

    def value(self) -> LogRun:
        """Everything the run told."""
        network = self.network.finish()
        names = _names(network, self.network.layers)
        events = self.optimizer.events(names)
        layers = self.layers.finish()
        graph = Graph(network)
        ledger = Ledger(graph, names)
        ledger.read(events)
        rows = ledger.settle(layers, self.layers.regions)
        failure = self.troubles.failure()
        status = self.identity.status(failed=failure is not None and not self.identity.generated)
        return LogRun(
            number=self.number,
            front_end=self.identity.front_end,
            version=self.identity.version,
            build=self.identity.build,
            argv=self.identity.argv,
            status=status,
            first_line=self.first_line,
            lines=self.lines,
            blank=self.blank,
            unread=self.unread,
            unread_lines=tuple(sorted(self._wordings.values(), key=lambda one: (-one.count, one.line))),
            clipped=self.clipped,
            failure=failure if status == "failed" else None,
            options=self.options.sections,
            onnx=self.options.onnx,
            network=network,
            plugins=self.options.plugins,
            passes=count_passes(events, frozenset(ledger.effective)),
            funnel=tuple(self.optimizer.funnel),
            phases=self.phases.finish(self.last_stamp),
            events=events,
            ledger=rows,
            ledger_summary=summarize(rows) if rows else None,
            compute=Precisions(graph, rows, layers, names).all() if rows else (),
            tuning=self.tuning.finish(self.layers.tactics()),
            placement={device: tuple(names) for device, names in sorted(self.memory.placement.items())},
            memory=self.memory.finish(),
            engine_layers=layers,
            bindings=tuple(self.layers.bindings),
            performance=self.measured.performance(),
            profile=self.measured.profile(),
            warnings=self.troubles.warnings,
            errors=self.troubles.errors,
        )


def _names(network: LogNetwork, layers: dict[str, str]) -> Names:
    return Names([*(node.name for node in network.nodes), *layers])


def _both(first: Hear, second: Hear) -> Hear:
    def hear(line: int, *fields: object) -> None:
        first(line, *fields)
        second(line, *fields)

    return hear
