"""A scale or zero point in a form that no parser takes: its rank, its shape, its type, or no constant where one must be.

    x ─ TRT_FP4DynamicQuantize (4 scales) ─ DQ      refused
    x ─ TRT_FP4DynamicQuantize (1 scale) ─ DQ       NVFP4

One scale for a tensor is a scalar, scales per channel are a vector, and scales of blocks have the tensor's rank: they are as
long as the tensor along every axis but the one of the blocks. The global scale behind block scales is one positive float, the
block scales of MXFP8 are UINT8. All of them have lengths that are known when the engine is built. A zero point that is left
out has no input at all: an empty name is refused.

Evidence: RTX 1.7.1, `tests/placement/malformed.py`, 660 models: `Scale input must be a scalar`, `Scale input must be an
initializer`, `Invalid rank for the scale tensor`, `only the quantization axis may be blocked`, `ScaleMode is illegal`,
`must be known at build time`, `Found unsupported input type`. It takes a global scale of NaN, 0 or below for activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.scales import is_number
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import DEQUANTIZE, DYNAMIC_TYPES, FP4_DYNAMIC, QDQ

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REFUSED = "the parser refuses it"
_QUANTIZERS = QDQ | {FP4_DYNAMIC, MX_DEQUANTIZE}
_LOST = "nothing to do by a command: what the stored values stand for is lost with their scale; in the tool that wrote them"
_ZERO = 2
"""Input number of the zero point."""
_BLOCK_SCALES = frozenset({DType.FLOAT8, DType.INT8, DType.UNKNOWN})
"""Types of block scales behind a global scale that the parser reads; FLOAT8 alone is multiplied as such."""


def match(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Q and DQ nodes of every spelling, and what is wrong with the form of their scale or zero point."""
    levels = _levels(view)
    for node in view.nodes:
        if node.op not in _QUANTIZERS or len(node.inputs) < 2:
            continue
        found = _of_constants(view, node) if node.op in {FP4_DYNAMIC, MX_DEQUANTIZE} else ""
        if not found and node.name in levels:
            found = _of_levels(view, node)
        found = found or _of_shapes(view, node) or _of_zero_point(node)
        if found:
            yield node, found


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them, and zero points that are stored as floats."""
    eight = any(pair.dtype is DType.FLOAT8 for pair in flow.pairs)
    for pair in flow.pairs:
        if pair.dtype.is_float:
            node = flow.view.by_name[pair.quantize or pair.dequantize or ""]
            yield Violation(
                node=node.name,
                reason=f"its zero point is stored as {_word(pair.dtype)}",
                effect="TensorRT takes its values for INT8, and onnxruntime refuses the model",
                fix=f"store the zero point in the type of the quantized values; {repairing(to_float=_readers(flow, node))} takes the Q/DQ off",
                severity=Severity.ERROR if eight else Severity.WARNING,
            )
    for node, reason in match(flow.view):
        value = flow.view.constant(node.inputs[1])
        alike = (
            value is not None and value.size > 1 and _same(value) is not None and _takes_one(flow.view, node)
        )
        if alike or reason == _EMPTY:
            way = (
                "`qdqtool repair` writes it so"
                if reason == _EMPTY
                else "its scales are equal: `qdqtool repair` makes them one"
            )
        elif _is_computed(flow.view, node):
            way = f"{repairing(to_float=_readers(flow, node))} takes the Q/DQ off"
        else:
            way = ""
        wanted = _wanted(flow.view, node)
        fix = f"{wanted}; {way}" if way else f"{_LOST}, {wanted}"
        yield Violation(node=node.name, reason=reason, effect=_REFUSED, fix=fix)


def _is_computed(view: GraphView, node: Node) -> bool:
    """Whether a node of the model makes the values that are quantized, so that they are known in float."""
    if node.op == MX_DEQUANTIZE:
        return False
    if node.op != DEQUANTIZE:
        return True
    maker = view.producer(node.inputs[0])
    return maker is not None and maker.op in DYNAMIC_TYPES | dict.fromkeys(QDQ)


def _readers(flow: Flow, node: Node) -> tuple[str, ...]:
    """The compute nodes that read what a quantizer makes; the quantizer itself where there are none."""
    found: list[str] = []
    waiting, seen = list(node.outputs), set[str]()
    while waiting:
        for use in flow.view.uses(waiting.pop(0)):
            if use.node.name in seen:
                continue
            seen.add(use.node.name)
            if use.node.op in _QUANTIZERS:
                waiting += use.node.outputs
            else:
                found.append(use.node.name)
    return tuple(found) or (node.name,)


_EMPTY = "its zero point is an input without a name"


def _wanted(view: GraphView, node: Node) -> str:
    if node.op == MX_DEQUANTIZE:
        return "store one UINT8 exponent per block of 32"
    if node.op == FP4_DYNAMIC or node.name in _levels(view):
        return "store one positive FP32 scalar as the global scale, and the block scales as FP8"
    return "store one scalar, one scale per channel, or one per block along a single axis"


def _levels(view: GraphView) -> frozenset[str]:
    """Names of the DequantizeLinears that make block scales for others."""
    return frozenset(
        node.name
        for node in view.nodes
        if node.op == DEQUANTIZE
        and (uses := view.uses(node.outputs[0]))
        and all(use.index == 1 and use.node.op in QDQ for use in uses)
    )


def _takes_one(view: GraphView, node: Node) -> bool:
    return node.op == FP4_DYNAMIC or node.name in _levels(view)


def _of_constants(view: GraphView, node: Node) -> str:
    """What is wrong with the scales of TensorRT's own operators."""
    made = view.producer(node.inputs[1])
    if node.op == MX_DEQUANTIZE and made is not None and made.op in DYNAMIC_TYPES:
        return ""
    value, dtype = view.constant(node.inputs[1]), view.info(node.inputs[1]).dtype
    if value is None:
        return "its scale is not a constant"
    if node.op == FP4_DYNAMIC:
        if not dtype.is_float:
            return f"its scale is stored as {_word(dtype)}"
        return "" if value.size == 1 else f"it has {counted(value.size, 'scale')}, where one scalar is taken"
    if dtype is DType.FLOAT8_E8M0:
        return ""  # the rule microscaled says how to store them
    if value.dtype != np.uint8:
        return f"its scales are stored as {_word(dtype)}"
    return _misfit(node, value.shape, view.info(node.inputs[0]).shape, blocks=True)


def _of_levels(view: GraphView, node: Node) -> str:
    """What is wrong with the two inputs of a DequantizeLinear that makes block scales."""
    blocks, level = (view.info(name) for name in node.inputs[:2])
    maker = view.producer(node.inputs[0])
    if maker is None and any(not isinstance(size, int) for size in blocks.shape or ()):
        return "the number of its block scales is not known when the engine is built"
    if maker is not None and maker.op not in DYNAMIC_TYPES | dict.fromkeys(QDQ):
        return f"its block scales are computed by {maker.op}"
    if blocks.dtype not in _BLOCK_SCALES and maker is None:
        return f"its block scales are stored as {_word(blocks.dtype)}"
    value = view.constant(node.inputs[1])
    if value is None:
        return ""
    if not level.dtype.is_float:
        return f"its global scale is stored as {_word(level.dtype)}"
    if value.size != 1:
        return f"it has {counted(value.size, 'global scale')}, where one scalar is taken"
    fixed = view.is_constant(node.inputs[0])
    positive = is_number(value) and bool(np.all(np.asarray(value, np.float32) > 0))
    return (
        ""
        if positive or not fixed
        else f"its global scale is {float(np.asarray(value, np.float32).flat[0]):g}"
    )


def _of_shapes(view: GraphView, node: Node) -> str:
    scale, tensor = (view.info(node.inputs[place]).shape for place in (1, 0))
    if scale is None:
        return ""
    free = [size for size in scale if not isinstance(size, int)]
    made = view.producer(node.inputs[1])
    if free and made is None:
        return "the length of its scale is not known when the engine is built"
    two_levels = made is not None and made.op == DEQUANTIZE
    return "" if free else _misfit(node, scale, tensor, blocks=two_levels)


def _misfit(
    node: Node, scale: tuple[int | str, ...], tensor: tuple[int | str, ...] | None, *, blocks: bool
) -> str:
    """What is wrong with a scale of this shape; `blocks`: one scale for the tensor is not taken."""
    if tensor is None:
        return ""
    whole = "x".join(map(str, tensor)) or "a scalar"
    axis = node.integer("axis", 1)
    channels = len(scale) == 1 and -len(tensor) <= axis < len(tensor) and scale[0] == tensor[axis]
    ranks = {len(tensor)} if blocks else {0, 1, len(tensor)}
    if len(scale) not in ranks and not channels:
        return f"its scale has {counted(len(scale), 'dimension')}, the tensor is {whole}"
    if len(scale) < 2 or len(scale) != len(tensor):
        return ""
    sizes = enumerate(zip(scale, tensor, strict=True))
    if any(at != axis % len(tensor) and isinstance(of, int) and one != of for at, (one, of) in sizes):
        return (
            f"its scale is {'x'.join(map(str, scale))}, the tensor {whole}: only axis {axis} may have blocks"
        )
    return ""


def _of_zero_point(node: Node) -> str:
    has_none = node.op in QDQ and len(node.inputs) > _ZERO and not node.inputs[_ZERO]
    return _EMPTY if has_none else ""


def _word(dtype: DType) -> str:
    return "another type" if dtype is DType.UNKNOWN else dtype.value.upper()


def _same(value: NDArray[Any]) -> NDArray[Any] | None:
    """The one number that all scales are; None where they differ."""
    if not value.size or not is_number(value) or not (value == value.flat[0]).all():
        return None
    one: NDArray[Any] = value.reshape(-1)[:1].reshape(())
    return one


def fix(context: RepairContext) -> Iterator[Change]:
    """Make equal scales one where one is taken, and drop inputs without a name."""
    view = context.view
    for found, reason in match(view):
        node = context.nodes[found.name]
        if reason == _EMPTY:
            del node.input[_ZERO:]
            yield Change(
                subject=found.name,
                what="input without a name taken off",
                reason=f"{reason}: {_REFUSED}",
                error=0.0,
            )
            continue
        value = view.constant(found.inputs[1])
        one = None if value is None or not _takes_one(view, found) else _same(value)
        if one is not None and value is not None and value.ndim:
            context.edit.connect(node, 1, context.edit.constant(f"{found.inputs[1]}_scalar", one))
            what = f"{counted(value.size, 'equal scale')} became one scalar"
            yield Change(subject=found.name, what=what, reason=f"{reason}: {_REFUSED}", error=0.0)


PLUGIN = Rule(code="QDQ198", severity=Severity.ERROR, stops=True, stage=Stage.WRITE_OUT, check=check, fix=fix)
