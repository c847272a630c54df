"""Block scales where none can be.

    weights INT8 [256, 128] ─ DQ (scales [4, 128]) ─ MatMul      float, no build, or wrong numbers
    weights INT8 [256, 128] ─ DQ (scales [128]) ─ MatMul         INT8

Blocks are for INT4 and FP4 weights, along one of the last two axes, which they must divide. INT8 and FP8 kernels take one
scale per tensor or per output channel. TensorRT takes the block from the number of scales and does not read `block_size`.

Evidence: RTX 1.7.1: with a quantized activation on the other side the build fails with a check, or a product of 64 x 256
values is multiplied by a constant of 1 x 1024 scales. `The quantization axis must divide into whole blocks`; `The blocking
dimension must be the last or second to last dimension`; block_size 100 with scales of blocks of 128 builds as 128.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FLOAT
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.operands import Product, State, products
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import per_channel

_REFUSED = "the parser refuses it"
_ACROSS = "its blocks go along another axis than the last two"
_PER_CHANNEL = "use one scale per channel, as convolutions want them"
_LAST = 2
"""Blocks go along one of so many last axes."""


def match(flow: Flow) -> Iterator[tuple[QdqPair, tuple[str, str, str] | None]]:
    """Pairs with blocks that are not taken as they are, or are taken for some types only; what is illegal in words."""
    for pair in flow.pairs:
        if pair.scale_shape is None:
            if _is_across(flow, pair):
                yield pair, (_ACROSS, _REFUSED, _PER_CHANNEL)
        elif len(pair.scale_shape) >= _LAST:
            yield pair, _illegal(flow, pair)


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Pairs whose scale has two dimensions or more, where that is no legal block scale for its type."""
    by_name = {product.node.name: product for product in products(flow, target)}
    for pair, illegal in match(flow):
        node = pair.dequantize or pair.quantize or ""
        if illegal is not None:
            reason, effect, fix = illegal
            severity = Severity.ERROR if effect == _REFUSED else None
            mended = _mended(flow, pair, reason)
            fix = f"{fix}; `qdqtool repair` does" if mended else f"{fix}; {_float(flow, pair)}"
            yield Violation(node=node, reason=reason, effect=effect, fix=fix, severity=severity)
        elif pair.dtype in {DType.INT8, DType.FLOAT8}:
            readers = [by_name[name] for name in flow.products_of(pair) if name in by_name]
            if len(pair.scale) == 1:
                yield _misshapen(flow, pair, node)
            else:
                yield from _unused(flow, pair, node, readers)


def _mended(flow: Flow, pair: QdqPair, reason: str) -> tuple[str, ...]:
    """The products whose INT8 weights have blocks along an axis that no parser takes, so that `fix` stores them per channel."""
    stored = pair.kind is SlotKind.WEIGHT and pair.dtype is DType.INT8
    return flow.products_of(pair) if stored and reason == _ACROSS else ()


def fix(context: RepairContext) -> Iterator[Change]:
    """Give INT8 weights in blocks along such an axis one scale per output channel."""
    flow = context.flow
    found = ((pair, illegal[0]) for pair, illegal in match(flow) if illegal is not None)
    for name in dict.fromkeys(name for pair, reason in found for name in _mended(flow, pair, reason)):
        for edit in per_channel(Edit(context.model), context.model, context.view.by_name[name]):
            yield Change(
                edits=(edit,),
                subject=name,
                what="INT8 weights in blocks got one scale per output channel",
                reason=f"{_ACROSS}: {_REFUSED}",
            )


def _float(flow: Flow, pair: QdqPair) -> str:
    nodes = flow.products_of(pair) or (pair.dequantize or pair.quantize or "",)
    return f"{repairing(to_float=nodes)} takes the Q/DQ off"


def _misshapen(flow: Flow, pair: QdqPair, node: str) -> Violation:
    return Violation(
        node=node,
        reason=f"its one scale has {counted(len(pair.scale_shape or ()), 'dimension')}",
        effect="the build fails, or the weights are multiplied in float",
        fix=f"store the scale as a scalar, shape []; {_float(flow, pair)}",
    )


def _unused(flow: Flow, pair: QdqPair, node: str, readers: list[Product]) -> Iterator[Violation]:
    """What becomes of blocks of a type that is multiplied with one scale per output channel.

    Beside a float factor the rule weights_apart tells it, beside another format the rule mixed_formats.
    """
    met = [reader for reader in readers if reader.arithmetic]
    float_too = any(_states(reader) - {State.READY, State.BLOCKS} for reader in met)
    names = tuple(reader.node.name for reader in met)
    if met:
        yield Violation(
            node=node,
            reason=f"{pair.dtype.value.upper()} with one scale per block, {'x'.join(map(str, pair.scale_shape or ()))} of them",
            effect="the product runs in float"
            if float_too
            else "the build fails, or the result is multiplied by scales of other columns",
            fix=f"{repairing(to_int8=names)} gives the weights one scale per output channel"
            if pair.dtype is DType.INT8
            else f"use one scale per output channel; {_float(flow, pair)}",
            severity=None if float_too else Severity.ERROR,
            products=names,
            realised=FLOAT if float_too else met[0].arithmetic,
        )


def _states(product: Product) -> set[State]:
    return {factor.state for factor in product.factors}


def _is_across(flow: Flow, pair: QdqPair) -> bool:
    """Whether blocks with scales of two levels go along an axis before the last two."""
    found = flow.lifted.assignment.get(pair.slots[0]) if pair.slots else None
    rank = len(flow.view.info(pair.tensor).shape or ())
    return found is not None and found.block is not None and (found.axis or 0) < rank - _LAST


def _illegal(flow: Flow, pair: QdqPair) -> tuple[str, str, str] | None:
    """Reason, effect and fix for scales that do not divide the tensor into blocks as written."""
    scales, shape = pair.scale_shape or (), flow.view.info(pair.tensor).shape
    name = pair.dequantize or pair.quantize or ""
    axis = int(flow.view.by_name[name].attribute("axis", 1))
    if shape is None or len(shape) != len(scales) or len(pair.scale) == 1:
        return None
    axis += len(shape) if axis < 0 else 0
    length = shape[axis] if 0 <= axis < len(shape) else None
    if not isinstance(length, int):
        return None
    if length % scales[axis]:
        return (
            f"its {scales[axis]} scales do not divide the {length} values of axis {axis} into whole blocks",
            _REFUSED,
            "store one scale per block of a length that divides the axis",
        )
    if axis < len(shape) - _LAST:
        return (
            _ACROSS,
            _REFUSED,
            _PER_CHANNEL,
        )
    written, block = int(flow.view.by_name[name].attribute("block_size", 0)), length // scales[axis]
    if written != block:
        return (
            f"its block_size is {written}, its scales are those of blocks of {block}",
            f"TensorRT takes blocks of {block}; onnxruntime refuses the model",
            f"write block_size={block}",
        )
    return None


PLUGIN = Rule(code="QDQ110", severity=Severity.WARNING, stage=Stage.LEGAL, check=check, fix=fix)
