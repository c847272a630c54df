"""Operators that move or pool integers between Q and DQ.

    x ─ Q ─ Transpose ─ DQ ─ Conv      the pair is apart
    x ─ Q ─ DQ ─ Transpose ─ Conv      the builder moves Q and DQ across the Transpose as it likes

TensorFlow's converter transposes and reshapes the integers themselves; onnxruntime's operator format pools, pads,
resizes, splits and concatenates them. TensorRT fuses a Q and a DQ that stand together, so the fix lets the movement
happen behind them, in float. What a linear or cubic Resize makes of integers is rounded to the same steps behind the
float one: at most a step away.

Evidence: exports of tf2onnx and of onnxruntime's QOperator format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.repair import Change
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage
from qdqtool.trt.ops import MAY_MOVE

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_Key = tuple[str, tuple[str, ...]]
"""An integer tensor, and the names of the scale and zero point it is read with."""
_PAD_VALUE = 2
"""Position of a Pad's constant."""


def fix(context: RepairContext) -> Iterator[Change]:
    """Let readers of a DequantizeLinear behind moved integers read moved floats."""
    floats = _Floats(context)
    for pair in context.pairs:
        if pair.dequantize is None or len(pair.scale) != 1 or not context.is_known(pair):
            continue
        node = context.nodes[pair.dequantize]
        move = floats.mover(node.input[0])
        if move is None:
            continue
        made = floats.of((node.input[0], tuple(node.input[1:])))
        result = node.output[0]
        if result in context.pinned:
            context.edit.remove([node])
            if not floats.rename(made, result):
                context.edit.node("Identity", [made], [result], name=f"{node.name}_Identity")
        else:
            context.redirect(result, made)
        yield Change(
            subject=node.name,
            what=f"moved before {move.op_type} {move.name!r}, which now moves floats",
            reason="TensorRT fuses a Q and a DQ that stand together; an operator on bare integers keeps them apart",
            error=None if _interpolates(move) else 0.0,
        )


class _Floats:
    """The float form of integer tensors, each made once; what the integers' operators leave unused is pruned later."""

    def __init__(self, context: RepairContext) -> None:
        self._edit = context.edit
        self._makers = context.edit.producers()
        self._made: dict[_Key, str] = {}
        self._twins: dict[str, onnx.NodeProto] = {}

    def mover(self, tensor: str) -> onnx.NodeProto | None:
        """The operator that moves integers into `tensor`; None where something else makes it."""
        maker = self._makers.get(tensor)
        if maker is None or maker.domain not in {"", "ai.onnx"}:
            return None
        if maker.op_type == "Pad" and self._padding(maker) is None:
            return None
        return maker if maker.op_type in MAY_MOVE else None

    def of(self, key: _Key) -> str:
        """The float tensor that `key` stands for, made of floats as far back as integers are only moved."""
        waiting = [key]
        while waiting:
            tensor, numbers = waiting[-1]
            move = self.mover(tensor)
            if (tensor, numbers) in self._made:
                waiting.pop()
                continue
            sources = () if move is None else tuple((name, numbers) for name in _data(move))
            missing = [source for source in sources if source not in self._made]
            if missing:
                waiting += missing
            elif move is None:
                self._dequantize(tensor, numbers)
            else:
                self._move(move, numbers)
        return self._made[key]

    def rename(self, made: str, new_name: str) -> bool:
        """Call a float tensor `new_name`, unless an output of the model has named it already."""
        twin = self._twins.pop(made, None)
        if twin is None:
            return False
        twin.output[list(twin.output).index(made)] = new_name
        self._edit.redirect(made, new_name)
        self._made = {key: new_name if name == made else name for key, name in self._made.items()}
        return True

    def _dequantize(self, tensor: str, numbers: tuple[str, ...]) -> None:
        result = self._edit.fresh(f"{tensor}_dequantized")
        self._edit.node(
            "DequantizeLinear", [tensor, *numbers], [result], name=f"{tensor}_DequantizeLinear_moved"
        )
        self._made[tensor, numbers] = result

    def _move(self, move: onnx.NodeProto, numbers: tuple[str, ...]) -> None:
        count = len(_data(move))
        inputs = [self._made[name, numbers] for name in _data(move)] + list(move.input[count:])
        if move.op_type == "Pad":
            inputs[1:3] = [move.input[1], self._padded(move, numbers)]
        outputs = [self._edit.fresh(f"{name}_float") if name else "" for name in move.output]
        twin = self._edit.node(move.op_type, inputs, outputs, name=f"{move.name}_float")
        twin.attribute.extend(move.attribute)
        if _interpolates(move):
            outputs = [self._rounded(move, outputs[0], numbers)]
        else:
            self._twins |= dict.fromkeys(outputs, twin)
        made = zip(move.output, outputs, strict=True)
        self._made |= {(name, numbers): output for name, output in made if name}

    def _rounded(self, move: onnx.NodeProto, tensor: str, numbers: tuple[str, ...]) -> str:
        """`tensor` on the steps that the integers had."""
        integers = self._edit.fresh(f"{tensor}_quantized")
        self._edit.node(
            "QuantizeLinear", [tensor, *numbers], [integers], name=f"{move.name}_float_QuantizeLinear"
        )
        self._dequantize(integers, numbers)
        return self._made[integers, numbers]

    def _padding(self, pad: onnx.NodeProto) -> NDArray[Any] | None:
        """The integer that a Pad writes; None where it is computed at run time."""
        if len(pad.input) < _PAD_VALUE + 1 or not pad.input[_PAD_VALUE]:
            return np.zeros((), np.int64) if len(pad.input) > 1 else None
        return self._edit.value(pad.input[_PAD_VALUE])

    def _padded(self, pad: onnx.NodeProto, numbers: tuple[str, ...]) -> str:
        """The float that a Pad's integer stands for."""
        value, scale = self._padding(pad), self._edit.value(numbers[0])
        zero = self._edit.value(numbers[1]) if len(numbers) > 1 else np.zeros(())
        if value is None or scale is None or zero is None:
            return ""  # repair() asks for constants only
        steps = value.reshape(()).astype(np.int64) - zero.reshape(()).astype(np.int64)
        return self._edit.constant(f"{pad.name}_value", steps.astype(scale.dtype) * scale.reshape(()))


def _data(move: onnx.NodeProto) -> tuple[str, ...]:
    """The inputs that hold the values which are moved."""
    return tuple(move.input) if move.op_type == "Concat" else (move.input[0],)


def _interpolates(move: onnx.NodeProto) -> bool:
    modes = (attribute.s for attribute in move.attribute if attribute.name == "mode")
    return move.op_type == "Resize" and any(mode != b"nearest" for mode in modes)


PLUGIN = Rule(code="QDQ152", stage=Stage.WRITE_OUT, after=("clipped",), fix=fix)
