"""What was asked and what is computed, read by parsers that share nothing with the tool: what the truth is measured by.

Asked is read from the element types behind the DQ nodes of the model, computed from the layer dump of its engine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx


@dataclass(frozen=True)
class Tensor:
    """One operand of a record."""

    name: str
    shape: tuple[int, ...]
    kind: str
    layout: str = ""

    @property
    def bytes(self) -> float:
        return float(np.prod([abs(size) for size in self.shape])) * SIZES.get(self.kind, 0)

    @property
    def is_small(self) -> bool:
        """Whether it is a matrix or a list of stored values in few bits."""
        return self.kind in FORMATS and sum(size != 1 for size in self.shape) > 1


@dataclass(frozen=True)
class Kernel:
    """One record of the layer dump: its type, its nodes, what it reads and holds, and what it writes."""

    name: str
    kind: str
    nodes: frozenset[str]
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """The types of what it multiplies: of two dimensions or more, without the FP8 scales of FP4 values."""
        found = tuple(each.kind for each in (*self.inputs, *self.constants) if len(each.shape) >= 2)
        four_bits = "FP4E2M1" in found
        return tuple(kind for kind in found if not (four_bits and kind == "FP8"))

    @property
    def stored(self) -> str:
        """The format of the weight that it holds in few bits; "" without one."""
        held = [constant for constant in self.constants if constant.is_small]
        held = [constant for constant in held if constant.kind == "FP4E2M1"] or held
        return FORMATS[max(held, key=lambda each: each.bytes).kind] if held else ""


RECORD = re.compile(
    r"^Name: (.*?), LayerType: ([\w ]+), Inputs: (.*?), Outputs: (.*?), TacticName: (.*?), StreamId"
)
TENSOR = re.compile(
    r"\{ Name: ([^{}]*?), [^{}]*?Dimensions: \[([-\d,]*)\]([^{}]*?)Datatype: ([\w ]+?), Format: ([^{}]*)"
)
ONNX_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\[ONNX Layer: |\x1f|$|\s*$)")
LOW = {"Int8": "int8", "FP8": "fp8", "FP4E2M1": "fp4"}
FORMATS = {"Int8": "int8", "FP8": "fp8", "FP4E2M1": "nvfp4", "Int4": "int4"}
BEFORE = " dequantized before the kernel"
SIZES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Int8": 1, "FP8": 1, "FP8UE8M0": 1, "Int4": 0.5, "FP4E2M1": 0.5,
    "Int32": 4, "Int64": 8, "Bool": 1,
}  # fmt: skip
ROUNDS_FIRST = re.compile(r"Roun\w*?(?:Fc|Corr)")
"""A generated kernel that rounds its input and multiplies it: nothing shows whether it multiplies integers."""
VECTOR_PRODUCT = re.compile(r"MulSum(?:Add|Mul)*(?:Etc|_|$)")


def kernels(dump: str) -> list[Kernel]:
    found = []
    for record in dump.splitlines():
        match = RECORD.match(record)
        if match is None or match[2] in {"signal", "wait", "shape_call"}:
            continue
        read, _, held = match[3].partition("Constants:")
        nodes = frozenset(ONNX_NODE.findall(record.partition("Metadata: ")[2]))
        found.append(Kernel(match[1], match[2], nodes, tensors(read), tensors(held), tensors(match[4])))
    return found


def tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, shape_of(dims), kind, f"{strides} {form}")
        for name, dims, strides, kind, form in TENSOR.findall(text)
    )


def shape_of(dims: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims.split(",") if dim)


def is_core(kernel: Kernel) -> bool:
    """Whether a record multiplies matrices, by the kinds that the builder uses for them."""
    if kernel.kind in {"correlation", "gemm", "deconv"} or "_mha_" in kernel.name:
        return True
    fused = kernel.kind in {"runtime_fusion", "kgen"} and re.search("Fc|Corr", kernel.name) is not None
    if kernel.kind == "kgen" and ROUNDS_FIRST.search(kernel.name):
        return False
    return fused or (kernel.kind == "kgen" and VECTOR_PRODUCT.search(kernel.name) is not None)


def precisions(dump: Sequence[Kernel]) -> dict[str, str]:
    """Node -> "int8", "fp8", "fp4" or "float", for nodes that stand in exactly one kind of core kernel.

    A generated kernel, such as an attention, counts for nodes that no kernel of another kind states: it names what the
    bias or the scale in it belongs to as well.
    """
    said: dict[str, set[str]] = defaultdict(set)
    for kernel, nodes in cores(dump):
        for node in nodes:
            said[node].add(arithmetic(kernel))
    return {node: words.pop() for node, words in said.items() if len(words) == 1}


def cores(dump: Sequence[Kernel]) -> list[tuple[Kernel, frozenset[str]]]:
    """The kernels that multiply matrices, each with the nodes that it counts for."""
    core = [kernel for kernel in dump if is_core(kernel) and kernel.operands]
    stated = frozenset().union(*(kernel.nodes for kernel in core if kernel.kind != "kgen"))
    return [(kernel, kernel.nodes - stated if kernel.kind == "kgen" else kernel.nodes) for kernel in core]


def arithmetic(kernel: Kernel) -> str:
    """What a core kernel multiplies; a stored weight beside float values is dequantized inside."""
    if (kernel.kind == "runtime_fusion" and "CastMul" in kernel.name) or VECTOR_PRODUCT.search(kernel.name):
        return "float"
    counts = {word: kernel.operands.count(kind) for kind, word in LOW.items()}
    return next((word for word, n in counts.items() if n >= 2 or n == len(kernel.operands)), "float")


def realised(dump: Sequence[Kernel]) -> dict[str, str]:
    """Node -> the format of its product, of the weight that its kernel reads, or of one that another makes float."""
    makers = {
        tensor.name: kernel.stored
        for kernel in dump
        if kernel.stored and not kernel.inputs
        for tensor in kernel.outputs
    }
    said: dict[str, set[str]] = defaultdict(set)
    for kernel, nodes in cores(dump):
        low = {word: FORMATS[kind] for kind, word in LOW.items()}.get(arithmetic(kernel))
        made = [makers[tensor.name] for tensor in kernel.inputs if tensor.name in makers]
        fallen = f"{made[0]}-weights{BEFORE}" if made else "float"
        for node in nodes:
            said[node].add(low or (f"{kernel.stored}-weights" if kernel.stored else fallen))
    return {node: words.pop() for node, words in said.items() if len(words) == 1}


_ELEMENTS = {
    onnx.TensorProto.INT8: "int8", onnx.TensorProto.UINT8: "int8", onnx.TensorProto.FLOAT8E4M3FN: "fp8",
    onnx.TensorProto.INT4: "int4", onnx.TensorProto.FLOAT4E2M1: "nvfp4",
}  # fmt: skip
_SAME_VALUES = frozenset({"Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten"})


def asked(model: onnx.ModelProto, ops: Container[str]) -> dict[str, str]:
    """Node -> the format that the DQ nodes in front of its two factors say, "X-weights" for the constant one alone."""
    made = {name: node for node in model.graph.node for name in node.output}
    held = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type in ops:
            pairs = [factor(name, made, held) for name in node.input[:2]]
            weights = {word for word, constant in pairs if constant and word}
            others = {word for word, constant in pairs if not constant}
            both = weights | (others - {""})
            if not both or (len(both) == 1 and all(word for word, _ in pairs)):
                found[node.name] = next(iter(both), "float")
            else:
                end = "-weights" if others == {""} else "" if weights and "" not in others else "-activations"
                found[node.name] = "+".join(sorted(both)) + end
    return found


def factor(name: str, made: Mapping[str, onnx.NodeProto], held: Mapping[str, int]) -> tuple[str, bool]:
    """The element type behind the DQ that a factor comes from, "" for float, and whether it is constant."""
    word = ""
    while name in made:
        node = made[name]
        if node.op_type.endswith("DequantizeLinear") and not word:
            stored = node.input[0]
            zero = held.get(node.input[2]) if len(node.input) > 2 else None
            kind = zero or held.get(stored) or made_type(made.get(stored), held)
            word = "mxfp8" if "MXFP8" in node.op_type else _ELEMENTS.get(kind or 0, "")
        elif not node.op_type.endswith("QuantizeLinear") and node.op_type not in _SAME_VALUES:
            return word, False
        name = node.input[0]
    return word, name in held


def made_type(node: onnx.NodeProto | None, held: Mapping[str, int]) -> int | None:
    """The element type that a Q writes, by its zero point or its own word."""
    if node is None:
        return None
    if node.op_type == "TRT_FP4DynamicQuantize":
        return onnx.TensorProto.FLOAT4E2M1
    if len(node.input) > 2 and node.input[2] in held:
        return held[node.input[2]]
    return next((each.i for each in node.attribute if each.name == "output_dtype"), None)
