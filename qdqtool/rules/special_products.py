"""Compute nodes with special rules of placement: transposed and depthwise convolutions, recurrences, nodes before a Log.

# conv_transpose

Transposed convolutions: INT8 on classic TensorRT; on TensorRT for RTX only if they are written as convolutions.

    before                       after, classic TensorRT          after, RTX
    x ── ConvTranspose ── y      x ─ Q ─ DQ ─ ConvTranspose       x ─ Q ─ DQ ─ Conv ── DepthToSpace ── y
    W ───┘                       W ─ Q ─ DQ ───┘                  W ─ Q ─ DQ ───┘

For RTX, preparation writes them as equivalent convolutions (`prepare.conv_transpose` for stride 1,
`prepare.strided_conv_transpose` for larger strides). By default it does the latter with FP32, if that saves bytes. A
node that remains a ConvTranspose (output shapes instead of paddings, dilations with strides, weights that are not
constant) stays float.

The scales of its weights go along the input channels (axis 0) in TensorRT 8. Which axis newer releases read is unknown, so one
scale serves the whole tensor there, and with groups in every release (rule `transpose_axis`).

Evidence: RTX 1.7.1 runs `deconv` in float whatever is quantized and adds a kernel that dequantizes the weights
(convtranspose_q, convtranspose_pt). Conv, ConvTranspose, Conv with 32 channels, kernels of 2, 3 and 4 and strides of
2: all run in INT8 as convolutions, with 7 kernels as before. Beside FP32 they read and write 0.94 of the bytes (0.85
with 8 channels, 0.61 with 3 at the end of a network, 1.00 depthwise and with strides of 8). Beside FP16 it is 1.06 to
1.23 (0.71 with 3 at the end), because INT8 kernels with a scale per channel pass on FP32. Outputs that are not a
multiple of the stride, cut at their end (kernels of 3 and 5, 32 and 64 channels, one and two dimensions, seven
networks): an equal number of kernels, one more in one network, and 0.85 to 0.94 of the bytes. Axis of scales: rule
`transpose_axis`.

# depthwise_swish

For TensorRT 8, a depthwise convolution followed by a Swish stays float.

    x ─ depthwise Conv ─┬─ Sigmoid ─┐
                        └────────── Mul ─ QDQ ─ Conv

TensorRT 8 fuses the convolution, the Swish and the next Q into one layer without an INT8 kernel, and the build fails
with "could not find any implementation". The convolution costs little in float; all others stay INT8.

Evidence: NVIDIA/TensorRT issue 3385 (8.5.2); NVIDIA/Model-Optimizer issue 50 (builds with 10). RTX 1.7.1 runs it in
INT8.

# depthwise

Beside FP16 or BF16, a depthwise convolution stays float on TensorRT for RTX.

    Conv ── depthwise Conv ─ QDQ ─ Conv      no Q/DQ before the depthwise Conv

INT8 and FP8 kernels multiply groups of four channels. The kernel before a depthwise convolution writes three zeros
for each value. So the depthwise kernel reads as many bytes as in FP32, twice as many as in FP16, and it writes wide
sums for the kernel that rounds. Beside FP32 both forms have equal bytes, so `fix` decides by a build. The rule does
not apply to three dimensions, to several outputs per channel, or to groups of two and more channels: if the device
merges the kernels, INT8 has fewer bytes there. Kernels can increase: a Concat or a global average that the INT8
kernels include becomes a separate kernel. Bytes are those of the layer dump; times are unknown without a GPU.
`place.skip_rules: [depthwise]` quantizes them.

Evidence: RTX 1.7.1, SM86, 89 and 120, kernels of 3, 5 and 7, strides of 1 and 2, 8 to 512 channels, batches of 1 and
8, INT8 and FP8: 10 to 38 % fewer bytes in each of 66 networks. Ten public networks beside FP16, SM86: 9 to 28 % fewer
bytes. The number of kernels is equal in seven of them, and 2 to 6 higher of 98 to 188 in three (MobileNetV3 101 to
107).

# recurrent

LSTM, GRU and RNN are not quantized.

Their state is carried through hundreds of steps, where rounding errors accumulate. Classic TensorRT has no INT8 kernel for
them in explicit quantization. TensorRT for RTX multiplies only the input in INT8, in every step, not once for all steps. It
dequantizes the weights of the state.

Evidence: NVIDIA's support matrix lists recurrence (loops) in FP32 and FP16 only. RTX 1.7.1, SM86, LSTM, GRU and RNN of 64
values, 3, 4 and 16 steps: 7 to 17 times the bytes as dumped. With Q/DQ on the input and its weights alone the dump shows
fewer kernels and bytes from 16 steps on. It lists the INT8 kernel once for all steps, so the gain is unknown.

With the lengths of its sequences as an input (`sequence_lens`), RTX 1.7.1 builds each of the three in FP32 alone: the parser
chooses between a state in FP16 and a zero in FP32 with a Select, and a strongly typed network refuses it.

# logarithm

Compute nodes before a logarithm, as in a spectrogram, stay float.

    recording ─ MatMul (Fourier) ─ squares ─ Sqrt ─ MatMul (mel) ─ Log ─ Conv      no Q/DQ before the Log
                                                                       └─ QDQ       INT8 from here on

After a logarithm, small values count as much as large ones, and most values of a spectrogram are small: they are less
than one INT8 step, and less than the rounding error of the Fourier or mel table. A front end is everything that a
network computes from its inputs up to a Log without any activation in between; a Log after layers with activations is
not part of one. FP16 and BF16 lose the same values: `insert.types` and `convert` keep the front end FP32, and QDQ212
does not count it.

Evidence: arithmetic, and public networks. A pitch network that takes logarithms of three spectrograms of one
recording loses its result in INT8 with every calibrator, and keeps it with a float front end. Set `place.skip_rules:
[logarithm]` to quantize it anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.claims import HAS_NO_KERNEL, Assertion, of_reason
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import JointSlots, RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, Setting, count_noun
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.sensitive import LENGTHS, front_ends, has_lengths
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import (
    arithmetic_word,
    both_or_neither,
    compute_nodes,
    product_of,
    skipping,
    veto,
    weight_specs,
)
from qdqtool.matching.refused import recurrent_in_int8
from qdqtool.matching.rule import BuiltGraph, Candidate, Explanation, Goal, NodeEvidence, Rule, Violation
from qdqtool.trt.ops import (
    GATES,
    PRODUCTS,
    QUANTIZE,
    RECURRENT,
    SWISHES,
)


def depthwise_swish(view: GraphView, node: Node) -> str | None:
    """Return the result of the Swish after a depthwise convolution; None if `node` is not such a convolution."""
    shape = view.info(node.inputs[1]).shape or ()
    if not (node.op == "Conv" and len(shape) > 1 and shape[1] == 1 and node.integer("group", 1) > 1):
        return None
    users = [use.node for use in view.uses(node.outputs[0])]
    gates = {user.outputs[0] for user in users if user.op in GATES}
    for user in users:
        if user.op in SWISHES or (user.op == "Mul" and gates & set(user.inputs)):
            return user.outputs[0]
    return None


# --- conv_transpose --------------------------------------------------------------------------------------------------


def match_conv_transpose(view: GraphView) -> Iterator[Node]:
    """Return the transposed convolutions."""
    return compute_nodes(view, "ConvTranspose")


def place_conv_transpose(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | JointSlots]:
    """Request Q/DQ on both inputs of ConvTranspose; for TensorRT for RTX, also veto it."""
    specs = weight_specs(view, options)
    for node in match_conv_transpose(view):
        yield from both_or_neither(
            node,
            specs,
            reason="a transposed convolution computes in INT8 if input and weights are quantized",
            alone="with only one of input and weights quantized, a transposed convolution computes in float",
        )
        if options.builder.is_rtx:
            yield from veto(
                node,
                "TensorRT for RTX has no INT8 kernel for ConvTranspose: Q/DQ would only add dequantize kernels",
                f"nothing to do; {Setting('insert.types', 'fp16')} runs it in FP16"
                if options.float_type == "fp32"
                else f"nothing to do: the node runs in {options.float_type.upper()}",
                HAS_NO_KERNEL,
            )


def check_conv_transpose(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report transposed convolutions with Q/DQ if there is no kernel that computes them in INT8."""
    for node in match_conv_transpose(flow.view):
        product = product_of(flow, node, target)
        if any(operand.quantized for operand in product.operands):
            yield Violation(
                node=node.name,
                reason=f"TensorRT for RTX has no ConvTranspose kernel in {arithmetic_word(product.request)}",
                effect="the node runs in float, and its weights are dequantized in every inference",
                fix=f"{repairing(to_float=[node.name])} removes its Q/DQ",
                products=(node.name,),
                no_kernel=True,
            )


def explain_conv_transpose(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain that TensorRT for RTX has no quantized ConvTranspose kernel, so no build needs to try one."""
    if evidence.rtx and evidence.node.op == "ConvTranspose":
        yield Explanation(
            reason=f"TensorRT for RTX has no ConvTranspose kernel in {evidence.arithmetic}",
            fix=f"{repairing(to_float=[evidence.node.name])} removes its Q/DQ"
            if evidence.any_quantized
            else "nothing to do",
            of_builder=True,
            no_kernel=True,
        )


# --- depthwise_swish -------------------------------------------------------------------------------------------------


def match_depthwise_swish(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Yield depthwise convolutions with a Swish after them, and the result of the Swish."""
    for node in compute_nodes(view):
        result = depthwise_swish(view, node)
        if result is not None:
            yield node, result


def place_depthwise_swish(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on depthwise convolutions with a Swish after them, for TensorRT 8."""
    if options.builder.builds_depthwise_swish:
        return
    for node, _ in match_depthwise_swish(view):
        yield from veto(
            node,
            "TensorRT 8 has no INT8 kernel for a depthwise convolution with a Swish after it",
            f"{Setting('place.target', '10')} places for TensorRT 10 and newer",
        )


def check_depthwise_swish(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report depthwise convolutions in INT8 whose Swish is quantized."""
    for node, result in match_depthwise_swish(flow.view):
        whole = all(is_int8(flow.origin(node, index)) for index in (0, 1))
        if whole and any(reader.op == QUANTIZE for reader in flow.readers(result)):
            yield Violation(
                node=node.name,
                reason="this node is a depthwise convolution with Q/DQ and a Swish after it",
                effect="TensorRT 8 has no kernel for the fused layer, and the build may fail",
                fix="remove Q/DQ from both inputs of this convolution, or build with TensorRT 10 or newer",
            )


# --- depthwise -------------------------------------------------------------------------------------------------------

_PADDED = frozenset({"int8", "fp8"})
"""Formats whose kernels pad channels, as builds show. NVFP4 was not built."""
_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})
_PADDED_RANKS = (3, 4)
"""Ranks of weights: convolutions along one and two dimensions."""


def match_depthwise(view: GraphView) -> Iterator[Node]:
    """Yield convolutions along one or two dimensions whose groups have one input channel and one output channel."""
    for node in compute_nodes(view, "Conv"):
        shape = view.info(node.inputs[1]).shape or ()
        if len(shape) in _PADDED_RANKS and shape[1] == 1 and shape[0] == node.integer("group", 1) > 1:
            yield node


def place_depthwise(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """For TensorRT for RTX, veto Q/DQ on depthwise convolutions if the float type has two bytes."""
    if not options.builder.is_rtx or options.format not in _PADDED or options.activations == "float":
        return
    for node in match_depthwise(view):
        dtype = view.info(node.inputs[0]).dtype
        if options.float_type != "fp32" or dtype in _HALF:
            kind = options.float_type if options.float_type != "fp32" else str(dtype)
            yield from veto(
                node,
                f"INT8 and FP8 kernels pad each channel of a depthwise convolution to four: as many bytes as in FP32, twice those in {kind.upper()}",
                f"{skipping('depthwise', options)} quantizes it anyway",
                of_reason(Assertion.MORE_BYTES),
            )


def check_depthwise(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report depthwise convolutions in INT8 or FP8 whose result is FP16 or BF16."""
    for node in match_depthwise(flow.view):
        dtype = flow.view.info(node.outputs[0]).dtype
        formats = {pair.format.name for index in (0, 1) if (pair := flow.quantization(node, index))}
        if dtype in _HALF and formats in ({name} for name in _PADDED):
            yield Violation(
                node=node.name,
                reason=f"{formats.pop().upper()} kernels pad each channel of a depthwise convolution to four",
                effect=f"the convolution reads and writes as many bytes as in FP32, twice as many as in {str(dtype).upper()}",
                fix=f"{repairing(to_float=[node.name])} removes the Q/DQ from both of its inputs",
            )


def candidates_depthwise(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose float for depthwise convolutions in INT8 or FP8. With FP16 this saves bytes; with FP32 it lowers the noise."""
    padded = {node.name: node for node in match_depthwise(built.view)}
    for evidence, verdict in built.nodes:
        node = padded.get(evidence.node.name)
        if node is not None and evidence.rtx and verdict.realised in _PADDED:
            is_half = built.view.info(node.outputs[0]).dtype in _HALF
            yield Candidate(
                subject=node.name,
                goal=Goal.CHEAPER if is_half else Goal.CLOSER,
                text="compute the depthwise convolution in float",
                edits=tuple(SlotEdit(slot=Slot(node=node.name, index=index)) for index in (0, 1)),
            )


# --- recurrent -------------------------------------------------------------------------------------------------------


def place_recurrent(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on the input, the weights and the recurrence weights of recurrent nodes."""
    for node in view.nodes:
        if node.op in RECURRENT:
            for index in range(3):
                yield SlotStatement(
                    slot=Slot(node=node.name, index=index),
                    stance=RequestOrVeto.VETO,
                    reason=recurrent_in_int8(node.op, options.builder),
                    fix="nothing to do; FP16 is its fastest type (trtexec --fp16)"
                    if not options.builder.builds_without_type_flags
                    else f"nothing to do: FP32 is its only type, since it {LENGTHS}"
                    if has_lengths(node)
                    else f"nothing to do; {Setting('insert.types', 'fp16')} is its fastest type"
                    if options.float_type == "fp32"
                    else f"nothing to do: the node runs in {options.float_type.upper()}",
                    claim=of_reason(Assertion.MORE_BYTES) if options.builder.is_rtx else HAS_NO_KERNEL,
                )


def explain_recurrent(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain why recurrent nodes do not run in the requested low-bit format."""
    op = evidence.node.op
    if op in RECURRENT:
        is_int8 = evidence.arithmetic == "INT8"
        yield Explanation(
            reason=recurrent_in_int8(op, Target(kind="rtx" if evidence.rtx else "trt", release=(10,)))
            if is_int8
            else f"TensorRT has no {evidence.arithmetic} kernel for {op}",
            fix=evidence.without_qdq
            if has_lengths(evidence.node)
            else f"{evidence.without_qdq}; FP16 ({Command('convert')}) is its fastest type",
            no_kernel=True,
            claims=(of_reason(Assertion.MORE_BYTES),) if evidence.rtx and is_int8 else (),
        )


# --- logarithm ---------------------------------------------------------------------------------------------------------


def match_logarithm(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every Log that ends a front end with compute nodes, such as a spectrogram, and these nodes."""
    for log, nodes in front_ends(view):
        products = tuple(node for node in nodes if node.op in PRODUCTS)
        if products:
            yield log, products


def place_logarithm(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on the compute nodes before a Log in a front end, such as a spectrogram."""
    logs = {node.name: (node, log) for log, products in match_logarithm(view) for node in products}
    for node, log in logs.values():
        yield from veto(
            node,
            f"{log.name!r} takes the logarithm of the result of this node: a logarithm needs small values, which are less than a quantization step, as much as large values",
            f"{skipping('logarithm', options)} quantizes it anyway",
            of_reason(Assertion.LOSES_ACCURACY),
        )


def check_logarithm(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report quantized compute nodes before a Log in a front end, such as a spectrogram."""
    for log, products in match_logarithm(flow.plain):
        quantized = sorted(node.name for node in products if flow.origin(node, 0) or flow.origin(node, 1))
        if quantized:
            yield Violation(
                node=quantized[0],
                reason=f"{log.name!r} takes the logarithm of the result of "
                + count_noun(len(quantized), "quantized compute node"),
                effect="small values are below a quantization step and are lost, but a logarithm needs them as much as large values",
                fix=f"remove the pairs before these nodes, or start from the float model: {Command('quantize', ('FLOAT_MODEL', '--samples', 'DATA', '--out', 'MODEL'))} keeps these nodes float",
            )


PLUGIN = {
    "conv_transpose": Rule(
        code="QDQ130",
        severity=Severity.WARNING,
        targets=frozenset({"rtx"}),
        place=place_conv_transpose,
        check=check_conv_transpose,
        explain=explain_conv_transpose,
    ),
    "depthwise_swish": Rule(
        code="QDQ150",
        formats=frozenset({"int8"}),
        severity=Severity.WARNING,
        targets=frozenset({"8"}),
        place=place_depthwise_swish,
        check=check_depthwise_swish,
    ),
    "depthwise": Rule(
        code="QDQ156",
        formats=_PADDED,
        targets=frozenset({"rtx"}),
        place=place_depthwise,
        check=check_depthwise,
        candidates=candidates_depthwise,
    ),
    "recurrent": Rule(code="QDQ177", place=place_recurrent, explain=explain_recurrent),
    "logarithm": Rule(code="QDQ197", severity=Severity.WARNING, place=place_logarithm, check=check_logarithm),
}
