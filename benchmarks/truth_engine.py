"""The layer dump of an engine, read by a parser that shares nothing with the tool: what the truth is measured by."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Kernel:
    """One record of the layer dump: its type, its nodes, and the types of its operands of two dimensions or more."""

    name: str
    kind: str
    nodes: frozenset[str]
    operands: tuple[str, ...]
    bytes: int


RECORD = re.compile(
    r"^Name: (.*?), LayerType: ([\w ]+), Inputs: (.*?), Outputs: (.*?), TacticName: (.*?), StreamId"
)
TENSOR = re.compile(r"Dimensions: \[([-\d,]*)\].*?Datatype: ([\w ]+?), Format")
ONNX_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\[ONNX Layer: |\x1f|$|\s*$)")
LOW = {"Int8": "int8", "FP8": "fp8"}
SIZES = {"Float": 4, "Half": 2, "BFloat16": 2, "Int8": 1, "FP8": 1, "Int32": 4, "Int64": 8, "Bool": 1}


def kernels(dump: str) -> list[Kernel]:
    found = []
    for record in dump.splitlines():
        match = RECORD.match(record)
        if match is None or match[2] in {"signal", "wait", "shape_call"}:
            continue
        read = [(shape_of(dims), kind) for dims, kind in TENSOR.findall(match[3])]
        moved = [(shape_of(dims), kind) for dims, kind in TENSOR.findall(match[3].split("Constants:")[0])]
        moved += [(shape_of(dims), kind) for dims, kind in TENSOR.findall(match[4])]
        size = sum(int(np.prod([abs(d) for d in shape])) * SIZES.get(kind, 0) for shape, kind in moved)
        operands = tuple(kind for shape, kind in read if len(shape) >= 2)
        nodes = frozenset(ONNX_NODE.findall(record.partition("Metadata: ")[2]))
        found.append(Kernel(match[1], match[2], nodes, operands, size))
    return found


def shape_of(dims: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims.split(",") if dim)


def is_core(kernel: Kernel) -> bool:
    """Whether a record multiplies matrices, by the kinds that the builder uses for them."""
    if kernel.kind in {"correlation", "gemm", "deconv"} or "_mha_" in kernel.name:
        return True
    fused = kernel.kind == "runtime_fusion" and re.search("Fc|Corr", kernel.name) is not None
    return fused or (kernel.kind == "kgen" and re.search(r"MulSum(?:Etc|_|$)", kernel.name) is not None)


def precisions(dump: Sequence[Kernel]) -> dict[str, str]:
    """Node -> "int8", "fp8" or "float", for nodes that stand in exactly one kind of core kernel.

    A generated kernel that multiplies and sums counts for nodes that no kernel of another kind states: it names what
    the bias or the scale in it belongs to as well.
    """
    said: dict[str, set[str]] = defaultdict(set)
    core = [kernel for kernel in dump if is_core(kernel) and kernel.operands]
    stated = frozenset().union(*(kernel.nodes for kernel in core if kernel.kind != "kgen"))
    for kernel in core:
        nodes = kernel.nodes - stated if re.search(r"MulSum(?:Etc|_|$)", kernel.name) else kernel.nodes
        if nodes:
            fused = "CastMul" in kernel.name and kernel.kind == "runtime_fusion"
            counts = {word: kernel.operands.count(kind) for kind, word in LOW.items()}
            words = [
                word for word, n in counts.items() if not fused and (n >= 2 or n == len(kernel.operands))
            ]
            for node in nodes:
                said[node].add((words or ["float"])[0])
    return {node: words.pop() for node, words in said.items() if len(words) == 1}
