"""One run of a builder in a log: its collectors while it is read, and the result."""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum, auto
from functools import cached_property
from typing import Any, Protocol

from qdqtool.buildlog.answer import RunEvidence, answer, types_allowed
from qdqtool.buildlog.collectors.engine import LayersCollector, MeasuredCollector, MemoryCollector
from qdqtool.buildlog.collectors.model import NetworkCollector
from qdqtool.buildlog.collectors.optimizer import OptimizerCollector, ResolvedEvent, count_passes, events_of
from qdqtool.buildlog.collectors.runs import IdentityCollector, OptionsCollector, PhasesCollector
from qdqtool.buildlog.collectors.troubles import ConstraintsCollector, StatementsCollector, TroublesCollector
from qdqtool.buildlog.collectors.tuning import TacticsCollector, TuningCollector, read_announcement
from qdqtool.buildlog.compute import Precisions, layer_verdicts
from qdqtool.buildlog.grammar import Handler, grammar
from qdqtool.buildlog.ledger import Ledger
from qdqtool.buildlog.prefilter import Place
from qdqtool.buildlog.records import Graph, LoggedLayer, LoggedNames
from qdqtool.core.buildlog import Failure, LogRun, RunDigest, RunHeader, Unread
from qdqtool.core.causes import Situation
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.events import ComputeNode, End, PassCount
from qdqtool.engine.roles import judge_layer
from qdqtool.trt.causes import by_name

KEEP = 64 << 20
"""Most bytes for the records of one run, estimated; further records are counted and dropped."""
RECORD = 400
"""Bytes of a kept record besides its text."""

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
# Largest number of kinds of unread lines; a text that is not a log has as many kinds as lines.
_WORDINGS = 2000
# Number of characters by which unread lines are compared, and of the line that is shown.
_EXAMPLE = 200
SHOWN = 20
"""Most entries of a long list that a digest keeps."""


class _Collector(Protocol):
    def handlers(self) -> dict[str, Handler]: ...


class LineVerdict(Enum):
    """The kind of a line: read, blank, from another program, or not understood."""

    READ = auto()
    BLANK = auto()
    FOREIGN = auto()
    UNREAD = auto()


class Run:
    """One builder run of a log while the log is read.

    Args:
        number: 1 for the first run of the log.
        first_line: number of its first line in the log.
        place: position of the reader.
        whole: whether it gets each message, so that its tables are complete.
        before: the run before it in the same process, or None.
    """

    def __init__(
        self, number: int, first_line: int, place: Place, *, whole: bool = False, before: Run | None = None
    ) -> None:
        self.number = number
        self.whole = self.began_whole = whole
        self.first_line = first_line
        self.carrier = ""
        self.process = ""
        self.lines = 0
        self.blank = 0
        self.foreign = 0
        self.unread = 0
        self.clipped = 0
        self.prefixed = False
        self.pasted = False
        self.last_stamp = ""
        self._kept = 0
        self._records = 0
        self._wordings: dict[str, Unread] = {}
        self.identity: IdentityCollector = IdentityCollector(before.identity if before is not None else None)
        self.options = OptionsCollector()
        self.network = NetworkCollector()
        self.optimizer = OptimizerCollector()
        self.memory = MemoryCollector()
        self.layers = LayersCollector()
        self.measured = MeasuredCollector()
        self.troubles = TroublesCollector(place)
        self.constraints = ConstraintsCollector()
        self.phases = PhasesCollector(place.stamp)
        self.tuning = TuningCollector(place, self.phases.begins)
        self.tactics = TacticsCollector(place, read_announcement)
        self.statements = StatementsCollector(grammar().columns)
        self._small = (
            self.identity,
            self.options,
            self.measured,
            self.phases,
            self.troubles,
            self.constraints,
        )
        self._large = (self.network, self.optimizer, self.tuning, self.memory, self.layers)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by message pattern.

        If the memory for records is full, return only the handlers of collectors with few records.
        """
        collectors: tuple[_Collector, ...] = self._small if self.full else (*self._small, *self._large)
        if self.whole and not self.full:
            collectors = (*collectors, self.tactics)
        handlers: dict[str, Handler] = {}
        for collector in collectors:
            for name, handle in collector.handlers().items():
                handlers[name] = _both(handlers[name], handle) if name in handlers else handle
        return handlers

    @property
    def recognised(self) -> int:
        """Number of the builder's lines that were recognized."""
        return self.lines - self.blank - self.foreign - self.unread

    @property
    def full(self) -> bool:
        """True if the records of the run have used all their memory."""
        return self._kept > KEEP

    def weigh(self, lines: int, text: int, longest: int) -> bool:
        """Count the memory of a block's records; return True if the run keeps fewer records from now on.

        Args:
            lines: lines of the block that wanted reading.
            text: their bytes.
            longest: bytes of the longest.
        """
        was_whole = self.whole
        if was_whole and RECORD * (len(self.tactics) + len(self.statements)) > KEEP:
            self.whole = False
        if self.full or (self.began_whole and not self.whole):
            self.clipped += lines
        if self._kept > KEEP:
            return was_whole != self.whole
        records = sum(len(collector) for collector in self._large)
        new, self._records = records - self._records, records
        self._kept += new * RECORD + min(text, new * longest)
        return self._kept > KEEP or was_whole != self.whole

    def count(self, verdict: LineVerdict, lines: int = 1) -> None:
        """Count lines that are blank, come from other programs, or were not understood."""
        if verdict is LineVerdict.FOREIGN:
            self.foreign += lines
        elif verdict is LineVerdict.BLANK:
            self.blank += lines
        elif verdict is LineVerdict.UNREAD:
            self.unread += lines

    def miss(self, line: int, body: str) -> None:
        """Keep the wording of a message without a pattern."""
        key = _CHANGING.sub("#", body[:_EXAMPLE])
        earlier = self._wordings.get(key)
        if earlier is not None:
            self._wordings[key] = Unread(text=earlier.text, count=earlier.count + 1, line=earlier.line)
        elif len(self._wordings) < _WORDINGS:
            self._wordings[key] = Unread(text=body[:_EXAMPLE], count=1, line=line)

    def digest(self, shown: int = SHOWN) -> RunDigest:
        """Return a short summary of the run, without its tables: at most `shown` entries of long lists."""
        verdicts, computing = self._verdicts, self._computing
        tuning = self.tuning.finish(self.layers.tactics())
        return RunDigest(
            **self._header(),
            nodes=len(self.network),
            kernels_left=tuple(row.node for row in self._ledger.rows.values() if row.end is End.COPY)[:shown],
            precisions=dict(sorted(Counter(node.precision for node in verdicts).items())),
            not_quantized=tuple(node for node in verdicts if not node.is_quantized)[:shown],
            contradictions=tuple(node for node in verdicts if node.contradiction)[:shown],
            tuned_layers=len(tuning.layers),
            candidates=sum(row.candidates for row in tuning.layers)
            + sum(op.candidates for op in tuning.myelin),
            slowest=tuning.layers[:shown],
            myelin=tuple(sorted(tuning.myelin, key=lambda op: -op.candidates))[:shown],
            placement={device: len(layers) for device, layers in sorted(self.memory.placement.items())},
            layer_kinds=dict(sorted(Counter(layer.kind for layer in self._layers).items())),
            profile=tuple(sorted(self.measured.profile(), key=lambda row: -row.total_ms))[:shown],
            layer_precisions=dict(sorted(Counter(str(layer.precision) for layer in computing).items())),
            float_layers=tuple(layer.name for layer in computing if layer.precision.is_float),
            foreign_nodes={name: nodes for _, name, nodes in self.layers.regions if nodes},
        )

    def value(self) -> LogRun:
        """Return everything that the log says about the run."""
        rows = tuple(row.value() for row in self._ledger.rows.values())
        return LogRun(
            **self._header(),
            network=self.network.finish(),
            events=events_of(self._events),
            ledger=rows,
            compute=self._verdicts if self._ledger.rows else self._layer_verdicts(),
            tuning=self.tuning.finish(self.layers.tactics()),
            placement={device: tuple(layers) for device, layers in sorted(self.memory.placement.items())},
            engine_layers=tuple(judge_layer(layer.value) for layer in self._layers),
            bindings=tuple(self.layers.bindings),
            tactics=self.tactics.finish(),
            statements=self.statements.finish(),
            profile=self.measured.profile(),
        )

    def _header(self) -> dict[str, Any]:
        allowed = types_allowed(self.options.sections, self.identity.argv)
        io = ",".join(word for word in self.identity.argv if "putIOFormats=" in word)
        situation = Situation(
            program=self.identity.front_end, types=allowed, io=io, step=self.phases.unfinished
        )
        ended = self.identity.status(failed=False)
        built = self.identity.generated
        # The log says that the run failed but shows no error after the engine, so an earlier error must be the reason.
        attempts = (built, 0) if ended == "failed" else (built,)
        failures = (
            self.troubles.failure(
                situation,
                is_stated=ended == "failed",
                cut=self.first_line + self.lines - 1 if ended == "cut" else 0,
                built=after,
                steps=self.phases.steps,
            )
            for after in attempts
        )
        failure = next(filter(None, failures), None)
        status = self.identity.status(failed=failure is not None and _ends_a_run(failure, built=built > 0))
        header: dict[str, Any] = {
            "number": self.number,
            "front_end": self.identity.front_end,
            "version": self.identity.version,
            "build": self.identity.build,
            "argv": self.identity.argv,
            "status": status,
            "first_line": self.first_line,
            "lines": self.lines,
            "carrier": self.carrier,
            "process": self.process,
            "unread_share": round(self.unread / max(1, self.recognised + self.unread), 4),
            "blank": self.blank,
            "foreign": self.foreign,
            "unread": self.unread,
            "unread_lines": tuple(
                sorted(self._wordings.values(), key=lambda unread: (-unread.count, unread.line))
            ),
            "clipped": self.clipped,
            "failure": failure if status == "failed" else None,
            "options": self.options.sections,
            "onnx": self.options.onnx,
            "plugins": self.options.plugins,
            "passes": self._passes,
            "funnel": tuple(self.optimizer.funnel),
            "phases": self.phases.finish(self.last_stamp),
            "ledger_summary": self._ledger.summary(),
            "memory": self.memory.finish(self.options.workspace),
            "performance": self.measured.performance(self.options.at_once),
            "without_scale": {tensor: self._graph.around(tensor) for tensor in self.troubles.without_scale},
            "int8_refused": dict(self.troubles.int8_refused),
            "dla_refused": self.constraints.dla_refused,
            "unobeyed": self.constraints.unobeyed,
            "overruled": self.constraints.overruled,
            "accuracy": self.constraints.losses,
            "warnings": self.troubles.warnings,
            "errors": self.troubles.errors,
        }
        evidence = RunEvidence(
            nodes=self._verdicts,
            layers=self._computing,
            decisions=self.troubles.decisions,
            left_out=self.troubles.left_out,
            profile=self.measured.profile(),
            engine=self.identity.engine,
            generated=built > 0,
            done=self.troubles.done,
            is_calibrated=self.identity.is_calibrated,
            has_qdq=bool(self._ledger.rows),
            has_steps=self._shows_steps(),
            knows_model=len(self.network) > 0,
            others=Counter(str(tensor.dtype) for layer in self._layers for tensor in layer.value.outputs),
        )
        return {**header, "answer": answer(RunHeader(**header), evidence)}

    def _shows_steps(self) -> bool:
        """Return True if a builder, or a program that starts one, printed anything about a build."""
        return bool(
            self.identity.generated
            or self.identity.is_configured
            or self.options.sections
            or self.phases.steps
            or any(len(collector) for collector in self._large)
        )

    @cached_property
    def _names(self) -> LoggedNames:
        return LoggedNames(self.network.names())

    @cached_property
    def _events(self) -> list[ResolvedEvent]:
        return self.optimizer.resolved(self._names)

    @cached_property
    def _layers(self) -> tuple[LoggedLayer, ...]:
        return self.layers.finish()

    @cached_property
    def _graph(self) -> Graph:
        return self.network.graph()

    @cached_property
    def _ledger(self) -> Ledger:
        ledger = Ledger(self._graph, self._names)
        ledger.read(self._events)
        ledger.settle(self._layers, self.layers.regions)
        return ledger

    @cached_property
    def _passes(self) -> dict[str, PassCount]:
        return count_passes(self._events, frozenset(self._ledger.effective))

    @cached_property
    def _verdicts(self) -> tuple[ComputeNode, ...]:
        rows = self._ledger.rows
        return Precisions(self._graph, rows.values(), self._layers, self._names).all() if rows else ()

    @cached_property
    def _computing(self) -> tuple[EngineLayer, ...]:
        """The compute layers of an engine from a model without Q/DQ; () with Q/DQ."""
        judging = () if self._ledger.rows else self._layers
        return tuple(
            judged_layer
            for judged_layer in (judge_layer(layer.value) for layer in judging)
            if judged_layer.role is Role.COMPUTE
        )

    def _layer_verdicts(self) -> tuple[ComputeNode, ...]:
        """Return verdicts on the layers of an engine without Q/DQ, from their types and from the builder's refusals."""
        troubles = self.troubles
        refused = {
            layer: (tensor, troubles.refused_at[layer]) for layer, tensor in troubles.int8_refused.items()
        }
        return layer_verdicts(self._layers, refused, self._names)


def _ends_a_run(failure: Failure, *, built: bool) -> bool:
    """Return True if an error means that the run failed. Errors at exit, after the engine is finished, do not."""
    return not built or (
        bool(failure.cause)
        and (failure.degree == "exact" or by_name(failure.cause).area in ("running", "gpu", "host"))
    )


def _both(first: Handler, second: Handler) -> Handler:
    def handle(line: int, *fields: object) -> None:
        first(line, *fields)
        second(line, *fields)

    return handle
