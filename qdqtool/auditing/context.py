"""The audit context (all inputs of an audit, and questions about them), and the checks that read the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from qdqtool.auditing.explanations import builders, why_decided_float
from qdqtool.auditing.verdicts import cases, is_from_rtx, verdicts_of
from qdqtool.core.advice import as_float, join_fixes
from qdqtool.core.buildlog import LayerHistory, LogRun
from qdqtool.core.claims import Assertion, Claim
from qdqtool.core.difference import EngineDiff
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role, Wiring
from qdqtool.core.explore import EngineView
from qdqtool.core.findings import Evidence, NodeVerdict, Severity
from qdqtool.core.placement import Placement
from qdqtool.core.target import Target
from qdqtool.core.wording import Command
from qdqtool.engine.costs import at_optimum
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Model
from qdqtool.matching.rule import NodeEvidence, rulebook, violations
from qdqtool.trt.histories import histories
from qdqtool.trt.tensor_formats import padded_bytes

_LOOK = f"{Command('audit', ('MODEL', '--layers', 'LAYERS'))} also reads the model, and reports the cause"
_LINES = 6
"""Most log lines that a finding points to."""


@dataclass(frozen=True, kw_only=True)
class AuditContext:
    """All inputs of an audit: layers, model, placement, logs, times and options.

    Attributes:
        engine: the layers of the engine.
        model: the Q/DQ model; None when only layer information is there.
        targets: known GPU architectures of the engine.
        placement: the decisions, or None.
        cases: every compute node with its evidence, in graph order.
        rule_notes: which rules of other distributions failed.
        verdicts: the verdict of each node, in the order of `cases`.
        explored: costs and times of the layers, or None.
        compared: how the engine differs from another one, or None; it is the second of the two.
        layers_file: name of the file that evidence points into.
        log: the log of the build, or None.
        log_file: name of that log.
    """

    engine: Engine
    model: Model | None = None
    targets: tuple[str, ...] = ()
    placement: Placement | None = None
    cases: tuple[NodeEvidence, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
    rule_notes: tuple[str, ...] = ()
    explored: EngineView | None = None
    compared: EngineDiff | None = None
    layers_file: str = "layers.json"
    log: LogRun | None = None
    log_file: str = "build.log"

    @property
    def view(self) -> GraphView | None:
        """The graph of the audited model; None if the audit has no model."""
        return None if self.model is None else self.model.view

    @cached_property
    def target(self) -> Target:
        """The builder that made the engine, as far as the engine's layers show it."""
        return builders(rtx=is_from_rtx(self.engine), targets=self.targets)[0]

    @cached_property
    def flow(self) -> Flow | None:
        """The Q/DQ pairs of the model; None without a model."""
        return None if self.model is None else Flow(self.model)

    @cached_property
    def lint_fixes(self) -> dict[str, str]:
        """The fixes that lint proposes, by node name. Checks propose the same fix for a node."""
        fixes: dict[str, str] = {}
        if self.flow is not None:
            for _, wrong in violations(self.flow, self.target):
                for node in (wrong.node, *wrong.products) if wrong.severity is not Severity.INFO else ():
                    fixes.setdefault(node, wrong.fix)
        return fixes

    @cached_property
    def kernels(self) -> tuple[EngineLayer, ...]:
        """Layers that launch a kernel."""
        return self.engine.kernels

    def verdicts_on(self, layer: EngineLayer) -> tuple[NodeVerdict, ...]:
        """Return the verdicts on the nodes that `layer` computes."""
        return self._by_layer.get(layer.name, ())

    @cached_property
    def _by_layer(self) -> dict[str, tuple[NodeVerdict, ...]]:
        by_layer: dict[str, tuple[NodeVerdict, ...]] = {}
        for verdict in self.verdicts:
            for name in verdict.layers:
                by_layer[name] = (*by_layer.get(name, ()), verdict)
        return by_layer

    def way_out(self, subjects: Iterable[str]) -> str:
        """Return the command that keeps the nodes of these layers float, for findings without a better fix.

        The result is "" if these nodes are float already.
        """
        if self.view is None:
            return _LOOK
        held = {case.node.name for case in self.cases if case.as_float}
        nodes_of_layers = [verdict.node for name in subjects for verdict in self._by_layer.get(name, ())]
        nodes = [name for name in (*nodes_of_layers, *subjects) if name in held]
        return as_float(nodes, placed=self.placement is not None) if nodes else ""

    def refusals(self, layers: Iterable[EngineLayer]) -> str:
        """Return the fixes for placement's vetoes on nodes of these layers; "" if there are no vetoes."""
        names = {name for layer in layers for name in layer.onnx_nodes}
        decisions = self.placement.decisions if self.placement else ()
        refused = [decision for decision in decisions if decision.slot.node in names and decision.is_refused]
        return join_fixes(cause.fix for cause in why_decided_float(refused))

    @cached_property
    def border(self) -> frozenset[str]:
        """Names of the engine's own inputs and outputs."""
        return frozenset(binding.name for binding in self.engine.bindings)

    def at_layer(self, name: str) -> Evidence:
        """Return the place of a layer in the layer information."""
        index = self._positions[name]
        if self.layers_file == "layers.json":
            return Evidence(file=self.layers_file, place=f"/data/layers/{index}")
        pointer = self.engine.form.startswith("inspector")
        return Evidence(file=self.layers_file, place=f"/Layers/{index}" if pointer else f"record {index + 1}")

    def at_node(self, name: str) -> Evidence:
        """Return the place of a node in the Q/DQ model."""
        return Evidence(file="model.qdq.onnx", place=name)

    @cached_property
    def wiring(self) -> Wiring:
        """The kernels that write and read each tensor of the engine."""
        return Wiring(self.engine)

    def bytes_of(
        self, layer: EngineLayer, counts: Callable[[EngineTensor], bool] = lambda _: True
    ) -> int | None:
        """Return the run-time bytes that a layer reads and writes, without weights; only of tensors for which `counts` is true.

        Dynamic shapes count with their optimum.
        """
        place = self._positions.get(layer.name)
        sized = layer if place is None else self._sized.layers[place]
        sizes = [padded_bytes(tensor) for tensor in (*sized.inputs, *sized.outputs) if counts(tensor)]
        known_sizes = [size for size in sizes if size is not None]
        return sum(known_sizes) if len(known_sizes) == len(sizes) else None

    @cached_property
    def _sized(self) -> Engine:
        return at_optimum(self.engine)

    def ms(self, name: str) -> float | None:
        """Return the measured milliseconds of the layer called `name`; None without a profile or without such a layer."""
        place = self._positions.get(name)
        return self.explored.layers[place].ms if self.explored and place is not None else None

    def in_log(self, subject: str) -> tuple[Evidence, ...]:
        """Return the log lines that explain the layer or the node called `subject`, the most informative ones first."""
        if self.log is None:
            return ()
        rows = {row.node: row for row in self.log.ledger}
        places = (
            [self._positions[subject]]
            if subject in self._positions
            else self._layers_by_node.get(subject, [])
        )
        histories = [self._histories[place] for place in places]
        lines = [line for node in self.log.compute if node.node == subject for line in node.lines]
        lines += [
            line
            for history in histories
            for name in history.qdq
            if name in rows
            for line in rows[name].lines[-1:]
        ]
        lines += [event.line for history in histories for event in history.events]
        return tuple(
            Evidence(file=self.log_file, place=f"line {line}") for line in list(dict.fromkeys(lines))[:_LINES]
        )

    @cached_property
    def _histories(self) -> tuple[LayerHistory, ...]:
        return histories(self.engine, self.log).layers if self.log else ()

    @cached_property
    def _layers_by_node(self) -> dict[str, list[int]]:
        """Positions of the layers that compute each ONNX node. If no layer computes a node, the layers that contain the node."""
        places: dict[str, list[int]] = {}
        for place, layer in sorted(
            enumerate(self.engine.layers), key=lambda pair: pair[1].role is not Role.COMPUTE
        ):
            for node in layer.onnx_nodes:
                if layer.role is Role.COMPUTE or node not in places:
                    places.setdefault(node, []).append(place)
        return places

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Index of each layer by its name; the first one for repeated names."""
        return {layer.name: index for index, layer in reversed(list(enumerate(self.engine.layers)))}


def stage(
    engine: Engine,
    model: Model | None = None,
    placement: Placement | None = None,
    *,
    targets: tuple[str, ...] = (),
) -> AuditContext:
    """Return the audit context of an engine, with a verdict on every compute node if a Q/DQ model is given."""
    book = rulebook()
    evidence = cases(model, engine, placement, targets=targets, book=book) if model else ()
    return AuditContext(
        engine=engine,
        model=model,
        targets=targets,
        placement=placement,
        cases=evidence,
        verdicts=verdicts_of(evidence),
        rule_notes=tuple(dict.fromkeys(book.notes)),
    )


# --- checks ----------------------------------------------------------------------------------------------------------
# Checks: functions that turn an audit context into findings, with a code and a severity.


ENGINE = "the engine"
"""Subject of findings about the engine as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFinding:
    """A finding before it gets the code and name of its check.

    Attributes:
        subject: the node, the layer, or ENGINE.
        reason: the problem.
        fix: what to do. If a user cannot type any part of it, the command that makes the nodes of `layers` float is
            added.
        severity: overrides the check's own.
        bytes: bytes that it costs.
        evidence: places with evidence.
        layers: names of the layers that could be float instead; () for the subject.
        claims: the parts of the reason that a build can contradict.
    """

    subject: str
    reason: str
    fix: str
    severity: Severity | None = None
    bytes: int | None = None
    evidence: tuple[Evidence, ...] = ()
    layers: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """An audit check: a plug-in with code, severity and the function that finds problems.

    Attributes:
        code: stable identifier, "QDQ201".
        severity: how much its findings matter unless a finding overrides it.
        find: its findings, in a stable order.
        says: claim about the engine that every reason makes; None if layer information without times cannot show it.
    """

    code: str
    severity: Severity
    find: Callable[[AuditContext], Iterable[RawFinding]]
    says: Assertion | None = None
