"""DequantizeLinear moves before operators that only move integers.

TensorFlow's converter transposes and reshapes the integers themselves: Q -> Transpose -> DQ; onnxruntime's operator
format pools, resizes, splits and concatenates them. TensorRT wants the pair together, so the movement happens behind it
in float, where TensorRT moves Q and DQ back across it freely.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qdqtool.core.repair import Change
from qdqtool.graph.normalize.bench import MOVES, Bench

_Key = tuple[str, tuple[str, ...]]
"""An integer tensor, and the names of the scale and zero point it is read with."""
_ALSO = frozenset({"MaxPool", "Split", "Concat", "Tile"})
"""More operators whose results hold nothing but values of their inputs."""


def repair(bench: Bench) -> Iterator[Change]:
    """Let readers of a DequantizeLinear behind moved integers read moved floats."""
    floats = _Floats(bench)
    for pair in bench.pairs:
        if pair.dequantize is None or pair.scale_shape is None or len(pair.scale) != 1:
            continue
        node = bench.nodes[pair.dequantize]
        move = floats.mover(node.input[0])
        if move is None:
            continue
        made = floats.of((node.input[0], tuple(node.input[1:])))
        result = node.output[0]
        if result in bench.pinned:
            bench.edit.remove([node])
            bench.edit.node("Identity", [made], [result], name=f"{node.name}_Identity")
        else:
            bench.redirect(result, made)
        yield Change(
            repair="movement",
            subject=node.name,
            what=f"moved before {move.op_type} {move.name!r}, which now moves floats",
            reason="TensorRT fuses a Q and a DQ that stand together; an operator on bare integers keeps them apart",
            error=0.0,
        )


class _Floats:
    """The float form of integer tensors, each made once; what the integers' operators leave unused is pruned later."""

    def __init__(self, bench: Bench) -> None:
        self._edit = bench.edit
        self._makers = bench.edit.producers()
        self._made: dict[_Key, str] = {}

    def mover(self, tensor: str) -> onnx.NodeProto | None:
        """The operator that moves integers into `tensor`; None where something else makes it."""
        maker = self._makers.get(tensor)
        if maker is None or maker.domain not in {"", "ai.onnx"}:
            return None
        copies = maker.op_type == "Resize" and _is_nearest(maker)
        return maker if copies or maker.op_type in MOVES | _ALSO else None

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

    def _dequantize(self, tensor: str, numbers: tuple[str, ...]) -> None:
        result = self._edit.fresh(f"{tensor}_dequantized")
        self._edit.node(
            "DequantizeLinear", [tensor, *numbers], [result], name=f"{tensor}_DequantizeLinear_moved"
        )
        self._made[tensor, numbers] = result

    def _move(self, move: onnx.NodeProto, numbers: tuple[str, ...]) -> None:
        count = len(_data(move))
        inputs = [self._made[name, numbers] for name in _data(move)] + list(move.input[count:])
        outputs = [self._edit.fresh(f"{name}_float") if name else "" for name in move.output]
        twin = self._edit.node(move.op_type, inputs, outputs, name=f"{move.name}_float")
        twin.attribute.extend(move.attribute)
        made = zip(move.output, outputs, strict=True)
        self._made |= {(name, numbers): output for name, output in made if name}


def _data(move: onnx.NodeProto) -> tuple[str, ...]:
    """The inputs that hold the values which are moved."""
    return tuple(move.input) if move.op_type == "Concat" else (move.input[0],)


def _is_nearest(resize: onnx.NodeProto) -> bool:
    return all(attribute.s == b"nearest" for attribute in resize.attribute if attribute.name == "mode")


PLUGIN = repair
