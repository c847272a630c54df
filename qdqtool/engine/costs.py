"""Bytes and multiply-accumulate operations of a layer, and the kernels and bytes of an engine, from the shapes in its dump.

A convolution with `weights` elements in total multiplies N*P*Q*weights times (N*H*W*weights for a transposed
convolution). A matrix product multiplies its output elements times the length of the dimension that it sums over. If
a shape is dynamic or a factor is unknown, the figure is None instead of a guess.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.explore import Cost, CostModel
from qdqtool.core.findings import KernelCounts
from qdqtool.engine.roles import is_attention, weight, without_block_scales, words
from qdqtool.trt.tensor_formats import dtype_of, padded_bytes

# --- weights ---------------------------------------------------------------------------------------------------------
# Weights that a layer states as parameters (`Weights`, `Kernel`, `OutMaps`, `Groups`) instead of listing constants.


RESULT = "ConvDimensions"
"""Attribute that a log adds to a layer: the output shape of its convolution, before any pooling."""
_PREFIXES = ("", "Conv")
"""Prefixes of parameter names. A fused convolution, activation and pooling writes `ConvKernel`, `ConvWeights`, ..."""


def stated_constants(fields: Mapping[str, Any]) -> tuple[EngineTensor, ...]:
    """Return the weight and bias that a layer's parameters state; shape (outputs, inputs / groups, *kernel)."""
    for prefix in _PREFIXES:
        weights = _parameter(fields.get(f"{prefix}Weights"))
        if weights is not None:
            bias = _parameter(fields.get(f"{prefix}Bias"))
            tensors = [_weight(fields, prefix, weights)]
            tensors += [_tensor("bias", bias, (bias[1],))] if bias is not None else []
            return tuple(tensors)
    return ()


def before_pooling(layer: EngineLayer, source: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the output shape of the convolution inside a fused convolution and pooling, from its parameters or from a log.

    Args:
        layer: the fused layer.
        source: shape of its input.
    """
    stated = dict(layer.attributes)
    if RESULT in stated:
        return integers(stated[RESULT])
    maps, kernel, stride, before, after, dilation = (
        integers(stated.get(f"Conv{name}", ""))
        for name in ("OutMaps", "Kernel", "Stride", "PrePadding", "PostPadding", "Dilation")
    )
    sides = len(source) - 2
    if len(maps) != 1 or {len(kernel), len(stride), len(before), len(after), len(dilation)} != {sides}:
        return None
    if min((*stride, *kernel)) < 1:
        return None
    spread = (step * (size - 1) + 1 for step, size in zip(dilation, kernel, strict=True))
    return (
        source[0],
        maps[0],
        *(
            (side + first + last - window) // step + 1
            for side, first, last, window, step in zip(source[2:], before, after, spread, stride, strict=True)
        ),
    )


def _weight(fields: Mapping[str, Any], prefix: str, weights: tuple[str, int]) -> EngineTensor:
    kernel = integers(fields.get(f"{prefix}Kernel"))
    maps = integers(fields.get(f"{prefix}OutMaps"))
    volume = prod(kernel) * prod(maps)
    if not kernel or len(maps) != 1 or volume < 1 or weights[1] % volume:
        return _tensor("weights", weights, None)
    return _tensor("weights", weights, (maps[0], weights[1] // volume, *kernel))


def integers(value: Any) -> tuple[int, ...]:
    """Parse a number or a list of numbers, as JSON or as text; () for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if type(value) is int:
        return (value,)
    if isinstance(value, list) and all(type(number) is int for number in value):
        return tuple(value)
    return ()


def _parameter(value: Any) -> tuple[str, int] | None:
    """Parse type and count of a weight in a layer's parameters: `{"Type": "Int8", "Count": 864}`, as JSON or text; else None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, Mapping):
        return None
    words, count = value.get("Type"), value.get("Count")
    return (words, count) if isinstance(words, str) and type(count) is int and count > 0 else None


def _tensor(name: str, parameter: tuple[str, int], shape: tuple[int, ...] | None) -> EngineTensor:
    return EngineTensor(name=name, shape=shape, dtype=dtype_of(parameter[0]), format=parameter[0])


# --- costs -----------------------------------------------------------------------------------------------------------


Shape = tuple[int, ...]
Gemm = tuple[int, int, int]


def cost(layer: EngineLayer, model: CostModel) -> Cost:
    """Return the cost of `layer` in the cost model `model`. If the layer lists no tensors, all costs are unknown."""
    if layer.role is not Role.NONE and not (layer.inputs or layer.outputs or layer.constants):
        return Cost()
    macs, gemm = _work(layer)
    sides = _trex(layer) if model is CostModel.TREX else _exact(layer)
    return Cost(
        bytes=_sum(sides),
        input_bytes=sides[0],
        weight_bytes=sides[1],
        output_bytes=sides[2],
        macs=macs,
        gemm=gemm,
    )


def _trex(layer: EngineLayer) -> tuple[int | None, int | None, int | None]:
    """Return input, weight and output bytes of a layer as trt-engine-explorer counts them."""
    outputs = _sum(tensor.bytes for tensor in layer.outputs)
    held = weight(layer)
    if not _convolves(layer) or held is None or held.shape is None or not layer.inputs:
        return _sum(tensor.bytes for tensor in layer.inputs), 0, outputs
    bits = layer.inputs[0].dtype.bits
    weights = None if bits is None else prod(held.shape) * bits // 8
    return layer.inputs[0].bytes, weights, outputs


def _exact(layer: EngineLayer) -> tuple[int | None, int | None, int | None]:
    """Return input, weight and output bytes of a layer, with padding. A tensor that is listed twice counts once."""
    inputs = {tensor.name or str(index): tensor for index, tensor in enumerate(layer.inputs)}
    return (
        _sum(padded_bytes(tensor) for tensor in inputs.values()),
        _sum(tensor.bytes for tensor in layer.constants),
        _sum(padded_bytes(tensor) for tensor in layer.outputs),
    )


def _work(layer: EngineLayer) -> tuple[int | None, Gemm | None]:
    """Return the MACs of a compute layer, and the rows, columns and summed length of its matrix product."""
    if layer.role is not Role.COMPUTE or not layer.inputs or not layer.outputs:
        return None, None
    left, result = without_block_scales(layer.inputs)[0].shape, layer.outputs[0].shape
    if not _static(left) or not _static(result) or left is None or result is None:
        return None, None
    if is_attention(layer):
        return _attention(layer), None
    held = weight(layer)
    if _convolves(layer):
        return _convolution(layer, held.shape if held else None, left, result)
    if (held is None or held.shape is None) and _is_convolution(layer):
        return None, None
    return _product(_factor(layer, held), left, result)


def _convolution(
    layer: EngineLayer, weights: Shape | None, left: Shape, result: Shape
) -> tuple[int | None, Gemm | None]:
    if "Pool" in layer.kind:
        result = before_pooling(layer, left) or ()
    if weights is None or len(weights) < 3 or len(result) < 3:
        return None, None
    transposed = "deconv" in layer.kind.lower()
    positions = _positions(left if transposed else result)
    macs = positions * prod(weights)
    return macs, (positions, weights[0], prod(weights[1:]))


def _positions(shape: Shape) -> int:
    """Return the batch size times the number of spatial positions of a tensor of shape (N, C, ...)."""
    return shape[0] * prod(shape[2:])


def _product(factor: Shape | None, left: Shape, result: Shape) -> tuple[int | None, Gemm | None]:
    """Return the MACs and the size (rows, columns, summed length) of a matrix product. `factor` is the right-hand shape."""
    if len(left) < 2 or len(result) < 2:
        return None, None
    depth = _depth(factor, left, result)
    if depth is None:
        return None, None
    columns = result[-1]
    return prod(result) * depth, (prod(result) // columns if columns else 0, columns, depth)


def _depth(factor: Shape | None, left: Shape, result: Shape) -> int | None:
    """Return the length of the summed dimension of a matrix product; None if it is ambiguous."""
    if factor is None:
        return left[-1]
    if len(factor) < 2:
        return None
    rows, columns = factor[-2:]
    candidates = {
        depth
        for depth, width in ((rows, columns), (columns, rows))
        if depth in left[1:] and width in result[1:]
    }
    return candidates.pop() if len(candidates) == 1 else None


def _factor(layer: EngineLayer, held: EngineTensor | None) -> Shape | None:
    if held is not None:
        return held.shape
    operands = without_block_scales(layer.inputs)[1:]
    return operands[0].shape if operands else None


def _attention(layer: EngineLayer) -> int | None:
    """Return the MACs of both products of an attention.

    Queries have shape (heads, tokens, width), keys (heads, width, tokens).
    """
    shapes = [tensor.shape for tensor in without_block_scales(layer.inputs)[:3]]
    if len(shapes) != 3 or any(shape is None or len(shape) != 3 or not _static(shape) for shape in shapes):
        return None
    query, key, value = (shape or () for shape in shapes)
    if query[2] != key[1] or key[2] != value[1]:
        return None
    return query[0] * query[1] * key[2] * (query[2] + value[2])


def _convolves(layer: EngineLayer) -> bool:
    held = weight(layer)
    return held is not None and held.shape is not None and len(held.shape) > 3 and _is_convolution(layer)


def _is_convolution(layer: EngineLayer) -> bool:
    return "conv" in layer.kind.lower() or layer.kind == "correlation" or "Corr" in layer.name


def _static(shape: Shape | None) -> bool:
    return shape is not None and all(dim >= 0 for dim in shape)


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


# --- a whole engine ---------------------------------------------------------------------------------------------------


def counts(engine: Engine) -> KernelCounts:
    """Count the kernels by role, and the activation bytes that they read and write at the optimum of the first profile.

    Bytes are counted twice because a builder without a GPU leaves fusion to the device. As dumped, a kernel that adds
    a bias reads the float result of an INT8 convolution again; as fused (estimated), it is part of the convolution. A
    tensor that a kernel lists twice is read once, but views of it that are smaller (queries, keys and values of one
    product) are read each.
    """
    engine = at_optimum(engine)
    kernels = list(engine.kernels)
    written = {tensor.name: tensor.bytes or 0 for layer in kernels for tensor in layer.outputs}
    dumped = _sum(size for layer in kernels for size in _sizes(layer, written))
    saved = _sum(producer.outputs[0].bytes for producer, _ in epilogues(engine))
    return KernelCounts(
        kernels=len(kernels),
        compute=sum(layer.role is Role.COMPUTE for layer in kernels),
        qdq=sum(layer.role is Role.QDQ for layer in kernels),
        activation_bytes_dumped=dumped,
        activation_bytes_fused=None if dumped is None or saved is None else dumped - 2 * saved,
    )


FINISHES, CONVERTS, COMPUTES, OTHERS = "finishes", "converts", "computes", "other"


def kinds(engine: Engine) -> dict[str, int]:
    """Count the kernels of an engine by kind: compute, conversion, epilogue of a low-bit kernel, other."""
    finishers = {finisher.name for _, finisher in list_unfinished(engine)}
    words = {Role.COMPUTE: COMPUTES, Role.QDQ: CONVERTS}
    return dict(
        Counter(
            FINISHES if layer.name in finishers else words.get(layer.role, OTHERS) for layer in engine.kernels
        )
    )


def _sizes(layer: EngineLayer, written: Mapping[str, int]) -> list[int | None]:
    views: dict[str, list[int | None]] = defaultdict(list)
    for tensor in layer.inputs:
        views[tensor.name].append(tensor.bytes)
    read = (_read_bytes(sizes, written.get(name, 0)) for name, sizes in views.items())
    return [*read, *(tensor.bytes for tensor in layer.outputs)]


def _read_bytes(views: list[int | None], whole: int) -> int | None:
    """Return the bytes that a kernel reads of a tensor: all views of it, but not more than the tensor or its largest view."""
    total = _sum(views)
    return None if total is None else min(total, max(whole, *(size or 0 for size in views)))


def epilogues(engine: Engine) -> tuple[tuple[EngineLayer, EngineLayer], ...]:
    """Return each compute kernel with the separate elementwise kernel that computes its epilogue.

    A device may compute both as one kernel. The epilogue kernel must be the only reader of the result. If it
    reads several results, it belongs to their last producer.
    """
    kernels = engine.kernels
    readers: dict[str, list[EngineLayer]] = defaultdict(list)
    for layer in kernels:
        for tensor in layer.inputs:
            readers[tensor.name].append(layer)
    writes = Counter(tensor.name for layer in kernels for tensor in layer.outputs)
    leaving = {binding.name for binding in engine.bindings}
    pairs: dict[str, tuple[EngineLayer, EngineLayer]] = {}
    for producer in reversed([layer for layer in kernels if layer.role is Role.COMPUTE]):
        result = producer.outputs[0] if len(producer.outputs) == 1 else None
        users = readers[result.name] if result is not None else []
        if result is None or result.name in leaving or len(users) != 1 or writes[result.name] != 1:
            continue
        if users[0].pointwise:
            pairs.setdefault(users[0].name, (producer, users[0]))
    return tuple(reversed(pairs.values()))


def list_unfinished(engine: Engine) -> tuple[tuple[EngineLayer, EngineLayer], ...]:
    """Return each low-bit compute kernel that writes floats, with its epilogue kernel, at the optimum shapes.

    TensorRT for RTX computes every low-bit compute node like this: the epilogue kernel scales, adds the bias,
    computes the activation and quantizes. A float compute kernel does all of this itself.
    """
    return tuple(
        (producer, finisher)
        for producer, finisher in epilogues(at_optimum(engine))
        if producer.precision.is_quantized and producer.outputs[0].dtype.is_float
    )


def merge_finishers(engine: Engine) -> Engine:
    """Return the engine with each pair of `list_unfinished` merged into one kernel."""
    pairs = list_unfinished(engine)
    whole = {producer.name: _join_kernels(producer, finisher) for producer, finisher in pairs}
    gone = {finisher.name for _, finisher in pairs}
    return replace(
        engine,
        layers=tuple(whole.get(layer.name, layer) for layer in engine.layers if layer.name not in gone),
    )


def _join_kernels(producer: EngineLayer, finisher: EngineLayer) -> EngineLayer:
    between = producer.outputs[0].name
    operands = tuple(tensor for tensor in finisher.inputs if tensor.name != between)
    return replace(producer, inputs=(*producer.inputs, *operands), outputs=finisher.outputs)


# --- dynamic shapes --------------------------------------------------------------------------------------------------
# Replaces dynamic shapes by the optimum of the optimization profile, for which a builder tunes an engine.
#
# Layer information of recent releases gives the optimum of the engine's inputs; inside the engine, dynamic dimensions
# are -1. They are followed through layers that cannot change them: convolutions keep the batch, products keep the rows
# of their left factor, kernels that only convert or move keep the number of elements, and element-wise kernels keep
# the dimension itself. All other dimensions stay unknown: a Gather, a Concat or a loop may make any size.

_RESIZES = frozenset({"Conc", "Slic", "Gath", "Repl", "Redu", "Sum", "Max", "Min", "Scat", "Pad", "Topk"})
"""Operations in names of generated kernels that may change a dimension or the number of elements."""


def at_optimum(engine: Engine) -> Engine:
    """Return the engine with dynamic dimensions at the optimum of the first profile, if they can be derived."""
    if not engine.opt_shapes or not any(map(_is_dynamic, engine.layers)):
        return engine
    shapes: dict[str, Shape] = dict(engine.opt_shapes)
    return replace(engine, layers=tuple(_settle_layer(layer, shapes) for layer in engine.layers))


def about(engine: Engine) -> tuple[str, ...]:
    """Return a note with the optimization shapes of a dynamic engine; () without such shapes."""
    if at_optimum(engine) is engine:
        return ()
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in engine.opt_shapes)
    return (f"bytes and MACs are for the optimization shapes: {shapes}",)


def _is_dynamic(layer: EngineLayer) -> bool:
    return any(min(tensor.shape or (0,)) < 0 for tensor in (*layer.inputs, *layer.outputs))


def _settle_layer(layer: EngineLayer, shapes: dict[str, Shape]) -> EngineLayer:
    """Return the layer with dynamic dimensions at the optimum. Add its output shapes to `shapes`."""
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
        # the same memory with another number of dimensions, as after a Flatten before a product
        viewed = _same_count(tensor.shape, shape)
        return tensor if viewed is None else replace(tensor, shape=viewed)
    return replace(tensor, shape=shape) if _fits(shape, tensor.shape) else tensor


def _fits(shape: Shape, dumped: Shape | None) -> bool:
    """Return True if a static shape is possible for a dynamic shape."""
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
    """Return True if `tensor` is a result, not a block scale, of a kernel that is pointwise or converts."""
    return (layer.pointwise or layer.role is Role.QDQ) and tensor in without_block_scales(layer.outputs)


def _same_count(shape: Shape, source: Shape) -> Shape | None:
    """Return a shape with its only dynamic dimension filled in, so that the number of elements stays the same."""
    static = prod(dim for dim in shape if dim >= 0)
    if sum(dim < 0 for dim in shape) != 1 or not static or prod(source) % static:
        return None
    return tuple(prod(source) // static if dim < 0 else dim for dim in shape)


def _same_dims(
    shape: Shape, read: tuple[EngineTensor, ...], dumped: tuple[EngineTensor, ...]
) -> Shape | None:
    """Fill the dynamic dimensions of a shape from the same axes of the inputs; None if the inputs differ."""
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
