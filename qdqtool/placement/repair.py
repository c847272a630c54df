"""Repairs a third-party Q/DQ model with the fixes of all rules. First it becomes legal for TensorRT, then fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from graphlib import TopologicalSorter

from qdqtool.core.fixes import Change, Remainder, SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.target import Target
from qdqtool.core.wording import Command
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.dequantizing import with_dequantize
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.qdq.kv_caches import attach_caches, detach_caches
from qdqtool.graph.qdq.other_tools import standard
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.stored import check_counts, with_fitting_axes
from qdqtool.graph.qdq.unquantize import unquantize, with_relus
from qdqtool.graph.view import Model, Node
from qdqtool.matching.products import NodeOperand
from qdqtool.matching.rule import RULES, Rule, Stage, rulebook
from qdqtool.matching.weights import half_quantized, per_channel
from qdqtool.trt.ops import PACKED_WEIGHTS, PRODUCTS, QDQ

# --- on request ------------------------------------------------------------------------------------------------------
# Makes nodes of a Q/DQ model float or INT8 on request, before the fixes of the rules.


_RULE = "on request"


def on_request(
    model: Model, *, to_float: Iterable[str] = (), to_int8: Iterable[str] = ()
) -> tuple[Model, tuple[Change, ...]]:
    """Return the model with `to_float` nodes in float and the weights of `to_int8` nodes in INT8, and the changes.

    Args:
        model: a Q/DQ model.
        to_float: nodes whose inputs lose their Q/DQ; a Q or DQ means all nodes that read it.
        to_int8: products whose constant operand gets a scale per output channel, out of its values. The rule
            half_quantized quantizes their activations if a range was measured.

    Raises:
        UsageError: the model has no such node, or no input of the node can become float or INT8.
    """
    to_float, to_int8 = tuple(dict.fromkeys(to_float)), tuple(dict.fromkeys(to_int8))
    if not (to_float or to_int8):
        return model, ()
    model = standard(model)
    _check(model, to_float, "--float")
    _check(model, to_int8, "--int8")
    edits = tuple(_weights(model, to_int8))
    edited = requantize(model, edits) if edits else model
    changes = [
        Change(
            rule=_RULE,
            subject=edit.slot.node,
            what=f"weight, input {edit.slot.index}, quantized to INT8 from its values",
            reason="requested by --int8",
        )
        for edit in edits
    ]
    edited = with_relus(edited) if to_float else edited
    for name in to_float:
        before = _pairs(edited)
        edited = unquantize(edited, _with_movers(edited, name))
        if _pairs(edited) == before:
            raise UsageError(
                f"no input of {name!r} has Q/DQ that can be removed",
                fix=f"pass a node that {Command('lint')} lists, or a Q/DQ node with constant scales",
                where="--float",
            )
        changes.append(Change(rule=_RULE, subject=name, what="Q/DQ removed", reason="requested by --float"))
    return edited, tuple(changes)


def _check(model: Model, names: tuple[str, ...], option: str) -> None:
    nodes = model.view.by_name
    for name in names:
        if name not in nodes:
            close = get_close_matches(name, tuple(nodes), n=1)
            raise UsageError(
                f"the model has no node {name!r}",
                fix=f"did you mean {close[0]!r}?"
                if close
                else f"{Command('lint')} prints the names of nodes",
                where=option,
            )


def _pairs(model: Model) -> tuple[tuple[str, int], ...]:
    """Return the inputs that read Q/DQ pairs, and the pairs whose results are model outputs."""
    slots = [(slot.node, slot.index) for pair in find(model) for slot in pair.slots]
    return (*slots, *((pair.dequantize or "", -1) for pair in find(model) if pair.returned))


def _with_movers(model: Model, name: str) -> tuple[str, ...]:
    """Return the name of a node, and of each DequantizeLinear that feeds it through operators that only move values."""
    node = model.view.by_name[name]
    if node.op in QDQ:
        return (name,)
    flow = Flow(model)
    origins = (flow.origin(node, index) for index in range(len(node.inputs)))
    moved = (pair.dequantize or "" for pair in origins if pair is not None and not _reads(pair.slots, name))
    return (name, *moved)


def _reads(slots: Iterable[Slot], name: str) -> bool:
    return any(slot.node == name for slot in slots)


def _weights(model: Model, names: tuple[str, ...]) -> Iterator[SlotEdit]:
    """Yield edits that quantize the constant operands of compute nodes to INT8, with one scale per output channel."""
    edit = Edit(model)
    for name in names:
        node = model.view.by_name[name]
        edits = [] if node.op not in PRODUCTS else list(per_channel(edit, model, node))
        if not edits:
            raise UsageError(
                f"{node.op} {name!r} has no constant weight that could be stored as INT8",
                fix="name a Conv, ConvTranspose, Gemm or MatMul with weights",
                where="--int8",
            )
        yield from edits


# --- repair ----------------------------------------------------------------------------------------------------------


_MOST_ROUNDS = 4
"""Most rounds over all rules; one fix may enable another, and each is idempotent."""
_DANGLING = "dangling"


def repair(model: Model, target: Target | None = None) -> tuple[Model, tuple[Change, ...]]:
    """Return the model after all fixes, and every change; the original model if there was no change.

    Args:
        model: any ONNX model.
        target: leave out fixes that this builder does not need; without, all are applied.

    Raises:
        InputFileError: the model contradicts itself, such as scales that do not fit their axis.
    """
    return _fix_model(model, Stage.FAST, target)


def gaining_fixes(model: Model) -> Iterator[Change]:
    """Yield the Q/DQ edits that the fixes for speed would make. The model stays unchanged.

    TensorRT must be able to read the model.
    """
    book = rulebook()
    for name in fix_order(book.rules):
        rule = book.rules[name]
        if rule.fix is not None and rule.stage is Stage.FAST:
            for change in book.results_of(name, partial(rule.fix, RepairContext(model))):
                if change.edits:
                    yield replace(change, rule=name)


def write_out(model: Model) -> Model:
    """Return the model with a Q/DQ pair for every range of its static quantization.

    Integer operators and quantizers of other tools become Q/DQ pairs, too.

    Raises:
        InputFileError: the model contradicts itself.
    """
    return _fix_model(model, Stage.WRITE_OUT, None)[0]


def _fix_model(model: Model, last: Stage, target: Target | None) -> tuple[Model, tuple[Change, ...]]:
    """Return the model after the fixes up to a stage, and every change."""
    model, caches = detach_caches(model)
    model, written = with_dequantize(model)
    ready = prepare(model, PrepareOptions(fold_batchnorm=False, conv_transpose=False))
    changes = [*written, *_list_dropped(model, ready)]
    ready, turned = with_fitting_axes(ready)
    changes += turned
    for pair in RepairContext(ready).pairs:
        check_counts(ready, pair)
    book = rulebook()
    applying = {
        name: rule for name in fix_order(book.rules) if _applies(rule := book.rules[name], last, target)
    }
    for _ in range(_MOST_ROUNDS):
        before = len(changes)
        context: RepairContext | None = None
        for name, rule in applying.items():
            context = context or RepairContext(ready, target)
            fixes = tuple(book.results_of(name, lambda fix=rule.fix, context=context: fix(context)))  # type: ignore[misc]
            if fixes:
                changes += [replace(change, rule=name) for change in fixes]
                edits = [edit for change in fixes for edit in change.edits]
                ready = context.finish() if any(not change.edits for change in fixes) else ready
                ready = requantize(ready, edits) if edits else ready
            if fixes or RULES.owner(name) is not None:  # a failure may leave half a change
                context = None
        if len(changes) == before:
            break
    return attach_caches(ready, caches), tuple(changes)


def _applies(rule: Rule, last: Stage, target: Target | None) -> bool:
    if rule.fix is None or rule.stage > last:
        return False
    return rule.stage < Stage.FAST or target is None or target.family in rule.targets


def fix_order(rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """Return the names of the rules with a fix: by stage, then by the rules that must come before (`after`), then by name.

    Raises:
        CycleError: rules name each other.
    """
    return _order_rules(
        tuple((name, rule.stage, rule.after) for name, rule in rules.items() if rule.fix is not None)
    )


@lru_cache(maxsize=4)
def _order_rules(rules: tuple[tuple[str, Stage, tuple[str, ...]], ...]) -> tuple[str, ...]:
    ordered: list[str] = []
    for stage in Stage:
        here = {name: after for name, of, after in rules if of is stage}
        sorter = TopologicalSorter({name: set(after) & here.keys() for name, after in sorted(here.items())})
        sorter.prepare()
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            ordered += ready
            sorter.done(*ready)
    return tuple(ordered)


def _list_dropped(before: Model, after: Model) -> Iterator[Change]:
    """Yield a change for each Q/DQ node that preparation removed because nothing uses its result."""
    for node in before.view.nodes:
        if node.op in QDQ and node.name not in after.view.by_name:
            yield Change(
                rule=_DANGLING,
                subject=node.name,
                what=f"unused {node.op} removed",
                reason="nothing uses its result, and parsers may refuse it",
                error=0.0,
            )


def remaining(model: Model) -> tuple[Remainder, ...]:
    """Return what the repair cannot fix: half-quantized nodes, refused operators, Q/DQ in control flow."""
    remainders = [
        _half(model, product.node, bare)
        for product, bare in half_quantized(Flow(model), Target(), alone=True)
    ]
    for node in model.view.nodes:
        if "Integer" in node.op or node.op.startswith(("QLinear", "DynamicQuantize")):
            remainders.append(
                Remainder(
                    subject=node.name,
                    what=f"TensorRT does not import {node.op}, and the nodes around it match no known pattern",
                    fix=f"quantize the float model with {Command('run')} instead",
                )
            )
        if node.op in PACKED_WEIGHTS:
            remainders.append(
                Remainder(
                    subject=node.name,
                    what=f"TensorRT does not import {node.op}",
                    fix="quantize these weights as Q/DQ (onnxruntime: quant_format=QuantFormat.QDQ)",
                )
            )
        inner = sorted(QDQ.intersection(model.view.body_ops(node)))
        if inner:
            remainders.append(
                Remainder(
                    subject=node.name,
                    what=f"{', '.join(inner)} inside its body were not changed",
                    fix="export the model without control flow",
                )
            )
    return tuple(remainders)


def _half(model: Model, node: Node, bare: NodeOperand) -> Remainder:
    return Remainder(
        subject=node.name,
        what=f"input {bare.index} has no Q/DQ, so {node.op} runs in float",
        fix=f"quantize the float model with {Command('run')} instead"
        if model.view.is_constant(node.inputs[bare.index])
        else "pass real data with --samples to measure its range; random samples give no range",
    )
