"""Converts the float part of a model to FP16 or BF16 wherever an operator supports it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import onnx

from qdqtool.core.preparation import Conversion, DynamicRangeReport, KeptNode
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.core.wording import REPAIR, count_noun, list_names
from qdqtool.errors import UsageError
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import is_whole, narrow_tensor
from qdqtool.graph.qdq.encode import storable_as
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.forms import (
    NARROW,
    WIDE,
    Form,
    Forms,
    rescale_integers,
    rounded_scales,
    signature,
)
from qdqtool.graph.typed.narrow import NARROW as TYPES
from qdqtool.graph.typed.narrow import Narrow, Types, fits, is_faint, store_constant
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import LAYOUT, MOVING, PRODUCTS, QDQ

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
    """Return the model with its float part in `options.types`, and a summary of the conversion.

    With `options.narrow_nodes`, only these nodes change their type. Q/DQ pairs and their scales have the type of
    their consumers, so there is no Cast after a DQ. These stay FP32:

    - nodes that `options` names, and the nodes after them until their large values are reduced;
    - nodes that `qdqtool.graph.sensitive` names;
    - with `options.overflow == "keep"`: compute nodes with weights beyond the type, and all nodes that touch a tensor
      whose values `reach` found there;
    - inputs that ONNX allows only in FP32 (Resize scales, NonMaxSuppression, Range), third-party operators and
      control flow;
    - with `options.keep_io`: inputs and outputs of the model.

    Other constants beyond the type are clipped, with a note. Tiny constants that would become zero get the type's
    smallest number, so that an epsilon still protects its division.

    Raises:
        UsageError: FP32 was asked for, or Q/DQ nodes are not those of ONNX.
        InputFileError: the opset cannot be raised to one with Q/DQ or operators of the type.
    """
    if options.types == "fp32":
        raise UsageError("the model already is FP32", fix="choose fp16 or bf16")
    narrow = TYPES[options.types]
    model = with_opset(_check_qdq(model), options.types, quantized=_has_pairs(model))
    model = rescale_integers(model, narrow)
    request = FloatRequest(nodes=options.keep_nodes, others=options.narrow_nodes, ops=options.keep_ops)
    if options.overflow == "keep":
        request = replace(request, tensors=wide_weights(model.view, narrow))
        if reach is not None:
            request = replace(request, tensors=request.tensors | reach.overflowing, small=reach.faint)
    reasons = find_kept(model.view, request, narrow)
    edit = Edit(model)
    forms = Forms(edit, model.view, narrow, reasons, keep_io=options.keep_io)
    kept_nodes = _kept_nodes(edit, forms, reasons, narrow)
    narrowed = sum(any(NARROW in forms.of(name) for name in node.output) for node in edit.nodes)
    rewrite = Rewrite(edit, model.view, narrow, forms)
    rewrite.run()
    conversion = Conversion(
        model=model.path.name,
        dtype=narrow.dtype,
        narrowed=narrowed,
        kept=kept_nodes,
        casts=rewrite.casts,
        clipped=tuple(rewrite.clipped),
        faint=tuple(rewrite.faint),
        reach=reach,
    )
    edit.notes += _sentences(conversion, narrow, protected=options.overflow == "keep")
    edit.notes += [
        f"no node matches {pattern!r}"
        for pattern in find_unused(model.view, (*request.nodes, *request.others))
    ]
    result = edit.finish(retyped=True)
    return result, replace(conversion, notes=result.notes)


def with_opset(model: Model, types: Types, *, quantized: bool) -> Model:
    """Return the model at an opset whose operators, and Q/DQ if there are any, support the type.

    Raises:
        InputFileError: the converter does not know how.
    """
    narrow = TYPES[types]
    proto, note = raise_opset(model.proto, narrow.scales if quantized else narrow.opset, model.path)
    if note is None:
        return model
    feature = "scales" if quantized else "convolutions"
    notes = (*model.notes, f"{note}, the first with {types.upper()} {feature}")
    return Model(proto=proto, path=model.path, notes=notes)


def _check_qdq(model: Model) -> Model:
    """Check that Q/DQ nodes are those of ONNX, and return the model."""
    for node in model.view.nodes:
        if node.op in QDQ and node.domain not in {"", "ai.onnx"}:
            raise UsageError(
                f"node {node.name!r} is a {node.op} of {node.domain}, which TensorRT accepts in FP32 only",
                fix=f"run {REPAIR} on the model first",
                where=str(model.path),
            )
    return model


def _has_pairs(model: Model) -> bool:
    return any(node.op in QDQ for node in model.view.nodes)


def _kept_nodes(edit: Edit, forms: Forms, reasons: Mapping[str, str], narrow: Narrow) -> tuple[KeptNode, ...]:
    """Return nodes that stay FP32: nodes that were chosen, and nodes whose operator has no other type."""
    kept = []
    for node in edit.nodes:
        reason = reasons.get(node.name)
        outputs = [name for name in node.output if forms.is_float(name)]
        if reason is None and outputs and all(forms.of(name) == {WIDE} for name in outputs):
            reason = _explain_forced(node, edit.opset, narrow)
        if reason is not None:
            kept.append(KeptNode(node=node.name, op=node.op_type, reason=reason))
    return tuple(kept)


def _explain_forced(node: onnx.NodeProto, opset: int, narrow: Narrow) -> str | None:
    if node.op_type == DEQUANTIZE or signature(node, opset, narrow.word).makes(0):
        return None
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return "bodies of control flow are not converted"
    if node.domain not in {"", "ai.onnx"}:
        return "an operator of another domain is not converted"
    return f"ONNX (opset {opset}) or onnxruntime has no {narrow.dtype} form of the operator"


def _sentences(conversion: Conversion, narrow: Narrow, *, protected: bool) -> list[str]:
    """Return notes on the type conversion for the user."""
    word = str(narrow.dtype).upper()
    notes = []
    if conversion.clipped:
        notes.append(
            f"{count_noun(len(conversion.clipped), 'constant exceeds', 'constants exceed')} {word} and {'was' if len(conversion.clipped) == 1 else 'were'} clipped to "
            f"{narrow.largest:g}: {list_names([*map(repr, conversion.clipped)], _NAMED)}"
        )
    if conversion.faint:
        few = list_names([*map(repr, conversion.faint)], _NAMED)
        notes.append(
            f"{count_noun(len(conversion.faint), 'constant is', 'constants are')} so small that {word} loses digits: {few}"
        )
    if conversion.reach is None and protected and conversion.dtype is DType.FLOAT16:
        notes.append(f"no samples were given, so values beyond {word} are unknown; they become infinite")
    strayed = conversion.reach.strayed if conversion.reach is not None else ()
    source = (
        "by their ranges"
        if conversion.reach is not None and not conversion.reach.samples
        else "on the samples"
    )
    over = [f"{tensor.tensor!r} ({tensor.largest:.4g})" for tensor in strayed if tensor.kind == "overflow"]
    under = [f"{tensor.tensor!r} ({tensor.largest:.2g})" for tensor in strayed if tensor.kind == "subnormal"]
    if over:
        singular, plural = (
            ("stays FP32", "stay FP32") if protected else ("becomes infinite", "become infinite")
        )
        notes.append(
            f"{count_noun(len(over), 'tensor reaches', 'tensors reach')} beyond {word} {source} and {singular if len(over) == 1 else plural}: "
            f"{list_names(over, _NAMED)}"
        )
    if under:
        kept = ("stays FP32", "stay FP32")[len(under) > 1]
        notes.append(
            f"{count_noun(len(under), 'tensor is', 'tensors are')} so small {source} that {word} loses digits"
            f"{f' and {kept}' if protected else ''}: {list_names(under, _NAMED)}"
        )
    return notes


# --- nodes that stay FP32 --------------------------------------------------------------------------------------------
# Chooses the nodes that continue to compute in FP32, each with a reason.


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


def find_kept(view: GraphView, request: FloatRequest, narrow: Narrow) -> dict[str, str]:
    """Return the nodes that stay FP32 and the reason, in graph order, without Q/DQ, which follow their neighbours' types."""
    reasons: dict[str, str] = {}
    risen: set[str] = set()
    large = set(request.tensors)
    facts = sensitive(view, narrow.float_type)
    for node in view.nodes:
        if node.op in QDQ | LAYOUT and node.inputs[0] in large:
            large.update(node.outputs)  # neither quantizing nor moving reduces the value
        if node.op in QDQ or not _has_wide(view, node):
            continue
        reason = _reason(view, node, request, narrow, large) or facts.get(node.name)
        follows = _follows(view, node, risen)
        if reason is None and follows:
            reason = "continues to compute with large values of nodes that stay FP32"
        if reason is not None:
            reasons[node.name] = reason
        if node.op in request.ops or (follows and node.op not in MAGNITUDE_LOWERED):
            risen.update(node.outputs)
    return reasons


def wide_weights(view: GraphView, narrow: Narrow) -> frozenset[str]:
    """Return constants beyond the type's range that compute nodes multiply: clipping them would change the result.

    A mask of -1e9 that is added means the same when it is clipped. Stored integers count with the float values that
    they represent.
    """
    wide = set()
    for node in view.nodes:
        for name in node.inputs[:2] if node.op in PRODUCTS else ():
            tensor, scale = name, 1.0
            while (maker := view.producer(tensor)) is not None and maker.op in QDQ | LAYOUT:
                tensor = maker.inputs[0]
                steps = view.constant(maker.inputs[1]) if maker.op == DEQUANTIZE else None
                if steps is not None and view.is_constant(tensor):  # stored in few bits
                    scale = float(np.abs(steps.astype(np.float64)).max(initial=0.0))
            value = view.constant(tensor)
            if value is not None and not fits(narrow, value.astype(np.float64) * scale):
                wide.add(tensor)
    return frozenset(wide)


def find_unused(view: GraphView, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the globs that match no node name."""
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
        return "the request names only other nodes"
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
    """Return True if all float inputs of a node are large values of nodes that stay FP32."""
    if node.op not in MAGNITUDE_KEPT | MAGNITUDE_LOWERED:
        return False
    read = [name for name in node.inputs if name and not view.is_constant(name)]
    floats = [name for name in read if view.info(name).dtype is DType.FLOAT32]
    return bool(floats) and all(name in risen for name in floats)


# --- rewrite ----------------------------------------------------------------------------------------------------------
# Applies a type plan: renames, adds Casts, stores constants, and gives Q/DQ their scales.


TYPE_ATTRIBUTES = {
    "Cast": "to",
    DEQUANTIZE: "output_dtype",
}
"""Operators that state the type of their result -> attribute that states it."""


_FLOAT = onnx.TensorProto.FLOAT


class Rewrite:
    """Converts a model to a narrow float type by the type plan `forms`.

    Attributes:
        casts: how many Cast nodes were added.
        clipped: constants that reached beyond the narrow type.
        faint: constants that are too small for its digits.
    """

    def __init__(self, edit: Edit, view: GraphView, narrow: Narrow, forms: Forms) -> None:
        self._edit = edit
        self._view = view
        self._narrow = narrow
        self._forms = forms
        self._names: dict[tuple[str, Form], str] = {}
        self._read: set[tuple[str, Form]] = set()
        self._integers: dict[str, str] = {}
        self._rounded = rounded_scales(edit, forms)
        self._scales = {node.input[1] for node in edit.nodes if node.op_type in QDQ}
        self.casts = 0
        self.clipped: list[str] = []
        self.faint: list[str] = []

    def run(self) -> None:
        """Apply the type plan."""
        plan = [
            (node, index, self._forms.read(node, index))
            for node in self._edit.nodes
            for index, name in enumerate(node.input)
            if self._forms.is_float(name)
        ]
        self._read |= {(node.input[index], form) for node, index, form in plan}
        self._read |= {(name, WIDE) for name in self._forms.bodies if self._forms.is_float(name)}
        idle = [node for node in self._edit.nodes if self._is_idle(node)]
        twins = [self._twins(node) for node in self._edit.nodes if node.op_type in QDQ]
        for node, index, form in plan:
            node.input[index] = self._name(node.input[index], form)
        for make in filter(None, twins):
            make()
        for node in self._edit.nodes:
            self._retype(node)
        self._declare()
        for tensor, form in sorted(self._read):
            if self._forms.of(tensor):
                self._cast(tensor, form)
            else:
                self._store(tensor, form)
        self._forget()
        self._drop(idle)

    def _name(self, tensor: str, form: Form) -> str:
        """Return the name of a tensor in its FP32 or narrow form.

        One form keeps the old name: FP32 if outside readers, or all consumers of a constant, need FP32; otherwise the
        narrow form.
        """
        own = self._forms.outside(tensor)
        if own is None and any(value.name == tensor for value in self._edit.inputs):
            own = next(iter(self._forms.of(tensor)))
        if own is None:
            constant = self._view.is_constant(tensor)
            own = WIDE if constant and (tensor, NARROW) not in self._read else NARROW
        if form == own:
            return tensor
        key = (tensor, form)
        if key not in self._names:
            word = "fp32" if form == WIDE else str(self._narrow.dtype)
            self._names[key] = self._edit.fresh(f"{tensor}_{word}")
        return self._names[key]

    def _is_idle(self, node: onnx.NodeProto) -> bool:
        """Return True if a Cast of the original model has the same type before and after it."""
        if node.op_type != "Cast" or self._forms.outside(node.output[0]) is not None:
            return False
        forms, (source, target) = self._forms, (node.input[0], node.output[0])
        operand = (
            self._element(forms.read(node, 0)) if forms.is_float(source) else self._view.info(source).dtype
        )
        result = (
            self._element(min(forms.of(target))) if forms.is_float(target) else self._view.info(target).dtype
        )
        return operand == result

    def _element(self, form: Form) -> DType:
        return DType.FLOAT32 if form == WIDE else self._narrow.dtype

    def _twins(self, node: onnx.NodeProto) -> Callable[[], None] | None:
        """Return a function that adds an FP32 Q or DQ beside `node`.

        None unless narrow and FP32 consumers share a Q or a DQ.
        """
        if node.op_type == QUANTIZE:
            results = [self._forms.of(reader.output[0]) for reader in self._forms.behind(node)]
            if not any(WIDE in forms for forms in results) or not any(NARROW in forms for forms in results):
                return None
            return partial(self._twin_of_quantize, node, tuple(node.input))
        if len(self._forms.of(node.output[0])) < 2:
            return None
        return partial(self._twin_of_dequantize, node, tuple(node.input))

    def _twin_of_quantize(self, node: onnx.NodeProto, inputs: tuple[str, ...]) -> None:
        """Add an FP32 Q for the FP32 consumers of the integers."""
        self._integers[node.output[0]] = self._edit.fresh(f"{node.output[0]}_fp32")
        source, scale = (self._wide(name) for name in inputs[:2])
        outputs = [self._integers[node.output[0]]]
        twin = self._edit.node(QUANTIZE, [source, scale, *inputs[2:]], outputs, name=f"{node.name}_fp32")
        twin.attribute.extend(node.attribute)
        for reader in self._forms.behind(node):
            if self._forms.of(reader.output[0]) == {WIDE}:
                reader.input[0] = outputs[0]

    def _twin_of_dequantize(self, node: onnx.NodeProto, inputs: tuple[str, ...]) -> None:
        """Add a second DQ for the FP32 form. The first DQ makes the narrow form."""
        integers = self._integers.get(inputs[0], inputs[0])
        outputs = [self._name(node.output[0], WIDE)]
        operands = [integers, self._wide(inputs[1]), *inputs[2:]]
        twin = self._edit.node(DEQUANTIZE, operands, outputs, name=f"{node.name}_fp32")
        twin.attribute.extend(node.attribute)
        self._state(twin, inputs[1], WIDE)
        self._state(node, inputs[1], NARROW)
        node.output[0] = self._name(node.output[0], NARROW)

    def _wide(self, tensor: str) -> str:
        """Return the name of a tensor's FP32 form, and mark the form as read; other types keep their name."""
        if not self._forms.is_float(tensor):
            return tensor
        self._read.add((tensor, WIDE))
        return self._name(tensor, WIDE)

    def _retype(self, node: onnx.NodeProto) -> None:
        """Give each float output the name of its form (FP32 or narrow), and set the operator's type attribute, if it has one."""
        for index, name in enumerate(node.output):
            forms = self._forms.of(name)
            if self._forms.is_float(name) and len(forms) == 1:
                form = next(iter(forms))
                self._state(node, node.input[1] if node.op_type == DEQUANTIZE else "", form)
                node.output[index] = self._name(name, form)

    def _state(self, node: onnx.NodeProto, scale: str, form: Form) -> None:
        """Set the type attribute of an operator; remove it if the scale of a DequantizeLinear states the type."""
        narrow = form == NARROW
        if self._forms.is_float(scale) or (narrow and self._view.info(scale).dtype is self._narrow.dtype):
            _drop_result_type(node)
        elif narrow:
            _choose(node, self._narrow)

    def _declare(self) -> None:
        """Declare the types of the model's inputs and outputs."""
        for value in self._edit.inputs:
            if self._forms.is_float(value.name):
                input_form = next(iter(self._forms.of(value.name)))
                value.type.tensor_type.elem_type = _FLOAT if input_form == WIDE else self._narrow.element
        for value in self._edit.outputs:
            if self._forms.is_float(value.name):
                form = self._forms.outside(value.name)
                assert form is not None
                self._read.add((value.name, form))
                value.type.tensor_type.elem_type = _FLOAT if form == WIDE else self._narrow.element

    def _cast(self, tensor: str, form: Form) -> None:
        if form in self._forms.of(tensor):
            return
        source, target = self._name(tensor, not form), self._name(tensor, form)
        element = _FLOAT if form == WIDE else self._narrow.element
        self._edit.node("Cast", [source], [target], name=f"{target}_Cast", to=element)
        self.casts += 1

    def _store(self, tensor: str, form: Form) -> None:
        value = self._view.constant(tensor)
        if value is None:
            return
        if tensor in self._rounded:
            value = storable_as(value, self._narrow.dtype)
        name = self._name(tensor, form)
        source = self._edit.constants.get(tensor)
        stays = source if source is not None and is_whole(source) and tensor not in self._rounded else None
        if form == WIDE and stays is not None and name == tensor:
            return
        if form == WIDE:
            self._edit.put(name, np.asarray(value, np.float32))
            return
        if not fits(self._narrow, value):
            self.clipped.append(tensor)
        elif is_faint(self._narrow, value) and tensor not in self._scales:
            self.faint.append(tensor)
        self._edit.constants[name] = (
            store_constant(self._narrow, name, value)
            if stays is None
            else narrow_tensor(stays, name, self._narrow.element)
        )

    def _forget(self) -> None:
        """Remove FP32 constants that no node reads any more."""
        read = {self._name(tensor, form) for tensor, form in self._read}
        for name in [
            name for name in self._edit.constants if self._forms.is_float(name) and name not in read
        ]:
            del self._edit.constants[name]

    def _drop(self, idle: list[onnx.NodeProto]) -> None:
        """Remove these Casts; consumers of their results read the inputs of the Casts."""
        instead = {node.output[0]: node.input[0] for node in idle}
        for node in self._edit.nodes:
            for index in range(len(node.input)):
                while node.input[index] in instead:
                    node.input[index] = instead[node.input[index]]
        self._edit.remove(idle)


def _choose(node: onnx.NodeProto, narrow: Narrow) -> None:
    """Change the type attribute of an operator from FP32 to the narrow type."""
    if node.op_type == "ConstantOfShape":
        _refill(node, narrow)
    type_name = TYPE_ATTRIBUTES.get(node.op_type)
    there = [attribute for attribute in node.attribute if attribute.name == type_name]
    if there and there[0].i == _FLOAT:
        there[0].i = narrow.element


def _drop_result_type(node: onnx.NodeProto) -> None:
    """Remove `output_dtype`: onnxruntime's casts around FP16 nodes change the scale, and would contradict it."""
    kept = [attribute for attribute in node.attribute if attribute.name != TYPE_ATTRIBUTES[DEQUANTIZE]]
    del node.attribute[:]
    node.attribute.extend(kept)


def _refill(node: onnx.NodeProto, narrow: Narrow) -> None:
    value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if value is None:
        node.attribute.append(
            onnx.helper.make_attribute("value", store_constant(narrow, "", np.zeros(1, np.float32)))
        )
    elif value.data_type == _FLOAT:
        value.CopyFrom(store_constant(narrow, value.name, onnx.numpy_helper.to_array(value)))
