"""What TensorRT for RTX takes in FP8, FP4 or with small weights and silently computes in float.

Placement, prediction and audit ask here.
Evidence: about 790 builds with release 1.7.1 for SM75 to SM121, read from their layer dumps; its log has no line on
any of it. Each entry was seen beside one like it that was realised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from qdqtool.core.quant_format import FP8, INT4, INT8, NVFP4
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import CONVOLUTIONS, DEQUANTIZE, MATRIX_PRODUCTS

BEFORE: Final = " dequantized before the kernel"
"""Ends the words for a weight that another kernel turns into floats in every inference."""
FEWEST_BLOCKS: Final = 2
"""With a single block INT4 weights are dequantized in a kernel of their own."""
MXFP8_IS_FLOAT: Final = (
    "TensorRT for RTX 1.7.1 computes MXFP8 in float in every graph that was built",
    "use nvfp4 (SM120) or fp8 (SM89), or classic TensorRT 10.12 on SM100",
)
SPLIT_REASON: Final = (
    "its weight is cut into those of queries, keys and values, and scales per channel are not"
)
_MOST_TAPS: Final = 32
"""FP8 convolutions with more kernel taps run in float: 1x32, 4x8 and 3x3x3 are FP8; 1x33, 6x6 and 7x7 are not."""
_EVEN: Final = frozenset({INT8.name, INT4.name, FP8.name})
"""Formats of which an odd number of columns is padded by a kernel of its own."""
_MERGED_BYTES: Final = 512
"""Equal constants of fewer bytes become one: 252 scales in FP16 and 124 in FP32 are, 256 and 128 are not."""
_SMALL: Final = 2**17
"""Up to so many values a matrix times one row is a kernel of its own that reads few bits: 256x512 is, 384x384 not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoneWeight:
    """A weight in few bits whose product reads a float activation.

    Attributes:
        op: operator of the product.
        format: name of the format.
        columns: length of the axis that is not summed over; None where it is not known.
        size: values of the weight.
        scales: shape of its scales; () for one scale.
        rows: rows of the activation, all leading dimensions together; None where they are open.
        readers: inputs that read these values with these scales.
        twins: other weights with the same short list of scales.
        split: whether the product makes queries, keys and values, which the builder splits.
        attention: whether the activation is the result of an attention, of three dimensions or more.
    """

    op: str
    format: str
    columns: int | None
    size: int
    scales: tuple[int, ...]
    rows: int | None
    readers: int
    twins: int = 0
    split: bool = False
    attention: bool = False


def too_many_taps(shape: tuple[int | str, ...]) -> tuple[str, str] | None:
    """Why a convolution with weights of this shape is float in FP8, and what to do; None where it is not."""
    taps = prod(size for size in shape[2:] if isinstance(size, int))
    if taps <= _MOST_TAPS:
        return None
    return (
        f"FP8 convolutions of more than {_MOST_TAPS} taps run in float, this one has {taps}",
        "quantize it to int8, or leave it float",
    )


def dequantized_apart(weight: LoneWeight) -> Iterator[tuple[str, str]]:
    """Why another kernel makes a weight float in every inference, and what to do; nothing where its product does."""
    inside = "inside the kernel"
    if weight.op in CONVOLUTIONS:
        yield (
            f"no Conv dequantizes weights {inside}",
            "quantize its input too (int8, or fp8 from SM89 on), or leave it float",
        )
    if weight.rows == 1 and weight.size <= _SMALL:
        return  # a kernel of its own that reads weights of any format, scales and number of columns
    if weight.format == NVFP4.name:
        yield (
            f"FP4 weights are dequantized {inside} for no product of more than one row",
            "quantize its input to nvfp4 too",
        )
    if weight.readers > 1:
        yield (
            "several nodes read this weight through Q/DQ, and equal nodes are merged",
            "give each of them an initializer of its own, with a DequantizeLinear of its own",
        )
    blocks = len(weight.scales) > 1
    if weight.twins and blocks and weight.format == INT4.name:
        yield (
            f"another weight has the same scales, and equal lists of less than {_MERGED_BYTES} bytes are merged",
            "move one of its scales by the smallest step that its type has",
        )
    if weight.columns is not None and weight.columns % 2 and weight.format in _EVEN:
        yield f"{weight.columns} columns are an odd number", "pad the columns to an even number"
    if weight.format == INT4.name and (not blocks or 1 in weight.scales[-2:]):
        yield (
            f"INT4 without at least two blocks is not dequantized {inside}",
            "use blocks of 16 to 128 along the summed axis",
        )
    if weight.format == INT4.name and prod(weight.scales[:-2]) > 1:
        yield f"INT4 in a stack of matrices is not dequantized {inside}", "store its weights in int8"
    if weight.format in {INT8.name, FP8.name} and blocks:
        yield (
            f"{weight.format.upper()} in blocks is not dequantized {inside}",
            "one scale per output channel, or INT4 blocks",
        )
    channels = bool(weight.scales) and not blocks
    if weight.attention:
        yield (
            f"no product that reads the result of an attention as it is dequantizes weights {inside}",
            "reshape its input to two dimensions (--set prepare.flatten=true does, and costs no kernel)",
        )
    if channels and weight.split and prod(weight.scales) > 1 and weight.format in {INT8.name, FP8.name}:
        yield SPLIT_REASON, "INT4 blocks, one scale for the whole weight, or three products"
    if channels and weight.format in {INT8.name, FP8.name} and weight.rows == 1:
        yield "with one row, weights with a scale per channel are not", "one scale for the whole weight"


def twins(view: GraphView) -> dict[str, int]:
    """How many other stored weights have the same short list of scales, by the name of the DequantizeLinear."""
    lists: dict[bytes, set[str]] = defaultdict(set)
    keys = {}
    for node in view.nodes:
        if node.op == DEQUANTIZE and view.is_constant(node.inputs[0]):
            key = _short_scales(view, node)
            if key is not None:
                keys[node.name] = key
                lists[key].add(node.inputs[0])
    return {name: len(lists[key]) - 1 for name, key in keys.items()}


def _short_scales(view: GraphView, dequantize: Node) -> bytes | None:
    """The scales of a DequantizeLinear where the builder makes one list of all that are equal to them; else None."""
    shape, width = view.constant_shape(dequantize.inputs[1]), view.info(dequantize.inputs[1]).dtype.bits
    if shape is None or width is None or prod(shape) * width >= _MERGED_BYTES * 8:
        return None
    value = view.constant(dequantize.inputs[1])
    return None if value is None else value.tobytes()


def columns_of(node: Node, shape: tuple[int | str, ...]) -> int | None:
    """The length of the axis of a second factor that is not summed over."""
    if node.op not in MATRIX_PRODUCTS or len(shape) < 2:
        return None
    size = shape[-2 if node.op == "Gemm" and node.attribute("transB", 0) else -1]
    return size if isinstance(size, int) else None


def rows_of(view: GraphView, node: Node) -> int | None:
    """How many rows the activation of a product has, all leading dimensions together; None where that is open."""
    shape = view.info(node.inputs[0]).shape
    if node.op not in MATRIX_PRODUCTS or shape is None:
        return None
    if node.op == "Gemm" and node.attribute("transA", 0):
        shape = shape[::-1]
    sizes = [size for size in shape[:-1] if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) - 1 else None
