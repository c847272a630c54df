"""The type of a rule: one behaviour of TensorRT, and its consequences for a graph.

A file of `qdqtool.rules` holds the rules about one fact. Its docstring, or the part under a rule's name, is the page that
`qdqtool explain` prints: before and after, targets, evidence. The parts of a rule stand on one match of the pattern, so that what
is placed, found and fixed cannot contradict itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import Bond, Opinion, Slot, Tie
from qdqtool.core.quant_format import FLOAT, FORMATS
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import BuiltGraph, Candidate, Explanation, NodeEvidence
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
