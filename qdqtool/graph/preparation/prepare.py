"""Rewrites a float model for placement and TensorRT, without changing what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import onnx

from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Given, PrepareOptions
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.preparation.attention import write_attention
from qdqtool.graph.preparation.contrib import without_builder, write_contrib
from qdqtool.graph.preparation.convolutions import fold_batchnorm, write_convolutions
from qdqtool.graph.preparation.einsum import write_products, write_transforms
from qdqtool.graph.preparation.folding import bypass, fold_constants, take_decided_branches
from qdqtool.graph.preparation.guards import bound_masks, drop_guards
from qdqtool.graph.preparation.projections import join_projections
from qdqtool.graph.preparation.reshaping import (
    cast_first,
    flatten,
    move_transposes,
    write_half_pixels,
    write_squeezed_axes,
)
from qdqtool.graph.view import GraphView, Model
from qdqtool.trt.ops import FIRST_OUTPUT_ONLY

# --- preparation -----------------------------------------------------------------------------------------------------


def prepare(model: Model, options: PrepareOptions) -> Model:
    """Return the model after the simplifications that `options` select.

    Idle nodes are removed, constants and BatchNormalization are folded, and Einsum becomes MatMul. The result computes
    the same up to float rounding. Inputs and outputs keep their names, except inputs that became constants. Each change
    leaves a note.

    Raises:
        UsageError: `options.constants` name no input of the model, or values that one cannot hold.
    """
    model = give_constants(model, options.constants)
    if options.fold_constants:
        model = take_decided_branches(model)
    model = _rewritten(
        model,
        cast_first,
        "UINT8 input cast before its values are moved: TensorRT reads UINT8 by a Cast only",
        "UINT8 inputs cast before their values are moved: TensorRT reads UINT8 by a Cast only",
    )
    model = _rewritten(
        model,
        bypass,
        "Identity, Dropout or idle Cast node removed",
        "Identity, Dropout or idle Cast nodes removed",
    )
    if options.fold_constants:
        model = fold_constants(model)
        model = _rewritten(
            model,
            drop_guards,
            "guard against NaN after a Softmax removed: no row of its scores is masked out",
            "guards against NaN after a Softmax removed: no row of their scores is masked out",
        )
    if options.bound_masks:
        model = _rewritten(
            model,
            bound_masks,
            "mask of an attention written as a choice between scores and -30000, without a guard against NaN",
            "masks of attentions written as choices between scores and -30000, without guards against NaN",
        )
    model = _rewritten(
        model,
        write_squeezed_axes,
        "Squeeze node without axes got the axes of length 1: TensorRT fixes the rank of the result",
        "Squeeze nodes without axes got the axes of length 1: TensorRT fixes the rank of the result",
    )
    model = _rewritten(
        model,
        write_half_pixels,
        "nearest Resize of TensorFlow's form written with half_pixel, which TensorRT reads",
        "nearest Resizes of TensorFlow's form written with half_pixel, which TensorRT reads",
    )
    model = _rewritten(
        model,
        _drop_outputs,
        "output that no node reads removed from its node: TensorRT for RTX refuses it",
        "outputs that no node reads removed from their nodes: TensorRT for RTX refuses them",
    )
    if options.attention:
        model = _write_operators(model)
    if options.einsum:
        model = _rewritten(
            model,
            write_products,
            "Einsum node that is a matrix product written as MatMul",
            "Einsum nodes that are matrix products written as MatMul",
        )
        model = _rewritten(
            model,
            write_transforms,
            "DFT written as a MatMul with its constant matrix: TensorRT has no importer for DFT",
            "DFTs written as MatMuls with their constant matrices: TensorRT has no importer for DFT",
        )
    if options.join_projections:
        model = _rewritten(
            model,
            partial(join_projections, apart=options.not_joined),
            "MatMul of queries, keys and values joined, so that an attention needs a single Q before the split",
            "MatMuls of queries, keys and values joined, so that an attention needs a single Q before the split",
        )
    if options.flatten:
        model = _rewritten(
            model,
            flatten,
            "MatMul after an attention reads two dimensions, so that kernels dequantize weights",
            "MatMul nodes after an attention read two dimensions, so that kernels dequantize weights",
        )
    moved = move_transposes(model) if options.transposes in {"cancel", "move"} else model
    if _count_transposes(moved) < _count_transposes(model) or (
        options.transposes == "move" and moved is not model
    ):
        model = fold_constants(moved) if options.fold_constants else moved
    edit = Edit(model)
    folded = fold_batchnorm(edit) if options.fold_batchnorm else 0
    if folded:
        edit.notes.append(f"{count_noun(folded, 'BatchNormalization node')} folded into the layer before")
    turned = 0
    if options.conv_transpose:
        turned = write_convolutions(edit, model.view, strided=bool(options.strided_conv_transpose))
    if turned:
        edit.notes.append(f"{count_noun(turned, 'ConvTranspose node')} written as an equivalent Conv")
    constants = len(edit.constants)
    unused = edit.prune()
    if unused:
        edit.notes.append(
            count_noun(
                unused, "node that no output needs was removed", "nodes that no output needs were removed"
            )
        )
    if (
        turned or folded or unused or len(edit.constants) != constants or edit.notes != list(model.notes)
    ):  # otherwise nothing is left to do, and no second copy of the weights is needed
        model = edit.finish()
    if options.copy_outputs:
        model = _rewritten(
            model,
            copy_outputs,
            "tensor written through an Identity, so that its values can be quantized",
            "tensors written through Identity nodes, so that their values can be quantized",
        )
    return model


def copy_outputs(edit: Edit, view: GraphView) -> int:
    """Write each computed float tensor that is an output or read by a body through an Identity; return the number of new nodes."""
    added = 0
    for name in sorted(edit.pinned):
        maker = edit.maker(name)
        if maker is None or maker.op_type == "Identity" or not view.info(name).dtype.is_float:
            continue
        computed = edit.fresh(f"{name}_computed")
        edit.write(maker, list(maker.output).index(name), computed)
        edit.redirect(name, computed)
        edit.node("Identity", [computed], [name], name=f"{name}_Identity")
        added += 1
    return added


def _drop_outputs(edit: Edit, view: GraphView) -> int:
    """Remove unread outputs after the first one from operators that TensorRT imports with one output; return the number."""
    dropped = 0
    for node in edit.nodes:
        if node.op_type in FIRST_OUTPUT_ONLY:
            for place, name in enumerate(node.output[1:], 1):
                if name and not view.uses(name) and not view.is_output(name):
                    edit.write(node, place, "")
                    dropped += 1
    return dropped


def _count_transposes(model: Model) -> int:
    return sum(node.op_type == "Transpose" for node in model.proto.graph.node)


def _rewritten(model: Model, rewrite: Callable[[Edit, GraphView], int], note: str, plural: str) -> Model:
    """Return the model after `rewrite`, with a note on the number of changes; the model itself if there are none."""
    edit = Edit(model)
    changed = rewrite(edit, model.view)
    if not changed:
        return model
    edit.notes.append(count_noun(changed, note, plural))
    edit.prune()
    return edit.finish()


def _write_operators(model: Model) -> Model:
    """Write com.microsoft operators and Attention as ONNX operators that TensorRT builds, or fuses better."""
    edit = Edit(model)
    contrib = write_contrib(edit, model.view)
    for op, count in contrib.items():
        edit.notes.append(f"{count_noun(count, f'{op} node')} of com.microsoft written as ONNX operators")
    attentions = write_attention(edit, model.view)
    if attentions:
        edit.notes.append(
            f"{count_noun(attentions, 'Attention node')} written as MatMul, Softmax and MatMul, which TensorRT quantizes and fuses"
        )
    if contrib or attentions:
        edit.prune()
        model = edit.finish()
    notes = tuple(note for note in without_builder(model.view) if note not in model.notes)
    return replace(model, notes=(*model.notes, *notes)) if notes else model


# --- inputs with given values ----------------------------------------------------------------------------------------
# Replaces inputs of the model by constants, with values from the recipe.
#
#     sr ─ Equal 16000 ─ If (A | B)              A
#
# A network for two sampling rates reads the rate at run time, and TensorRT cannot build an If whose branches differ in
# rank. An engine is made for one rate anyway. If a constant replaces the input, the branch is known before the build
# (`folding.py` replaces the If by it), and the caller no longer passes the value.

_WHERE = "prepare.constants"


def give_constants(model: Model, values: Mapping[str, Given]) -> Model:
    """Replace these model inputs by constants of their type; dynamic dimensions get the length 1.

    One number fills the input; a list has all of its values, in the order of rows. Returns the model itself if all
    inputs are constants already, so a prepared model does not change when it is prepared again.

    Raises:
        UsageError: an input that is not there, the last one, or a value that its type or its shape cannot hold.
    """
    inputs = {value.name: value for value in model.proto.graph.input}
    fitting = {name: value for name, value in values.items() if name in inputs}
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    unknown = [name for name in values if name not in inputs and name not in constants]
    if unknown:
        raise UsageError(
            f"the model has no input {unknown[0]!r}",
            fix=f"use one of its inputs: {', '.join(inputs)}",
            where=_WHERE,
        )
    if not fitting:
        return model
    if len(fitting) == len(inputs):
        raise UsageError(
            "every input of the model would become a constant, so nothing would remain to compute",
            fix="keep at least one input for the samples",
            where=_WHERE,
        )
    edit = Edit(model)
    for name, value in fitting.items():
        edit.put(name, _tensor(inputs[name], value))
    edit.inputs = [entry for entry in edit.inputs if entry.name not in fitting]
    shown = ", ".join(f"{name} = {value}" for name, value in fitting.items())
    edit.notes.append(
        f"{count_noun(len(fitting), 'input is a constant', 'inputs are constants')} now: {shown}"
    )
    return edit.finish()


def _tensor(entry: onnx.ValueInfoProto, value: Given) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    kind = entry.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    shape = [dim.dim_value or 1 for dim in kind.shape.dim]
    several = isinstance(value, Sequence) and not isinstance(value, str)
    exact = np.asarray(value)
    stored = exact.astype(dtype)
    if exact.dtype.kind not in "biuf" or (stored.dtype.kind in "biu" and (stored != exact).any()):
        raise UsageError(
            f"{value!r} is not a value of {dtype}, the type of {entry.name!r}",
            fix=f"pass a value of type {dtype}",
            where=_WHERE,
        )
    if several and stored.size != int(np.prod(shape)):
        raise UsageError(
            f"input {entry.name!r} has {count_noun(int(np.prod(shape)), 'value')}, but {stored.size} are given",
            fix=f"pass one number for the whole input, or {int(np.prod(shape))} numbers",
            where=_WHERE,
        )
    return stored.reshape(shape) if several else np.full(shape, stored, dtype)


# --- as it was placed ------------------------------------------------------------------------------------------------
# Prepares a float model as it was prepared for an existing placement, independent of the current recipe.
#
# Preparation depends on builder and formats. A placement may come from another recipe than that of a later command,
# and its slots belong to the model that was prepared then.


def prepare_as_placed(model: Model, options: PrepareOptions, placement: Placement) -> Model:
    """Prepare `model` with `options`, or with a variant of `options` for which every node input of the placement exists.

    If no variant has every slot, the model is prepared with `options`, and the reader of the placement reports the
    missing slot.
    """
    first = prepare(model, options)
    if _fits(placement, first):
        return first
    choices = {
        "flatten": (False, True),
        "strided_conv_transpose": (False, True),
        "join_projections": (False, True),
        "transposes": ("keep", "cancel", "move"),
    }
    for chosen in product(*choices.values()):
        variant = prepare(model, options.model_copy(update=dict(zip(choices, chosen, strict=True))))
        if _fits(placement, variant):
            return variant
    return first


def _fits(placement: Placement, model: Model) -> bool:
    """Return True if the model has every node input of a placement, at the same operator and with the same tensor."""
    nodes = model.view.by_name
    for decision in placement.decisions:
        node, index = nodes.get(decision.slot.node), decision.slot.index
        if node is None or node.op != decision.op or node.inputs[index : index + 1] != (decision.tensor,):
            return False
    return True
