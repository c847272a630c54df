"""Models with small changes for measurements: watched tensors, If nodes that take one branch, other valid roundings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.read import read
from qdqtool.graph.onnx_io.save import (
    SINGLE_FILE_LIMIT,
    leave_in_place,
    serialize,
    store_weights,
    weight_bytes,
)
from qdqtool.graph.onnx_io.walk import copy_message, declaration, is_heavy, parts, reads
from qdqtool.graph.qdq.find import QUANTIZE
from qdqtool.graph.view import Model
from qdqtool.io.files import write_bytes

_GUESS = 1 << 20
"""Elements assumed for a tensor whose number of dimensions is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A model whose outputs are exactly the watched tensors.

    Attributes:
        source: the model, as bytes or as the path of a file.
        inputs: inputs of the model, as in the original.
        outputs: the watched tensors in the order asked for.
        home: the folder with the file's weights, if this is not the folder of the file.
    """

    source: bytes | Path
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    home: Path | None = None


def probe(
    model: Model, tensors: Sequence[str], folder: Path | None = None, *, staying: bool = False
) -> Probe:
    """Return a model that returns `tensors` and computes nothing else; tensors may be inputs, constants or results.

    With `folder`, the model becomes a file in this folder, with its weights beside it; no other process may read the
    folder. Otherwise the model stays in memory, and must be below 2 GiB. With `staying`, weights that are in files of
    one folder are not copied; `home` of the result is this folder.

    Raises:
        UsageError: a tensor is not in the main graph, or a large model came without a folder.
    """
    edit = _watching(model, tensors)
    if folder is None:
        small = edit.finish(shapes=False)
        return Probe(source=_in_memory(small), inputs=small.view.inputs, outputs=small.view.outputs)
    path = folder / "probe.onnx"
    heavy = [tensor for tensor in edit.constants.values() if is_heavy(tensor)]
    data = folder / "probe.data"
    home, stubs = leave_in_place(heavy, data) if staying else (None, store_weights(heavy, data))
    edit.constants |= {stub.name: stub for stub in stubs}
    small = edit.finish(shapes=False)
    write_bytes(path, serialize(small), lasting=False)
    return Probe(source=path, inputs=small.view.inputs, outputs=small.view.outputs, home=home)


def watching(model: Model, tensors: Sequence[str]) -> Model:
    """Return a model that returns `tensors` and computes nothing else; its weights stay where they are.

    Raises:
        UsageError: a tensor is not in the main graph.
    """
    return _watching(model, tensors).finish(shapes=False)


def _watching(model: Model, tensors: Sequence[str]) -> Edit:
    edit = Edit(model)
    producers = edit.producers()
    for name in tensors:
        if not (
            name in producers or name in edit.constants or any(value.name == name for value in edit.inputs)
        ):
            raise UsageError(
                f"the main graph has no tensor {name!r}",
                fix="pass the name of an input, a constant or a node output",
                where=str(model.path),
            )
    edit.outputs = [declaration(model.proto, name) for name in dict.fromkeys(tensors)]
    edit.prune()
    return edit


def within(model: Model, tensors: Iterable[str], room: int) -> Iterator[tuple[str, ...]]:
    """Yield the tensors in groups of at most `room` bytes, each for a run; a larger tensor comes alone."""
    group: list[str] = []
    left = room
    for name in tensors:
        info = model.view.info(name)
        size = (info.dtype.bits or 32) // 8
        size *= _GUESS if info.shape is None else prod(dim for dim in info.shape if isinstance(dim, int))
        if group and size > left:
            yield tuple(group)
            group, left = [], room
        group.append(name)
        left -= size
    if group:
        yield tuple(group)


def _in_memory(model: Model) -> bytes:
    if weight_bytes(model) < SINGLE_FILE_LIMIT:
        return serialize(model)
    raise UsageError("a model above 2 GiB needs a folder for temporary files", fix="pass the run folder")


# --- segment ---------------------------------------------------------------------------------------------------------
# Cuts a piece out of a model: from tensors with known values to a requested tensor.


def segment(model: Model, inputs: Collection[str], output: str) -> Probe:
    """Return the part of a model that computes `output` from the tensors in `inputs`."""
    edit = Edit(model)
    makers = edit.producers()
    edit.remove(makers[name] for name in inputs if name in makers)
    edit.outputs = [declaration(model.proto, output)]
    edit.prune()
    needed = {name for node in edit.nodes for name in reads(node)}
    edit.inputs = [declaration(model.proto, name) for name in inputs if name in needed]
    small = edit.finish()
    return Probe(source=serialize(small), inputs=small.view.inputs, outputs=small.view.outputs)


def boundary(model: Model, inputs: Collection[str], output: str) -> frozenset[str]:
    """Return which tensors in `inputs` the model of `segment` reads."""
    makers = {name: node for node in model.proto.graph.node for name in node.output if name}
    needed: set[str] = set()
    visited = {output}
    waiting = [output]
    while waiting:
        maker = makers.get(waiting.pop())
        fresh = set() if maker is None else set(reads(maker)) - visited
        visited |= fresh
        needed |= fresh & set(inputs)
        waiting += fresh - set(inputs)
    return frozenset(needed)


# --- forced ----------------------------------------------------------------------------------------------------------
# Makes every If of a model take one chosen branch, so that a sample also runs branches that its conditions would skip.


_NAME = "qdqtool_forced_condition"


def force_branches(model: Model, condition: bool) -> Model | None:
    """Return a copy of the model in which every If takes the same branch, then or else, also in bodies; None without an If."""
    if not _ifs(model.proto):
        return None
    proto = copy_message(model.proto)
    for node in _ifs(proto):
        node.input[0] = _NAME
    proto.graph.initializer.append(numpy_helper.from_array(np.array(condition), _NAME))
    return replace(model, proto=proto)


def as_written(model: Model) -> Model:
    """Return the model as it is in the file, without any changes by qdqtool."""
    return Model(proto=read(model.path), path=model.path)


def _ifs(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [part for part in parts(proto.graph) if isinstance(part, onnx.NodeProto) and part.op_type == "If"]


# --- jitter ----------------------------------------------------------------------------------------------------------
# Other valid roundings of a Q/DQ model: slightly changed scales, so that other values cross a rounding boundary.
#
# Implementations differ in the last bits of a float, and these bits decide if a value is next to a rounding boundary.
# Which values are there is chance. So a few models whose scales differ in their last bits, each in another way, show
# how much another order of operations, a fused multiply-add or an approximation may change.


def jitter_scales(model: Model, seed: int, reach: float) -> Model | None:
    """Change every FP32 activation scale by a random share of at most `reach`, drawn with `seed`.

    Return None if the model has no such scale.
    """
    edit = Edit(model)
    draw = np.random.default_rng(seed)
    moved = False
    scales = {
        node.input[1] for node in edit.nodes if node.op_type == QUANTIZE and edit.value(node.input[0]) is None
    }
    for name in sorted(scales):
        value = edit.value(name)
        if value is not None and value.dtype == np.float32:
            edit.put(name, (value * (1 + draw.uniform(-reach, reach))).astype(np.float32))
            moved = True
    return edit.finish() if moved else None
