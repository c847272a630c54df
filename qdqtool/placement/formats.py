"""The number format that is requested for each node, and the limits of the builder and the GPU.

    place:
      format: fp8                      every product, unless a pattern says otherwise
      formats: {"*/mlp/*": nvfp4}      by node name; the first pattern that matches wins
      block: 64                        values along the reduction axis that share a scale (INT4)

The placement rules are about INT8. They are not used for other formats. This module decides where FP8, INT4 or FP4
arithmetic is possible.

Evidence: about 790 builds with TensorRT for RTX 1.7.1 for SM75 to SM121, read from their layer dumps. Rejected there:
FP8 below SM89, INT4 below SM80, FP4 below SM120. Accepted, but computed in float: FP8 convolutions of more than 32
taps, ConvTranspose, weight-only convolutions, INT4 and INT8 weight-only products with an odd number of columns, INT4
weights with a single block, and FP4 operands that are not blocks of 16 along the reduction axis. Classic TensorRT:
release notes of 9.0, 10.0, 10.8 and 10.12; there are no test builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape
from math import prod
from typing import Final

from qdqtool.core.advice import setting
from qdqtool.core.placement import JointSlots, QuantSpec, RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.tensors import (
    FP8,
    INT4,
    INT8,
    MXFP8,
    NVFP4,
    SCHEMES,
    QuantFormat,
    Scheme,
    by_name,
    first_sm,
)
from qdqtool.core.wording import Setting
from qdqtool.errors import UsageError
from qdqtool.graph.beside_attention import reads_attention
from qdqtool.graph.qdq.kv_caches import kv_caches
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.attention import attentions, fp8_obstacle, has_one_query, is_fused_as_float
from qdqtool.matching.products import OTHER_TYPE, compute_nodes, of_other_types, operand_slots, weight_specs
from qdqtool.matching.refused import FEWEST_BLOCKS, is_deep, rows_of, too_many_taps
from qdqtool.trt.ops import PRODUCTS, summed_axis

RULE: Final = "format"
"""Name of the rule in statements of this module."""
_KEPT: Final = frozenset(
    {"user", "depthwise", "first_last", "kv_cache", "logarithm", "min_channels", "unseen"}
)
"""Rules whose statements hold in every format: wishes of the user, tensors that no format stores finely enough, padded kernels."""
_JOINT: Final = "joint_projection"
"""The rule for a pair that several operands share, in any format."""
_FLOAT_CACHES: Final = frozenset({"TensorScatter", "TRT_KVCacheUpdate"})
"""Operators that write into a cache in place. RTX 1.7.1 refuses INT8 and FP8 ("must have type Float, Half, or BFloat16"), and Q/DQ
before it ("must be a network input")."""
_ONE_QUERY: Final = (
    "the attention of this node has a single query, and the fused kernel for this case multiplies floats",
    "nothing to do: with Q/DQ the kernel multiplies floats too",
)
_IN_FLOAT: Final = "nothing to do: in float the attention is a single kernel"
_IN_INT8: Final = "quantize it to int8"
_WEIGHTS_IN_INT8: Final = "store its weights in int8"
_INSTEAD: Final = {_IN_INT8: "int8", _WEIGHTS_IN_INT8: "int8-weights"}
"""Alternative scheme by fix text; nodes with one fix share one setting."""


def schemes(view: GraphView, options: PlacementOptions) -> dict[str, Scheme]:
    """Return the scheme of every node for which a format other than INT8 is requested, by node name."""
    schemes_of = {}
    for node in view.nodes:
        name = next(
            (word for glob, word in options.formats.items() if fnmatchcase(node.name, glob)), options.format
        )
        if name != "int8":
            schemes_of[node.name] = SCHEMES[name]
    return schemes_of


def refuse(view: GraphView, options: PlacementOptions, requests: Mapping[str, Scheme]) -> None:
    """Raise an error if the target cannot run the format that is requested for a node.

    Raises:
        UsageError: the target has no such kernel; names the node, the rule, and a target that has.
    """
    for node in view.nodes:
        scheme = requests.get(node.name)
        if scheme is None or node.op not in scheme.ops:
            continue
        for format_ in (scheme.weights, scheme.activations):
            if format_ is not None:
                _check_target(node.name, format_, options)
    if options.kv_cache != "float":
        for cache in kv_caches(view):
            _check_target(cache.outputs[0], by_name(options.kv_cache), options, rule="kv_cache")


def _check_target(where: str, format_: QuantFormat, options: PlacementOptions, *, rule: str = RULE) -> None:
    key = "place.kv_cache" if rule != RULE else "place.format"
    first = first_sm(format_, rtx=options.builder.is_rtx)  # MXFP8 in float is noted, not refused
    old = sorted((sm for sm in options.sm if sm.isdigit() and int(sm) < first), key=int)
    if old:
        problem = f"the rule {rule!r} needs {format_}, which SM{', SM'.join(old)} cannot run"
        way = f"build for SM{first} or newer (replace --sm by --sm {first}; otherwise {Setting('build.sm', str(first))} {Setting('place.sm', '[]')}), or choose another {key}"
        raise UsageError(problem, fix=way, where=where)
    if options.builder.is_before(*format_.release):
        release = ".".join(map(str, format_.release))
        raise UsageError(
            f"the rule {rule!r} needs {format_}, which TensorRT {options.target} does not import",
            fix=f"build with TensorRT {release} or newer ({Setting('place.target', str(format_.release[0]))}), or choose another {key}",
            where=where,
        )


def replace_opinions(
    view: GraphView,
    options: PlacementOptions,
    requests: Mapping[str, Scheme],
    opinions: dict[Slot, list[SlotStatement]],
    bonds: list[JointSlots],
) -> None:
    """For nodes in `requests`, replace the statements of INT8 rules by statements of the requested scheme.

    This changes `opinions` and `bonds`.

    Raises:
        UsageError: the block that the recipe names does not divide the reduction axis of a weight.
    """
    if not requests:
        return
    joint = [
        bond for bond in bonds if bond.rule == _JOINT and any(slot.node in requests for slot in bond.requires)
    ]
    for slot, stated in opinions.items():
        veto = _veto_pair(view, slot, requests)
        if veto is None and slot.node not in requests:
            continue
        kept = [opinion for opinion in stated if opinion.rule in _KEPT]
        if veto is not None and not any(opinion.stance is RequestOrVeto.REQUEST for opinion in kept):
            kept = [*(opinion for opinion in kept if opinion.rule != "user"), veto]
        opinions[slot] = kept
    bonds[:] = [
        bond for bond in bonds if not any(slot.node in requests for slot in (*bond.slots, *bond.requires))
    ]
    for bond in joint:
        _ask_jointly(bond, requests, opinions, bonds)
    specs = weight_specs(view, options)
    products = {node.name for node in compute_nodes(view)}
    refused = _refused_attentions(view, requests, options) if options.builder.is_rtx else {}
    nodes = [
        node
        for node in view.nodes
        if node.name in requests and (node.name in products or node.op == "Gather")
    ]
    objections = {
        node.name: refused.get(node.name) or _objection(view, node, requests[node.name], options)
        for node in nodes
    }
    # The first matching pattern wins, so these come before the recipe's own, and replace equal ones.
    instead = {
        escape(name): _INSTEAD[objection[1]]
        for name, objection in objections.items()
        if objection is not None and objection[1] in _INSTEAD
    }
    for node in nodes:
        scheme, objection = requests[node.name], objections[node.name]
        if objection is not None and objection[1] in _INSTEAD:
            objection = objection[0], setting("place.formats", {**instead, **options.formats, **instead})
        for opinion in _opinions(view, node, scheme, options, specs, objection):
            opinions[opinion.slot].append(opinion)
        if objection is None and not scheme.weight_only and node.name in products:
            bonds.append(
                JointSlots(
                    slots=operand_slots(node),
                    rule=RULE,
                    reason=f"{scheme.name} arithmetic needs both operands",
                )
            )


def _ask_jointly(
    bond: JointSlots,
    requests: Mapping[str, Scheme],
    opinions: dict[Slot, list[SlotStatement]],
    bonds: list[JointSlots],
) -> None:
    """Request one Q/DQ pair for several operands in their common format; none if formats differ or use blocks."""
    formats = {requests[slot.node].activations if slot.node in requests else INT8 for slot in bond.requires}
    format_ = formats.pop() if len(formats) == 1 else None
    if format_ is not None and format_.block is None:
        bonds.append(bond)
    for slot in bond.slots:
        opinions[slot] = [opinion for opinion in opinions[slot] if opinion.rule != _JOINT]
        if bond in bonds and format_ is not None:
            opinions[slot] = [opinion for opinion in opinions[slot] if opinion.rule != RULE]
            reason = f"place.format requests {format_} after this node: a single Q before it is enough for all readers"
            opinions[slot].append(
                SlotStatement(
                    slot=slot,
                    rule=_JOINT,
                    stance=RequestOrVeto.REQUEST,
                    reason=reason,
                    spec=QuantSpec(format=format_),
                )
            )


def _refused_attentions(
    view: GraphView, requests: Mapping[str, Scheme], options: PlacementOptions
) -> dict[str, tuple[str, str]]:
    """Return why both MatMuls of an attention stay float, by the names of the MatMuls.

    FP8 would break a fused kernel, or only add rounding.
    """
    objections = {}
    for scores, values in attentions(view):
        in_fp8 = any(
            node.name in requests and requests[node.name].activations == FP8 for node in (scores, values)
        )
        objection = _ONE_QUERY if has_one_query(view, scores, values) else None
        if (
            objection is None
            and in_fp8
            and is_fused_as_float(view, scores, values, options.builder, options.float_type)
        ):
            obstacle = fp8_obstacle(view, scores, values)
            if obstacle:
                objection = (
                    f"{obstacle}: FP8 would need several kernels, but the float attention is one kernel",
                    _IN_FLOAT,
                )
        if objection is not None:
            objections.update(dict.fromkeys((scores.name, values.name), objection))
    return objections


def notes(view: GraphView, options: PlacementOptions, requests: Mapping[str, Scheme]) -> Iterator[str]:
    """Yield the notes of a placement about formats."""
    if options.builder.is_rtx and any(scheme.weights == MXFP8 for scheme in requests.values()):
        yield (
            "MXFP8: TensorRT for RTX 1.7.1 builds it from SM89 on, but computes all of it in float (15 of 15 graphs); the arithmetic is documented for classic TensorRT 10.12 on SM100"
        )
    scattered = next((node for node in view.nodes if node.op in _FLOAT_CACHES), None)
    if options.kv_cache != "float" and scattered is not None:
        yield (
            f"place.kv_cache={options.kv_cache} leaves the cache of {scattered.name!r} float: {scattered.op} accepts float caches only; export the decoder with caches that grow by Concat: these can be stored in INT8 or FP8"
        )
    elif options.kv_cache != "float" and not kv_caches(view):
        yield (
            f"place.kv_cache={options.kv_cache} finds no cache: no output contains the values of an input together with computed values; export the decoder with its past keys and values as inputs"
        )


def _veto_pair(view: GraphView, slot: Slot, requests: Mapping[str, Scheme]) -> SlotStatement | None:
    """Return a veto on an input that only INT8 rules quantize, because its kernel has another format. No setting removes it."""
    node = view.by_name[slot.node]
    if slot.index >= len(node.inputs) or node.op in _FORMATTED:
        return None
    producer = view.producer(node.inputs[slot.index])
    scheme = requests.get(node.name)
    if scheme is not None:
        lacks = "" if scheme.weights is None else f", and no rule has that for {node.op}"
        reason = f"place.format requests {scheme.name}{lacks}"
    elif producer is not None and producer.op in _PRODUCTS and producer.name in requests:
        reason = f"{producer.name} and {node.op} are one kernel, for which the recipe requests {requests[producer.name].name}"
    else:
        return None
    fix = f"nothing to do by a command: no rule quantizes {node.op} in this format"
    return SlotStatement(slot=slot, rule=RULE, stance=RequestOrVeto.VETO, reason=reason, fix=fix)


_PRODUCTS: Final = frozenset(SCHEMES["fp8"].ops)
_FORMATTED: Final = frozenset({*PRODUCTS, "Gather"})
"""Operators with an answer for every format."""


def _opinions(
    view: GraphView,
    node: Node,
    scheme: Scheme,
    options: PlacementOptions,
    specs: Mapping[str, QuantSpec],
    objection: tuple[str, str] | None,
) -> Iterator[SlotStatement]:
    for slot in operand_slots(node):
        if slot.index >= len(node.inputs) or (node.op == "Gather" and slot.index):
            continue
        constant = view.is_constant(node.inputs[slot.index])
        format_ = scheme.weights if constant else scheme.activations
        if objection is not None or format_ is None:
            reason, fix = objection or (
                f"{scheme.name} keeps activations float",
                "choose another place.format",
            )
            yield SlotStatement(slot=slot, rule=RULE, stance=RequestOrVeto.VETO, reason=reason, fix=fix)
            continue
        yield SlotStatement(
            slot=slot,
            rule=RULE,
            stance=RequestOrVeto.REQUEST,
            reason=f"place.format requests {scheme.name}",
            spec=_spec(view, node, slot.index, scheme, options, specs),
        )


def _spec(
    view: GraphView,
    node: Node,
    index: int,
    scheme: Scheme,
    options: PlacementOptions,
    specs: Mapping[str, QuantSpec],
) -> QuantSpec:
    tensor = node.inputs[index]
    constant = view.is_constant(tensor)
    format_ = scheme.weights if constant else scheme.activations
    assert format_ is not None
    if format_.block is None:
        if constant and node.op == "Gather":
            return QuantSpec(format=format_, axis=0)
        axis = specs[tensor].axis if tensor in specs and constant else None
        if constant and format_ == INT8 and rows_of(view, node) == 1:
            axis = None  # with scales per channel, TensorRT for RTX dequantizes the weight of a matrix-vector product in a separate kernel
        cut = axis is not None and specs[tensor].stored is False
        if scheme.weight_only:
            # With Q and DQ, RTX 1.7.1 fails on the weights of an attention's three projections, or folds them to
            # floats.
            stored = True if options.builder.reads_stored_weights else None
            return QuantSpec(format=format_, axis=None if cut else axis, stored=stored)
        return QuantSpec(format=format_, axis=axis, stored=False if cut else None)
    shape = view.info(tensor).shape or ()
    axis = _reduction_axis(node, index, len(shape))
    length = shape[axis]
    return QuantSpec(format=format_, axis=axis, block=_block(node, length, format_, options))


def _block(node: Node, length: int | str, format_: QuantFormat, options: PlacementOptions) -> int:
    """Return the block size that a format uses for an axis of this length.

    Raises:
        UsageError: the block size in the recipe does not divide the axis.
    """
    assert format_.block is not None
    if format_ != INT4 or not isinstance(length, int):
        return format_.block
    if options.block:
        if length % options.block:
            fitting = [str(block) for block in format_.blocks if length % block == 0]
            raise UsageError(
                f"the rule {RULE!r} needs blocks of {options.block}, which do not divide the {length} summed values",
                fix=f"{Setting('place.block', str(fitting[-1]))}"
                if fitting
                else "exclude the node, or choose int8-weights",
                where=node.name,
            )
        return options.block
    return next(
        block for block in reversed(format_.blocks) if _fits(length, block) and block <= format_.block
    )


def _fits(length: int, block: int) -> bool:
    return length % block == 0 and length // block >= FEWEST_BLOCKS


def _reduction_axis(node: Node, index: int, rank: int) -> int:
    """Return the axis over which the node sums; for a table (Gather), the axis of the values in one row."""
    return rank - 1 if node.op == "Gather" else summed_axis(node, index, rank)


def _objection(
    view: GraphView, node: Node, scheme: Scheme, options: PlacementOptions
) -> tuple[str, str] | None:
    """Return why a node stays float although the recipe requests a format, and the fix; None if nothing prevents the format."""
    if scheme.weights is None:
        return "place.format requests float", "choose another place.format"
    for reason in of_other_types(view, node):
        return reason, OTHER_TYPE
    if node.op not in scheme.ops:
        if scheme.weight_only:
            return (
                f"a {node.op} with {scheme.name} dequantizes them in a separate kernel",
                _IN_INT8,
            )
        return f"no kernel computes a {node.op} in {scheme.name}", _IN_INT8
    if node.op == "Conv":
        return _conv_objection(view, node)
    weight = view.constant_shape(node.inputs[0 if node.op == "Gather" else 1])
    if weight is None:
        if scheme.activations == FP8:
            return None
        return "both operands are computed at run time", _IN_INT8
    if view.is_constant(node.inputs[0]) and node.op != "Gather":
        return "the first operand is the constant, not the second", _IN_INT8
    if scheme.activations == FP8:
        return None
    return _matrix_objection(view, node, scheme, weight, options)


def _conv_objection(view: GraphView, node: Node) -> tuple[str, str] | None:
    shape = view.constant_shape(node.inputs[1])
    if shape is None:
        return "the weights are computed at run time", "keep the node float"
    objection = too_many_taps(shape)
    return None if objection is None else (objection[0], _IN_INT8)


def _matrix_objection(
    view: GraphView, node: Node, scheme: Scheme, weight: tuple[int, ...], options: PlacementOptions
) -> tuple[str, str] | None:
    assert scheme.weights is not None
    index = 0 if node.op == "Gather" else 1
    if len(weight) < 2:
        return "the weight is a vector", "keep the node float"
    axis = _reduction_axis(node, index, len(weight))
    length = weight[axis]
    columns = prod(weight[-2:]) // length
    if scheme.weight_only and node.op != "Gather" and columns % 2:
        return (
            f"with {columns} columns, an odd number, the weight is dequantized in a separate kernel",
            "pad the columns",
        )
    apart = scheme.weight_only and options.builder.is_rtx and rows_of(view, node) != 1
    if apart and reads_attention(view, node):
        return (
            "the node reads the result of an attention in more than two dimensions: a separate kernel dequantizes the weight",
            "keep prepare.flatten at its default, or quantize the node to int8 or fp8",
        )
    if scheme.weights == INT4 and options.builder.is_rtx and prod(weight[:-2]) > 1 and is_deep(view, node):
        return (
            f"the weights are a stack of {prod(weight[:-2])} matrices and the input has four dimensions: a separate kernel dequantizes INT4",
            _WEIGHTS_IN_INT8,
        )
    if scheme.weights == INT4:
        if options.block:
            return None
        if not any(_fits(length, block) for block in INT4.blocks):
            return (
                f"no block of {INT4.blocks[0]} to {INT4.blocks[-1]} divides the {length} summed values into two blocks or more",
                _WEIGHTS_IN_INT8,
            )
        return None
    block = scheme.weights.block
    if block is None:
        return None
    if length % block:
        return f"blocks of {block} do not divide the {length} summed values", _IN_INT8
    if scheme.weights == NVFP4 and not _fits(length, block):
        return (
            f"the {length} summed values are a single block, which no FP4 kernel accepts",
            _IN_INT8,
        )
    rank = len(view.info(node.inputs[0]).shape or ())
    if rank not in {2, 3}:
        return (
            f"the block quantizer accepts tensors of 2 or 3 dimensions, not {rank}",
            "reshape the input to 3 dimensions",
        )
    if node.op == "Gemm" and node.attribute("transA", 0):
        return "the first operand is transposed", "export the node without transA"
    return None
