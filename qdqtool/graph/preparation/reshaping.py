"""Rewrites Reshape, Squeeze, Resize and Cast into forms that TensorRT takes, and moves Transposes to where they cost nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import numpy as np
import onnx
from onnx import helper

from qdqtool.core.tensors import DType
from qdqtool.graph.beside_attention import reads_attention
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.walk import bodies, restore, skeleton
from qdqtool.graph.view import GraphView, Model, Node, dtype_of
from qdqtool.trt.ops import MAXIMUM_POOLS, MOVING, STANDARD_DOMAINS

# --- products of two dimensions --------------------------------------------------------------------------------------
# Gives matrix products that read an attention's result a two-dimensional input.
#
#     attention ─ [B, L, K] ─ MatMul                      attention ─ Reshape [B * L, K] ─ MatMul ─ Reshape [B, L, N]
#
# Only in the second form TensorRT for RTX dequantizes stored weights inside the kernel of such a product. This form
# needs no more kernels. Evidence: `qdqtool.graph.beside_attention`.


def flatten(edit: Edit, view: GraphView) -> int:
    """Rewrite every MatMul with a weight matrix that reads an attention, so that it has two dimensions; return their number."""
    changed = 0
    for node in tuple(edit.nodes):
        viewed = view.by_name[node.name]
        weight = edit.constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or not reads_attention(view, viewed):
            continue
        shape = view.info(node.input[0]).shape
        if shape is None:
            continue
        depth, columns = weight.dims
        flat, rows_out = edit.fresh(f"{node.name}_flat"), edit.fresh(f"{node.name}_rows")
        rows = edit.constant(f"{node.name}_flat_shape", np.asarray([-1, depth], np.int64))
        back = _shape(edit, node.name, node.input[0], shape[:-1], columns)
        edit.node("Reshape", [node.input[0], rows], [flat], name=f"{node.name}_flat")
        edit.node("Reshape", [rows_out, back], [node.output[0]], name=f"{node.name}_back")
        edit.connect(node, 0, flat)
        edit.write(node, 0, rows_out)
        changed += 1
    return changed


def _shape(edit: Edit, name: str, tensor: str, leading: tuple[int | str, ...], columns: int) -> str:
    """Return the shape of a MatMul result as a tensor; a constant if at most one leading dimension is dynamic."""
    sizes = [size if isinstance(size, int) else -1 for size in leading]
    if sizes.count(-1) < 2:
        return edit.constant(f"{name}_back_shape", np.asarray([*sizes, columns], np.int64))
    whole, kept, joined = (edit.fresh(f"{name}_{word}") for word in ("shape", "leading", "back_shape"))
    begin, end, axis, last = (
        edit.constant(f"{name}_{word}", np.asarray([value], np.int64))
        for word, value in (("begin", 0), ("end", len(leading)), ("axis", 0), ("columns", columns))
    )
    edit.node("Shape", [tensor], [whole], name=f"{name}_shape")
    edit.node("Slice", [whole, begin, end, axis], [kept], name=f"{name}_leading")
    edit.node("Concat", [kept, last], [joined], name=f"{name}_back_shape", axis=0)
    return joined


# --- axes of Squeeze -------------------------------------------------------------------------------------------------
# Writes the axes of a Squeeze without axes, if the shape shows which dimensions have length 1.
#
#     [frames, 1] ─ Squeeze                       [frames, 1] ─ Squeeze axes=[1]
#
# Without axes, the rank of the result depends on the data: a dynamic dimension is also removed if it has length 1.
# TensorRT fixes the rank in the build. RTX 1.7.1 refuses such a Squeeze if the profile allows length 1 ("ISqueezeLayer
# without an axes input requires dimension 0 to not be 1 at runtime"), which is the usual batch: the networks of madmom
# and DNSMOS are examples. With axes, the results are equal for every length except 1; for length 1 the dynamic
# dimension is kept.
#
# Exporters state the rank for their traced sample, which may be a single frame that is also squeezed away. Stated
# shapes of the result and of all later tensors are then removed, because they are wrong for every other length.

_AXES_ARE_AN_INPUT = 13
"""Opset from which the axes are an input; before, they are an attribute."""


def write_squeezed_axes(edit: Edit, view: GraphView) -> int:
    """Write the missing axes of a Squeeze if its input has dynamic dimensions; return the number of changed nodes."""
    changed = 0
    for node in edit.nodes:
        if node.op_type != "Squeeze" or node.domain or any(node.input[1:]) or node.attribute:
            continue
        shape = view.info(node.input[0]).shape or ()
        axes = [axis for axis, dim in enumerate(shape) if dim == 1]
        if not axes or all(isinstance(dim, int) for dim in shape):
            continue
        edit.forget_shapes(_find_derived(view, node.output[0]))
        if edit.opset < _AXES_ARE_AN_INPUT:
            node.attribute.append(helper.make_attribute("axes", axes))
        else:
            named = edit.constant(f"{node.name}_axes", np.asarray(axes, np.int64))
            edit.rewire(node, [node.input[0], named])
        changed += 1
    return changed


def _find_derived(view: GraphView, tensor: str) -> frozenset[str]:
    """Return a tensor and all tensors computed from it."""
    derived, waiting = {tensor}, [tensor]
    while waiting:
        results = {name for use in view.uses(waiting.pop()) for name in use.node.outputs} - derived
        waiting += results
        derived |= results
    return frozenset(derived)


# --- casts -----------------------------------------------------------------------------------------------------------
# Casts images before their axes are moved:
#
#     x (UINT8) ─ Transpose ─ Cast                        x (UINT8) ─ Cast ─ Transpose
#
# TensorRT reads a UINT8 input only by a Cast, and has no UINT8 tensors inside a network.

_KEEPS_VALUES: Final = MOVING - MAXIMUM_POOLS
_HOLD_BYTES: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64, DType.INT32, DType.INT64}
)
"""Types that hold 0 to 255 exactly."""


def moved_to_type(view: GraphView, tensor: str) -> tuple[tuple[Node, ...], int] | None:
    """Return the nodes that move the values of a UINT8 input before a Cast, and the type of the Cast; None if it is read otherwise."""
    moving: list[Node] = []
    kinds: set[int] = set()
    waiting = [tensor]
    while waiting:
        name = waiting.pop()
        if name != tensor and view.is_output(name):
            return None
        for use in view.uses(name):
            if use.node.op == "Cast":
                kinds.add(use.node.integer("to", 0))
            elif use.node.op in _KEEPS_VALUES and use.index == 0:
                moving.append(use.node)
                waiting += use.node.outputs
            else:
                return None
    if not moving or len(kinds) != 1 or dtype_of(kind := kinds.pop()) not in _HOLD_BYTES:
        return None
    return tuple(moving), kind


def cast_first(edit: Edit, view: GraphView) -> int:
    """Cast UINT8 inputs before operators that move their values, instead of after them; return the number of inputs.

    The Casts after these operators become idle.
    """
    changed = 0
    for info in view.inputs:
        chain = moved_to_type(view, info.name) if info.dtype is DType.UINT8 else None
        if chain is None:
            continue
        moving, kind = chain
        wide = edit.fresh(f"{info.name}_cast")
        for node, index in edit.readers(info.name):
            if node.op_type != "Cast":
                edit.connect(node, index, wide)
        edit.node("Cast", [info.name], [wide], name=f"{info.name}_Cast", to=kind)
        edit.forget_shapes(name for node in moving for name in node.outputs)
        changed += 1
    return changed


# --- resizing --------------------------------------------------------------------------------------------------------
# Writes a nearest Resize of TensorFlow's converter in a mode that TensorRT's parser accepts.
#
#     Resize(tf_half_pixel_for_nn, floor)      Resize(half_pixel, round_prefer_ceil)
#
# The first takes the pixel floor((i + 0.5) / scale), the second rounds (i + 0.5) / scale - 0.5 half up: the same
# pixel. For integer scales no value is near an integer, so float rounding cannot make a difference; other scales are
# not changed. TensorRT's parser refuses the first form, ONNX removed its name after opset 12, and onnxruntime warns
# about it.


_GIVEN = (b"nearest", b"tf_half_pixel_for_nn", b"floor")
_SCALES, _SIZES = 2, 3
"""Input numbers of the scales and sizes, which determine the size of the result."""


def write_half_pixels(edit: Edit, view: GraphView) -> int:
    """Rewrite every Resize with tf_half_pixel_for_nn to a whole multiple of its input; return the number of changed nodes."""
    resizes = [node for node in edit.nodes if node.op_type == "Resize" and node.domain in {"", "ai.onnx"}]
    return sum(_rewritten(node, edit, view) for node in resizes)


def _rewritten(node: onnx.NodeProto, edit: Edit, view: GraphView) -> bool:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    mode = attributes["mode"].s if "mode" in attributes else b"nearest"
    transformed, rounded = (
        attributes.get(name) for name in ("coordinate_transformation_mode", "nearest_mode")
    )
    if transformed is None or rounded is None or (mode, transformed.s, rounded.s) != _GIVEN:
        return False
    if not _is_whole(node, edit, view):
        return False
    transformed.s, rounded.s = b"half_pixel", b"round_prefer_ceil"
    return True


def _is_whole(node: onnx.NodeProto, edit: Edit, view: GraphView) -> bool:
    """Return True if a Resize multiplies the length of every axis by a whole number."""
    scales, sizes = (
        edit.value(node.input[at]) if len(node.input) > at and node.input[at] else None
        for at in (_SCALES, _SIZES)
    )
    if sizes is not None and sizes.size:
        shape = view.info(node.input[0]).shape or ()
        is_fixed = len(shape) == sizes.size and all(isinstance(size, int) and size > 0 for size in shape)
        return is_fixed and not np.mod(sizes, np.asarray(shape, np.int64)).any()
    return (
        scales is not None
        and scales.size > 0
        and bool((scales == np.round(scales)).all() and (scales >= 1).all())
    )


# --- transposes ------------------------------------------------------------------------------------------------------
# Moves Transpose nodes to where they cancel or where kernels absorb them, with onnxruntime's TransposeOptimizer.
#
#     x ─ Transpose ─ Slice ─ MatMul  >  x ─ Slice ─ Transpose ─ MatMul
#
# TensorRT uses a separate kernel for a Transpose with several consumers. After a Slice, the Transpose is part of the
# kernel that reads it. A Transpose before elementwise nodes cancels with its inverse after them.
#
# onnxruntime runs this pass alone, in the child process, on the graph without its heavy weights. Only nodes and small
# constants of the result are used, because the result imports eight more domains and lacks metadata. onnxruntime also
# replaces an operator without a CPU kernel (HardSwish) by the operators of its definition; such a result is discarded.
# Nodes keep their names, and so do tensors that keep their values. A tensor whose values are in another order gets a
# new name.
#
# Evidence: RTX 1.7.1 for SM86, INT8, kernels before and after. Fewer kernels: XCiT 309 and 261, RWKV 92 and 56, CoaT
# 182 and 172, RetNet 49 and 47, SSD 35 and 33, GLPN 105 and 104. More kernels: Hiera 90 and 92, FocalNet in FP16 79 and
# 93. The kernels of 15 other networks do not change. Among the networks with fewer kernels, only RWKV has fewer
# Transposes afterwards.


_log = logging.getLogger(__name__)
_MOVES: Final = frozenset({"Transpose", "Squeeze", "Unsqueeze", "Gather"})
"""Operators that the pass adds: Transposes, and what gives a constant the new order."""


def move_transposes(model: Model) -> Model:
    """Return the model with its Transposes moved; the model itself if nothing moves, or if onnxruntime changes anything else."""
    nodes = model.proto.graph.node
    if all(node.op_type != "Transpose" for node in nodes):
        return model
    if any(node.domain not in STANDARD_DOMAINS or any(bodies(node)) for node in nodes):
        return model
    light, heavy = skeleton(model.proto)
    try:
        answer = onnx.ModelProto.FromString(run_pass("transposes", light)).graph
    except (PassRefused, PassExceeded) as error:
        _log.info("Transposes stay where they are: onnxruntime %s", error)
        return model
    before = {(node.name, node.op_type): node for node in nodes}
    after = {(node.name, node.op_type) for node in answer.node}
    gone, added = before.keys() - after, after - before.keys()
    if any(op != "Transpose" for _, op in gone) or any(op not in _MOVES for _, op in added):
        _log.info("Transposes stay where they are: onnxruntime would also change other nodes")
        return model
    if _sum_up(nodes) == _sum_up(answer.node):
        return model
    for node in answer.node:
        original = before.get((node.name, node.op_type))
        if original is not None:
            node.doc_string = original.doc_string
            node.ClearField("metadata_props")
            node.metadata_props.extend(original.metadata_props)
    graph = light.graph
    del graph.node[:], graph.initializer[:]
    graph.node.extend(answer.node)
    graph.initializer.extend(answer.initializer)
    note = "Transposes moved to where they cancel, or where kernels absorb them"
    return Edit(Model(proto=restore(light, heavy), path=model.path, notes=(*model.notes, note))).finish()


def _sum_up(nodes: Iterable[onnx.NodeProto]) -> set[tuple[str, ...]]:
    """Return name, inputs and outputs of each node, to compare two models."""
    return {(node.name, *node.input, "", *node.output) for node in nodes}
