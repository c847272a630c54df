"""Nodes that a builder refuses in every precision and how to avoid them; nodes that a builder computes in float without notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from qdqtool.core.target import Target
from qdqtool.graph.endings import in_front_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import MATRIX_PRODUCTS, RESAMPLING, STANDARD_DOMAINS

_NO_IMPORTER: Final = frozenset(
    {
        "AffineGrid", "Bernoulli", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
        "CenterCropPad", "Col2Im", "Compress", "ConcatFromSequence", "CumProd", "DFT", "DeformConv", "Det",
        "ImageDecoder", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial",
        "NegativeLogLikelihoodLoss", "Optional", "OptionalGetElement", "OptionalHasElement", "RegexFullMatch",
        "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
        "SequenceMap", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringConcat", "StringNormalizer",
        "StringSplit", "SwiGLU", "TfIdfVectorizer", "Unique",
    }
)  # fmt: skip
"""ONNX operators without an importer in TensorRT for RTX. Operators on integers are left to the rule `operator`."""
_CLASSIC_ONLY: Final = frozenset({"NonMaxSuppression", "NonZero"})
"""Operators that classic TensorRT builds but TensorRT for RTX has no kernel for: the output size depends on the data."""
_FORMS: Final[Mapping[str, Mapping[str, tuple[object, ...]]]] = {
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
            reason = _refusal(node) if node.domain in STANDARD_DOMAINS else ""
            if reason:
                yield node, reason


def _refusal(node: Node) -> str:
    if node.op in _NO_IMPORTER:
        return f"the parser of TensorRT for RTX has no importer for {node.op}"
    if node.op in _CLASSIC_ONLY:
        return f"TensorRT for RTX has no kernel for {node.op}, classic TensorRT has one"
    if form := _refused_form(node):
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


def _refused_form(node: Node) -> str:
    """Return the attribute of a node that the parser refuses, such as `reduction=add`; "" if the parser accepts all."""
    for name, accepted in _FORMS.get(node.op, {}).items():
        value = node.attribute(name, accepted[0])
        if not set(value if isinstance(value, (list, tuple)) else (value,)) <= set(accepted):
            return f"{name}={value}"
    return ""


def way_out(view: GraphView, node: Node, source: str) -> str:
    """Return the command that ends a model before the operators of this type, if this is possible, and the alternatives."""
    classic = "; or build with classic TensorRT (--builder trtexec)" if node.op in _CLASSIC_ONLY else ""
    ends = in_front_of(view, frozenset({node.op}))
    if not ends:
        form = f" with {form}" if (form := _refused_form(node)) else ""
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
# Placement, prediction and audit ask here.
# Evidence: about 790 builds with release 1.7.1 for SM75 to SM121, read from their layer dumps; its log has no line on
# any of it. Each entry was seen beside one like it that was realised.


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
