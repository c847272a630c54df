"""Nodes for which a GPU or a builder has no kernel in the requested format, or in any format.

# old_gpu

INT8 for a GPU without INT8 tensor cores, or without INT8 convolutions in TensorRT for RTX.

    x ─ Q ─ DQ ─ Conv ─ Relu ─ Q ─ DQ        SM86: one INT8 kernel. SM61: no fused one. SM75 with RTX: Half

TensorRT for RTX builds convolutions for SM75 in FP16 without a message. GPUs below SM75 (except SM72, Xavier) have no
INT8 tensor cores: fused INT8 layers are missing there, and INT8 is rarely faster than FP16.

Evidence: RTX 1.7.1: every INT8 Conv of ResNet-18 is Half for SM75 and Int8 for SM80 to SM121. NVIDIA/TensorRT issue
3127 (Pascal).

# eight_bit_float

FP8 on a GPU or a release without it.

    x ─ Q (FP8) ─ DQ ─ MatMul      SM89 and newer

FP8 needs TensorRT 9 or newer on any GPU, and SM89 or newer. MXFP8 needs TensorRT 10.12.

Evidence: RTX 1.7.1: `model contains HW-specific datatypes: fp8_e4m3` for SM86; SM89 and SM120 build (fp8_matmul). The header
of TensorRT 8.6 (`NvInferRuntimeBase.h`) says of `kFP8` that it is not supported yet, and its parser reads QuantizeLinear as INT8
only. Release notes of TensorRT 9.0 and 10.12.

# four_bit_float

FP4 on a GPU or a release without it.

    weights FP4 ─ DQ (blocks of 16) ─ MatMul      builds for SM100 and newer only

FP4 needs a Blackwell GPU (SM100, SM120) and TensorRT 10.8 or newer.

Evidence: RTX 1.7.1: `model contains HW-specific datatypes: fp4_e2m1` for SM86 and SM89; SM120 builds (fp4_weights).
Changelog of TensorRT 10.8.

# microscaled

MXFP8 with TensorRT for RTX.

    x ─ TRT_MXFP8DynamicQuantize ─ TRT_MXFP8DequantizeLinear ─ MatMul      float, and more kernels than FP16

The builder accepts the nodes from SM89 on but multiplies floats: activations are quantized and immediately dequantized.
Documented for classic TensorRT 10.12 and newer on SM100.

Evidence: RTX 1.7.1 for SM89 and SM120: no FP8 product in any of 15 graphs. Its parser knows scales as UINT8 only.

# kernel_taps

An FP8 convolution with a large kernel.

    x ─ Q (FP8) ─ DQ ─ Conv 7x7      float, after a fake-quantize and a weight-dequantize kernel
    x ─ Q (INT8) ─ DQ ─ Conv 7x7     INT8

FP8 convolutions support up to 32 kernel taps, height times width times depth. The stems of ResNets (7x7) and patch
embeddings of vision transformers (16x16) have more; INT8 has no such limit.

Evidence: RTX 1.7.1 for SM89, SM120 and SM121: 1x32, 4x8, 5x6 and 3x3x3 are FP8; 1x33, 3x11, 6x6, 7x7, 8x8, 16x16 and a
depthwise 7x7 are Half. The log has no line on it.

# unsupported

Nodes that the builder cannot compute in INT8 stay float, with the reason.

- Products of integers (shape arithmetic) and of FP64 values.
- Nodes whose inputs come from Q/DQ that is in the model already: a second pair would round twice.
- Both operands constant: there is nothing to compute at run time.
- Convolutions whose weights are computed at run time, on classic TensorRT (RTX takes them, with one scale).

Evidence: RTX 1.7.1: a Conv with two quantized run-time inputs is an INT8 `correlation` on SM86.

# refused

Operators and attributes that TensorRT for RTX does not build, in any precision.

    x ─ DeformConv ─ ...                       the parser has no importer for it
    scores ─ NonMaxSuppression ─ ...           imported, and no kernel computes it
    x ─ Resize (nearest, half_pixel_symmetric)   the importer refuses the attribute
    x ─ ScatterND (reduction=add) ─ ...        the same, and so are pools with dilations
    x ─ LayerNormalization ─ y, mean           only the first output is imported
    x ─ com.microsoft.FastGelu ─ ...           the parser has no importer for it

The build fails, with Q/DQ and without. `lint`, `place` and `run` name these nodes before anything is calibrated; `run` also asks
the parser itself. Classic TensorRT has kernels for NonMaxSuppression and NonZero.

Evidence: RTX 1.7.1: `OnnxParser.supports_operator` for all operators of ONNX 1.23 and of com.microsoft (a test compares
the list); builds of one node of each kind; Resize with 3 modes, 7 coordinate transformations and 4
roundings, up and down; ONNX's node tests on floats, and 80 nodes with the values of their attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from qdqtool.core.advice import repairing
from qdqtool.core.claims import HAS_NO_KERNEL
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import FP8, MXFP8, NVFP4, DType, QuantFormat, first_sm
from qdqtool.core.wording import REPAIR, Command, Setting
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import OTHER_TYPE, compute_nodes, of_other_types, products, veto
from qdqtool.matching.refused import match_refused, too_many_taps, way_out
from qdqtool.matching.rule import Explanation, NodeEvidence, Rule, Violation


def sums_nothing(einsum: Node) -> bool:
    """Return True if an Einsum has no sum: its result has every label of its operands.

    >>> from onnx import helper
    >>> from qdqtool.graph.view import node_of
    >>> sums_nothing(node_of(helper.make_node("Einsum", ["a", "b"], ["c"], equation="i,d->id")))
    True
    """
    operands, arrow, result = str(einsum.attribute("equation", "")).partition("->")
    return bool(arrow) and set(operands) - set(", .") <= set(result)


MXFP8_IS_FLOAT: Final = (
    "TensorRT for RTX 1.7.1 computes MXFP8 in float in every tested graph",
    "use nvfp4 (SM120) or fp8 (SM89), or classic TensorRT 10.12 on SM100",
)


# --- old_gpu ---------------------------------------------------------------------------------------------------------

# SM75 is Turing; of the older architectures, only Xavier (SM72) has INT8 tensor cores.
_TURING = 75
_XAVIER = "72"
_HALF = "TensorRT for RTX has no INT8 convolution for SM75: the convolution runs in FP16"
_NEWER = f"{Command('run', ('FLOAT_MODEL', '--sm', '86'))} builds for newer GPUs only"


def match_old_gpu(view: GraphView, target: Target) -> Iterator[Node]:
    """Yield compute nodes for which one of the GPUs has no INT8 kernel."""
    if old_gpus(target):
        yield from compute_nodes(view, *(("Conv",) if target.is_rtx else ()))


def old_gpus(target: Target) -> str:
    """Return the names of the GPUs that are too old; "" if there are none."""
    old = (
        sm
        for sm in target.sm
        if (int(sm) <= _TURING if target.is_rtx else int(sm) < _TURING and sm != _XAVIER)
    )
    return ", ".join(f"SM{sm}" for sm in sorted(old, key=int))


def place_old_gpu(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on convolutions that TensorRT for RTX would run in FP16."""
    if options.builder.is_rtx and options.activations == "int8":
        for node in match_old_gpu(view, options.builder):
            yield from veto(node, _HALF, _NEWER, HAS_NO_KERNEL)


def check_old_gpu(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report quantized compute nodes if a named GPU has no kernels for them."""
    old = old_gpus(target)
    for node in match_old_gpu(flow.view, target):
        if not all(is_int8(flow.origin(node, index)) for index in (0, 1)):
            continue
        yield Violation(
            node=node.name,
            reason=_HALF if target.is_rtx else f"{old} has no INT8 tensor cores",
            effect="Q/DQ there costs time without any gain"
            if target.is_rtx
            else "the convolution does not fuse with its neighbours, and may have no implementation",
            fix=f"{_NEWER}, or keep convolutions float"
            if target.is_rtx
            else f"{Command('run', ('FLOAT_MODEL', '--sm', '75'))} builds for newer GPUs only, or keep the model float",
            products=(node.name,) if target.is_rtx else (),
            computed=DType.FLOAT16 if target.is_rtx else None,
            no_kernel=target.is_rtx,
        )


# --- eight_bit_float -------------------------------------------------------------------------------------------------


def match_low_float(flow: Flow, target: Target, format_: QuantFormat) -> tuple[str, bool, Iterable[str]]:
    """Return the effect of a format on the build, whether the effect is certain, and the nodes that quantize to the format.

    There are no nodes if the release imports the format and every named GPU is new enough; if no GPU was named, none is known to be.
    """
    nodes = flow.quantizers({format_.name})
    if target.is_before(*format_.release):
        release = ".".join(map(str, format_.release))
        return (
            f"the parser refuses the model: {format_.name.upper()} came with TensorRT {release}",
            True,
            nodes,
        )
    first = first_sm(format_, rtx=target.is_rtx)
    old = sorted((sm for sm in target.sm if int(sm) < first), key=int)
    if old:
        return f"the build fails for SM{', SM'.join(old)}", True, nodes
    return f"the build fails below SM{first}", False, () if target.sm else nodes


def check_eight_bit_float(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report FP8 and MXFP8 Q/DQ pairs that the release or a named GPU refuses, or that some GPUs refuse if none was named."""
    for format_ in (FP8, MXFP8):
        effect, certain, nodes = match_low_float(flow, target, format_)
        for node in nodes:
            yield Violation(
                node=node,
                reason=f"the values between Q and DQ are {format_.name.upper()}",
                effect=effect,
                fix=_newer(format_, target, "use INT8"),
                severity=Severity.ERROR if certain else None,
            )


def _newer(format_: QuantFormat, target: Target, instead: str) -> str:
    """Return the fix: use another format, or a GPU and a release that support this format."""
    release = "" if target.is_rtx else f" with TensorRT {'.'.join(map(str, format_.release))} or newer"
    return f"{instead}, or build for SM{first_sm(format_, rtx=target.is_rtx)} or newer only{release}"


# --- four_bit_float --------------------------------------------------------------------------------------------------


def check_four_bit_float(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report FP4 Q/DQ pairs that the release or a named GPU refuses, or that some GPUs refuse if none was named."""
    effect, certain, nodes = match_low_float(flow, target, NVFP4)
    for node in nodes:
        yield Violation(
            node=node,
            reason="the values between Q and DQ are FP4",
            effect=effect,
            fix=_newer(NVFP4, target, "use INT4 weights"),
            severity=Severity.ERROR if certain else None,
        )


# --- microscaled -----------------------------------------------------------------------------------------------------


def check_microscaled(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report MXFP8 scales stored as FLOAT8E8M0, and compute nodes with two MXFP8 operands."""
    for node in flow.view.nodes:
        if node.op == MX_DEQUANTIZE and flow.view.info(node.inputs[1]).dtype is DType.FLOAT8_E8M0:
            yield Violation(
                node=node.name,
                reason="the scales of this DequantizeLinear are stored as FLOAT8E8M0",
                effect="the parser refuses the model: Failed to import initializer",
                fix="store the scales as UINT8, with the same bytes",
                severity=Severity.ERROR,
            )
    for product in products(flow, target):
        if product.arithmetic == MXFP8.name:
            yield Violation(
                node=product.node.name,
                reason=MXFP8_IS_FLOAT[0],
                effect=f"{product.node.op} runs in float",
                fix=f"{MXFP8_IS_FLOAT[1]}: {Command('run', ('FLOAT_MODEL', '--recipe', 'transformer-fp8', '--sm', '89'))}",
                products=(product.node.name,),
            )


# --- kernel_taps -----------------------------------------------------------------------------------------------------


def check_kernel_taps(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report convolutions with two FP8 operands and too many kernel taps."""
    for product in products(flow, target):
        node = product.node
        if node.op != "Conv" or product.arithmetic != FP8.name:
            continue
        objection = too_many_taps(flow.view.info(node.inputs[1]).shape or ())
        if objection is not None:
            yield Violation(
                node=node.name,
                reason=objection[0],
                effect="Conv runs in float, its input is rounded and its weights are dequantized in every inference",
                fix=f"{objection[1]}; {repairing(to_float=[node.name])} removes the Q/DQ",
                products=(node.name,),
            )


# --- unsupported -----------------------------------------------------------------------------------------------------


def place_unsupported(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on compute nodes that would not become INT8."""
    for node in compute_nodes(view):
        for reason, fix in _obstacles(view, node, options):
            yield from veto(node, reason, fix)


def _obstacles(view: GraphView, node: Node, options: PlacementOptions) -> Iterator[tuple[str, str]]:
    constant = [view.is_constant(tensor) for tensor in node.inputs[:2]]
    if all(constant):
        yield (
            "this node multiplies constants, with the same result in every inference",
            "nothing to do: the builder computes the node once",
        )
    yield from ((reason, OTHER_TYPE) for reason in of_other_types(view, node))
    for tensor in node.inputs[:2]:
        producer = view.producer(tensor)
        if producer is not None and producer.op == "DequantizeLinear":
            yield (
                f"the input {tensor} of this node already comes from Q/DQ",
                "start from the float model, or keep the Q/DQ unchanged",
            )
    if node.op != "Conv":
        return
    if not options.builder.is_rtx and not constant[1]:
        yield (
            "the weights of this node are computed at run time",
            "make the weights constant, or build with TensorRT for RTX",
        )


def explain_unsupported(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain operators that classic TensorRT does not quantize, Einsums without a sum, and nodes with constant inputs only."""
    if evidence.node.op == "Einsum" and not evidence.rtx:
        yield Explanation(
            reason="classic TensorRT quantizes MatMul, not Einsum",
            fix=f"write the Einsum as MatMul with Transpose and Reshape around it ({Setting('prepare.einsum', 'true')} does this if one MatMul suffices)",
            no_kernel=True,
        )
    elif evidence.node.op == "Einsum" and sums_nothing(evidence.node):
        yield Explanation(
            reason=f"{evidence.node.attribute('equation', '')!r} has no sum: this Einsum is not a matrix product",
            fix="nothing to do: every value is one multiplication",
            no_kernel=True,
        )
    if not evidence.activations:
        yield Explanation(
            reason="this node multiplies constants that were not folded, with the same result in every inference",
            fix="nothing to do: `prepare` folds what is small enough, and the builder computes the rest once"
            if evidence.decisions
            else f"fold constants before the build: {REPAIR} does it",
        )


# --- refused -----------------------------------------------------------------------------------------------------------


def check_refused(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report nodes that the builder refuses in every precision."""
    for node, reason in match_refused(flow.view, target):
        yield Violation(
            node=node.name,
            reason=reason,
            effect="the build fails, with or without Q/DQ",
            fix=way_out(flow.view, node, flow.file),
        )


PLUGIN = {
    "old_gpu": Rule(
        code="QDQ135",
        formats=frozenset({"int8"}),
        severity=Severity.WARNING,
        place=place_old_gpu,
        check=check_old_gpu,
    ),
    "eight_bit_float": Rule(
        code="QDQ111", formats=frozenset({"fp8"}), severity=Severity.WARNING, check=check_eight_bit_float
    ),
    "four_bit_float": Rule(
        code="QDQ117", formats=frozenset({"nvfp4"}), severity=Severity.WARNING, check=check_four_bit_float
    ),
    "microscaled": Rule(
        code="QDQ186",
        formats=frozenset({"mxfp8"}),
        severity=Severity.WARNING,
        targets=frozenset({"rtx"}),
        check=check_microscaled,
    ),
    "kernel_taps": Rule(
        code="QDQ183",
        formats=frozenset({"fp8"}),
        severity=Severity.WARNING,
        targets=frozenset({"rtx"}),
        check=check_kernel_taps,
    ),
    "unsupported": Rule(code="QDQ180", place=place_unsupported, explain=explain_unsupported),
    "refused": Rule(
        code="QDQ160",
        severity=Severity.ERROR,
        targets=frozenset({"rtx"}),
        stops=True,
        check=check_refused,
    ),
}
