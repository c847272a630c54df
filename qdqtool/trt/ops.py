"""Facts about ONNX operators: a table with one row per operator, families of operators, and facts about single nodes.

Facts that several files read are here; a family with one reader is in the file that reads it, and no two files list
the same one (`.ci/style.py`). Placement, lint, repair, calibration, the audit and the cache conversion use these
facts, so their answers agree. Without them, a hard bound that is lost after a Split gives a wrong range, and a tie
that is lost after a Gather gives a second scale.

The functions take a node and its graph; no function looks through Q/DQ pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from qdqtool.core.tensors import MATRIX_OPERATORS, DType
from qdqtool.core.wording import Command

if TYPE_CHECKING:
    from typing import Any

    from qdqtool.core.target import Target
    from qdqtool.graph.view import GraphView, Node

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QDQ = frozenset({QUANTIZE, DEQUANTIZE})
STANDARD_DOMAINS = frozenset({"", "ai.onnx"})

FP4_DYNAMIC, MX_DYNAMIC = "TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize"
DYNAMIC_TYPES = {FP4_DYNAMIC: (DType.FLOAT4, DType.FLOAT8), MX_DYNAMIC: (DType.FLOAT8, DType.UINT8)}
"""TensorRT's own operators that quantize in blocks, with the types of their values and of their scales."""

# --- the table ---------------------------------------------------------------------------------------------------------

_OPERATORS = {
    # Compute nodes
    "Attention": "attention",
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "MultiHeadAttention": "attention",
    # Values that only move
    "Cast": "casts keeps-axes passes-probabilities",
    "CastLike": "casts",
    "DepthToSpace": "layout",
    "Dropout": "layout",
    "Expand": "repeats",
    "Flatten": "layout reshapes",
    "Gather": "picks",
    "GatherElements": "picks",
    "GatherND": "picks",
    "GlobalMaxPool": "maximum-pool fuses-blocked",
    "Identity": "layout keeps-axes fuses-blocked",
    "MaxPool": "maximum-pool pool placed asked-for blocked",
    "Reshape": "layout reshapes",
    "Resize": "resamples fuses-blocked",
    "Slice": "picks",
    "SpaceToDepth": "layout",
    "Split": "picks",
    "Squeeze": "layout reshapes",
    "Tile": "repeats",
    "Transpose": "layout",
    "Unsqueeze": "layout reshapes",
    "Upsample": "resamples blocked",
    "Where": "passes-probabilities",
    # Activations: "in-conv" in the kernel of a convolution, "in-epilogue" in that of a product, "in-sum" in that of an Add or Mul;
    # "blocked" and "fuses-blocked" are about onnxruntime only
    "Clip": "activation clamp in-sum in-epilogue in-conv blocked",
    "Elu": "activation in-epilogue",
    "Erf": "activation elementwise",
    "Gelu": "activation",
    "HardSigmoid": "activation gate in-sum in-epilogue fuses-blocked",
    "HardSwish": "activation swish in-sum in-epilogue fuses-blocked",
    "LeakyRelu": "activation in-sum in-epilogue fuses-blocked",
    "Mish": "activation",
    "PRelu": "activation in-epilogue",
    "Relu": "activation clamp in-sum in-epilogue in-conv blocked",
    "Sigmoid": "activation gate in-sum in-epilogue in-conv blocked",
    "Softplus": "activation elementwise",
    "Swish": "activation swish",
    "Tanh": "activation in-sum in-epilogue in-conv blocked",
    # Arithmetic
    "Add": "sum affine combines placed blocked",
    "BatchNormalization": "affine fuses-blocked",
    "Ceil": "elementwise",
    "Concat": "combines placed asked-for fuses-blocked",
    "Div": "elementwise combines",
    "Exp": "elementwise",
    "Floor": "elementwise",
    "Hardmax": "softmax",
    "Log": "elementwise",
    "LogSoftmax": "softmax",
    "Max": "elementwise combines",
    "Min": "elementwise combines",
    "Mul": "sum affine combines blocked",
    "Neg": "elementwise",
    "Pow": "elementwise combines",
    "Softmax": "softmax",
    "Sqrt": "elementwise",
    "Sub": "affine combines",
    "Sum": "combines blocked",
    # Pools and reductions
    "ArgMax": "selects",
    "ArgMin": "selects",
    "AveragePool": "average-pool pool placed blocked",
    "GlobalAveragePool": "average-pool global-average fuses-blocked",
    "NonMaxSuppression": "selects",
    "NonZero": "selects",
    "ReduceMean": "global-average",
    "TopK": "selects",
    # Shapes, random values, spectra
    "Bernoulli": "random",
    "DFT": "spectral",
    "MelWeightMatrix": "spectral",
    "Multinomial": "random",
    "RandomNormal": "random",
    "RandomNormalLike": "random",
    "RandomUniform": "random",
    "RandomUniformLike": "random",
    "STFT": "spectral",
    "Shape": "reads-shape",
    "Size": "reads-shape",
    # Integers and packed weights
    "DynamicQuantizeLSTM": "integer",
    "DynamicQuantizeLinear": "integer",
    "DynamicQuantizeMatMul": "integer",
    "GatherBlockQuantized": "packed",
    "MatMulBnb4": "packed",
    "MatMulIntegerToFloat": "integer",
    "MatMulNBits": "packed",
    "QAttention": "integer",
    "QGemm": "integer",
    "QMoE": "integer",
}
"""Facts of each operator, one row per operator and one word per fact. Each family below explains its word. Facts with
a value have separate tables: `STEP_GATES`, `FLOAT_FORM`, `WRITES`, `LISTED_AS`, `SATURATING` and `NOT_IMPORTED`.
"""
_WITH = {
    fact: frozenset(op for op, row in _OPERATORS.items() if fact in row.split())
    for fact in " ".join(_OPERATORS.values()).split()
}
"""The operators with each fact."""

# --- what computes ---------------------------------------------------------------------------------------------------

CONVOLUTIONS = _WITH["convolution"]
MATRIX_PRODUCTS = frozenset(MATRIX_OPERATORS)
PRODUCTS = CONVOLUTIONS | MATRIX_PRODUCTS
"""Operators that multiply their first two inputs; their precision decides the speed of an engine."""
BIASED = CONVOLUTIONS | {"Gemm"}
"""Operators that multiply two inputs and add a third one, so that BatchNormalization and bias shifts fold into them."""
STEP_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
"""Number of weight matrices of each kind that one step of a recurrent operator multiplies."""
RECURRENT = frozenset(STEP_GATES)
ATTENTIONS = _WITH["attention"]
COMPUTE = PRODUCTS | RECURRENT | ATTENTIONS | {"Einsum"}
"""Operators that get a verdict in the audit."""
FLOAT_FORM = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
"""Operators that multiply integers, and the float operator that each corresponds to."""
PLACEABLE = PRODUCTS | _WITH["placed"]
"""Operators that placement decides about; other names in place.ops have no effect."""
LISTED_AS = {"GlobalAveragePool": "AveragePool", "Mul": "Add"}
"""Operators that place.ops covers under the name of a similar operator: a gate's Mul has a shortcut, as a residual Add has."""
ASKED_FOR = _WITH["asked-for"]
"""Value-preserving operators that a recipe can list in place.ops."""

# --- what only moves values ------------------------------------------------------------------------------------------

LAYOUT = _WITH["layout"]
"""Operators whose output contains every input value exactly once."""
RESHAPING = _WITH["reshapes"]
"""Operators that change the shape but not the order of values."""
PICKING = _WITH["picks"]
"""Operators that return only some values of their input; these parts may have different scales."""
REPEATING = _WITH["repeats"]
WRITES = {"ScatterElements": (0, 2), "ScatterND": (0, 2), "Where": (1, 2)}
"""Operators that write values into other values, with the numbers of the inputs that contain values."""
MAXIMUM_POOLS = _WITH["maximum-pool"]
"""Pools that select values; an average pool computes new values."""
RESAMPLING = _WITH["resamples"]
"""Operators that repeat values, but only in mode "nearest"."""
MOVING = LAYOUT | PICKING | REPEATING | MAXIMUM_POOLS
"""Operators whose outputs contain only values of their first input, whatever their attributes are."""
MAY_MOVE = MOVING | RESAMPLING | {"Pad", "Concat"}
"""Operators whose outputs may contain only input values, depending on attributes; for log readers, which see
only operator types.
"""
KEEPS_AXES = _WITH["keeps-axes"]
"""Operators that leave every axis in its place. Transpose moves axes, as its attribute shows."""
CASTS = _WITH["casts"]

# --- activations -----------------------------------------------------------------------------------------------------

ACTIVATIONS = _WITH["activation"]
GATES, SWISHES = _WITH["gate"], _WITH["swish"]
CLAMPS = _WITH["clamp"]
"""Activations that cut values off and change no other value."""
POINTWISE_ACTIVATIONS = _WITH["in-sum"]
"""Activations that were seen in the kernel of an Add or a Mul (RTX 1.7.1)."""
EPILOGUE_ACTIVATIONS = _WITH["in-epilogue"]
"""Activations that were seen in the kernel of the compute node before them (RTX 1.7.1)."""
CONV_ACTIVATIONS = _WITH["in-conv"]
"""Activations that are always part of a convolution (RTX 1.7.1)."""
FUSES_BEHIND_PRODUCT = ACTIVATIONS | {"BatchNormalization"}
"""Operators that TensorRT computes in the kernel of the compute node before them."""

# --- arithmetic and the rest -----------------------------------------------------------------------------------------

AVERAGE_POOLS = _WITH["average-pool"]
GLOBAL_AVERAGES = _WITH["global-average"]
AVERAGES = AVERAGE_POOLS | GLOBAL_AVERAGES
POOLS = _WITH["pool"]
SHAPE_READERS = _WITH["reads-shape"]
SHAPE_MAKERS = SHAPE_READERS | {"NonZero"}
SOFTMAXES = _WITH["softmax"]
SELECTING = _WITH["selects"]
"""Operators that return which of their input values are chosen, and in which order. A small difference
changes the whole result or nothing.
"""
ELEMENTWISE_SUMS = _WITH["sum"]
AFFINE = _WITH["affine"]
POINTWISE = AFFINE | EPILOGUE_ACTIVATIONS | _WITH["elementwise"]
"""Operators that compute each value from values at the same position."""
COMBINING = PRODUCTS | _WITH["combines"]
"""Operators whose inputs all contain values."""
PASSES_PROBABILITIES = _WITH["passes-probabilities"]
"""Operators that may be between a softmax and the second product of an attention."""
RANDOM = _WITH["random"]
SPECTRAL = _WITH["spectral"]
SATURATING = {"HardSigmoid": 1.0, "Sigmoid": 1.0, "Softmax": 1.0, "Tanh": 1.0}
"""Operators whose results have a meaningful bound, and that bound."""
BLOCKED = _WITH["blocked"] | _WITH["fuses-blocked"]
"""Operators that onnxruntime runs on channel blocks, or fuses into an operator that runs on them."""

# --- what no builder takes -------------------------------------------------------------------------------------------

INTEGER_OPERATORS = _WITH["integer"] | frozenset(FLOAT_FORM)
"""Operators that quantize or compute with integers themselves. QOperator-format names, which begin with
QLinear, are not listed.
"""
PACKED_WEIGHTS = _WITH["packed"]
"""Operators of onnxruntime with low-bit weights."""
_FROM_FLOAT = f"start from the float model: {Command('quantize', ('FLOAT_MODEL', '--samples', 'DATA', '--out', 'MODEL'))} writes static Q/DQ"
_UNNAMED_QUANTIZERS = frozenset(
    {"FixedPerChannelAffine", "FixedPerTensorAffine", "LearnablePerTensorAffine", "Trunc"}
)
"""Quantizers of MQBench and QONNX whose names do not contain "quant"."""
_KNOWN_DOMAINS = STANDARD_DOMAINS | {"ai.onnx.ml", "com.microsoft"}
TRT_DOMAIN = "trt"
"""Domain of operators that TensorRT's ONNX parser adds."""
NOT_IMPORTED = {
    "Unique": "cut the model before it: the number of results depends on the data",
    "DynamicQuantizeLinear": _FROM_FLOAT,
    "QLinearConv": "use the Q/DQ format instead of the QOperator format (onnxruntime: QuantFormat.QDQ)",
    "QLinearMatMul": "use the Q/DQ format instead of the QOperator format (onnxruntime: QuantFormat.QDQ)",
    "ConvInteger": _FROM_FLOAT,
    "MatMulInteger": _FROM_FLOAT,
}
"""Operators that no TensorRT supports, and the fix for each."""
FIRST_OUTPUT_ONLY = frozenset({"Attention", "LayerNormalization", "MaxPool"})
"""Operators of which TensorRT for RTX imports only the first output."""
_MOST_PADS = 8
"""Largest number of consecutive Pads that belong to one Conv; real models have fewer."""


def find_computed_once(view: GraphView) -> frozenset[str]:
    """Return the outputs of nodes that depend only on constants. A builder computes such outputs once."""
    constant: set[str] = set()
    for node in view.nodes:
        if node.op not in RANDOM and all(
            not name or name in constant or view.is_constant(name) for name in node.inputs
        ):
            constant.update(node.outputs)
    return frozenset(constant)


class _Attributed(Protocol):
    @property
    def op(self) -> str: ...
    def attribute(self, name: str, default: Any = None) -> Any: ...


def value_preserving(view: GraphView, node: Node) -> bool:
    """Return True if the outputs contain only values of the inputs in `carried_inputs`, and zeros.

    A bound, a tie and a scale of those inputs are then the outputs' too. A Cast between float types counts: it only
    rounds.
    """
    return bool(carried_inputs(view, node))


def carried_inputs(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return the numbers of inputs whose values the outputs contain; empty for nodes that compute new values."""
    if not node.inputs or node.domain not in STANDARD_DOMAINS:
        return ()
    if node.op == "Concat":
        return tuple(index for index, tensor in enumerate(node.inputs) if tensor)
    if node.op == "Where":
        return WRITES[node.op]
    return (0,) if quantization_commutes(view, node) or casts_floats(view, node) else ()


def carried_outputs(node: Node) -> tuple[str, ...]:
    """Return the outputs of a value-preserving node that contain input values, so not MaxPool's indices or Dropout's mask."""
    return node.outputs if node.op == "Split" else node.outputs[:1]


def quantization_commutes(view: GraphView, node: Node) -> bool:
    """Return True if Q(op(x)) = op(Q(x)) for the first input of `node`: then the builder moves Q and DQ across the node.

    B3 of NVIDIA's placement rules names MaxPool, the verbose logs name Slice and Concat, and RTX builds show Split,
    Reshape, Transpose, Pad and nearest Resize too.
    """
    if node.domain not in STANDARD_DOMAINS or not node.inputs:
        return False
    if node.op in RESAMPLING:
        return bool(node.attribute("mode", "nearest") == "nearest")
    if node.op == "Pad":
        return _pads_with_zero(view, node)
    return node.op in MOVING


def casts_floats(view: GraphView, node: Node) -> bool:
    """Return True if `node` is a Cast from one float type to another."""
    if node.op not in CASTS or not node.inputs:
        return False
    dtype = view.info(node.inputs[0]).dtype
    return view.info(node.outputs[0]).dtype.is_float and (dtype.is_float or dtype is DType.UNKNOWN)


def picks_part(node: Node) -> bool:
    """Return True if a value-preserving operator returns only a part of its input."""
    return node.op in PICKING


def gives_all(node: Node) -> bool:
    """Return True if the output of a value-preserving node contains every input value, so that both have one range."""
    return node.op not in PICKING | MAXIMUM_POOLS


def keeps_order(view: GraphView, node: Node) -> bool:
    """Return True if `node` keeps the order of its values in memory, for a layout with channels last.

    A Reshape from pixels to tokens keeps the order, and so does the Transpose after it.
    """
    if node.op in {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}:
        return True
    maker = view.producer(node.inputs[0]) if node.op == "Transpose" else None
    return maker is not None and maker.op == "Reshape" and tuple(node.attribute("perm", ())) == (0, 2, 1)


def averages_in_int8(node: Node) -> bool:
    """Return True if RTX 1.7.1 has an INT8 kernel for an AveragePool.

    Of thirteen sizes and strides, only 3x3 with stride 1 has one.
    """
    sizes, strides = tuple(node.attribute("kernel_shape", ())), set(node.attribute("strides", (1,)))
    return node.op == "AveragePool" and sizes == (3, 3) and strides == {1}


def holds_dequantize_back(view: GraphView, node: Node) -> bool:
    """Return True if TensorRT for RTX does not move a DequantizeLinear forward through this commuting node.

    It does not move through a nearest Resize, nor through a Pad with zeros. The exception is the Pad of a single
    Conv: height and width only, right before the Conv (RTX 1.7.1, by builds; a QuantizeLinear moves backward through
    all of these).
    """
    if node.op != "Pad":
        return node.op in RESAMPLING
    if node.attribute("mode", "constant") != "constant":
        return False
    return not is_own_pad(view, node)


def is_own_pad(view: GraphView, pad: Node) -> bool:
    """Return True if Pads only pad height and width and feed a single Conv, which absorbs them."""
    for _ in range(_MOST_PADS):
        uses = view.uses(pad.outputs[0])
        if len(uses) != 1 or view.is_output(pad.outputs[0]) or not _leaves_channels(view, pad):
            return False
        pad = uses[0].node
        if pad.op != "Pad":
            return pad.op == "Conv"
    return False


def upstream(view: GraphView, tensor: str) -> Iterator[str]:
    """Yield `tensor` and the tensors upstream of it, the nearest first, while Q/DQ can move across nodes."""
    yield tensor
    node = view.producer(tensor)
    while node is not None and quantization_commutes(view, node) and tensor in carried_outputs(node):
        tensor = node.inputs[0]
        yield tensor
        node = view.producer(tensor)


def hard_bound(view: GraphView, node: Node) -> tuple[float, bool] | None:
    """Return the largest magnitude that `node` can output, and whether values near it must not be clipped.

    Return None if the output has no limit.

    A probability of 1 must not be clipped: it is a result. The limit of a Clip may be clipped.
    """
    if node.domain not in STANDARD_DOMAINS:
        return None
    if node.op in SATURATING:
        return SATURATING[node.op], True
    if node.op != "Clip":
        return None
    limits = [_clip_limit(view, node, index, name) for index, name in ((1, "min"), (2, "max"))]
    bounds = [abs(limit) for limit in limits if limit is not None]
    largest = max(bounds) if len(bounds) == len(limits) else 0.0
    return (largest, False) if largest > 0 else None


def weight_axis(node: _Attributed, index: int, rank: int, target: Target | None = None) -> int | None:
    """Return the axis of the output channels in operand `index` of a compute node.

    TensorRT applies the scales of this axis after the sum.

    None if there is no such axis: an activation of a convolution, a scalar or a vector, a transposed convolution with groups
    (no axis that all releases agree on).

    Args:
        node: the product.
        index: 0 or 1.
        rank: dimensions of that factor.
        target: the builder; without, the output channels of a ConvTranspose. With it, `Target.transposed_axis`.
    """
    if node.op in CONVOLUTIONS and (index != 1 or rank < 2):
        return None
    if node.op == "Conv":
        return 0
    if node.op == "ConvTranspose":
        if node.attribute("group", 1) != 1:
            return None
        return 1 if target is None else target.transposed_axis
    if rank < 2 or node.op not in MATRIX_PRODUCTS:
        return None
    if node.op == "Gemm":
        return index ^ bool(node.attribute("transB" if index else "transA", 0))
    return rank - (1 if index else 2)


def summed_axis(node: _Attributed, index: int, rank: int) -> int:
    """Return the axis over which a compute node sums in operand `index`; for a convolution, its channels."""
    if node.op in CONVOLUTIONS:
        return 0 if node.op == "ConvTranspose" and index else 1
    if node.op == "Gemm":
        transposed = bool(node.attribute("transB" if index else "transA", 0))
        return int(transposed) if index else 1 - transposed
    return rank - 2 if index and rank > 1 else rank - 1


def belongs_to_plugin(domain: str) -> bool:
    """Return True if a domain belongs to plug-ins: not to ONNX, onnxruntime or TensorRT's parser."""
    return domain not in _KNOWN_DOMAINS and domain != TRT_DOMAIN and not domain.startswith("com.microsoft.")


def is_other_quantizer(op: str, domain: str) -> bool:
    """Return True for a quantizing operator that is neither standard nor known to a builder.

    Other tools write such operators for training or for CPUs.
    """
    if op in QDQ | PACKED_WEIGHTS or computes_integers(op) or domain == TRT_DOMAIN:
        return False
    return "quant" in op.lower() or (domain not in _KNOWN_DOMAINS and op in _UNNAMED_QUANTIZERS)


def computes_integers(op: str) -> bool:
    """Return True if an operator itself quantizes or computes with integers; False for Q and DQ."""
    return op in INTEGER_OPERATORS or op.startswith("QLinear")


def result_axis(op: str) -> int:
    """Return the axis of the output channels in the result of a compute node with a bias."""
    return -1 if op == "Gemm" else 1


def _pads_with_zero(view: GraphView, node: Node) -> bool:
    if node.attribute("mode", "constant") != "constant":
        return True
    if len(node.inputs) > 2 and node.inputs[2]:
        value = view.constant(node.inputs[2])
        return value is not None and not value.any()
    return float(node.attribute("value", 0.0)) == 0.0


def _leaves_channels(view: GraphView, pad: Node) -> bool:
    """Return True if a Pad does not change batch and channels, the first two dimensions."""
    pads = pad.attribute("pads", ())
    if len(pad.inputs) > 1:
        constant = view.constant(pad.inputs[1])
        pads = () if constant is None or len(pad.inputs) > 3 else constant.reshape(-1).tolist()
    half = len(pads) // 2
    return half > 2 and not any((*pads[:2], *pads[half : half + 2]))


def _clip_limit(view: GraphView, node: Node, index: int, name: str) -> float | None:
    """Return a limit of a Clip, which is an input from opset 11 on, and an attribute before."""
    if name in node.attributes:
        return float(node.attributes[name])
    value = view.constant(node.inputs[index]) if len(node.inputs) > index and node.inputs[index] else None
    return None if value is None or value.size != 1 else float(value.reshape(-1)[0])
