"""Brings a float model into the shape that placement and TensorRT like, without changing what it computes."""

from __future__ import annotations

from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.wording import counted
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.preparation.batchnorm import fold_batchnorm
from qdqtool.graph.preparation.conv_transpose import write_convolutions
from qdqtool.graph.preparation.einsum import write_products
from qdqtool.graph.preparation.folding import bypass, fold_constants, take_decided_branches
from qdqtool.graph.preparation.given import give_constants
from qdqtool.graph.preparation.reshaping import flatten, write_squeezed_axes


def prepare(model: Model, options: PrepareOptions) -> Model:
    """The model with idle nodes gone, constants computed, Einsum written as MatMul and BatchNormalization folded, as `options` say.

    Numerically the same up to float rounding, inputs that became constants have their value; the others and the outputs
    keep their names; each change leaves a note.

    Raises:
        UsageError: `options.constants` name no input of the model, or values that one cannot hold.
    """
    model = give_constants(model, options.constants)
    if options.fold_constants:
        model = take_decided_branches(model)
    edit = Edit(model)
    idle = bypass(edit, model.view)
    if idle:
        edit.notes.append(f"{idle} Identity, Dropout or idle Cast nodes removed")
        edit.prune()
        model = edit.finish()
    if options.fold_constants:
        model = fold_constants(model)
    edit = Edit(model)
    named = write_squeezed_axes(edit, model.view)
    if named:
        edit.notes.append(
            f"{counted(named, 'Squeeze node')} without axes got those of length 1: TensorRT fixes the rank of the result"
        )
        model = edit.finish()
        edit = Edit(model)
    written = write_products(edit) if options.einsum else 0
    if written:
        edit.notes.append(
            counted(
                written,
                "Einsum node that is a matrix product written as MatMul",
                "Einsum nodes that are matrix products written as MatMul",
            )
        )
        edit.prune()
        model = edit.finish()
        edit = Edit(model)
    flat = flatten(edit, model.view) if options.flatten else 0
    if flat:
        edit.notes.append(
            f"{counted(flat, 'product behind an attention reads', 'products behind an attention read')} two dimensions, so that kernels dequantize weights"
        )
        model = edit.finish()
        edit = Edit(model)
    folded = fold_batchnorm(edit) if options.fold_batchnorm else 0
    if folded:
        edit.notes.append(f"{counted(folded, 'BatchNormalization node')} folded into the layer in front")
    turned = 0
    if options.conv_transpose:
        turned = write_convolutions(edit, model.view, strided=bool(options.strided_conv_transpose))
    if turned:
        edit.notes.append(
            f"{counted(turned, 'ConvTranspose node')} written as the Conv that computes the same"
        )
    constants = len(edit.constants)
    unused = edit.prune()
    if unused:
        edit.notes.append(
            counted(
                unused, "node that no output needs was removed", "nodes that no output needs were removed"
            )
        )
    if not turned and not folded and not unused and len(edit.constants) == constants:
        return model  # nothing to finish, and no second copy of the weights
    return edit.finish()
