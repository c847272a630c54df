"""Operators that move values without changing them, and where their Q/DQ pairs must be.

# commuting

Operators that only move or select values keep the scale of their input.

    before                            after
    x ─┬─ Conv                        x ─┬─ QDQ(s) ─ Conv
       └─ MaxPool ─ Reshape ─ Conv       └─ MaxPool ─ Reshape ─ QDQ(s) ─ Conv

MaxPool, Slice, Split, Reshape, Transpose, Flatten, Squeeze, Unsqueeze, nearest Resize, zero Pad and the like. The
builder moves the Q before them, so they run on INT8 values without separate Q/DQ. With the same scale before and after,
the input tensor is quantized once. Parts that are selected from a tensor (Slice, Split, Gather) use its scale only if
the whole tensor is quantized too: query, key and value, split from one MatMul, keep separate scales.

Evidence: RTX 1.7.1 runs MaxPool, Split, Slice, Pad, Transpose and nearest Resize on Int8 with Q/DQ only after them
(maxpool_noq, split_q, resize_q; a strided Slice and Pad shortcut 1.07 MB against 1.11 MB). Classic logs: passes
SwapWithFollowingQ and VanillaSwapWithFollowingQ.

# fan_out

A tensor that several moving operators read gets its Q/DQ before them, not only after them.

    before                                     after
    x ─┬─ Resize ─ Concat ─ QDQ(s) ─ Conv      x ─┬─ QDQ(s) ─ Resize ─ Concat ─ QDQ(s) ─ Conv
       └─ Concat ─ QDQ(s) ─ Conv                  └─ QDQ(s) ─ Concat ─ QDQ(s) ─ Conv

The builder would move the Q at the end of each path back to x, but not always early enough: then the producer writes a
float copy for the later path, and a chain of pools is computed once per path. A Concat on such a path gets pairs on all
branches; otherwise the last pool of a chain stays float. All these pairs share one scale (see the rules `concat` and
`commuting`), so the second rounding changes nothing. If a compute node reads x directly, its Q already exists.

Evidence: RTX 1.7.1, a YOLOv8n-like detector: 132 kernels and 44.75 MB without, 129 kernels and 44.24 MB with; without,
the SPPF pools are computed six times instead of three. INT8 pools would cost a copy kernel per branch of their Concat
(YOLOX-Nano: 218 kernels and 56.5 MB, against 215 and 57.2 MB with float pools), but for the rule `pool_concat`.
NVIDIA's YOLO scripts quantize pools and Concats likewise.

# movement

Operators that move or pool integers between Q and DQ.

    x ─ Q ─ Transpose ─ DQ ─ Conv      the pair is apart
    x ─ Q ─ DQ ─ Transpose ─ Conv      the builder moves Q and DQ across the Transpose as it likes

TensorFlow's converter transposes and reshapes the integers themselves; onnxruntime's operator format pools, pads,
resizes, splits and concatenates them. TensorRT fuses adjacent Q and DQ nodes, so the fix moves the operator after
them, where it runs in float. If the Resize is linear or cubic, its float result is rounded to the same steps, so the
result differs by at most one step.

Evidence: exports of tf2onnx and of onnxruntime's QOperator format.

# held_back

A nearest Resize or a Pad between a pair and the layer that should read its INT8 values.

    x ─ Q ─ DQ ─ Resize ─ Conv               the Conv is float
    x ─ Resize ─ Q ─ DQ ─ Conv               INT8; the Resize copies bytes
    x ─ Q ─ DQ ─ Resize ─ Q ─ DQ ─ Conv      INT8 too, where both pairs have one scale

Among the operators that only move values, TensorRT for RTX cannot move a DequantizeLinear forward through these two; it
can move a QuantizeLinear backward. A Pad of height and width directly before a single Conv is part of that Conv and
does no harm.

Evidence: RTX 1.7.1 dequantizes inside the resizing kernel and multiplies in float (resize_behind_pair,
channel_pad_behind_pair). With the pair after the Resize, it runs Resize and Conv in Int8 (resize_before_pair).
NVIDIA/TensorRT issue 2976.

# padded

Q/DQ between a Pad and the convolution it belongs to.

    x ─ Pad ─ Q ─ DQ ─ Conv      the Pad is a kernel
    x ─ Q ─ DQ ─ Pad ─ Conv      the Pad becomes the Conv's own

Classic TensorRT folds a zero Pad into the padding of the convolution only if nothing is between them. Zero stays zero
when quantized, so the pair can move before the Pad. TensorRT for RTX does this itself.

Evidence: NVIDIA/TensorRT issue 2592; RTX 1.7.1 leaves no kernel for the Pad (pad_behind_pair).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, QuantSpec, RequestOrVeto, SharedScale, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.wording import REPAIR
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import State, products, wanted_slots
from qdqtool.matching.rule import CLASSIC, Rule, Stage, Violation
from qdqtool.trt.ops import (
    ASKED_FOR,
    MAY_MOVE,
    PRODUCTS,
    carried_inputs,
    carried_outputs,
    picks_part,
    quantization_commutes,
)

# --- commuting -------------------------------------------------------------------------------------------------------


def place_commuting(view: GraphView, options: PlacementOptions) -> Iterator[SharedScale]:
    """Request one scale for the input and output of each operator that moves values.

    The output is listed first; if the operator picks a part, the input is first.
    """
    for node in view.nodes:
        if carried_inputs(view, node) != (0,) or node.op == "Concat" or view.is_constant(node.inputs[0]):
            continue
        if node.op == "MaxPool" and "MaxPool" not in options.ops:
            continue
        for output in carried_outputs(node):
            yield SharedScale(
                tensors=(node.inputs[0], output) if picks_part(node) else (output, node.inputs[0]),
                reason=f"{node.op} {node.name} moves values without changing them",
            )


# --- fan_out ---------------------------------------------------------------------------------------------------------


def place_fan_out(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Request Q/DQ on moving operators with a common input tensor, and on the other inputs of their Concats."""
    for slot, tensor in sorted(_slots(view, options).items()):
        yield SlotStatement(
            slot=slot,
            stance=RequestOrVeto.REQUEST,
            reason=f"several paths to INT8 layers start at {tensor}: a single Q there is enough for all",
            spec=QuantSpec(),
            only_if_shared=True,
        )


def _slots(view: GraphView, options: PlacementOptions) -> dict[Slot, str]:
    """Return the inputs to quantize where several moving paths start, and all inputs of their Concats.

    The values of the dict are the tensors at which the paths start.
    """
    useful = wanted_slots(view)
    forks: dict[Slot, str] = {}
    for tensor in (tensor for node in view.nodes for tensor in node.outputs):
        uses = [use for use in view.uses(tensor) if Slot(node=use.node.name, index=use.index) in useful]
        if len(uses) < 2 or any(use.node.op in PRODUCTS for use in uses):
            continue
        for use in uses:
            if _moves(view, use.node, options):
                count = len(use.node.inputs) if use.node.op == "Concat" else 0
                for index in (use.index, *range(count)):
                    if not view.is_constant(use.node.inputs[index]):
                        forks.setdefault(Slot(node=use.node.name, index=index), tensor)
    return forks


def _moves(view: GraphView, node: Node, options: PlacementOptions) -> bool:
    if node.op in ASKED_FOR:
        return node.op in options.ops
    return quantization_commutes(view, node) and not picks_part(node)


# --- movement --------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx

_Key = tuple[str, tuple[str, ...]]
"""An integer tensor, and the names of the scale and zero point that it is read with."""
_PAD_VALUE = 2
"""Input number of a Pad's constant."""


def fix_movement(context: RepairContext) -> Iterator[Change]:
    """Move each DequantizeLinear before the operators that move its integers. These operators then move floats."""
    floats = _Floats(context)
    for pair in context.pairs:
        if pair.dequantize is None or len(pair.scale) != 1 or not context.is_known(pair):
            continue
        node = context.nodes[pair.dequantize]
        move = floats.mover(node.input[0])
        if move is None:
            continue
        copy = floats.of((node.input[0], tuple(node.input[1:])))
        result = node.output[0]
        if result in context.pinned:
            context.edit.remove([node])
            if not floats.rename(copy, result):
                context.edit.node("Identity", [copy], [result], name=f"{node.name}_Identity")
        else:
            context.redirect(result, copy)
        yield Change(
            subject=node.name,
            what=f"{node.op_type} moved before {move.op_type} {move.name!r}, which now moves floats",
            reason="TensorRT fuses adjacent Q and DQ nodes; an operator on integers between them prevents it",
            error=None if _interpolates(move) else 0.0,
        )


class _Floats:
    """Writes the float versions of integer tensors, each once. Integer operators without a reader are removed later."""

    def __init__(self, context: RepairContext) -> None:
        self._edit = context.edit
        self._makers = context.edit.producers()
        self._floats: dict[_Key, str] = {}
        self._twins: dict[str, onnx.NodeProto] = {}

    def mover(self, tensor: str) -> onnx.NodeProto | None:
        """Return the operator that moves integers into `tensor`; None if the tensor has another producer."""
        maker = self._makers.get(tensor)
        if maker is None or maker.domain not in {"", "ai.onnx"}:
            return None
        if maker.op_type == "Pad" and self._padding(maker) is None:
            return None
        return maker if maker.op_type in MAY_MOVE else None

    def of(self, key: _Key) -> str:
        """Return the float version of an integer tensor. Operators that only move integers then move floats."""
        waiting = [key]
        while waiting:
            tensor, numbers = waiting[-1]
            move = self.mover(tensor)
            if (tensor, numbers) in self._floats:
                waiting.pop()
                continue
            sources = () if move is None else tuple((name, numbers) for name in _data(move))
            missing = [source for source in sources if source not in self._floats]
            if missing:
                waiting += missing
            elif move is None:
                self._dequantize(tensor, numbers)
            else:
                self._move(move, numbers)
        return self._floats[key]

    def rename(self, tensor: str, new_name: str) -> bool:
        """Rename a float tensor to `new_name`.

        Return False if it has the name of a model output or no float copy of an operator makes it.
        """
        twin = self._twins.pop(tensor, None)
        if twin is None:
            return False
        twin.output[list(twin.output).index(tensor)] = new_name
        self._edit.redirect(tensor, new_name)
        self._floats = {key: new_name if name == tensor else name for key, name in self._floats.items()}
        return True

    def _dequantize(self, tensor: str, numbers: tuple[str, ...]) -> None:
        result = self._edit.fresh(f"{tensor}_dequantized")
        self._edit.node(
            "DequantizeLinear", [tensor, *numbers], [result], name=f"{tensor}_DequantizeLinear_moved"
        )
        self._floats[tensor, numbers] = result

    def _move(self, move: onnx.NodeProto, numbers: tuple[str, ...]) -> None:
        count = len(_data(move))
        inputs = [self._floats[name, numbers] for name in _data(move)] + list(move.input[count:])
        if move.op_type == "Pad":
            inputs[1:3] = [move.input[1], self._pad_value(move, numbers)]
        outputs = [self._edit.fresh(f"{name}_float") if name else "" for name in move.output]
        twin = self._edit.node(move.op_type, inputs, outputs, name=f"{move.name}_float")
        twin.attribute.extend(move.attribute)
        if _interpolates(move):
            outputs = [self._round_tensor(move, outputs[0], numbers)]
        else:
            self._twins |= dict.fromkeys(outputs, twin)
        outputs_of = zip(move.output, outputs, strict=True)
        self._floats |= {(name, numbers): output for name, output in outputs_of if name}

    def _round_tensor(self, move: onnx.NodeProto, tensor: str, numbers: tuple[str, ...]) -> str:
        """Round `tensor` with Q and DQ to the steps of the integer tensor that it replaces."""
        integers = self._edit.fresh(f"{tensor}_quantized")
        self._edit.node(
            "QuantizeLinear", [tensor, *numbers], [integers], name=f"{move.name}_float_QuantizeLinear"
        )
        self._dequantize(integers, numbers)
        return self._floats[integers, numbers]

    def _padding(self, pad: onnx.NodeProto) -> NDArray[Any] | None:
        """Return the integer with which a Pad fills; None if it is computed at run time."""
        if len(pad.input) < _PAD_VALUE + 1 or not pad.input[_PAD_VALUE]:
            return np.zeros((), np.int64) if len(pad.input) > 1 else None
        return self._edit.value(pad.input[_PAD_VALUE])

    def _pad_value(self, pad: onnx.NodeProto, numbers: tuple[str, ...]) -> str:
        """Return a constant with the float value of a Pad's integer."""
        value, scale = self._padding(pad), self._edit.value(numbers[0])
        zero = self._edit.value(numbers[1]) if len(numbers) > 1 else np.zeros(())
        if value is None or scale is None or zero is None:
            return ""  # repair() passes only constants
        steps = value.reshape(()).astype(np.int64) - zero.reshape(()).astype(np.int64)
        return self._edit.constant(f"{pad.name}_value", steps.astype(scale.dtype) * scale.reshape(()))


def _data(move: onnx.NodeProto) -> tuple[str, ...]:
    """Return the inputs of a moving operator that hold the moved values, not shapes or indices."""
    return tuple(move.input) if move.op_type == "Concat" else (move.input[0],)


def _interpolates(move: onnx.NodeProto) -> bool:
    modes = (attribute.s for attribute in move.attribute if attribute.name == "mode")
    return move.op_type == "Resize" and any(mode != b"nearest" for mode in modes)


# --- held_back -------------------------------------------------------------------------------------------------------


def match_held_back(flow: Flow, target: Target) -> Iterator[tuple[Node, int, QdqPair]]:
    """Yield node, input and Q/DQ pair where a Resize or Pad between them stops TensorRT for RTX."""
    for product in products(flow, target):
        for operand in product.operands:
            if operand.state is State.HELD_BACK and operand.pair is not None:
                yield product.node, operand.index, operand.pair


def check_held_back(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report inputs of compute nodes that have a Resize or a Pad between the INT8 Q/DQ pair and the node."""
    for node, index, pair in match_held_back(flow, target):
        yield Violation(
            node=node.name,
            reason=f"a Resize or Pad is between {pair.dequantize} and its input {index}",
            effect=f"{node.op} runs in float",
            fix=f"quantize {node.inputs[index]} too, with the scale of {pair.dequantize}; {REPAIR} does this",
            products=(node.name,),
        )


def fix_held_back(context: RepairContext) -> Iterator[Change]:
    """Insert a Q/DQ pair directly before each input that gets INT8 values through a Resize or a Pad."""
    for node, index, pair in match_held_back(context.flow, context.target or Target()):
        if not context.is_plain(pair) or pair.scale_shape != () or not context.symmetric(pair):
            continue
        yield Change(
            edits=(SlotEdit(slot=Slot(node=node.name, index=index), scales=pair.scale),),
            subject=node.inputs[index],
            what=f"quantized for {node.op} {node.name!r} with the scale of {pair.dequantize!r}",
            reason="a Resize or Pad before the layer has no scale, so the layer does not get INT8 values",
            error=0.0,
        )


# --- padded ----------------------------------------------------------------------------------------------------------


def check_padded(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs between a Pad and a Conv."""
    for pair in flow.pairs:
        producer = flow.view.producer(pair.tensor)
        readers = [flow.view.by_name[slot.node].op for slot in pair.slots]
        if producer is not None and producer.op == "Pad" and "Conv" in readers:
            yield Violation(
                node=pair.quantize or "",
                reason=f"the Q/DQ pair is between Pad {producer.name} and its convolution",
                effect="the Pad is a separate kernel",
                fix="quantize the input of the Pad instead",
            )


PLUGIN = {
    "commuting": Rule(code="QDQ161", place=place_commuting),
    "fan_out": Rule(code="QDQ166", place=place_fan_out),
    "movement": Rule(code="QDQ152", stage=Stage.WRITE_OUT, after=("clipped",), fix=fix_movement),
    "held_back": Rule(
        code="QDQ139",
        severity=Severity.WARNING,
        check=check_held_back,
        fix=fix_held_back,
        targets=frozenset({"rtx"}),
    ),
    "padded": Rule(code="QDQ136", severity=Severity.INFO, check=check_padded, targets=CLASSIC),
}
