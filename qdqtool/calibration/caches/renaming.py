"""A cache of another export of the same network: other tensor names, the same tensors in the same order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtool.calibration.caches.cache import Cache
from qdqtool.core.wording import counted
from qdqtool.errors import UsageError
from qdqtool.trt.ops import SHAPE_MAKERS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView

OWN_NAMES = ("(Unnamed Layer*", "(Unnamed ITensor*")
"""How TensorRT calls tensors that it invents; no ONNX model has them."""


def running_order(view: GraphView) -> tuple[str, ...]:
    """The float tensors that hold data, inputs first, in graph order; what only computes shapes is left out."""
    data = [info.name for info in view.inputs if info.dtype.is_float]
    known = set(data)
    for node in view.nodes:
        if node.op in SHAPE_MAKERS or not known.intersection(node.inputs):
            continue
        made = [name for name in node.outputs if name and view.info(name).dtype.is_float]
        data += made
        known.update(made)
    return tuple(data)


def named_entries(cache: Cache) -> tuple[str, ...]:
    """The tensors of a cache in its order, without those that TensorRT invented."""
    return tuple(tensor for tensor in cache.by_tensor() if not tensor.startswith(OWN_NAMES))


def is_shifted(cache: Cache, view: GraphView) -> bool:
    """Whether the cache has one entry for every tensor of the model, but under other names."""
    ours, theirs = running_order(view), named_entries(cache)
    return len(ours) == len(theirs) and set(ours) != set(theirs)


def renamed(cache: Cache, view: GraphView) -> Cache:
    """The cache with its entries under the names of the model, paired by order; TensorRT's own names stay.

    Raises:
        UsageError: model and cache have different numbers of tensors, so that order says nothing.
    """
    ours, theirs = running_order(view), named_entries(cache)
    if len(ours) != len(theirs):
        raise UsageError(
            f"the model has {counted(len(ours), 'float tensor')}, the cache {len(theirs)}: they cannot be paired by order",
            fix="use the ONNX file that was calibrated, or calibrate again",
        )
    names = dict(zip(theirs, ours, strict=True))
    entries = (replace(entry, tensor=names.get(entry.tensor, entry.tensor)) for entry in cache.entries)
    return replace(cache, entries=tuple(entries))
