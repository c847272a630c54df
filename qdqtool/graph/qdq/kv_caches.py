"""Caches of keys and values in exported decoders: finds them, and stores them in low-bit inputs and outputs of the model.

    float                                         stored
    past ─ Q ─ DQ ┐                               past (INT8) ─ DQ ┐
                  ├ Concat ─┬─ present                             ├ Concat ─ Q ─┬─ present (INT8)
    new ── Q ─ DQ ┘         └─ Transpose          new ── Q ─ DQ ───┘             └─ DQ ─ Transpose

Evidence: RTX 1.7.1. The fused kernel of an attention with one query, `_gemv_mha`, reads and writes INT8 (SM86) and
FP8 (SM89) itself. With 64 tokens and 4 heads of 32, it moves 38,656 bytes instead of 137,728, in 4 kernels each. With
16 queries the cache stays INT8 and one kernel more runs (282,624 instead of 458,752 bytes). The Concat may also be
between Q and DQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from qdqtool.core.placement import Placement, Slot, classes
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import copy_message
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import (
    CASTS,
    DEQUANTIZE,
    QDQ,
    QUANTIZE,
    SHAPE_READERS,
    WRITES,
    carried_outputs,
    quantization_commutes,
)

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView


RULE = "kv_cache"
"""Rule whose requests ask for stored caches."""
_Consumers = dict[str, list[tuple[onnx.NodeProto, int]]]
_Numbers = tuple[onnx.TensorProto, onnx.TensorProto]
"""A scale and a zero point; the zero point has the type of the stored values."""


def with_stored_caches(model: Model, floats: GraphView, placement: Placement) -> Model:
    """Return the Q/DQ model whose caches enter and leave in their stored format, if the placement asks for this.

    Args:
        model: the Q/DQ model with float inputs and outputs.
        floats: the graph that was placed.
        placement: what was decided for it.
    """
    slots = {
        decision.slot
        for decision in placement.quantized
        if any(opinion.rule == RULE for opinion in decision.opinions)
    }
    caches = [cache for cache in kv_caches(floats) if slots.issuperset(cache.entries)] if slots else []
    if not caches:
        return model
    edit = Edit(model)
    numbers: dict[str, _Numbers] = {}
    for cache in caches:
        for name in cache.inputs:
            consumers = edit.consumers()
            for quantize in tuple(_quantizers(consumers, name)):
                numbers |= dict.fromkeys((*cache.inputs, *cache.outputs), _numbers(edit, quantize))
                for dequantize, _ in consumers.get(quantize.output[0], []):
                    _pass_by(edit, consumers, dequantize, quantize.input[0])
    _store(edit, numbers)
    edit.prune()
    inputs, outputs = sum(len(cache.inputs) for cache in caches), sum(len(cache.outputs) for cache in caches)
    edit.notes.append(
        f"{count_noun(inputs, 'input')} and {count_noun(outputs, 'output')} now store keys and values in low bits, as place.kv_cache requests ({caches[0].inputs[0]} ...): feed zeros of that type to the first step, and the returned values to each next step"
    )
    return edit.finish(retyped=True)


def detach_caches(model: Model) -> tuple[Model, dict[str, _Numbers]]:
    """Return the model without the Q/DQ of stored caches, so that only Q/DQ for the arithmetic remains.

    A cache stays stored if a node other than its DequantizeLinear reads the integers, or with a scale per channel.
    Also return what `attach_caches` needs: scale and zero point of each input and output that was stored.
    """
    caches = stored_caches(model.view)
    if not caches:
        return model, {}
    edit = Edit(model)
    consumers, makers = edit.consumers(), edit.producers()
    numbers = {}
    for value, reader in _inputs(edit, caches, consumers):
        if not _is_detachable(edit, value.name, reader, consumers):
            continue
        numbers[value.name] = _numbers(edit, reader)
        for node, _ in list(consumers[value.name]):
            if node.op_type == DEQUANTIZE:
                _pass_by(edit, consumers, node, value.name)
        value.type.tensor_type.elem_type = edit.constants[reader.input[1]].data_type
    for value, maker in _outputs(edit, caches, makers):
        if not _is_detachable(edit, value.name, maker, consumers):
            continue
        numbers[value.name] = _numbers(edit, maker)
        for node, _ in list(consumers.get(value.name, [])):
            if node.op_type == DEQUANTIZE:
                _pass_by(edit, consumers, node, maker.input[0])
        edit.remove([maker])
        _call(edit, maker.input[0], value.name)
        value.type.tensor_type.elem_type = edit.constants[maker.input[1]].data_type
    edit.prune()
    return edit.finish(retyped=True), numbers


def _is_detachable(edit: Edit, name: str, node: onnx.NodeProto, consumers: _Consumers) -> bool:
    """Return True if all consumers of an input or output dequantize it with the one scale of `node`, its Q or DQ."""
    own = [
        value for number in node.input[1:] if (value := edit.value(number)) is not None and value.size == 1
    ]
    return len(own) == len(node.input) - 1 and all(
        reader.op_type in SHAPE_READERS
        or (
            reader.op_type == DEQUANTIZE
            and reader.output[0] not in edit.pinned
            and all(edit.value(number) == value for number, value in zip(reader.input[1:], own, strict=False))
        )
        for reader, _ in consumers.get(name, [])
    )


def _call(edit: Edit, tensor: str, name: str) -> None:
    """Rename a tensor to the name of a model output."""
    maker = edit.producers().get(tensor)
    if maker is None or tensor in edit.pinned:
        edit.node("Identity", [tensor], [name], name=f"{name}_Identity")
        return
    for reader, index in edit.consumers().get(tensor, []):
        edit.connect(reader, index, name)
    maker.output[list(maker.output).index(tensor)] = name


def attach_caches(model: Model, numbers: Mapping[str, _Numbers]) -> Model:
    """Return the model with caches stored again, as before `detach_caches`."""
    if not numbers:
        return model
    edit = Edit(model)
    _store(edit, numbers)
    edit.prune()
    return edit.finish(retyped=True)


def _store(edit: Edit, numbers: Mapping[str, _Numbers]) -> None:
    """Turn float caches at inputs and outputs into low-bit ones."""
    for value in edit.inputs:
        if value.name in numbers:
            consumers = edit.consumers()
            restored = _dequantize(edit, value.name, numbers[value.name])
            for node, index in consumers.get(value.name, []):
                if _casts_to(node, numbers[value.name], to_scale=True):
                    _pass_by(edit, consumers, node, restored)
                elif node.op_type not in SHAPE_READERS:
                    edit.connect(node, index, restored)
            value.type.tensor_type.elem_type = numbers[value.name][1].data_type
    for value in edit.outputs:
        if value.name in numbers:
            _store_output(edit, value.name, numbers[value.name])
            value.type.tensor_type.elem_type = numbers[value.name][1].data_type


def _store_output(edit: Edit, name: str, numbers: _Numbers) -> None:
    """Make a model output low-bit, and let its other consumers read the dequantized values."""
    consumers, maker = edit.consumers(), edit.producers()[name]
    readers = consumers.get(name, [])
    if maker.op_type == "Identity" or _casts_to(maker, numbers, to_scale=False):
        source = maker.input[0]
        edit.remove([maker])
        readers += [entry for entry in consumers.get(source, []) if entry[0] is not maker]
    else:
        source = edit.fresh(f"{name}_float")
        maker.output[list(maker.output).index(name)] = source
    scale, zero_point = _put(edit, name, numbers)
    edit.node(QUANTIZE, [source, scale, zero_point], [name], name=f"{name}_QuantizeLinear")
    restored = _dequantize(edit, name, numbers)
    for node, index in readers:
        edit.connect(node, index, source if node.op_type in SHAPE_READERS else restored)


def _casts_to(node: onnx.NodeProto, numbers: _Numbers, *, to_scale: bool) -> bool:
    """Return True if a node is a Cast to the type of the scale; with `to_scale=False`, a Cast to another type."""
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
    return node.op_type == "Cast" and (to == numbers[0].data_type) is to_scale


def _dequantize(edit: Edit, name: str, numbers: _Numbers) -> str:
    result = edit.fresh(f"{name}_DequantizeLinear_Output")
    edit.node(DEQUANTIZE, [name, *_put(edit, name, numbers)], [result], name=f"{name}_DequantizeLinear")
    return result


def _put(edit: Edit, name: str, numbers: _Numbers) -> list[str]:
    """Add the scale and zero point of a cache as constants; return their names."""
    names = []
    for word, tensor in zip(("scale", "zero_point"), numbers, strict=True):
        stored = copy_message(tensor)
        stored.name = edit.fresh(f"{name}_{word}")
        edit.constants[stored.name] = stored
        names.append(stored.name)
    return names


def _numbers(edit: Edit, node: onnx.NodeProto) -> _Numbers:
    return edit.constants[node.input[1]], edit.constants[node.input[2]]


def _quantizers(consumers: _Consumers, name: str) -> Iterator[onnx.NodeProto]:
    """Yield the QuantizeLinear nodes that read a tensor, directly or after a Cast."""
    for node, index in consumers.get(name, []):
        if node.op_type == QUANTIZE and index == 0:
            yield node
        elif node.op_type in CASTS:
            yield from _quantizers(consumers, node.output[0])


def with_float_caches(model: Model) -> Model:
    """Return an equivalent model with float caches at inputs and outputs, for samples and comparisons."""
    caches = stored_caches(model.view)
    if not caches:
        return model
    edit = Edit(model)
    consumers, makers = edit.consumers(), edit.producers()
    for value, reader in _inputs(edit, caches, consumers):
        stored = edit.fresh(f"{value.name}_stored")
        for node, index in consumers[value.name]:
            edit.connect(node, index, stored)
        float_type = _set_float(edit, value, reader)
        source = _cast(edit, value.name, float_type, reader)
        edit.node(QUANTIZE, [source, *reader.input[1:]], [stored], name=f"{value.name}_QuantizeLinear")
    for value, maker in _outputs(edit, caches, makers):
        stored = maker.output[0] = edit.fresh(f"{value.name}_stored")
        for node, index in consumers.get(value.name, []):
            edit.connect(node, index, stored)
        numbers = [stored, *maker.input[1:]]
        edit.node(DEQUANTIZE, numbers, [value.name], name=f"{value.name}_returned_DequantizeLinear")
        value.type.tensor_type.elem_type = edit.constants[maker.input[1]].data_type
    return edit.finish(retyped=True)


def _pass_by(edit: Edit, consumers: _Consumers, node: onnx.NodeProto, tensor: str) -> None:
    """Connect the consumers of a node to `tensor`."""
    for reader, index in consumers.get(node.output[0], []):
        edit.connect(reader, index, tensor)


def _inputs(
    edit: Edit, caches: Iterable[KvCache], consumers: _Consumers
) -> Iterator[tuple[onnx.ValueInfoProto, onnx.NodeProto]]:
    """Yield each model input that is a stored cache, with the DequantizeLinear that reads it."""
    names = {name for cache in caches for name in cache.inputs}
    for value in edit.inputs:
        readers = (node for node, _ in consumers.get(value.name, []) if node.op_type == DEQUANTIZE)
        reader = next(readers, None)
        if value.name in names and reader is not None and _is_constant(edit, reader):
            yield value, reader


def _outputs(
    edit: Edit, caches: Iterable[KvCache], makers: Mapping[str, onnx.NodeProto]
) -> Iterator[tuple[onnx.ValueInfoProto, onnx.NodeProto]]:
    """Yield each model output that is a stored cache, with the QuantizeLinear that makes it."""
    names = {name for cache in caches for name in cache.outputs}
    for value in edit.outputs:
        maker = makers.get(value.name)
        is_quantized = value.name in names and maker is not None and maker.op_type == QUANTIZE
        if is_quantized and maker is not None and _is_constant(edit, maker):
            yield value, maker


def _set_float(edit: Edit, value: onnx.ValueInfoProto, reader: onnx.NodeProto) -> int:
    """Give a cache input the type of the model's other float inputs, or of its outputs; return the type."""
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    read, written = (
        {entry.type.tensor_type.elem_type for entry in ends} & floats for ends in (edit.inputs, edit.outputs)
    )
    types = read or written
    own = edit.constants[reader.input[1]].data_type
    value.type.tensor_type.elem_type = own if not types or own in types else min(types)
    return value.type.tensor_type.elem_type


def _cast(edit: Edit, tensor: str, float_type: int, reader: onnx.NodeProto) -> str:
    own = edit.constants[reader.input[1]].data_type
    if own == float_type:
        return tensor
    result = edit.fresh(f"{tensor}_cast")
    edit.node("Cast", [tensor], [result], name=f"{tensor}_Cast", to=own)
    return result


def _is_constant(edit: Edit, node: onnx.NodeProto) -> bool:
    return len(node.input) > 2 and all(name in edit.constants for name in node.input[1:])


# --- kv caches --------------------------------------------------------------------------------------------------------
# Caches of exported decoders: model inputs whose values an output returns, together with those of the new tokens.
#
#     past_key ──────────────┐
#                            ├ Concat ─┬─ present_key (model output)
#     k_proj ─ ... ─ new_key ┘         └─ Transpose ─ MatMul ─ Softmax ...
#
# A cache is found by its function, not by its name: there are only operators that move values between the input and
# the output, and at least one of them adds values that the network computes.


_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_STORED = frozenset({DType.INT8, DType.FLOAT8})


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache:
    """Values that the model returns at an output and reads again at an input in the next step.

    Attributes:
        inputs: model inputs that hold the values.
        outputs: model outputs that hold the values.
        tensors: all tensors from the inputs to the outputs, both included.
        entries: inputs of the nodes in between that take values from model inputs or from the network.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[str, ...]
    entries: tuple[Slot, ...]


def kv_caches(view: GraphView) -> tuple[KvCache, ...]:
    """Return all float caches of a graph, in graph order; caches that share an operator count as one."""
    return _caches(view, [info.name for info in view.inputs if info.dtype in _FLOATS])


def stored_caches(view: GraphView) -> tuple[KvCache, ...]:
    """Return all caches whose inputs and outputs are low-bit; Q and DQ may be among the operators between."""
    starts = [info.name for info in view.inputs if info.dtype in _STORED]
    return _caches(view, starts) if starts else ()


def _caches(view: GraphView, starts: list[str]) -> tuple[KvCache, ...]:
    held = _leading_to_output(view, _find_moved(view, starts))
    links = {}
    for node in view.nodes:
        if not held.isdisjoint(node.outputs):
            slots = [Slot(node=node.name, index=index) for index in value_inputs(view, node)]
            links[node.name] = (slots, [name for name in (*node.inputs, *node.outputs) if name in held])
    caches = []
    for group in classes(tensors for _, tensors in links.values()):
        inputs = tuple(name for name in starts if name in group)
        slots = [slot for own, tensors in links.values() if group.issuperset(tensors) for slot in own]
        read = [(slot, view.by_name[slot.node].inputs[slot.index]) for slot in slots]
        if all(name in group for _, name in read):
            continue  # nothing is computed: the input is passed through
        computed = (name for node in view.nodes for name in node.outputs)
        caches.append(
            KvCache(
                inputs=inputs,
                outputs=tuple(info.name for info in view.outputs if info.name in group),
                tensors=(*inputs, *(name for name in computed if name in group)),
                entries=tuple(slot for slot, name in read if name in inputs or name not in group),
            )
        )
    return tuple(sorted(caches, key=lambda cache: view.by_name[cache.entries[0].node].position))


def value_inputs(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return the numbers of the inputs whose values `node` returns unchanged; () for operators that compute."""
    if node.op in WRITES:
        plain = node.attribute("reduction", "none") in {"none", b"none"}
        return tuple(index for index in WRITES[node.op] if plain and index < len(node.inputs))
    if node.op == "Concat":
        return tuple(range(len(node.inputs)))
    return (0,) if node.op in QDQ or quantization_commutes(view, node) else ()


def _find_moved(view: GraphView, starts: Iterable[str]) -> frozenset[str]:
    """Return these tensors, and all tensors that hold their values."""
    waiting, holding = list(starts), set(starts)
    while waiting:
        for use in view.uses(waiting.pop()):
            if use.index in value_inputs(view, use.node):
                fresh = {name for name in carried_outputs(use.node) or use.node.outputs if name} - holding
                holding |= fresh
                waiting += fresh
    return frozenset(holding)


def _leading_to_output(view: GraphView, moved: frozenset[str]) -> frozenset[str]:
    """Return the tensors in `moved` whose values reach a model output, including the output itself."""
    waiting = [info.name for info in view.outputs if info.name in moved]
    leading = set(waiting)
    while waiting:
        node = view.producer(waiting.pop())
        if node is not None:
            fresh = {node.inputs[index] for index in value_inputs(view, node)} & moved - leading
            leading |= fresh
            waiting += fresh
    return frozenset(leading)
