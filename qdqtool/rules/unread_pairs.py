"""Q/DQ pairs before nodes that do not compute in a low-bit format.

# fake_quantize

Q/DQ before an operator that computes in float.

    x ─ Q ─ DQ ─ Softmax ─ Q ─ DQ ─ MatMul      two roundings, Softmax in float
    x ─ Softmax ─ Q ─ DQ ─ MatMul               one rounding, Softmax in float

Softmax, LayerNormalization, activations and other pointwise operators have no INT8 form: the pair rounds the values and
returns them as float.

Evidence: RTX 1.7.1: `...RounCastCastMul...` inside a float kernel (softmax_q, layernorm_q, relu_behind_pair), and
`...MulCastCastMul...` with FP8 before LayerNormalization (SM89, SM120: an equal number of kernels without the pair).
A layer after such an operator is float as well unless Q/DQ follows it.

# float_reader

A pair feeds an INT8 layer and a float operator.

    x ─ Q ─ DQ ─┬─ Conv            x ─┬─ Q ─ DQ ─ Conv
                └─ Sigmoid            └─ Sigmoid

One DequantizeLinear for both works, but the float reader gets the rounded values. With a pair for the INT8 layer only,
it would get the exact values, at the cost of a float copy.

Evidence: RTX 1.7.1 dequantizes inside the float kernel (dq_fanout_float).

# output_pair

Q/DQ right before a model output.

    Conv ─ Relu ─ Q ─ DQ ─ y      y is rounded for nothing
    Conv ─ Relu ─ y

The last value is rounded and returned as float: accuracy is lost, although no later node could use INT8.

Evidence: RTX 1.7.1 quantizes and dequantizes inside the last kernel (q_on_output).

# dangling

A QuantizeLinear or DequantizeLinear whose result no node reads.

    x ─┬─ Q            no node reads it
       └─ Conv

The builder removes it. It shows that an exporter or an edit lost the other half of the pair.

Evidence: RTX 1.7.1 builds equal kernels with and without the node (dangling_q).

# float_result

An Add of INT8 values whose result no node reads in INT8.

    a ─ Q ─ DQ ─┐                        a ─┐
                Add ─ Sigmoid                Add ─ Sigmoid      same speed, no rounding
    b ─ Q ─ DQ ─┘                        b ─┘

A layer that does not multiply runs in INT8 only if its inputs and its output are quantized: without Q/DQ after it the
values are rounded, returned as float, and added in float.

Evidence: RTX 1.7.1 adds in float after two roundings, in the same number of kernels and bytes as without the pairs
(sum_read_as_float). NVIDIA's placement rules: quantize inputs and outputs of such layers, or neither.

# unseen

An input after a plug-in operator, which onnxruntime cannot compute.

    x ─ Conv ─ MyPlugin ─ Conv ─ y        the second Conv is float: no sample reaches it

Without values there are no ranges. The nodes before the plug-in are calibrated as usual, and compared at the inputs of
the plug-in. There are three ways to give onnxruntime the operator: `--custom-ops LIBRARY`, a NumPy function in
`runtime.stand_ins`, or a function of the model with the name of the operator. Weights need no samples: INT4 and other
`-weights` formats are also placed after a plug-in.

Evidence: the definition of calibration; `tests/runtime/test_operators.py`.

# plugin

Q/DQ around an operator of another domain, which only a plugin can run.

    x ─ Q ─ DQ ─ MyPlugin ─ Q ─ DQ ─ y

A plugin does not fuse: the DequantizeLinear before it and the QuantizeLinear after it stay kernels, unless the plugin
reads and writes INT8.

Evidence: NVIDIA's placement rules (absorb both into the plugin). RTX 1.7.1 without a plugin of that name refuses the
node (plugin_between).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, RequestOrVeto, Slot, SlotKind, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.wording import REPAIR
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import is_fused
from qdqtool.matching.rule import BuiltGraph, Candidate, Goal, Rule, Violation, kernel_of, readers_of_pairs
from qdqtool.trt.ops import (
    ATTENTIONS,
    AVERAGES,
    CLAMPS,
    COMPUTE,
    PLACEABLE,
    PRODUCTS,
    QDQ,
    QUANTIZE,
    RECURRENT,
    SHAPE_READERS,
    TRT_DOMAIN,
    belongs_to_plugin,
    quantization_commutes,
)

INTEGER_READERS = PRODUCTS | SHAPE_READERS | {"Add", "Concat", QUANTIZE}
"""Operators that read INT8 values directly, or read no values at all."""


INT8_READERS = INTEGER_READERS | AVERAGES | {"Cast"}
"""Operators before which a pair is useful, or which other rules report."""


FUSES_DEQUANTIZE = CLAMPS | {"Mul"}
"""Operators that classic TensorRT fuses with a DequantizeLinear before them; TensorRT for RTX does not."""


# --- fake_quantize ---------------------------------------------------------------------------------------------------


def match_fake_quantize(flow: Flow, target: Target | None) -> Iterator[tuple[QdqPair, tuple[Node, ...]]]:
    """Yield Q/DQ pairs whose readers are all float operators, and these readers.

    With `target` None, operators that only classic TensorRT fuses count as float.
    """
    for pair in flow.pairs:
        readers = tuple(flow.view.by_name[slot.node] for slot in pair.slots)
        if pair.kind is not SlotKind.ACTIVATION or not pair.dequantize or not readers or pair.returned:
            continue
        producer = flow.view.producer(pair.tensor)
        if (
            producer is not None
            and producer.op in PRODUCTS
            and any(is_fused(flow.view, each) for each in readers)
        ):
            continue  # the rule inside_fusion reports these
        if any(
            belongs_to_plugin(reader.domain) or reader.domain == TRT_DOMAIN or reader.op in ATTENTIONS
            for reader in readers
        ):
            continue  # the rules plugin and attention report these; TensorRT's own operators may read Q/DQ pairs
        used = any(_can_use(flow, reader, target) for reader in readers)
        used = used or any(flow.view.is_inside(slot.node, slot.index) for slot in pair.slots)
        if not used and not _is_gated(flow, pair, readers):
            yield pair, readers


def check_fake_quantize(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose readers are all float operators."""
    for pair, readers in match_fake_quantize(flow, target):
        ops = ", ".join(sorted({reader.op for reader in readers}))
        yield Violation(
            node=readers[0].name,
            reason=f"the Q/DQ pair on {pair.tensor} feeds only {ops}",
            effect="the values are rounded, but the computation is in float",
            fix=f"remove the pair, as {REPAIR} does, or move it after the operator if a compute node follows",
        )


def fix_fake_quantize(context: RepairContext) -> Iterator[Change]:
    """Remove Q/DQ pairs whose readers are all float operators."""
    for pair, readers in match_fake_quantize(Flow(context.model), context.target):
        if pair.quantize is not None:
            ops = ", ".join(sorted({reader.op for reader in readers}))
            yield Change(
                edits=tuple(SlotEdit(slot=slot) for slot in pair.slots),
                subject=pair.quantize,
                what=f"pair removed: only {ops} reads the tensor",
                reason="after a pair, operators without an INT8 form compute in float on rounded values",
            )


def _can_use(flow: Flow, node: Node, target: Target | None) -> bool:
    fused = target is not None and not target.is_rtx and node.op in FUSES_DEQUANTIZE
    return node.op in INT8_READERS | (COMPUTE - RECURRENT) or quantization_commutes(flow.view, node) or fused


def _is_gated(flow: Flow, pair: QdqPair, readers: tuple[Node, ...]) -> bool:
    """Return True if a Mul and a compute node both read the tensor in INT8. This saves a float copy (rule gated_shortcut)."""
    slots = (slot for twin in flow.by_tensor.get(pair.tensor, ()) for slot in twin.slots)
    products = any(flow.view.by_name[slot.node].op in PRODUCTS for slot in slots)
    return products and all(reader.op == "Mul" for reader in readers)


def candidates_fake_quantize(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose to remove Q/DQ that became a separate kernel, except Q/DQ of low-bit compute nodes."""
    running = {verdict.node for _, verdict in built.nodes if verdict.is_quantized}
    for layer in built.layers_with(
        "runtime_weights", "unfused_qdq", "needless_conversion", "conversion_chain"
    ):
        slots = [slot for slot in readers_of_pairs(built.view, layer) if slot.node not in running]
        if slots:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="remove the Q/DQ that became a kernel",
                edits=tuple(SlotEdit(slot=slot) for slot in slots),
            )


# --- float_reader ----------------------------------------------------------------------------------------------------


def check_float_reader(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs that are read both by float operators and by low-bit compute nodes."""
    for pair in flow.pairs:
        readers = [flow.view.by_name[slot.node] for slot in pair.slots]
        exact = [
            reader
            for reader in readers
            if reader.op not in INTEGER_READERS and not quantization_commutes(flow.view, reader)
        ]
        if exact and any(reader.op in PRODUCTS for reader in readers):
            yield Violation(
                node=exact[0].name,
                reason=f"this node reads the rounded {pair.tensor}, but computes in float",
                effect="the node loses precision without any gain in speed",
                fix=f"let {exact[0].name} read the tensor before the pair; {REPAIR} does this",
            )


# --- output_pair -----------------------------------------------------------------------------------------------------


def check_output_pair(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose result is only a model output."""
    for pair in flow.pairs:
        if pair.returned and not pair.slots and pair.dequantize and pair.quantize:
            yield Violation(
                node=pair.quantize,
                reason="the Q/DQ pair is directly before a model output",
                effect="the output is rounded to INT8 and returned as float",
                fix=f"{repairing(to_float=[pair.quantize])} removes the Q/DQ pair; or make the output of the Q an output of the model",
            )


# --- dangling --------------------------------------------------------------------------------------------------------


def check_dangling(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q or DQ nodes whose result is not used."""
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        result = flow.view.by_name[name].outputs[0]
        if not flow.view.uses(result) and not flow.view.is_output(result):
            yield Violation(
                node=name,
                reason="no node reads the result of this node",
                effect="the builder removes the node",
                fix=f"remove the node; {REPAIR} does this",
            )


# --- float_result ----------------------------------------------------------------------------------------------------


def match_float_result(flow: Flow) -> Iterator[tuple[Node, tuple[QdqPair, ...]]]:
    """Yield Adds whose result is read in float although each input has its own Q/DQ pair, and these pairs."""
    for node in flow.view.nodes:
        if node.op != "Add":
            continue
        pairs = [flow.by_dequantized.get(tensor) for tensor in node.inputs]
        alone = tuple(pair for pair in pairs if is_int8(pair) and pair is not None and len(pair.slots) == 1)
        if len(alone) < len(pairs) or any(_is_product(flow, pair.tensor) for pair in alone):
            continue
        if not _is_quantized(flow, node):
            yield node, alone


def check_float_result(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Adds whose result is read in float although each input has its own Q/DQ pair."""
    for node, _ in match_float_result(flow):
        yield Violation(
            node=node.name,
            reason="both inputs of this node have Q/DQ, but its result has none",
            effect="the inputs are rounded and added in float",
            fix=f"remove Q/DQ from both inputs, as {REPAIR} does, or quantize the result too if an INT8 layer reads it",
        )


def fix_float_result(context: RepairContext) -> Iterator[Change]:
    """Remove Q/DQ from both inputs of Adds whose result is read in float."""
    for node, pairs in match_float_result(Flow(context.model)):
        yield Change(
            edits=tuple(SlotEdit(slot=slot) for pair in pairs for slot in pair.slots),
            subject=node.name,
            what="Q/DQ removed from both inputs",
            reason="an Add whose result is read as float adds in float after two roundings",
        )


def _is_product(flow: Flow, tensor: str) -> bool:
    """Return True if the Add would fuse with the producer of `tensor`. The rule residual_add reports such Adds."""
    producer = flow.view.producer(tensor)
    return producer is not None and producer.op in PRODUCTS


def _is_quantized(flow: Flow, node: Node) -> bool:
    """Return True if a QuantizeLinear reads the result of the Add, directly or after an activation."""
    readers = flow.readers(node.outputs[0])
    while len(readers) == 1 and readers[0].op in CLAMPS:
        readers = flow.readers(readers[0].outputs[0])
    return any(reader.op == "QuantizeLinear" for reader in readers)


def candidates_float_result(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose Q/DQ for the readers of a float result that a kernel with INT8 inputs writes."""
    for layer in built.layers_with("int8_in_float_out"):
        writers = (built.view.by_name.get(name) for name in sorted(layer.onnx_nodes))
        tensors = [output for node in writers if node is not None for output in node.outputs]
        edits = tuple(
            SlotEdit(slot=Slot(node=use.node.name, index=use.index), scales=None)
            for tensor in tensors
            for use in built.view.uses(tensor)
            if use.node.name not in layer.onnx_nodes and use.node.op not in QDQ
        )
        if edits:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="quantize its result for its reader",
                edits=edits,
            )


# --- plugin ----------------------------------------------------------------------------------------------------------


def check_plugin(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report nodes of other domains that read a DequantizeLinear or feed a QuantizeLinear."""
    for node in flow.view.nodes:
        if not belongs_to_plugin(node.domain):
            continue
        reads = any(tensor in flow.by_dequantized for tensor in node.inputs)
        feeds = any(flow.by_tensor.get(tensor) for tensor in node.outputs)
        if reads or feeds:
            yield Violation(
                node=node.name,
                reason=f"{node.op} of the domain {node.domain} has Q/DQ {'before' if reads else 'after'} it",
                effect="TensorRT does not fuse a plug-in: the node computes in float, and each Q and DQ around it is a kernel",
                fix=f"let the plug-in read and write INT8; {repairing(to_float=_beside(flow, node))} removes the Q/DQ",
            )


def _beside(flow: Flow, node: Node) -> Iterator[str]:
    """Yield the node's name if Q/DQ feeds it, and then the names of the Q nodes after it."""
    if any(tensor in flow.by_dequantized for tensor in node.inputs):
        yield node.name
    for tensor in node.outputs:
        yield from (pair.quantize or "" for pair in flow.by_tensor.get(tensor, ()))


def match_unseen(view: GraphView, computed: Collection[str]) -> Iterator[tuple[Slot, Node]]:
    """Yield inputs whose values depend on a custom operator that cannot be computed, and this operator."""
    origin: dict[str, Node] = {}
    for node in view.nodes:
        is_computed = "*" in computed or f"{node.domain}::{node.op}" in computed
        is_plugin = (
            belongs_to_plugin(node.domain)
            and (node.domain, node.op) not in view.functions
            and not is_computed
        )
        origins = [(index, origin[name]) for index, name in enumerate(node.inputs) if name in origin]
        for index, plugin in origins:
            yield Slot(node=node.name, index=index), plugin
        if is_plugin or origins:
            origin |= dict.fromkeys(node.outputs, node if is_plugin else origins[0][1])


def place_unseen(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on inputs whose values cannot be computed for any sample."""
    for slot, plugin in match_unseen(view, options.computed_ops):
        if options.activations == "float" or view.by_name[slot.node].op not in PLACEABLE:
            continue
        yield SlotStatement(
            slot=slot,
            stance=RequestOrVeto.VETO,
            reason=f"this node depends on {plugin.name!r} ({plugin.domain}::{plugin.op}), which onnxruntime cannot compute: no sample reaches it",
            fix="provide the operator to onnxruntime: --custom-ops LIBRARY, or a NumPy function in runtime.stand_ins",
        )


PLUGIN = {
    "fake_quantize": Rule(
        code="QDQ133",
        severity=Severity.WARNING,
        after=("inside_fusion",),
        check=check_fake_quantize,
        fix=fix_fake_quantize,
        candidates=candidates_fake_quantize,
    ),
    "float_reader": Rule(code="QDQ141", severity=Severity.INFO, check=check_float_reader),
    "output_pair": Rule(code="QDQ142", severity=Severity.INFO, check=check_output_pair),
    "dangling": Rule(code="QDQ140", severity=Severity.INFO, check=check_dangling),
    "float_result": Rule(
        code="QDQ146",
        formats=frozenset({"int8"}),
        severity=Severity.INFO,
        check=check_float_result,
        fix=fix_float_result,
        candidates=candidates_float_result,
    ),
    "unseen": Rule(code="QDQ220", place=place_unseen),
    "plugin": Rule(code="QDQ149", severity=Severity.WARNING, check=check_plugin),
}
