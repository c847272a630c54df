"""Rules: what TensorRT does with a pattern, the effect on a graph, explanations, and the registry of rules.

A file of `qdqtool.rules` holds the rules about one fact. Its docstring, or the part under a rule's name, is the page
that `qdqtool explain` prints: before and after, targets, evidence. All parts of a rule use one match of the pattern,
so placement, findings and fixes cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import lru_cache, partial
from typing import TypeVar

from qdqtool.core.advice import as_float
from qdqtool.core.claims import HAS_NO_KERNEL, Claim, Part
from qdqtool.core.engine import Engine, EngineLayer, Wiring
from qdqtool.core.findings import Finding, NodeVerdict, Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import (
    Decision,
    JointSlots,
    Placement,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotKind,
    SlotStatement,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import FLOAT, FORMATS, DType
from qdqtool.errors import MissingPackage
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.matching.products import NodeOperand, arithmetic_word, read_operand
from qdqtool.plugins import Registry
from qdqtool.trt.names import LayerMatch
from qdqtool.trt.ops import DEQUANTIZE, QDQ, RECURRENT

# --- evidence --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The reason why a node is not INT8, and the fix.

    Attributes:
        reason: reason for float.
        fix: what to change.
        of_builder: whether the explanation describes a behaviour of the builder for all such nodes. If a node with
            equal operator and equal explanation runs in INT8 in the engine, it contradicts the explanation, which is
            then not printed.
        no_kernel: whether no kernel computes it in the format, whatever else is changed.
        claims: the parts of the reason and the fix that a build can contradict.
    """

    reason: str
    fix: str
    of_builder: bool = False
    no_kernel: bool = False
    claims: tuple[Claim, ...] = ()

    @property
    def all_claims(self) -> tuple[Claim, ...]:
        """`claims`; if `no_kernel` is set and no claim is about the reason, also HAS_NO_KERNEL."""
        has_reason = any(claim.part is Part.REASON for claim in self.claims)
        return (*self.claims, *(HAS_NO_KERNEL,) * (self.no_kernel and not has_reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvidence:
    """A node, its operands in the Q/DQ graph, the decisions of placement, and the engine layers that contain the node.

    Attributes:
        flow: the Q/DQ model.
        node: the node in question.
        operands: its inputs that take part in the products.
        request: the format that Q/DQ before them asks for, "int8", "int4-weights" or "float".
        decisions: decisions of placement on the nodes; empty without a placement.
        holders: the engine layers that name it.
        regions: regions of the engine whose kernels are not listed.
        producers: kernels that make a constant operand of these layers from stored constants, in every inference.
        rtx: whether TensorRT for RTX made the engine, which refuses some INT8 that classic TensorRT runs.
        targets: architectures the engine was built for ("sm86"), as far as known.
        explanations: reasons of the rules why the node is not INT8 in this engine; reasons that the engine
            contradicts are left out.
    """

    flow: Flow
    node: Node
    operands: tuple[NodeOperand, ...]
    request: str
    decisions: tuple[Decision, ...]
    holders: LayerMatch
    regions: tuple[EngineLayer, ...] = ()
    producers: tuple[EngineLayer, ...] = ()
    rtx: bool = False
    targets: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = ()

    @property
    def view(self) -> GraphView:
        """The graph with its Q and DQ nodes."""
        return self.flow.view

    @property
    def activations(self) -> tuple[NodeOperand, ...]:
        """Run-time operands."""
        return tuple(operand for operand in self.operands if not operand.fixed)

    @property
    def weights(self) -> tuple[NodeOperand, ...]:
        """Operands that are constant when the engine is built."""
        return tuple(operand for operand in self.operands if operand.fixed)

    @property
    def requested(self) -> bool:
        """True if every operand was requested in INT8: by the placement, or without a placement by the Q/DQ nodes."""
        if self.decisions:
            return all(decision.quantize for decision in self.decisions)
        return bool(self.operands) and all(operand.quantized for operand in self.operands)

    @property
    def weights_alone(self) -> bool:
        """True if placement quantized only the weights: the engine becomes smaller, and its arithmetic stays float as requested."""
        kinds = {decision.kind for decision in self.decisions if decision.quantize}
        return kinds == {SlotKind.WEIGHT}

    @property
    def any_quantized(self) -> bool:
        """True if any operand is quantized."""
        return any(operand.quantized for operand in self.operands)

    @property
    def arithmetic(self) -> str:
        """Name of the arithmetic that Q/DQ on all inputs of the node would request, for use in a sentence."""
        return arithmetic_word(self.request)

    @property
    def without_qdq(self) -> str:
        """The fix for a node that no kernel computes in INT8."""
        return self.as_float or "nothing to do"

    @property
    def as_float(self) -> str:
        """The setting or command that removes the Q/DQ from the node's inputs.

        The result is "" if the node has no Q/DQ, or if placement keeps it float.
        """
        refused = self.decisions and not self.requested
        if refused or not self.any_quantized:
            return ""
        return as_float([self.node.name], placed=bool(self.decisions))

    def moves(self, operand: NodeOperand) -> frozenset[str]:
        """Return the operators between an operand of the node and the DequantizeLinear before it."""
        return frozenset(move.op for move in self.flow.moves(self.node, operand.index))

    def concat(self, operand: NodeOperand) -> tuple[Node, tuple[Node, ...]] | None:
        """Return the Concat before an operand (without Q/DQ between), and the DequantizeLinear of each branch of the Concat.

        The result is None if the operand is quantized, does not come from a Concat, or has a branch without
        DequantizeLinear.
        """
        node = self.view.producer(self.node.inputs[operand.index])
        if operand.quantized or node is None or node.op != "Concat":
            return None
        makers = [self.view.producer(name) for name in node.inputs]
        dequantizers = tuple(maker for maker in makers if maker is not None and maker.op == DEQUANTIZE)
        return (node, dequantizers) if len(dequantizers) == len(makers) else None

    def largest_branch(self, operand: NodeOperand) -> float | None:
        """Return the largest scale among the branches of the Concat before an operand; None if a scale is unknown."""
        branches = self.concat(operand)
        values = [self.view.constant(node.inputs[1]) for node in branches[1]] if branches else []
        scales = [float(abs(value).max()) for value in values if value is not None and value.size]
        return max(scales) if scales and len(scales) == len(values) else None


def operands(flow: Flow, node: Node, target: Target) -> tuple[NodeOperand, ...]:
    """Return the operands of a node: two inputs, or three for attention and recurrent nodes (with both weights)."""
    count = 3 if "Attention" in node.op or node.op in RECURRENT else 2
    return tuple(
        read_operand(flow, node, index, target) for index, tensor in enumerate(node.inputs[:count]) if tensor
    )


# --- candidates ------------------------------------------------------------------------------------------------------
# Candidate edits for a built engine: rules propose them, and builds decide whether they help.


class Goal(str, Enum):
    """The condition that a build must meet for a candidate to be accepted."""

    INT8 = "the node runs INT8"
    ALLOWED = "a node that placement kept float runs INT8, and the relative changes of kernels and bytes do not add up to a growth"
    CHEAPER = "either the kernels or the bytes decrease, and the other of the two grows by a smaller share"
    CLOSER = "the result is closer to the float model, with no more kernels or bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A candidate fix of one finding.

    Attributes:
        subject: a node if the goal is INT8 or ALLOWED, else a node, the nodes of a kernel, or tensors.
        goal: purpose.
        text: the change in words.
        edits: the inputs to be quantized otherwise; scales that are None are measured.
        rule: who proposes it.
        settings: recipe values that make the same change in a new run; () if there are none. Without edits, they are the
            change.
        also: further nodes of this change.
    """

    subject: str
    goal: Goal
    text: str
    edits: tuple[SlotEdit, ...]
    rule: str = ""
    settings: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The subject of the candidate, and the other nodes that it changes."""
        return (self.subject, *self.also)

    @property
    def key(self) -> tuple[str, str]:
        """Identity of a candidate: subject and text; the text alone for a setting with the goal ALLOWED."""
        return "" if self.goal is Goal.ALLOWED and self.settings else self.subject, self.text


@dataclass(frozen=True, kw_only=True)
class BuiltGraph:
    """A Q/DQ model, the engine built from it, and the audit of both.

    Attributes:
        model: the Q/DQ model.
        placement: the decisions that made it; None for third-party.
        engine: its layers.
        wiring: who writes and who reads what among its kernels.
        nodes: every compute node with its evidence and its verdict, in graph order.
        findings: of the audit.
    """

    model: Model
    placement: Placement | None
    engine: Engine
    wiring: Wiring
    nodes: tuple[tuple[NodeEvidence, NodeVerdict], ...]
    findings: tuple[Finding, ...]

    @property
    def view(self) -> GraphView:
        """The graph of the Q/DQ model."""
        return self.model.view

    def layers_with(self, *checks: str) -> Iterator[EngineLayer]:
        """Yield the kernels with at least one finding whose check is in `checks`."""
        subjects = {finding.subject for finding in self.findings if finding.check in checks}
        return (layer for layer in self.engine.kernels if layer.name in subjects)


def kernel_of(layer: EngineLayer) -> str:
    """Return an identity of a kernel that all builds share: the names of its nodes, because kernel names change."""
    return ", ".join(sorted(layer.onnx_nodes)) or layer.name


def readers_of_pairs(view: GraphView, layer: EngineLayer) -> tuple[Slot, ...]:
    """Return the inputs that read the Q/DQ pairs inside a layer."""
    slots: dict[Slot, None] = {}
    for name in layer.onnx_nodes:
        node = view.by_name.get(name)
        if node is None or node.op not in QDQ:
            continue
        ends = [node] if node.op == DEQUANTIZE else [use.node for use in view.uses(node.outputs[0])]
        for end in ends:
            for use in view.uses(end.outputs[0]) if end.op == DEQUANTIZE else ():
                if use.index < len(use.node.inputs):
                    slots[Slot(node=use.node.name, index=use.index)] = None
    return tuple(slots)


def scale_of(view: GraphView, dequantize: Node | None) -> float | None:
    """Return the largest scale of a DequantizeLinear; None if the scale is computed, or if there is no DequantizeLinear."""
    value = None if dequantize is None else view.constant(dequantize.inputs[1])
    return None if value is None or not value.size else float(abs(value).max())


def feeding(view: GraphView, tensor: str) -> Node | None:
    """Return the DequantizeLinear whose result is this tensor; None for other tensors."""
    maker = view.producer(tensor)
    return maker if maker is not None and maker.op == DEQUANTIZE else None


# --- rules -----------------------------------------------------------------------------------------------------------


CLASSIC = frozenset({"8", "10", "11"})
EVERYWHERE = frozenset(FAMILIES)
ALL_FORMATS = frozenset(FORMATS)
Statement = SlotStatement | SharedScale | JointSlots
Place = Callable[[GraphView, PlacementOptions], Iterator[Statement]]


class Stage(IntEnum):
    """When the fix of a rule is applied. A fix may rely on the results of earlier stages."""

    WRITE_OUT = 1
    """Turn other forms of static quantization into Q/DQ pairs."""
    LEGAL = 2
    """Turn pairs into a form that TensorRT reads."""
    FAST = 3
    """Stage of fixes that move pairs to places where they save time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A lint finding of a rule, before the rule's code is added.

    Attributes:
        node: the node to look at.
        reason: what is wrong.
        effect: consequence in TensorRT.
        fix: what to change.
        severity: overrides the rule's own.
        products: names of compute nodes that do not run in their requested format because of the problem; prediction
            reads them.
        realised: format in which `products` compute instead, in the words of an audit.
        computed: the type in which they multiply; None if it is the model's own float type.
        no_kernel: whether no kernel computes them in the format, whatever else is changed.
        of_builder: whether the reason describes a behaviour of the builder for all such nodes. If the reason names
            missing properties of this node's inputs, it is valid whatever the engine shows for other nodes.
    """

    node: str
    reason: str
    effect: str
    fix: str
    severity: Severity | None = None
    products: tuple[str, ...] = ()
    realised: str = FLOAT
    computed: DType | None = None
    no_kernel: bool = False
    of_builder: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One behaviour of TensorRT; every part but the code is optional.

    Attributes:
        code: stable identifier, "QDQ122". 101-119: the build fails or the numbers change; 120-139: INT8 is lost or
            kernels are added; 140-159: advice; 160-181: placement of Q/DQ; from 182 on: behaviour of TensorRT with
            other formats than INT8.
        severity: default severity of the findings; a finding may override it.
        targets: builders for which `check` runs, and `fix` if its stage is FAST. Fixes of earlier stages run for
            every builder, because other fixes need their result.
        formats: number formats of the rule; `check` does not run if all pairs of a model have other formats.
        stops: whether no engine is built if `check` finds an error, regardless of other predictions.
        stage: when `fix` is applied.
        after: rules of this stage or an earlier one whose fixes are applied first.
        place: requests for a float graph. Requests are data; no rule reads the requests of other rules, so their
            order cannot matter.
        check: what is wrong in a Q/DQ graph, in graph order.
        fix: changes a Q/DQ model so that `check` finds nothing, and yields each change.
        candidates: edits for a built engine; each edit is kept only if a build shows that it helps.
        explain: why this behaviour keeps a node of a built engine from INT8; nothing if it does not. None if the
            findings of `check` give the reason for every compute node that they name.
    """

    code: str
    severity: Severity = Severity.INFO
    targets: frozenset[str] = EVERYWHERE
    formats: frozenset[str] = ALL_FORMATS
    stops: bool = False
    stage: Stage = Stage.FAST
    after: tuple[str, ...] = ()
    place: Place | None = None
    check: Callable[[Flow, Target], Iterable[Violation]] | None = None
    fix: Callable[[RepairContext], Iterator[Change]] | None = None
    candidates: Callable[[BuiltGraph], Iterable[Candidate]] | None = None
    explain: Callable[[NodeEvidence], Iterable[Explanation]] | None = None


def take_off_pairs(
    view: GraphView, node: Node, inputs: Iterable[int], violation: Violation
) -> Iterator[Change]:
    """Yield the change that removes harmful Q/DQ pairs directly before these inputs of a node."""
    slots = [
        Slot(node=node.name, index=index)
        for index in inputs
        if (maker := view.producer(node.inputs[index])) is not None and maker.op == DEQUANTIZE
    ]
    if slots:
        yield Change(
            edits=tuple(SlotEdit(slot=slot) for slot in slots),
            subject=node.name,
            what=f"Q/DQ removed {' and '.join(map(str, slots))}",
            reason=f"{violation.reason}: {violation.effect}",
        )


# --- registry --------------------------------------------------------------------------------------------------------
# The rules of `qdqtool.rules`, and those that other distributions add. If a rule of another distribution cannot be
# loaded or fails, it is named, and the other rules still answer.

RULES = Registry(package="qdqtool.rules")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Rules by name, in alphabetical order.

    Attributes:
        rules: the rules that could be loaded.
        notes: errors of rules of other distributions; grows while rules are asked.
    """

    rules: dict[str, Rule]
    notes: list[str] = field(default_factory=list)

    def results_of(self, name: str, part: Callable[[], Iterable[T]]) -> Iterator[T]:
        """Yield the results of one part of the rule `name`; nothing if the rule belongs to a plug-in and fails."""
        if RULES.owner(name) is None:
            yield from part()
            return
        try:
            with RULES.running(name):
                answers = tuple(part())
        except MissingPackage as error:
            self.notes.append(f"{error.what}; the rule is skipped")
            return
        yield from answers


def rulebook() -> Rulebook:
    """Return all rules in a new rulebook. The rules are loaded once; its list of notes starts empty."""
    return Rulebook(_load_rules())


def stopping() -> Rulebook:
    """Return the rules whose errors prevent the build of an engine."""
    return Rulebook({name: rule for name, rule in _load_rules().items() if rule.stops})


def code_names() -> dict[str, str]:
    """Return the names of rules by code, in the order of codes."""
    return {
        rule.code: name for name, rule in sorted(rulebook().rules.items(), key=lambda entry: entry[1].code)
    }


@lru_cache(maxsize=1)
def _load_rules() -> dict[str, Rule]:
    return {name: RULES.load(name) for name in sorted(RULES.coded().values())}


# --- losses ----------------------------------------------------------------------------------------------------------
# Compute nodes that do not compute in their requested format, according to the rules.


def violations(flow: Flow, target: Target, book: Rulebook | None = None) -> Iterator[tuple[str, Violation]]:
    """Yield the violations of all rules for a builder, with the code and severity of the rule, in the order of codes."""
    book = book or rulebook()
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.check is not None and target.family in rule.targets:
            for violation in book.results_of(name, partial(rule.check, flow, target)):
                yield rule.code, replace(violation, severity=violation.severity or rule.severity)


def losses(flow: Flow, target: Target) -> dict[str, Violation]:
    """Return the violation with the lowest code for each affected compute node, by the node's name."""
    by_node: dict[str, Violation] = {}
    for _, violation in violations(flow, target):
        for product in violation.products:
            by_node.setdefault(product, violation)
    return by_node


# --- vetoes ----------------------------------------------------------------------------------------------------------
# Nodes that placement keeps float, and why; other checks do not request Q/DQ for them.


def refusals(flow: Flow, target: Target, book: Rulebook | None = None) -> dict[str, SlotStatement]:
    """Return the first veto of a rule on an input of each node, by node name.

    Rules see the graph without its Q/DQ nodes.
    """
    options = PlacementOptions(target=target.name, sm=target.sm)
    book = book or rulebook()
    vetoes: dict[str, SlotStatement] = {}
    for name, rule in book.rules.items():
        for statement in (
            () if rule.place is None else book.results_of(name, partial(rule.place, flow.plain, options))
        ):
            if isinstance(statement, SlotStatement) and statement.stance is RequestOrVeto.VETO:
                vetoes.setdefault(statement.slot.node, replace(statement, rule=name))
    return vetoes
