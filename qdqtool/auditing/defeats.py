"""Why TensorRT silently computes in float what Q/DQ asks of it in FP8, FP4, or with small weights, and the way out.

What does so is in `matching/silent_float.py`; here it is read from the graph around a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qdqtool.auditing.realised import Realised
from qdqtool.graph.beside_attention import is_split, reads_attention
from qdqtool.matching.evidence import NodeEvidence, Operand
from qdqtool.matching.silent_float import (
    BEFORE,
    MXFP8_IS_FLOAT,
    StoredWeight,
    columns_of,
    dequantized_apart,
    rows_of,
    too_many_taps,
)


def defeat(node_evidence: NodeEvidence, found: Realised) -> tuple[str, str] | None:
    """Reason and fix; None where nothing that is known applies."""
    if found.asked == "int8-weights" and node_evidence.node.op.startswith("Conv"):
        return None  # mostly half of an INT8 convolution, and causes says which half is missing
    if found.realised.endswith(BEFORE) and found.asked.endswith("-weights"):
        lost = "" if found.bytes_lost is None else f"; {found.bytes_lost:,} bytes are written and read again"
        why, fix = next(
            _weights(node_evidence, found.asked), ("no cause is visible", "leave this weight float")
        )
        return f"{found.layer} dequantizes its weight before the kernel in every inference{lost}: {why}", fix
    return next(_products(node_evidence, found.asked), None)


def _weights(node_evidence: NodeEvidence, asked: str) -> Iterator[tuple[str, str]]:
    weight = next((operand for operand in node_evidence.weights if operand.dequantize is not None), None)
    if weight is None or weight.dequantize is None:
        return
    shape = node_evidence.view.info(node_evidence.node.inputs[weight.index]).shape or ()
    yield from dequantized_apart(
        StoredWeight(
            op=node_evidence.node.op,
            format=asked.removesuffix("-weights"),
            columns=columns_of(node_evidence.node, shape),
            size=prod(size for size in shape if isinstance(size, int)),
            scales=weight.scale_shape or (),
            rows=rows_of(node_evidence.view, node_evidence.node) if node_evidence.activations else None,
            readers=_readers(node_evidence, weight),
            split=is_split(node_evidence.view, node_evidence.node),
            attention=reads_attention(node_evidence.view, node_evidence.node),
        )
    )


def _products(node_evidence: NodeEvidence, asked: str) -> Iterator[tuple[str, str]]:
    if asked == "mxfp8":
        yield MXFP8_IS_FLOAT
    if asked == "fp8" and node_evidence.node.op == "Conv":
        shape = next(
            (node_evidence.view.info(operand.source).shape or () for operand in node_evidence.weights), ()
        )
        objection = too_many_taps(shape)
        if objection is not None:
            yield objection
    if asked == "nvfp4":
        flat = [
            operand
            for operand in node_evidence.operands
            if operand.dequantize is not None and node_evidence.view.is_constant(operand.dequantize.inputs[1])
        ]
        if flat:
            yield (
                f"the scales of {flat[0].source!r} have one level",
                "FP8 scales of blocks of 16 along the summed axis, behind one float scale",
            )


def _readers(node_evidence: NodeEvidence, weight: Operand) -> int:
    """Inputs that read the same stored values with the same scale."""
    assert weight.dequantize is not None
    return sum(
        len(node_evidence.view.uses(use.node.outputs[0]))
        for use in node_evidence.view.uses(weight.dequantize.inputs[0])
        if use.index == 0 and use.node.inputs[1:] == weight.dequantize.inputs[1:]
    )
