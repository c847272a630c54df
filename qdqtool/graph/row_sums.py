"""Sums over whole rows in a kernel that quantizes a tensor.

    x ─┬─ ReduceMean ─┐
       └───────────── Sub ─ Q (FP4, constant blocks)      one kernel: not built

TensorRT for RTX 1.7.1 computes all nodes between compute nodes in one kernel. It fails to build a kernel that sums
along the last axes and then quantizes to FP4 with constant block scales: `CHECK(values.size() && values.size() % 2 ==
0)`, or `CHECK(is_constant())` after an RMS normalization with a weight. With computed scales, a separate kernel
quantizes, and all these networks build.

Evidence: 90 builds for SM120. The build fails for:

- LayerNormalization of 32 to 8192 values and 1 to 197 rows in FP16, BF16 and FP32: with Relu, Erf, Clip, a gate, a
  residual Add, a Reshape or an idle Transpose after it, after a convolution, for one compute node or several;
- Softmax, LogSoftmax, Hardmax, LpNormalization, and RMS normalization of single nodes;
- ReduceMean, ReduceSum, ReduceMax, ReduceL1, ReduceL2 and GlobalAveragePool, whether their values are combined with
  the row again or are quantized themselves.

The build succeeds if the builder ends the kernel before Q:

- sums along other axes than the last, of 16384 values and more, and of 4 values and fewer (6 for sums that only add);
- a Transpose, Slice, Gather, Concat, Pad, Expand, pool or CumSum after the sum, or more rows after it than it sums;
- a compute node after the sum, or beside it if another kernel needs the sum earlier;
- InstanceNormalization, ArgMax.
"""

from __future__ import annotations

from math import prod
from typing import Final

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    FP4_DYNAMIC,
    MAY_MOVE,
    POOLS,
    PRODUCTS,
    RECURRENT,
    SHAPE_READERS,
    SOFTMAXES,
    keeps_order,
)

REARRANGING = (MAY_MOVE | {"Expand"}) - {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Operators that reorder, select or repeat values."""


ADDING = frozenset({"ReduceL2", "ReduceSum"})
"""Reductions that only add."""


ROW_SUMS = SOFTMAXES | {"LayerNormalization", "LpNormalization", "RMSNormalization"}
"""Operators that sum along the axis of their attribute, or along all axes from it on, and compute with the sums."""


TRAILING_SUMS = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators of `ROW_SUMS` that sum along all axes from the given axis on."""


WHOLE_CHANNELS = frozenset({"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})
"""Operators that reduce every channel to one value."""


GROUP_SUMS = frozenset({"GroupNormalization", "InstanceNormalization"})
"""Normalizations of channels or groups of channels; separate kernels in RTX 1.7.1."""


OWN_KERNELS = RECURRENT | POOLS | {"CumSum", "GridSample", "ScatterElements", "ScatterND", FP4_DYNAMIC}
"""Operators that are separate kernels in RTX 1.7.1."""


LAST_IN_KERNEL = frozenset({"ArgMax", "ArgMin", "TopK"})
"""Operators after which another kernel begins in RTX 1.7.1."""


LONG_ROW: Final = 16384
"""Row length from which on RTX 1.7.1 uses separate kernels for the sum."""
WRITTEN_OUT: Final = 4
"""Largest length along one axis for which RTX 1.7.1 writes slices instead of a sum."""
ADDED_OUT: Final = 6
"""Largest length along one axis for which RTX 1.7.1 writes slices instead of a sum that only adds."""
_ENDS: Final = PRODUCTS | OWN_KERNELS | LAST_IN_KERNEL | SHAPE_READERS | GROUP_SUMS


class RowSums:
    """Finds row sums for the tensors of one graph; the first question takes time linear in the number of nodes."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._depth: dict[str, int] = {}
        for node in view.nodes:
            self._depth[node.name] = self._before(node) + self._ends(node)

    def in_front(self, tensor: str) -> Node | None:
        """Return the nearest row sum in the kernel that makes a tensor; None if there is none."""
        view = self._view
        waiting, visited = [tensor], {tensor}
        last = view.producer(tensor)
        here = 0 if last is None else self._depth[last.name]
        while waiting:
            node = view.producer(waiting.pop(0))
            if node is None or node.op in _ENDS:
                continue
            if _find_summed_axes(view, node):
                if self._rows(node) and self._is_made_at(node, here) and self._is_as_large(node, tensor):
                    return node
                continue
            if node.op in REARRANGING and not _moves_nothing(view, node):
                continue
            waiting += [name for name in node.inputs if name not in visited]
            visited.update(node.inputs)
        return None

    def _before(self, node: Node) -> int:
        makers = map(self._view.producer, node.inputs)
        return max((self._depth.get(maker.name, 0) for maker in makers if maker is not None), default=0)

    def _is_made_at(self, node: Node, here: int) -> bool:
        """Return True if the kernel at depth `here` contains a node, or is the only reader of its row sum."""
        if self._depth[node.name] == here:
            return True
        uses = [use.node for output in node.outputs for use in self._view.uses(output)]
        return node.op in ROW_SUMS and all(self._before(use) == here for use in uses)

    def _ends(self, node: Node) -> bool:
        """Return True if the nodes after this node are in another kernel."""
        other_sum = bool(_find_summed_axes(self._view, node)) and not self._rows(node)
        return node.op in PRODUCTS | OWN_KERNELS or other_sum

    def _rows(self, node: Node) -> int:
        """Return the number of rows that a node sums along the last axes; 0 for other, short or long sums."""
        summed, sizes = _find_summed_axes(self._view, node), self._sizes(node.inputs[0])
        wide = [axis for axis, size in enumerate(sizes) if size != 1]
        along = [axis for axis in wide if axis in summed]
        length = prod(sizes[axis] for axis in along)
        if not along or along != wide[-len(along) :] or not 0 < length < LONG_ROW:
            return 0
        single = len(along) == 1 and (node.op == "Softmax" or node.op.startswith("Reduce"))
        if single and length <= (ADDED_OUT if node.op in ADDING else WRITTEN_OUT):
            return 0
        return prod(sizes) // length

    def _is_as_large(self, node: Node, tensor: str) -> bool:
        """Return True if a node sums at least the rows of `tensor`, or returns at least as many values.

        A kernel ends if its values spread to more elements.
        """
        sizes = self._sizes(tensor)
        return self._rows(node) >= prod(sizes[:-1]) or prod(self._sizes(node.outputs[0])) >= prod(sizes)

    def _sizes(self, tensor: str) -> list[int]:
        """Return the shape of a tensor; dynamic dimensions count as 1."""
        return [size if isinstance(size, int) else 1 for size in self._view.info(tensor).shape or ()]


def _find_summed_axes(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return the axes that a node sums along; () if it sums nothing, or if the rank is unknown."""
    rank = len(view.info(node.inputs[0]).shape or ()) if node.inputs else 0
    if not rank:
        return ()
    if node.op in WHOLE_CHANNELS:
        return tuple(range(2, rank))
    if node.op in ROW_SUMS:
        axis = node.integer("axis", -1) % rank
        return tuple(range(axis, rank)) if node.op in TRAILING_SUMS else (axis,)
    if not node.op.startswith("Reduce"):
        return ()
    axes = node.attribute("axes", ())
    if not axes and len(node.inputs) > 1:
        constant = view.constant(node.inputs[1])
        axes = () if constant is None else constant.ravel().tolist()
    return tuple(int(axis) % rank for axis in axes) or tuple(range(rank))


def _moves_nothing(view: GraphView, node: Node) -> bool:
    """Return True if a node keeps the order of values in memory."""
    if keeps_order(view, node):
        return True
    shape = view.info(node.inputs[0]).shape
    order = node.attribute("perm", ())
    if node.op != "Transpose" or not shape or not order:
        return False
    wide = [axis for axis in order if shape[axis] != 1]
    return wide == sorted(wide)
