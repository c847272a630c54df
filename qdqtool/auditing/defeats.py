"""Why TensorRT silently computes in float what Q/DQ asks of it in FP8, FP4, or with small weights, and the way out.

Each was seen in builds with TensorRT for RTX 1.7.1, beside one like it that was realised.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qdqtool.auditing.realised import BEFORE, Realised
from qdqtool.matching.evidence import NodeEvidence, Operand

_MOST_TAPS = 32
_INSIDE = "inside the kernel"


def defeat(case: NodeEvidence, found: Realised) -> tuple[str, str] | None:
    """Reason and fix; None where nothing that is known applies."""
    if found.asked == "int8-weights" and case.node.op.startswith("Conv"):
        return None  # mostly half of an INT8 convolution, and causes says which half is missing
    if found.realised.endswith(BEFORE) and found.asked.endswith("-weights"):
        lost = "" if found.bytes_lost is None else f"; {found.bytes_lost:,} bytes are written and read again"
        why, fix = next(_weights(case, found.asked), ("no cause is visible", "leave this weight float"))
        return f"{found.layer} dequantizes its weight before the kernel in every inference{lost}: {why}", fix
    return next(_products(case, found.asked), None)


def _weights(case: NodeEvidence, asked: str) -> Iterator[tuple[str, str]]:
    weight = next((operand for operand in case.weights if operand.dequantize is not None), None)
    if weight is None or weight.dequantize is None:
        return
    if case.node.op.startswith("Conv"):
        yield (
            f"no Conv dequantizes weights {_INSIDE}",
            "quantize its input too (int8, or fp8 from SM89 on), or leave it float",
        )
    if asked == "nvfp4-weights":
        yield (
            f"FP4 weights are dequantized {_INSIDE} for no product of more than one row",
            "quantize its input to nvfp4 too",
        )
    if _readers(case, weight) > 1:
        yield (
            "several nodes read this weight through Q/DQ, and equal nodes are merged",
            "give each of them an initializer of its own, with a DequantizeLinear of its own",
        )
    shape = case.view.info(weight.dequantize.inputs[0]).shape or ()
    if len(shape) > 1 and isinstance(shape[-1], int) and shape[-1] % 2:
        yield f"{shape[-1]} columns are an odd number", "pad the columns to an even number"
    scales = weight.scale_shape or ()
    if asked == "int4-weights" and (len(scales) < 2 or 1 in scales[-2:]):
        yield (
            f"INT4 without at least two blocks is not dequantized {_INSIDE}",
            "use blocks of 16 to 128 along the summed axis",
        )
    if asked == "int8-weights" and len(scales) > 1:
        yield f"INT8 in blocks is not dequantized {_INSIDE}", "one scale per output channel, or INT4 blocks"
    if scales and _rows(case) == 1:
        yield "with one row, weights with a scale per channel are not", "one scale for the whole weight"


def _products(case: NodeEvidence, asked: str) -> Iterator[tuple[str, str]]:
    if asked == "mxfp8":
        yield (
            "TensorRT for RTX 1.7.1 computes MXFP8 in float in every graph that was built",
            "use nvfp4 (SM120) or fp8 (SM89), or classic TensorRT 10.12 on SM100",
        )
    if asked == "fp8" and case.node.op == "Conv":
        shape = next((case.view.info(operand.source).shape or () for operand in case.weights), ())
        taps = prod(size for size in shape[2:] if isinstance(size, int))
        if taps > _MOST_TAPS:
            yield (
                f"FP8 convolutions of more than {_MOST_TAPS} taps run in float, this one has {taps}",
                "quantize it to int8, or leave it float",
            )
    if asked == "nvfp4":
        flat = [
            operand
            for operand in case.operands
            if operand.dequantize is not None and case.view.is_constant(operand.dequantize.inputs[1])
        ]
        if flat:
            yield (
                f"the scales of {flat[0].source!r} have one level",
                "FP8 scales of blocks of 16 along the summed axis, behind one float scale",
            )


def _readers(case: NodeEvidence, weight: Operand) -> int:
    """Inputs that read the same stored values with the same scale."""
    assert weight.dequantize is not None
    return sum(
        len(case.view.uses(use.node.outputs[0]))
        for use in case.view.uses(weight.dequantize.inputs[0])
        if use.index == 0 and use.node.inputs[1:] == weight.dequantize.inputs[1:]
    )


def _rows(case: NodeEvidence) -> int | None:
    shape = next((case.view.info(case.node.inputs[0]).shape for _ in case.activations), None)
    if shape is None or not all(isinstance(size, int) for size in shape[:-1]):
        return None
    return prod(size for size in shape[:-1] if isinstance(size, int))
