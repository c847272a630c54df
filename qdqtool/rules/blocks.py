"""Block scales: their axis and shape, formats with two levels, and the forms that a builder accepts.

# blocks

Block scales in a form that kernels cannot use.

    weights INT8 [256, 128] ─ DQ (scales [4, 128]) ─ MatMul      float, no build, or wrong numbers
    weights INT8 [256, 128] ─ DQ (scales [128]) ─ MatMul         INT8

Blocks are for INT4 and FP4 weights, along one of the last two axes, which they must divide. INT8 and FP8 kernels use
one scale per tensor or per output channel. TensorRT derives the block size from the number of scales and ignores
`block_size`.

Evidence: RTX 1.7.1: with a quantized activation on the other input, the build fails with a check, or multiplies a
result of 64 x 256 values by a constant of 1 x 1024 scales. `The quantization axis must divide into whole blocks`;
`The blocking dimension must be the last or second to last dimension`; block_size 100 with scales of blocks of 128
builds as 128.

# two_levels

FP4 values without blocks of 16 along the summed axis, or without FP8 block scales and a global scale.

    scales (float) ─────────────── DQ (w FP4) ─ MatMul      float
    scales (FP8) ─ DQ (global) ─── DQ (w FP4) ─ MatMul      FP4

FP4 kernels read FP8 scales, one per 16 summed values, and one global float scale. The node runs in float if it has
float scales, one scale for the tensor, a single block per row, or blocks along another axis. The builder reads blocks
of 32 as blocks of 16, and reads a MatMul weight [K, 16] with blocks along its columns as blocks along K.

Evidence: RTX 1.7.1 for SM120: each form was built beside a form that is an FP4 `gemm`. TRT_FP4DynamicQuantize ends
with `Only block_size == 16 is supported for now` and `input tensor must be 2D or 3D`. Static blocks of 32 build with
half the scales of the gemm. [64, 16] with scales [64, 1] builds with 64 scales per column; scales of [32, 1] and more
are float. Summed values 16: the weights are dequantized before the kernel, 32 are FP4; an operand with one scale in
all: `ScaleMode is illegal`.

# constant_blocks

Constant block scales of NVFP4 in a kernel that sums along the blocks.

    LayerNorm ─ Q (FP4, constant scales of blocks) ─ DQ ─ MatMul          the build fails, and names no node
    LayerNorm ─ TRT_FP4DynamicQuantize ─ DQ ─ MatMul                      FP4

Constant scales need fewer kernels than computed scales (2 instead of 5 for a MatMul), but a kernel that normalizes or
sums a row cannot also quantize it to FP4. In such places insertion always writes computed scales, even with
`insert.blocks=constant`.

Evidence: RTX 1.7.1 for SM120, 90 builds: `CHECK(values.size() && values.size() % 2 == 0)` or `CHECK(is_constant())`
before each kind of sum along the last axes. If another kernel is between, the network builds. The list is in
`graph/row_sums.py`.

# free_blocks

Blocks along an axis with a dynamic length.

    x [1, s, k] ─ TRT_FP4DynamicQuantize (axis -1) ─ DQ ─ MatMul (w [64, 96])      refused
    x [1, s, 64] ─ TRT_FP4DynamicQuantize (axis -1) ─ DQ ─ MatMul (w [64, 96])     NVFP4

The number of blocks must be known at build time. The shape of the weight gives the length of the axis; the fix writes
this length into the model's input. Other axes may be dynamic.

Evidence: RTX 1.7.1 for SM120: `The input extent in the blocked axis should be known at build time`; pytorch/TensorRT issue 3745.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import FLOAT, NVFP4, DType
from qdqtool.core.wording import REPAIR, count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.qdq.lower import computed_blocks
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import NodeOperand, Product, State, products
from qdqtool.matching.products import in_sums as match
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import per_channel
from qdqtool.trt.ops import DYNAMIC_TYPES, FP4_DYNAMIC, MATRIX_PRODUCTS, PRODUCTS, QUANTIZE, summed_axis

# --- blocks ----------------------------------------------------------------------------------------------------------

_REFUSED = "the parser refuses it"
_ACROSS = "the blocks are not along one of the last two axes"
_PER_CHANNEL = "use one scale per channel, which convolutions need"
_LAST = 2
"""Number of trailing axes along which blocks may go."""


def match_blocks(flow: Flow) -> Iterator[tuple[QdqPair, tuple[str, str, str] | None]]:
    """Yield Q/DQ pairs with block scales. For illegal blocks, also yield reason, effect and fix; for legal blocks, None."""
    for pair in flow.pairs:
        if pair.scale_shape is None:
            if _is_across(flow, pair):
                yield pair, (_ACROSS, _REFUSED, _PER_CHANNEL)
        elif len(pair.scale_shape) >= _LAST:
            yield pair, _illegal(flow, pair)


def check_blocks(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose scale has two or more dimensions but is not a legal block scale for its type."""
    by_name = {product.node.name: product for product in products(flow, target)}
    for pair, illegal in match_blocks(flow):
        node = pair.dequantize or pair.quantize or ""
        if illegal is not None:
            reason, effect, fix = illegal
            severity = Severity.ERROR if effect == _REFUSED else None
            refitted = _find_stored_per_channel(flow, pair, reason)
            fix = f"{fix}; {REPAIR} does this" if refitted else f"{fix}; {_float(flow, pair)}"
            yield Violation(node=node, reason=reason, effect=effect, fix=fix, severity=severity)
        elif pair.dtype in {DType.INT8, DType.FLOAT8}:
            readers = [by_name[name] for name in flow.products_of(pair) if name in by_name]
            if len(pair.scale) == 1:
                yield _misshapen(flow, pair, node)
            else:
                yield from _report_unused(flow, pair, node, readers)


def _find_stored_per_channel(flow: Flow, pair: QdqPair, reason: str) -> tuple[str, ...]:
    """Return consumers of INT8 weights with blocks along an unsupported axis. `fix` gives these weights one scale per channel."""
    stored = pair.kind is SlotKind.WEIGHT and pair.dtype is DType.INT8
    return flow.products_of(pair) if stored and reason == _ACROSS else ()


def fix_blocks(context: RepairContext) -> Iterator[Change]:
    """Replace the block scales of INT8 weights along an unsupported axis by one scale per output channel."""
    flow = context.flow
    refused = ((pair, illegal[0]) for pair, illegal in match_blocks(flow) if illegal is not None)
    for name in dict.fromkeys(
        name for pair, reason in refused for name in _find_stored_per_channel(flow, pair, reason)
    ):
        for edit in per_channel(
            Edit(context.model), context.model, context.view.by_name[name], context.target
        ):
            yield Change(
                edits=(edit,),
                subject=name,
                what="INT8 weights in blocks got one scale per output channel",
                reason=f"{_ACROSS}: {_REFUSED}",
            )


def _float(flow: Flow, pair: QdqPair) -> str:
    nodes = flow.products_of(pair) or (pair.dequantize or pair.quantize or "",)
    return f"{repairing(to_float=nodes)} removes the Q/DQ"


def _misshapen(flow: Flow, pair: QdqPair, node: str) -> Violation:
    return Violation(
        node=node,
        reason=f"the single scale of the weights has {count_noun(len(pair.scale_shape or ()), 'dimension')} instead of 0",
        effect="the build fails, or the weights are multiplied in float",
        fix=f"store the scale as a scalar, shape []; {_float(flow, pair)}",
    )


def _report_unused(flow: Flow, pair: QdqPair, node: str, readers: list[Product]) -> Iterator[Violation]:
    """Report blocks of a type for which kernels only support one scale per output channel.

    With a float activation the rule weights_apart reports it, with another format the rule mixed_formats.
    """
    met = [reader for reader in readers if reader.arithmetic]
    float_too = any(_states(reader) - {State.READY, State.BLOCKS} for reader in met)
    names = tuple(reader.node.name for reader in met)
    if met:
        yield Violation(
            node=node,
            reason=f"the quantized values are {pair.dtype.value.upper()} with one scale per block ({'x'.join(map(str, pair.scale_shape or ()))} scales)",
            effect="the product runs in float"
            if float_too
            else "the build fails, or the result is multiplied by scales of other columns",
            fix=f"{repairing(to_int8=names)} gives the weights one scale per output channel"
            if pair.dtype is DType.INT8
            else f"use one scale per output channel; {_float(flow, pair)}",
            severity=None if float_too else Severity.ERROR,
            products=names,
            realised=FLOAT if float_too else met[0].arithmetic,
        )


def _states(product: Product) -> set[State]:
    return {operand.state for operand in product.operands}


def _is_across(flow: Flow, pair: QdqPair) -> bool:
    """Return True if blocks with two-level scales are along an axis before the last two axes."""
    quantization = flow.lifted.assignment.get(pair.slots[0]) if pair.slots else None
    rank = len(flow.view.info(pair.tensor).shape or ())
    return (
        quantization is not None
        and quantization.block is not None
        and (quantization.axis or 0) < rank - _LAST
    )


def _illegal(flow: Flow, pair: QdqPair) -> tuple[str, str, str] | None:
    """Return reason, effect and fix if the scales do not divide the tensor into blocks; else None."""
    scales, shape = pair.scale_shape or (), flow.view.info(pair.tensor).shape
    name = pair.dequantize or pair.quantize or ""
    axis = int(flow.view.by_name[name].attribute("axis", 1))
    if shape is None or len(shape) != len(scales) or len(pair.scale) == 1:
        return None
    axis += len(shape) if axis < 0 else 0
    length = shape[axis] if 0 <= axis < len(shape) else None
    if not isinstance(length, int):
        return None
    if length % scales[axis]:
        return (
            f"the {scales[axis]} scales do not divide the {length} values of axis {axis} into whole blocks",
            _REFUSED,
            "store one scale per block of a length that divides the axis",
        )
    if axis < len(shape) - _LAST:
        return (
            _ACROSS,
            _REFUSED,
            _PER_CHANNEL,
        )
    written, block = int(flow.view.by_name[name].attribute("block_size", 0)), length // scales[axis]
    if written != block:
        return (
            f"the attribute block_size is {written}, but the number of scales fits blocks of {block}",
            f"TensorRT reads blocks of {block}; onnxruntime refuses the model",
            f"write block_size={block}",
        )
    return None


# --- two_levels ------------------------------------------------------------------------------------------------------

_FORM = "FP8 scales of blocks of 16 along the summed axis, with one global float scale"
_RANKS = (2, 3)
_BLOCK = NVFP4.blocks[0]
_TWO_BLOCKS = "keep the node float: two blocks need at least 32 summed values"


def check_two_levels(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report FP4 quantizers that the parser refuses, and compute nodes whose FP4 operands no kernel can read."""
    for node in flow.view.nodes:
        reason = _refusal(flow, node) if node.op == FP4_DYNAMIC else ""
        if reason:
            yield Violation(
                node=node.name,
                reason=reason,
                effect="the parser refuses it",
                fix=f"use blocks of 16 on tensors of 2 or 3 dimensions (Reshape before and after the node); {_leave_float(node)}",
                severity=Severity.ERROR,
            )
    for product in products(flow, target):
        if product.arithmetic == NVFP4.name:
            yield from _flaws(flow, product, target)


def _leave_float(node: Node) -> str:
    return f"{repairing(to_float=[node.name])} removes the Q/DQ"


def _refusal(flow: Flow, node: Node) -> str:
    rank = len(flow.view.info(node.inputs[0]).shape or ())
    block = node.integer("block_size", _BLOCK)
    if block != _BLOCK:
        return f"the blocks have {block} values"
    return f"the input has {rank} dimensions" if rank and rank not in _RANKS else ""


def _flaws(flow: Flow, product: Product, target: Target) -> Iterator[Violation]:
    node = product.node
    if not target.is_rtx:
        yield from _misread(flow, product)
        return
    single = [operand for operand in product.operands if _scales(flow, node, operand) == 1]
    if single:
        yield Violation(
            node=node.name,
            reason=f"input {single[0].index} is a single block of {_BLOCK} values, with one scale",
            effect="the parser refuses it",
            fix=f"{_TWO_BLOCKS}; {_leave_float(node)}",
            severity=Severity.ERROR,
        )
        return
    misread = tuple(_misread(flow, product))
    yield from misread
    if misread:
        return
    for operand in product.operands:
        flaw = _flaw(flow, node, operand)
        if flaw is not None:
            yield Violation(
                node=node.name,
                reason=flaw[0],
                effect=f"{node.op} runs in float",
                fix=f"{flaw[1]}; {_leave_float(node)}",
                products=(node.name,),
            )
            return


def _misread(flow: Flow, product: Product) -> Iterator[Violation]:
    """Report scales that a kernel would apply to wrong blocks."""
    node = product.node
    for operand in product.operands:
        block = None if operand.quantization is None else operand.quantization.block
        whose = f"blocks of {block}" if block not in {None, _BLOCK} else ""
        if not whose and _is_column_block(flow, node, operand):
            whose = f"blocks along axis {flow.channel_axis(node, operand.index)}, with one per row"
        if whose:
            yield Violation(
                node=node.name,
                reason=f"the scales of input {operand.index} belong to {whose}",
                effect=f"the engine assumes blocks of {_BLOCK} along the summed axis, so values are multiplied by scales of other blocks",
                fix=f"{_FORM}; {_leave_float(node)}",
                severity=Severity.ERROR,
            )


def _is_column_block(flow: Flow, node: Node, operand: NodeOperand) -> bool:
    """Return True if a weight [K, 16] has blocks along its 16 columns. The kernel would read them as blocks along K."""
    shape = _shape(flow, node, operand)
    axis = flow.channel_axis(node, operand.index)
    if not operand.fixed or axis is None or axis != len(shape) - 1 or shape[axis] != _BLOCK:
        return False
    return axis != summed_axis(node, operand.index, len(shape))


def _flaw(flow: Flow, node: Node, operand: NodeOperand) -> tuple[str, str] | None:
    """Return why a kernel cannot read an FP4 operand, and the fix; None if a kernel can read it."""
    pair, quantization = operand.pair, operand.quantization
    if pair is not None and quantization is None:
        one_level = pair.scale_shape is not None or pair.dtype is not DType.FLOAT4
        return (
            (f"input {operand.index} has block scales without a global scale", _FORM) if one_level else None
        )
    shape = _shape(flow, node, operand)
    axis = flow.channel_axis(node, operand.index)
    summed = summed_axis(node, operand.index, len(shape)) if shape else None
    if axis is None or summed is None:
        return None
    if axis != summed:
        return (
            f"the blocks of input {operand.index} are along axis {axis}, but the sum is along axis {summed}",
            _FORM,
        )
    if shape[axis] == _BLOCK:
        return f"the {_BLOCK} summed values are a single block", _TWO_BLOCKS
    return None


def _shape(flow: Flow, node: Node, operand: NodeOperand) -> tuple[int | str, ...]:
    """Return the shape of an operand from the Q/DQ graph or the float graph; () if both lack it."""
    written = flow.view.info(node.inputs[operand.index]).shape
    return written or flow.plain.info(flow.plain.by_name[node.name].inputs[operand.index]).shape or ()


def _scales(flow: Flow, node: Node, operand: NodeOperand) -> int | None:
    """Return the number of block scales of an operand; None if its shape is unknown or if it has no blocks of 16."""
    shape = _shape(flow, node, operand)
    sizes = [size for size in shape if isinstance(size, int)]
    if operand.quantization is None or operand.quantization.block != _BLOCK or len(sizes) != len(shape):
        return None
    return prod(sizes) // _BLOCK


# --- constant_blocks -------------------------------------------------------------------------------------------------


def check_constant_blocks(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report FP4 Q/DQ pairs with constant block scales that are fused with a sum along the blocks."""
    for pair, total in match(flow):
        assert pair.quantize is not None
        yield Violation(
            node=pair.quantize,
            reason=f"this Q has constant block scales and is fused with {total}, which sums along the blocks",
            effect="the build fails, and the message names no node",
            fix=f"compute the scales in every inference: insert.blocks=computed, the default; {REPAIR} does this",
        )


def fix_constant_blocks(context: RepairContext) -> Iterator[Change]:
    """Replace constant block scales by scales that every inference computes."""
    flow = context.flow
    for pair, total in match(flow):
        quantize = context.nodes[pair.quantize or ""]
        scale = flow.view.producer(quantize.input[1])
        behind = [context.nodes[use.node.name] for use in flow.view.uses(quantize.output[0])]
        assert scale is not None
        written = flow.view.by_name[quantize.name]
        axis, block = written.attribute("axis", 1), written.attribute("block_size")
        result = computed_blocks(context.edit, pair.tensor, pair.tensor, scale.inputs[1], axis, block)
        for dequantize in behind:
            context.redirect(dequantize.output[0], result)
        context.edit.remove((quantize, *behind))
        yield Change(
            subject=quantize.name,
            what="the scales of its blocks are computed in every inference",
            reason=f"with constant scales the kernel of {total} would also quantize to FP4, which does not build",
        )


# --- free_blocks -----------------------------------------------------------------------------------------------------


def match_free_blocks(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Yield nodes that quantize in blocks along a dynamic axis, and the name of the dynamic dimension."""
    for node in view.nodes:
        blocked = node.op in DYNAMIC_TYPES or (node.op == QUANTIZE and node.integer("block_size", 0) > 0)
        shape = view.info(node.inputs[0]).shape if blocked else None
        axis = node.integer("axis", -1)
        if shape and -len(shape) <= axis < len(shape) and isinstance(shape[axis], str):
            yield node, str(shape[axis])


def check_free_blocks(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report nodes that quantize in blocks along a dynamic axis."""
    view = flow.view
    for node, name in match_free_blocks(view):
        axis, size = node.integer("axis", -1), _required_length(view, node)
        readers = tuple(reader.name for reader, _ in _readers(view, node)) or (node.name,)
        if size is None:
            way = f"export the model with a fixed length; {repairing(to_float=readers)} removes the Q/DQ"
        elif _is_input(view, name):
            way = f"set it to {size}, as the weight requires; {REPAIR} does this"
        else:
            way = f"set it to {size} in the export, as the weight requires; {repairing(to_float=readers)} removes the Q/DQ"
        yield Violation(
            node=node.name,
            reason=f"the blocks are along axis {axis} of {node.inputs[0]}, whose length is dynamic",
            effect="the builder refuses the model: the input extent in the blocked axis should be known at build time",
            fix=way,
        )


def fix_free_blocks(context: RepairContext) -> Iterator[Change]:
    """Set dynamic dimensions of the model's inputs to the length that a weight requires."""
    view = context.view
    done: set[str] = set()
    for node, name in match_free_blocks(view):
        size = _required_length(view, node)
        if size is None or name in done or not _is_input(view, name):
            continue
        done.add(name)
        for value in (*context.edit.inputs, *context.edit.outputs):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == name:
                    dim.dim_value = size
        yield Change(
            subject=node.inputs[0],
            what=f"the dynamic length {name!r} of the model's inputs became {size}",
            reason="blocks along a dynamic axis do not build, and the weight allows no other length",
            error=0.0,
        )


def _is_input(view: GraphView, name: str) -> bool:
    """Return whether an input of the model has a dimension of this name."""
    return any(name in (value.shape or ()) and name != "?" for value in view.inputs)


def _readers(view: GraphView, node: Node) -> Iterator[tuple[Node, int]]:
    """Yield the compute nodes that read the result of a quantizer, each with the number of the input."""
    for use in view.uses(node.outputs[0]):
        for reader in view.uses(use.node.outputs[0]) if use.index == 0 and use.node.outputs else ():
            if reader.node.op in PRODUCTS and reader.index < 2:
                yield reader.node, reader.index


def _required_length(view: GraphView, node: Node) -> int | None:
    """Return the length that the other operand of a MatMul or Gemm requires; None if unknown."""
    for product, index in _readers(view, node):
        shape = view.info(product.inputs[1 - index]).shape or ()
        axis = summed_axis(product, 1 - index, len(shape)) if product.op in MATRIX_PRODUCTS else None
        size = shape[axis] if axis is not None and len(shape) > 1 else None
        if isinstance(size, int):
            return size
    return None


PLUGIN = {
    "blocks": Rule(
        code="QDQ110", severity=Severity.WARNING, stage=Stage.LEGAL, check=check_blocks, fix=fix_blocks
    ),
    "two_levels": Rule(
        code="QDQ185", formats=frozenset({"nvfp4"}), severity=Severity.WARNING, check=check_two_levels
    ),
    "constant_blocks": Rule(
        code="QDQ196",
        severity=Severity.ERROR,
        targets=frozenset({"rtx"}),
        formats=frozenset({"nvfp4"}),
        check=check_constant_blocks,
        fix=fix_constant_blocks,
    ),
    "free_blocks": Rule(
        code="QDQ199",
        formats=frozenset({"nvfp4", "mxfp8"}),
        severity=Severity.ERROR,
        stops=True,
        stage=Stage.LEGAL,
        check=check_free_blocks,
        fix=fix_free_blocks,
    ),
}
