"""Converts the float part of a model to FP16 or BF16 wherever an operator supports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
import onnx

from qdqtool.core.commands import REPAIR
from qdqtool.core.preparation import Conversion, DynamicRangeReport, KeptNode
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.core.wording import counted, listed
from qdqtool.errors import UsageError
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.forms import NARROW, WIDE, Forms, signature
from qdqtool.graph.typed.narrow import NARROW as TYPES
from qdqtool.graph.typed.narrow import Narrow, Types, fits
from qdqtool.graph.typed.narrow_scales import PAIRS, rescale_integers
from qdqtool.graph.typed.rewrite import Rewrite
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import LAYOUT, MOVING, PRODUCTS

MAGNITUDE_KEPT = MOVING | {"Abs", "Add", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMean", "Sub"}
"""Operators whose result is about as large as their input."""

MAGNITUDE_LOWERED = frozenset({"Clip", "Div", "Log", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"})
"""Operators that reduce large values."""


# --- conversion ------------------------------------------------------------------------------------------------------

# One line of a terminal.
_NAMED = 5


def convert(
    model: Model, options: InsertOptions, reach: DynamicRangeReport | None = None
) -> tuple[Model, Conversion]:
    """Return the model computing in `options.types`, and a summary of the conversion.

    With `options.narrow_nodes` these alone change their type. No Cast lands behind a DQ: pairs take the type of what reads them, and their scales with them. FP32 stay:
    nodes that `options` names, and what follows them until their large values are brought back; with
    `options.overflow == "keep"` products with weights beyond the type, and whatever touches a tensor that `reach` found
    there; nodes that `qdqtool.graph.sensitive` names; inputs that ONNX allows
    in FP32 only (Resize scales, NonMaxSuppression, Range), foreign operators and control flow; inputs and outputs,
    with `options.keep_io`.

    Other constants beyond the type are clipped with a note; tiny ones that would become zero are kept at the type's
    smallest number, so that an epsilon still protects its division.

    Raises:
        UsageError: FP32 was asked for, or Q/DQ nodes are not those of ONNX.
        InputFileError: the opset cannot be raised to one with Q/DQ or operators of the type.
    """
    if options.types == "fp32":
        raise UsageError("the model already is FP32", fix="choose fp16 or bf16")
    narrow = TYPES[options.types]
    model = with_opset(_checked(model), options.types, quantized=_has_pairs(model))
    model = rescale_integers(model, narrow)
    request = FloatRequest(nodes=options.keep_nodes, others=options.narrow_nodes, ops=options.keep_ops)
    if options.overflow == "keep":
        request = replace(request, tensors=wide_weights(model.view, narrow))
        if reach is not None:
            request = replace(request, tensors=request.tensors | reach.overflowing, small=reach.faint)
    reasons = kept(model.view, request, narrow)
    edit = Edit(model)
    forms = Forms(edit, model.view, narrow, reasons, keep_io=options.keep_io)
    told = _kept_nodes(edit, forms, reasons, narrow)
    narrowed = sum(any(NARROW in forms.made(name) for name in node.output) for node in edit.nodes)
    rewrite = Rewrite(edit, model.view, narrow, forms)
    rewrite.run()
    found = Conversion(
        model=model.path.name,
        dtype=narrow.dtype,
        narrowed=narrowed,
        kept=told,
        casts=rewrite.casts,
        clipped=tuple(rewrite.clipped),
        faint=tuple(rewrite.faint),
        reach=reach,
    )
    edit.notes += _sentences(found, narrow, protected=options.overflow == "keep")
    edit.notes += [
        f"no node matches {pattern!r}" for pattern in unused(model.view, (*request.nodes, *request.others))
    ]
    result = edit.finish(retyped=True)
    return result, replace(found, notes=result.notes)


def with_opset(model: Model, types: Types, *, quantized: bool) -> Model:
    """Return the model at an opset whose operators, and Q/DQ if there are any, support the type.

    Raises:
        InputFileError: the converter does not know how.
    """
    narrow = TYPES[types]
    proto, note = raise_opset(model.proto, narrow.scales if quantized else narrow.opset, model.path)
    if note is None:
        return model
    what = "scales" if quantized else "convolutions"
    notes = (*model.notes, f"{note}, the first with {types.upper()} {what}")
    return Model(proto=proto, path=model.path, notes=notes)


def _checked(model: Model) -> Model:
    """Check that Q/DQ nodes are those of ONNX, and return the model.

    Raises:
        UsageError: its Q/DQ nodes are not those of ONNX, which no type but FP32 fits.
    """
    for node in model.view.nodes:
        if node.op in PAIRS and node.domain not in {"", "ai.onnx"}:
            raise UsageError(
                f"node {node.name!r} is a {node.op} of {node.domain}, which TensorRT accepts in FP32 only",
                fix=f"run {REPAIR} on the model first",
                where=str(model.path),
            )
    return model


def _has_pairs(model: Model) -> bool:
    return any(node.op in PAIRS for node in model.view.nodes)


def _kept_nodes(edit: Edit, forms: Forms, reasons: Mapping[str, str], narrow: Narrow) -> tuple[KeptNode, ...]:
    """Return nodes that stay FP32: nodes that were chosen, and nodes whose operator has no other type."""
    told = []
    for node in edit.nodes:
        reason = reasons.get(node.name)
        outputs = [name for name in node.output if forms.is_float(name)]
        if reason is None and outputs and all(forms.made(name) == {WIDE} for name in outputs):
            reason = _forced(node, edit.opset, narrow)
        if reason is not None:
            told.append(KeptNode(node=node.name, op=node.op_type, reason=reason))
    return tuple(told)


def _forced(node: onnx.NodeProto, opset: int, narrow: Narrow) -> str | None:
    if node.op_type == DEQUANTIZE or signature(node, opset, narrow.word).makes(0):
        return None
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return "bodies of control flow are not converted"
    if node.domain not in {"", "ai.onnx"}:
        return "an operator of another domain is not converted"
    return f"the operator has no {narrow.dtype} form in opset {opset}"


def _sentences(found: Conversion, narrow: Narrow, *, protected: bool) -> list[str]:
    """Return notes on the conversion for the user."""
    word = str(narrow.dtype).upper()
    notes = []
    if found.clipped:
        notes.append(
            f"{counted(len(found.clipped), 'constant exceeds', 'constants exceed')} {word} and {'was' if len(found.clipped) == 1 else 'were'} clipped to "
            f"{narrow.largest:g}: {listed([*map(repr, found.clipped)], _NAMED)}"
        )
    if found.faint:
        few = listed([*map(repr, found.faint)], _NAMED)
        notes.append(
            f"{counted(len(found.faint), 'constant is', 'constants are')} so small that {word} loses digits: {few}"
        )
    if found.reach is None and protected and found.dtype is DType.FLOAT16:
        notes.append(f"no samples were given, so values beyond {word} are unknown; they become infinite")
    strayed = found.reach.strayed if found.reach is not None else ()
    source = "by their ranges" if found.reach is not None and not found.reach.samples else "on the samples"
    over = [f"{tensor.tensor!r} ({tensor.largest:.4g})" for tensor in strayed if tensor.kind == "overflow"]
    under = [f"{tensor.tensor!r} ({tensor.largest:.2g})" for tensor in strayed if tensor.kind == "subnormal"]
    if over:
        one, many = ("stays FP32", "stay FP32") if protected else ("becomes infinite", "become infinite")
        notes.append(
            f"{counted(len(over), 'tensor reaches', 'tensors reach')} beyond {word} {source} and {one if len(over) == 1 else many}: "
            f"{listed(over, _NAMED)}"
        )
    if under:
        kept = ("stays FP32", "stay FP32")[len(under) > 1]
        notes.append(
            f"{counted(len(under), 'tensor is', 'tensors are')} so small {source} that {word} loses digits"
            f"{f' and {kept}' if protected else ''}: {listed(under, _NAMED)}"
        )
    return notes


# --- nodes that stay FP32 --------------------------------------------------------------------------------------------
# Chooses the nodes that go on computing in FP32, each with the reason.


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRequest:
    """Nodes and tensors that must stay FP32.

    Attributes:
        nodes: globs on node names.
        others: globs on the names of nodes that need not; all others must stay. Without any, no node must for its name.
        ops: operator types.
        tensors: tensors whose values the narrow type cannot hold.
        small: tensors whose values are all so small that it loses their digits.
    """

    nodes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    tensors: frozenset[str] = frozenset()
    small: frozenset[str] = frozenset()


def kept(view: GraphView, request: FloatRequest, narrow: Narrow) -> dict[str, str]:
    """Return the nodes that stay FP32 and the reason, in graph order. Never contains Q/DQ, which take their neighbors' types."""
    reasons: dict[str, str] = {}
    risen: set[str] = set()
    large = set(request.tensors)
    facts = sensitive(view, narrow.float_type)
    for node in view.nodes:
        if node.op in PAIRS | LAYOUT and node.inputs[0] in large:
            large.update(node.outputs)  # neither quantizing nor moving makes it smaller
        if node.op in PAIRS or not _has_wide(view, node):
            continue
        reason = _reason(view, node, request, narrow, large) or facts.get(node.name)
        follows = _follows(view, node, risen)
        if reason is None and follows:
            reason = "computes on with large values of kept nodes"
        if reason is not None:
            reasons[node.name] = reason
        if node.op in request.ops or (follows and node.op not in MAGNITUDE_LOWERED):
            risen.update(node.outputs)
    return reasons


def wide_weights(view: GraphView, narrow: Narrow) -> frozenset[str]:
    """Return constants beyond the type's range that are factors of compute nodes, where clipping would change the result.

    A mask of -1e9 that is added means the same when it is clipped. Stored integers count as what they stand for.
    """
    found = set()
    for node in view.nodes:
        for name in node.inputs[:2] if node.op in PRODUCTS else ():
            tensor, scale = name, 1.0
            while (maker := view.producer(tensor)) is not None and maker.op in PAIRS | LAYOUT:
                tensor = maker.inputs[0]
                steps = view.constant(maker.inputs[1]) if maker.op == DEQUANTIZE else None
                if steps is not None and view.is_constant(tensor):  # stored in few bits
                    scale = float(np.abs(steps.astype(np.float64)).max(initial=0.0))
            value = view.constant(tensor)
            if value is not None and not fits(narrow, value.astype(np.float64) * scale):
                found.add(tensor)
    return frozenset(found)


def unused(view: GraphView, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return globs that match no node name."""
    return tuple(
        pattern for pattern in patterns if not any(fnmatchcase(node.name, pattern) for node in view.nodes)
    )


def _reason(
    view: GraphView, node: Node, request: FloatRequest, narrow: Narrow, large: set[str]
) -> str | None:
    pattern = next((glob for glob in request.nodes if fnmatchcase(node.name, glob)), None)
    if pattern is not None:
        return f"matches {pattern!r}"
    if request.others and not any(fnmatchcase(node.name, glob) for glob in request.others):
        return "only other nodes were asked for"
    beyond = next((name for name in (*node.inputs, *node.outputs) if name in large), None)
    if beyond is not None:
        return f"the values of {beyond!r} reach beyond {narrow.dtype}"
    faint = next((name for name in (*node.inputs, *node.outputs) if name in request.small), None)
    if faint is not None:
        return f"the values of {faint!r} are so small that {narrow.dtype} loses digits"
    unknown = next((name for name in node.inputs if _is_unknown(view, name)), None)
    if unknown is not None:
        return f"the type of {unknown!r} is not known"
    return f"{node.op} makes large values of small ones" if node.op in request.ops else None


def _has_wide(view: GraphView, node: Node) -> bool:
    return any(view.info(name).dtype is DType.FLOAT32 for name in (*node.inputs, *node.outputs) if name)


def _is_unknown(view: GraphView, tensor: str) -> bool:
    return bool(tensor) and view.info(tensor).dtype is DType.UNKNOWN


def _follows(view: GraphView, node: Node, risen: set[str]) -> bool:
    """Return True if all float inputs of the node, except constants, are large values of kept nodes."""
    if node.op not in MAGNITUDE_KEPT | MAGNITUDE_LOWERED:
        return False
    read = [name for name in node.inputs if name and not view.is_constant(name)]
    floats = [name for name in read if view.info(name).dtype is DType.FLOAT32]
    return bool(floats) and all(name in risen for name in floats)
