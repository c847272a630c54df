"""Nodes that a builder refuses in every precision and how to avoid them; nodes that a builder computes in float without notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command
from qdqtool.graph.endings import in_front_of
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.preparation.contrib import DOMAIN as CONTRIB
from qdqtool.graph.preparation.contrib import WITHOUT_A_BUILDER, WRITTEN
from qdqtool.graph.preparation.reshaping import moved_to_type
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    CASTS,
    FIRST_OUTPUT_ONLY,
    MATRIX_PRODUCTS,
    PACKED_WEIGHTS,
    QDQ,
    RESAMPLING,
    STANDARD_DOMAINS,
    computes_integers,
    is_other_quantizer,
)

_NO_IMPORTER: Final = frozenset(
    {
        "AffineGrid", "Bernoulli", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
        "CausalConvWithState", "CenterCropPad", "Col2Im", "Compress", "ConcatFromSequence", "CumProd", "DFT",
        "DeformConv", "Det",
        "ImageDecoder", "LinearAttention", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial",
        "NegativeLogLikelihoodLoss", "Optional", "OptionalGetElement", "OptionalHasElement", "RegexFullMatch",
        "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
        "SequenceMap", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringConcat", "StringNormalizer",
        "StringSplit", "SwiGLU", "TfIdfVectorizer", "Unique",
    }
)  # fmt: skip
"""ONNX operators that TensorRT for RTX does not import; some have an importer that needs a plug-in which RTX lacks.

Operators on integers are left to the rule `operator`, those with packed weights to `block_operator`, and
other quantizers to `other_quantizer`.
"""
_IMPORTED: Final[Mapping[str, frozenset[str]]] = {
    "ai.onnx.ml": frozenset(),
    "ai.onnx.preview": frozenset(),
    "ai.onnx.preview.training": frozenset(),
    CONTRIB: frozenset(
        {
            "DequantizeLinear", "GatherND", "Gelu", "GridSample", "MultiHeadAttention", "Pad", "QuantizeLinear",
            "Range", "RotaryEmbedding", "SkipSimplifiedLayerNormalization", "Trilu",
        }
    ),
}  # fmt: skip
"""Operators of other domains that TensorRT for RTX imports, by domain."""
_CLASSIC_ONLY: Final = frozenset({"NonMaxSuppression", "NonZero", "RoiAlign"})
"""Operators that classic TensorRT builds but TensorRT for RTX does not: outputs whose size depends on the data, a plug-in."""
_FORMS: Final[Mapping[str, Mapping[str, tuple[object, ...]]]] = {
    "Attention": {"softcap": (0,), "softmax_precision": (0,)},
    "AveragePool": {"dilations": (1,)},
    "BatchNormalization": {"training_mode": (0,)},
    "LRN": {"size": (5, *range(1, 16, 2))},
    "LSTM": {"input_forget": (0,)},
    "LpPool": {"dilations": (1,), "p": (2, 1)},
    "MaxPool": {"dilations": (1,)},
    "Resize": {"antialias": (0,), "keep_aspect_ratio_policy": ("stretch",)},
    "ScatterElements": {"reduction": ("none",)},
    "ScatterND": {"reduction": ("none",)},
    "TensorScatter": {"mode": ("linear",)},
}
"""Attribute values that the parser accepts, the default first; for a list, the values of its elements. Source: builds
with RTX 1.7.1 of ONNX's node tests and of one node with each value.
"""
_NO_TYPE: Final = frozenset(
    {
        DType.INT2, DType.UINT2, DType.UINT4, DType.INT16, DType.UINT16, DType.UINT32, DType.UINT64, DType.STRING,
        DType.FLOAT6_E2M3, DType.FLOAT6_E3M2, DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2, DType.FLOAT8_E5M2FNUZ,
        DType.FLOAT8_E8M0, DType.COMPLEX64, DType.COMPLEX128,
    }
)  # fmt: skip
"""Types that TensorRT for RTX lacks: it imports no input, constant or result of such a type (builds of a Cast to each type)."""
_NO_CAST: Final = frozenset({DType.FLOAT8, DType.FLOAT4, DType.INT4})
"""Types that TensorRT for RTX reads between Q and DQ only: it refuses a Cast to or from them."""
_TRANSFORMATIONS: Final = frozenset(
    {"align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_crop_and_resize", "tf_half_pixel_for_nn"}
)  # fmt: skip


def recurrent_in_int8(op: str, target: Target) -> str:
    """Return the problem with INT8 in LSTM, GRU and RNN.

    In RTX 1.7.1 (rule `recurrent`), one kernel multiplies the input, step by step. The engine dequantizes the weights
    of the state, and moves 7 to 17 times the bytes.
    """
    if target.is_rtx:
        return f"in {op}, INT8 would only multiply the input, once per step, and dequantize the weights of the state, which moves more bytes"
    return f"TensorRT has no INT8 kernel for {op}"


def match_refused(view: GraphView, target: Target) -> Iterator[tuple[Node, str]]:
    """Yield each node that the target cannot build in any precision, and the reason."""
    if target.is_rtx:
        for node in view.nodes:
            if reason := _refusal(view, node):
                yield node, reason


def _refusal(view: GraphView, node: Node) -> str:
    if node.domain in _IMPORTED:
        reported = (
            computes_integers(node.op)
            or node.op in PACKED_WEIGHTS
            or is_other_quantizer(node.op, node.domain)
        )
        if reported or node.op in _IMPORTED[node.domain]:
            return ""
        return f"the parser of TensorRT for RTX has no importer for {node.domain}.{node.op}"
    if node.domain not in STANDARD_DOMAINS:
        return ""
    if node.op in _NO_IMPORTER:
        return f"the parser of TensorRT for RTX has no importer for {node.op}"
    if node.op in _CLASSIC_ONLY:
        return f"TensorRT for RTX has no kernel for {node.op}, classic TensorRT has one"
    if type_ := _refused_type(view, node):
        return f"TensorRT for RTX cannot run {node.op} on {type_.value.upper()}"
    if form := _refused_form(view, node):
        return f"the parser of TensorRT for RTX refuses {node.op} with {form}"
    if node.op not in RESAMPLING:
        return ""
    transformed = node.attribute("coordinate_transformation_mode", "half_pixel")
    if transformed not in _TRANSFORMATIONS:
        return f"the parser refuses a Resize with coordinate_transformation_mode={transformed}"
    rounded = node.attribute("nearest_mode", "round_prefer_floor")
    nearest = node.attribute("mode", "nearest") == "nearest"
    if nearest and transformed == "tf_half_pixel_for_nn" and rounded != "round_prefer_floor":
        return f"the parser refuses a Resize with tf_half_pixel_for_nn and nearest_mode={rounded}"
    return ""


def _refused_type(view: GraphView, node: Node) -> DType | None:
    """Return a type among a node's tensors that TensorRT lacks. Only Cast and Equal read a UINT8 input of the model."""
    if node.op in QDQ or computes_integers(node.op):
        return None  # the rules about pairs and the rule `operator` report these
    if any((writer := view.producer(name)) and writer.op in QDQ for name in node.inputs if name):
        return None  # a DequantizeLinear writes the type of its scale, which the rules about pairs report
    inputs = {info.name for info in view.inputs if info.dtype is DType.UINT8}
    if node.op not in CASTS | {"Equal"} and inputs & set(node.inputs):
        return DType.UINT8
    if node.op == "Cast" and view.info(node.outputs[0]).dtype is DType.UINT8 and view.uses(node.outputs[0]):
        return DType.UINT8  # a tensor inside the network
    refused = _NO_TYPE | _NO_CAST if node.op in CASTS else _NO_TYPE
    types = (view.info(name).dtype for name in (*node.inputs, *node.outputs) if name)
    return next((dtype for dtype in types if dtype in refused), None)


def _refused_form(view: GraphView, node: Node) -> str:
    """Return the attribute or input of a node that the parser refuses, such as `reduction=add`; "" if it accepts all."""
    if node.op in FIRST_OUTPUT_ONLY and any(node.outputs[1:]):
        return "more than one output"
    if node.op == "Mod" and not node.integer("fmod", 0) and view.info(node.inputs[0]).dtype.is_float:
        return "floats and fmod=0"
    if node.op == "Attention" and node.integer("is_causal", 0) and at(node.inputs, 3):
        return "a mask and is_causal=1"
    if node.op == "Attention" and _has_open_heads(view, node):
        return "an unknown number of heads"
    for name, accepted in _FORMS.get(node.op, {}).items():
        value = node.attribute(name, accepted[0])
        if not set(value if isinstance(value, (list, tuple)) else (value,)) <= set(accepted):
            return f"{name}={value}"
    return ""


def _has_open_heads(view: GraphView, node: Node) -> bool:
    """Return True if either the queries or the keys of an Attention have an unknown number of heads, but not both.

    torch.export writes this if the batch is dynamic and the batch of the example is 1.
    """
    shapes = [view.info(name).shape or () for name in node.inputs[:2]]
    return (
        all(len(shape) == 4 for shape in shapes) and len({isinstance(shape[1], int) for shape in shapes}) == 2
    )


def way_out(view: GraphView, node: Node, source: str) -> str:
    """Return advice for a node that TensorRT refuses: a command that avoids the node, or alternatives."""
    if node.domain == CONTRIB and node.op in WITHOUT_A_BUILDER:
        return WITHOUT_A_BUILDER[node.op]
    if node.domain == CONTRIB and node.op in WRITTEN:
        return f"{Command('run')} writes {node.op} of the float model as ONNX operators"
    if node.op == "Attention" and node.domain in STANDARD_DOMAINS:
        if _has_open_heads(view, node):
            return "export the model with a fixed batch: the exporter made the batch a part of the heads"
        return f"{Command('run')} writes Attention of the float model as MatMul, Softmax and MatMul"
    if any(view.info(name).dtype is DType.UINT8 and moved_to_type(view, name) for name in node.inputs[:1]):
        return f"{Command('run')} casts {node.inputs[0]!r} before {node.op}"
    if _refused_type(view, node) is not None:
        return f"cast to FLOAT, INT32 or INT64 before {node.name!r}, or outside the engine"
    classic = "; or build with classic TensorRT (--builder trtexec)" if node.op in _CLASSIC_ONLY else ""
    ends = in_front_of(view, frozenset({node.op}))
    if not ends:
        form = f" with {form}" if (form := _refused_form(view, node)) else ""
        return f"replace {node.op}{form} in the export of the model, or compute this operator outside the engine{classic}"
    inputs = [info.name for info in view.inputs]
    # Inner tensors may have no known shape, which onnx's checker refuses in outputs; TensorRT does not mind.
    call = f"cut({source!r}, 'cut.onnx', {inputs}, {list(ends)}, check_model=False)"
    return (
        f"end the model before {node.op}, and run the rest outside the engine: "
        f'`python -c "from onnx.utils import extract_model as cut; {call}"`{classic}'
    )


# --- silent float -----------------------------------------------------------------------------------------------------
# Nodes in FP8, FP4 or with small weights that TensorRT for RTX accepts and silently computes in float.
#
# Placement, prediction and audit use these functions. Evidence: layer dumps of about 790 builds with release 1.7.1 for
# SM75 to SM121; its log does not report such nodes. For each entry there was a similar node that ran in the requested
# format.


BEFORE: Final = " dequantized before the kernel"
"""End of the phrase for a weight that a separate kernel dequantizes in every inference."""
FEWEST_BLOCKS: Final = 2
"""Fewest blocks of INT4 weights; weights in a single block are dequantized in a separate kernel."""
_MOST_TAPS: Final = 32
"""Most kernel taps of an FP8 convolution. Above, it runs in float: 1x32, 4x8 and 3x3x3 are FP8; 1x33, 6x6 and 7x7 are not."""


def too_many_taps(shape: tuple[int | str, ...]) -> tuple[str, str] | None:
    """Return why an FP8 convolution with weights of this shape runs in float, and the fix; None if it does not."""
    taps = prod(size for size in shape[2:] if isinstance(size, int))
    if taps <= _MOST_TAPS:
        return None
    return (
        f"FP8 convolutions of more than {_MOST_TAPS} taps run in float, this one has {taps}",
        "quantize it to int8, or keep it float",
    )


def is_deep(view: GraphView, node: Node) -> bool:
    """Return True if an operand of a product has more than three dimensions, or an unknown number of them."""
    shapes = [view.info(name).shape for name in node.inputs[:2]]
    return any(shape is None or len(shape) > 3 for shape in shapes)


def rows_of(view: GraphView, node: Node) -> int | None:
    """Return the number of rows of the activation of a MatMul or Gemm (all leading dimensions multiplied); None if unknown."""
    shape = view.info(node.inputs[0]).shape
    if node.op not in MATRIX_PRODUCTS or shape is None:
        return None
    if node.op == "Gemm" and node.attribute("transA", 0):
        shape = shape[::-1]
    sizes = [size for size in shape[:-1] if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) - 1 else None
