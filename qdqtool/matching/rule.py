"""Rules: behaviours of TensorRT with their consequences for a graph, and the registry that asks them.

A file of `qdqtool.rules` holds the rules about one fact. Its docstring, or the part under a rule's name, is the page that
`qdqtool explain` prints: before and after, targets, evidence. The parts of a rule stand on one match of the pattern, so that what
is placed, found and fixed cannot contradict itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache, partial
from typing import TypeVar

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import Bond, Opinion, Slot, Stance, Tie
from qdqtool.core.quant_format import FLOAT, FORMATS
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import DType
from qdqtool.errors import MissingPackage
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import BuiltGraph, Candidate, Explanation, NodeEvidence
from qdqtool.plugins import Registry
from qdqtool.trt.ops import DEQUANTIZE

CLASSIC = frozenset({"8", "10", "11"})
EVERYWHERE = frozenset(FAMILIES)
ALL_FORMATS = frozenset(FORMATS)
Statement = Opinion | Tie | Bond
Place = Callable[[GraphView, PlacementOptions], Iterator[Statement]]


class Stage(IntEnum):
    """Stage at which a rule's fix is applied; a fix may rely on the results of earlier stages."""

    WRITE_OUT = 1
    """Turn other forms of static quantization into Q/DQ pairs."""
    LEGAL = 2
    """Turn pairs into a form that TensorRT reads."""
    FAST = 3
    """Move pairs to where they save time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A finding without its rule's code.

    Attributes:
        node: the node to look at.
        reason: what is wrong.
        effect: what TensorRT will do because of it.
        fix: what to change.
        severity: overrides the rule's own.
        products: names of products that do not compute in the format that they are asked for because of it; prediction
            reads them.
        realised: format in which `products` compute instead, in the words of an audit.
        computed: the type in which they multiply; None if it is the model's own float type.
        no_kernel: whether no kernel computes them in the format, whatever else is changed.
        of_builder: whether the reason says what the builder makes of such a node. If it names what the inputs of this
            node lack, it holds for this node whatever an engine makes of others.
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
            kernels are added; 140-159: advice; 160-181: where Q/DQ goes; from 182 on: what TensorRT does
            with other formats than INT8.
        severity: how much findings matter unless one says otherwise.
        targets: builders for which `check` is asked, and `fix` where its stage is FAST; fixes of the stages before
            make the form that others rely on, for every builder.
        formats: number formats that it speaks about; on a model whose pairs all ask for others its `check` is silent.
        stops: whether nothing is built where `check` finds an error, whatever else prediction foresees.
        stage: when `fix` is applied.
        after: rules of the same stage or an earlier one whose fixes are applied first.
        place: what it requests for a float graph. Requests are data; no rule sees those of another, so their order
            cannot matter.
        check: what is wrong in a Q/DQ graph, in graph order.
        fix: changes a Q/DQ model so that `check` finds nothing, and yields each change.
        candidates: edits for an engine that was built; each is kept only if a build proves that it helps.
        explain: why this behaviour keeps a node of a built engine from INT8; nothing if it does not. None if what
            `check` finds says so, as it does of every product that it names.
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
    """Yield the change that removes harmful pairs from these inputs of a node, if a DequantizeLinear feeds them directly."""
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
# The rules of `qdqtool.rules`, and those that other distributions add. A rule of another distribution that cannot be loaded
# or that fails stops nothing: it is named, and the other rules answer.

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
        """Yield the results of a part of the rule `name`; nothing if a rule of another distribution fails."""
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
    """Return all rules, which are loaded once; the notes belong to this call."""
    return Rulebook(_load_rules())


def stopping() -> Rulebook:
    """Return the rules whose errors mean that nothing can be built."""
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
# Compute nodes that do not compute in the format that is asked of them, according to the rules.


def violations(flow: Flow, target: Target, book: Rulebook | None = None) -> Iterator[tuple[str, Violation]]:
    """Yield the violations that the rules find for a builder, with the rule's code and severity, in the order of codes."""
    book = book or rulebook()
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.check is not None and target.family in rule.targets:
            for violation in book.results_of(name, partial(rule.check, flow, target)):
                yield rule.code, replace(violation, severity=violation.severity or rule.severity)


def losses(flow: Flow, target: Target) -> dict[str, Violation]:
    """Return one violation by name of the affected compute node; of several, the one with the lowest code."""
    by_node: dict[str, Violation] = {}
    for _, violation in violations(flow, target):
        for product in violation.products:
            by_node.setdefault(product, violation)
    return by_node


# --- vetoes ----------------------------------------------------------------------------------------------------------
# Nodes that placement keeps float, and why; other checks do not ask for Q/DQ on them.


def refusals(flow: Flow, target: Target, book: Rulebook | None = None) -> dict[str, Opinion]:
    """Return the first veto on an input, by node, for this builder, from the float graph of a Q/DQ graph."""
    options = PlacementOptions(target=target.name, sm=target.sm)
    book = book or rulebook()
    vetoes: dict[str, Opinion] = {}
    for name, rule in book.rules.items():
        for statement in (
            () if rule.place is None else book.results_of(name, partial(rule.place, flow.plain, options))
        ):
            if isinstance(statement, Opinion) and statement.stance is Stance.VETO:
                vetoes.setdefault(statement.slot.node, replace(statement, rule=name))
    return vetoes
