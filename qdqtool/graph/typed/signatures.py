"""Where an operator's schema allows a narrow float type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import onnx

from qdqtool.graph.onnx_io.walk import bodies


@dataclass(frozen=True, slots=True)
class Signature:
    """Whether each input and output of an operator may be narrow; the last entry repeats."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    def takes(self, index: int) -> bool:
        """Whether input number `index` may be narrow."""
        return bool(self.inputs) and self.inputs[min(index, len(self.inputs) - 1)]

    def makes(self, index: int) -> bool:
        """Whether output number `index` may be narrow."""
        return bool(self.outputs) and self.outputs[min(index, len(self.outputs) - 1)]


_CONTAINERS = ("seq(", "optional(")
_WIDE = Signature((False,), (False,))


def signature(node: onnx.NodeProto, opset: int, word: str) -> Signature:
    """What the node's operator allows.

    Foreign operators and control flow take and make FP32 only, as do operators on sequences, whose declared types do
    not change with their elements, and BitCast, which looks at the bits.

    `word` is ONNX's spelling of the narrow type, as "tensor(float16)".
    """
    if node.domain not in {"", "ai.onnx"} or node.op_type == "BitCast" or any(True for _ in bodies(node)):
        return _WIDE
    return _signature(node.op_type, opset, word)


@lru_cache(maxsize=1024)
def _signature(op: str, opset: int, word: str) -> Signature:
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return _WIDE
    types = {entry.type_param_str: entry.allowed_type_strs for entry in schema.type_constraints}

    for entry in (*schema.inputs, *schema.outputs):
        kinds = types.get(entry.type_str, [entry.type_str])
        if all(kind.startswith(_CONTAINERS) for kind in kinds):
            return _WIDE

    def allowed(parameter: str) -> bool:
        return word in types.get(parameter, (parameter,))

    return Signature(
        tuple(allowed(entry.type_str) for entry in schema.inputs),
        tuple(allowed(entry.type_str) for entry in schema.outputs),
    )
