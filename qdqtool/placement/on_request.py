"""Makes nodes of a Q/DQ model float or INT8 if the caller asks for it, before the fixes of the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from qdqtool.core.commands import Command
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.repair import Change
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.standard import standard
from qdqtool.graph.qdq.unquantize import unquantize
from qdqtool.matching.weights import per_channel
from qdqtool.trt.ops import PRODUCTS, QDQ

_RULE = "on request"


def on_request(
    model: Model, *, to_float: Iterable[str] = (), to_int8: Iterable[str] = ()
) -> tuple[Model, tuple[Change, ...]]:
    """Return the model with `to_float` nodes in float and the weights of `to_int8` nodes in INT8, and the changes.

    Args:
        model: a Q/DQ model.
        to_float: nodes whose inputs lose their Q/DQ; a Q or DQ stands for all that read it.
        to_int8: products whose constant factor gets a scale per output channel, out of its values. Their activations
            are left to the rule half_quantized, which quantizes them where a range was measured.

    Raises:
        UsageError: the model has no such node, or nothing of it can be made float or INT8.
    """
    to_float, to_int8 = tuple(dict.fromkeys(to_float)), tuple(dict.fromkeys(to_int8))
    if not (to_float or to_int8):
        return model, ()
    model = standard(model)
    _check(model, to_float, "--float")
    _check(model, to_int8, "--int8")
    edits = tuple(_weights(model, to_int8))
    made = requantize(model, edits) if edits else model
    changes = [
        Change(
            rule=_RULE,
            subject=edit.slot.node,
            what=f"its weight, input {edit.slot.index}, quantized to INT8 from its values",
            reason="requested by --int8",
        )
        for edit in edits
    ]
    for name in to_float:
        before = _pairs(made)
        made = unquantize(made, _with_movers(made, name))
        if _pairs(made) == before:
            raise UsageError(
                f"no input of {name!r} has Q/DQ that can be removed",
                fix=f"pass a node that {Command('lint')} lists, or a Q/DQ node with constant scales",
                where="--float",
            )
        changes.append(Change(rule=_RULE, subject=name, what="Q/DQ removed", reason="requested by --float"))
    return made, tuple(changes)


def _check(model: Model, names: tuple[str, ...], option: str) -> None:
    known = model.view.by_name
    for name in names:
        if name not in known:
            close = get_close_matches(name, tuple(known), n=1)
            raise UsageError(
                f"the model has no node {name!r}",
                fix=f"did you mean {close[0]!r}?"
                if close
                else f"{Command('lint')} prints the names of nodes",
                where=option,
            )


def _pairs(model: Model) -> tuple[tuple[str, int], ...]:
    """Return the slots that read Q/DQ, and the Q/DQ whose results are model outputs."""
    slots = [(slot.node, slot.index) for pair in find(model) for slot in pair.slots]
    return (*slots, *((pair.dequantize or "", -1) for pair in find(model) if pair.returned))


def _with_movers(model: Model, name: str) -> tuple[str, ...]:
    """Return the node, and the DequantizeLinear nodes that feed it through operators that only move values."""
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
    """Yield edits that quantize the constant factors of compute nodes to INT8, with one scale per output channel."""
    edit = Edit(model)
    for name in names:
        node = model.view.by_name[name]
        found = [] if node.op not in PRODUCTS else list(per_channel(edit, model, node))
        if not found:
            raise UsageError(
                f"{node.op} {name!r} has no constant weight that INT8 could hold",
                fix="name a Conv, ConvTranspose, Gemm or MatMul with weights",
                where="--int8",
            )
        yield from found
