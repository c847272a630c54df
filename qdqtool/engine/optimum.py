"""Replaces dynamic shapes by the optimum of the optimization profile, for which a builder tunes an engine.

Layer information of recent releases gives the optimum of the engine's inputs; inside the engine the dynamic dimensions
stay -1. They are followed from layer to layer where a layer cannot change them: convolutions keep the batch, products
keep the rows of their left factor, kernels that only convert or move keep the number of elements, and element-wise ones
the dimension itself. Everything else stays unknown: a Gather, a Concat or a loop may make any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.engine.roles import weight, without_block_scales, words

Shape = tuple[int, ...]
_RESIZES = frozenset({"Conc", "Slic", "Gath", "Repl", "Redu", "Sum", "Max", "Min", "Scat", "Pad", "Topk"})
"""Operations in names of generated kernels that may change a dimension or the number of elements."""


def at_optimum(engine: Engine) -> Engine:
    """Return the engine with its dynamic dimensions at the optimum of the first profile, as far as they can be derived."""
    if not engine.opt_shapes or not any(map(_is_dynamic, engine.layers)):
        return engine
    shapes: dict[str, Shape] = dict(engine.opt_shapes)
    return replace(engine, layers=tuple(_settle_layer(layer, shapes) for layer in engine.layers))


def about(engine: Engine) -> tuple[str, ...]:
    """Return a note with the shapes for which figures of `at_optimum` hold; empty if the engine is not dynamic."""
    if at_optimum(engine) is engine:
        return ()
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in engine.opt_shapes)
    return (f"bytes and MACs are for the optimization shapes: {shapes}",)


def _is_dynamic(layer: EngineLayer) -> bool:
    return any(min(tensor.shape or (0,)) < 0 for tensor in (*layer.inputs, *layer.outputs))


def _settle_layer(layer: EngineLayer, shapes: dict[str, Shape]) -> EngineLayer:
    """Return the layer with known shapes, and record the shapes of its outputs for downstream layers."""
    inputs = tuple(_at(tensor, shapes) for tensor in layer.inputs)
    copy = replace(layer, inputs=inputs)
    for tensor in layer.outputs:
        if tensor.name not in shapes and (shape := _derive_written_shape(copy, layer, tensor)) is not None:
            shapes[tensor.name] = shape
    return replace(copy, outputs=tuple(_at(tensor, shapes) for tensor in layer.outputs))


def _at(tensor: EngineTensor, shapes: Mapping[str, Shape]) -> EngineTensor:
    shape = shapes.get(tensor.name)
    if shape is None or tensor.shape is None:
        return tensor
    if len(shape) != len(tensor.shape):
        # the same memory under another number of dimensions, as a Flatten in front of a product leaves it
        viewed = _same_count(tensor.shape, shape)
        return tensor if viewed is None else replace(tensor, shape=viewed)
    return replace(tensor, shape=shape) if _fits(shape, tensor.shape) else tensor


def _fits(shape: Shape, dumped: Shape | None) -> bool:
    """Return whether a static shape is an instance of a dynamic one."""
    return (
        dumped is not None
        and len(shape) == len(dumped)
        and all(have == length or length < 0 for have, length in zip(shape, dumped, strict=True))
    )


def _derive_written_shape(layer: EngineLayer, dumped: EngineLayer, tensor: EngineTensor) -> Shape | None:
    """Return the output shape of a layer, or None if it cannot be derived."""
    shape = tensor.shape
    read = without_block_scales(layer.inputs)
    if shape is None or min(shape, default=0) >= 0 or not read:
        return None
    if any(source.shape is None or min(source.shape, default=0) < 0 for source in read):
        return None
    named = frozenset(words(layer))
    if layer.role is not Role.COMPUTE and len(read) == 1 and not named & _RESIZES and _keeps(layer, tensor):
        return _same_count(shape, read[0].shape or ())
    if layer.role is Role.COMPUTE and weight(layer) is None:
        return None
    return _same_dims(shape, read, without_block_scales(dumped.inputs))


def _keeps(layer: EngineLayer, tensor: EngineTensor) -> bool:
    """Return whether the kernel writes as many elements as it reads: one input, one output, nothing summed or repeated."""
    return (layer.pointwise or layer.role is Role.QDQ) and tensor in without_block_scales(layer.outputs)


def _same_count(shape: Shape, source: Shape) -> Shape | None:
    """Fill a single dynamic dimension so that the number of elements stays the same."""
    static = prod(dim for dim in shape if dim >= 0)
    if sum(dim < 0 for dim in shape) != 1 or not static or prod(source) % static:
        return None
    return tuple(prod(source) // static if dim < 0 else dim for dim in shape)


def _same_dims(
    shape: Shape, read: tuple[EngineTensor, ...], dumped: tuple[EngineTensor, ...]
) -> Shape | None:
    """Fill each dynamic dimension from the inputs at the same place, if all inputs that are dynamic there agree."""
    settled = list(shape)
    for place, dim in enumerate(shape):
        if dim >= 0:
            continue
        lengths = {
            source.shape[place]
            for source, before in zip(read, dumped, strict=True)
            if source.shape and before.shape and len(before.shape) == len(shape) and before.shape[place] < 0
        }
        if len(lengths) != 1:
            return None
        settled[place] = lengths.pop()
    return tuple(settled)
