"""Nodes that a recipe keeps float.

# user

Nodes that the user or an accuracy limit keeps float: by name, by operator type, or all except some nodes.

    place:
      exclude: ["*/head/*"]        these nodes stay float
      kept_float: [/head/Gemm]     these too, since `qdqtool run --max-drop` found that the limit takes them
      exclude_ops: [MatMul]        these operator types stay float
      only: ["backbone.*"]         all other nodes stay float
      ops: [Conv, Gemm, ...]       operator types that may be quantized

Patterns are globs on node names (`qdqtool place MODEL` prints them), case-sensitive; `*` also matches slashes. A
pattern that matches nothing is an error, unless the recipe lists it under `optional`. `kept_float` contains exact
names. It is a separate list, so no fix and no `--set place.exclude=[...]` can undo the limit.

# first_last

First and last layers can be kept float: they are often the most sensitive.

    place:
      first_layer: float     the weighted nodes that read a model input, with no weighted node before them
      last_layer: float      the weighted nodes that no weighted node follows on the way to an output

A model with several inputs or heads has several first or last layers. A convolution after a softmax does not count as a
last layer: it computes the expected value of a distribution, as in the boxes of YOLOv8 ("distribution focal loss", Li
et al., NeurIPS 2020). There the layers before the softmax are the last ones.

# float_part

A part of the model without Q/DQ stays FP32, because the types of the model say so.

    x ─ Q ─ DQ ─ Conv ─ Q ─ DQ ─ Conv ─ Conv ─ Conv           INT8, INT8, FP32, FP32
    x ─ Q ─ DQ ─ Conv ─ Q ─ DQ ─ Conv ─ Conv ─ Conv (FP16)    INT8, INT8, FP16, FP16

A strongly typed network computes in the types of the model. Quantized models are often exported in FP32, so their float
nodes are slower than in the FP16 engine that they are compared with. This is the most frequent reason why "INT8 is
slower than FP16". For an engine, the audit reports QDQ212. For a model that qdqtool wrote, the finding is only
information: its recipe chose the type of the float part.

Evidence: RTX 1.7.1 runs all such nodes in Float; ultralytics issue 26159 (5 of 11 convolutions with Q/DQ). TensorRT
up to 10 chooses FP16 itself if --fp16 is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from qdqtool.core.advice import as_glob, setting
from qdqtool.core.findings import Severity
from qdqtool.core.placement import RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import Product, compute_nodes, products, veto
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import CONVOLUTIONS, LAYOUT, LISTED_AS, PRODUCTS

# --- user ------------------------------------------------------------------------------------------------------------


def place_user(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on the first two inputs of the nodes that the recipe keeps float."""
    for node in view.nodes:
        op = LISTED_AS.get(node.op, node.op)
        if not _quantizable(view, node, op):
            continue
        for reason, fix in _objections(node, op, options):
            for index in range(min(2, len(node.inputs))):
                yield SlotStatement(
                    slot=Slot(node=node.name, index=index),
                    stance=RequestOrVeto.VETO,
                    reason=reason,
                    fix=fix,
                )


def _quantizable(view: GraphView, node: Node, op: str) -> bool:
    if op == "Add":
        return not any(view.is_constant(tensor) for tensor in node.inputs)
    return op in PRODUCTS or op == "AveragePool"


def _objections(node: Node, op: str, options: PlacementOptions) -> Iterator[tuple[str, str]]:
    if node.name in options.kept_float:
        yield (
            "the accuracy limit keeps this node float",
            "nothing to do: with this node quantized, the loss would exceed the accuracy limit",
        )
    matching = [pattern for pattern in options.exclude if fnmatchcase(node.name, pattern)]
    for pattern in matching:
        patterns_left = [entry for entry in options.exclude if entry not in matching]
        yield (
            f"place.exclude lists {pattern!r}",
            _list_less("place.exclude", map(json.dumps, patterns_left)),
        )
    if options.only and not any(fnmatchcase(node.name, pattern) for pattern in options.only):
        patterns = (*map(json.dumps, options.only), as_glob(node.name))
        yield "no pattern of place.only matches this node", setting("place.only", patterns)
    if {op, node.op} & set(options.exclude_ops):
        patterns_left = [entry for entry in options.exclude_ops if entry not in {op, node.op}]
        yield f"place.exclude_ops lists {node.op}", _list_less("place.exclude_ops", patterns_left)
    if op not in options.ops:
        listed = op if op == node.op else f"{op}, which includes {node.op}"
        yield f"place.ops does not list {listed}", setting("place.ops", (*options.ops, op))


def _list_less(key: str, patterns: Iterable[str]) -> str:
    """Return the setting `key` with the remaining patterns; if none remain, say what then decides."""
    left = list(patterns)
    return setting(key, left) + (
        "" if left else " removes this exclusion: the rest of the recipe then decides"
    )


# --- first_last ------------------------------------------------------------------------------------------------------


def place_first_last(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on the first and last layers if the recipe keeps them float."""
    if options.first_layer == "float":
        after = _find_reached(view.nodes, backward=False)
        for node in compute_nodes(view):
            if node.name not in after:
                yield from veto(
                    node,
                    "this node is the first layer with weights, and place.first_layer is float",
                    setting("place.first_layer", "int8"),
                )
    if options.last_layer == "float":
        before = _find_reached(view.nodes[::-1], backward=True, summing=_expected_values(view))
        for node in compute_nodes(view):
            if node.name not in before:
                yield from veto(
                    node,
                    "this node is the last layer with weights, and place.last_layer is float",
                    setting("place.last_layer", "int8"),
                )


def _expected_values(view: GraphView) -> frozenset[str]:
    """Return the names of convolutions that read the result of a Softmax."""
    names = []
    for node in view.nodes:
        if node.op in CONVOLUTIONS:
            maker = view.producer(node.inputs[0])
            while maker is not None and maker.op in LAYOUT:
                maker = view.producer(maker.inputs[0])
            if maker is not None and maker.op == "Softmax":
                names.append(node.name)
    return frozenset(names)


def _find_reached(
    nodes: tuple[Node, ...], *, backward: bool, summing: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the names of all nodes after a compute node; with `backward`, of nodes before a compute node.

    Compute nodes in `summing` are ignored.
    """
    marked: set[str] = set()
    reached: set[str] = set()
    for node in nodes:
        sources, results = (node.outputs, node.inputs) if backward else (node.inputs, node.outputs)
        if not marked.isdisjoint(sources):
            reached.add(node.name)
        if node.name in reached or (node.op in PRODUCTS and node.name not in summing):
            marked.update(name for name in results if name)
    return frozenset(reached)


# --- float_part ------------------------------------------------------------------------------------------------------

_SHARE, _FEWEST = 4, 4
"""Least number of FP32 compute nodes to report, and one of how many they must be. Fewer are first and last
layers, kept float on purpose.
"""
_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})


def match_float_part(flow: Flow, target: Target) -> tuple[list[Product], list[Product]]:
    """Return all compute nodes with weights, and the FP32 ones without Q/DQ.

    The second list is empty if the model has no low-bit compute node. A type that is unknown counts as FP32 if the model has
    neither FP16 nor BF16.
    """
    weighted = (
        product
        for product in products(flow, target)
        if sum(operand.fixed for operand in product.operands) == 1
    )
    layers = [product for product in weighted if not _is_gate(flow, product)]
    types = {flow.view.info(name).dtype for node in flow.view.nodes for name in (*node.inputs, *node.outputs)}
    wide = {DType.FLOAT32} if types & _HALVES else {DType.FLOAT32, DType.UNKNOWN}
    bare = [
        product
        for product in layers
        if flow.view.info(product.node.outputs[0]).dtype in wide
        and not any(operand.quantized for operand in product.operands)
    ]
    computes = any(
        product.arithmetic for product in layers
    )  # with low-bit weights only, the arithmetic is float
    return layers, bare if computes else []


def _is_gate(flow: Flow, product: Product) -> bool:
    """Return True if a convolution makes one value per channel, as in squeeze and excite. It takes almost no time."""
    shape = flow.view.info(product.node.outputs[0]).shape or ()
    return product.node.op in CONVOLUTIONS and len(shape) > 2 and set(shape[2:]) == {1}


def check_float_part(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report one finding for the model if the FP32 part of the model is large."""
    layers, bare = match_float_part(flow, target)
    if len(bare) < max(_FEWEST, len(layers) / _SHARE):
        return
    classic = "; without strong typing pass --fp16 to the build instead" if target.has_type_flags else ""
    yield Violation(
        node=bare[0].node.name,
        reason=f"{len(bare)} of {count_noun(len(layers), 'compute node')} with weights have no Q/DQ and are FP32",
        effect="these nodes run in FP32, slower than in an FP16 engine",
        fix=f"give the float part FP16: {Command('convert', ('--types', 'fp16'))} does{classic}",
        severity=Severity.INFO if flow.chosen else None,
    )


PLUGIN = {
    "user": Rule(code="QDQ181", place=place_user),
    "first_last": Rule(code="QDQ167", place=place_first_last),
    "float_part": Rule(code="QDQ155", severity=Severity.WARNING, check=check_float_part),
}
