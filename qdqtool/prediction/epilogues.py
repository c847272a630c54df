"""What a product's own kernel does with its result in an engine of TensorRT for RTX.

Convolutions add bias and residual and apply an activation, those of FP8 no residual; matrix products quantize. Few bits
with one scale per output channel leave all of it to a generated kernel, which multiplies by those scales.

Learned from engines of RTX 1.7.1 with one product and one thing behind it, in INT8 and, for SM89, in FP8 (46 forms).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qdqtool.core.dtypes import DType
from qdqtool.graph.products import has_weights
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.small import is_folded
from qdqtool.prediction.layers import is_swish
from qdqtool.prediction.sums import axes
from qdqtool.trt.ops import (
    CONV_ACTIVATIONS,
    LAYOUT,
    LONGER_ACTIVATIONS,
    MATRIX_PRODUCTS,
    NOT_TOUCHING,
    POINTWISE,
    PRODUCTS,
    keeps_order,
    moves_ones,
)

_FACTORS = 2
_LOOKED_AT = 24
"""Nodes in front of the other input of a sum that are looked at."""


class Epilogues:
    """Answers what each product takes along."""

    def __init__(self, flow: Flow, precision: Mapping[str, DType]) -> None:
        self._flow = flow
        self._precision = precision

    def of(self, node: Node) -> tuple[Node, ...]:
        """The nodes behind a product that its own kernel computes, in order."""
        return self._activation(node) if node.op.startswith("Conv") else self._quantize(node)

    def is_folded(self, node: Node) -> bool:
        """Whether a convolution with Q/DQ is so small that the kernel of its Q computes it."""
        return is_folded(self._flow.view, node) and all(
            self._flow.origin(node, index) for index in range(_FACTORS)
        )

    def is_scaled_behind(self, node: Node) -> bool:
        """Whether a generated kernel behind a matrix product of few bits multiplies by its scales, or adds its bias."""
        if node.op not in MATRIX_PRODUCTS or not self._precision[node.name].is_quantized:
            return False
        return len(node.inputs) > _FACTORS or self.is_scaled_apart(node)

    def turned(self, node: Node) -> Iterator[Node]:
        """The Transposes in front of a product of few bits that its own kernel does.

        A matrix product reads either order of the last two axes, in INT8 beside weights only; an FP8 convolution reads
        channels last. The kernel in front leaves the Transpose to it where it sums up rows, which it could not turn any
        more, and quantizes them.
        """
        channels_last = node.op == "Conv" and self._precision[node.name] is DType.FLOAT8
        if not channels_last and node.op not in MATRIX_PRODUCTS:
            return
        view = self._flow.view
        for index in range(1 if channels_last else _FACTORS):
            pair = self._flow.origin(node, index)
            maker = view.producer(view.by_name[pair.quantize].inputs[0]) if pair and pair.quantize else None
            if maker is None or maker.op != "Transpose" or len(view.uses(maker.outputs[0])) > 1:
                continue
            reads_both = self._precision[node.name] is DType.FLOAT8 or (not index and has_weights(view, node))
            if reads_both and (channels_last or swaps_last(maker)) and self._is_behind_sum(maker):
                yield maker

    def _is_behind_sum(self, node: Node) -> bool:
        """Whether a sum makes what `node` reads, with nothing but element-wise operators behind it."""
        maker = self._flow.view.producer(node.inputs[0])
        for _ in range(_LOOKED_AT):
            if maker is None or axes(self._flow.view, maker) or maker.op not in POINTWISE:
                break
            maker = self._flow.view.producer(maker.inputs[0])
        return maker is not None and bool(axes(self._flow.view, maker))

    def _activation(self, node: Node) -> tuple[Node, ...]:
        """The activation that a convolution does itself, and the bias and residual Add in front of it.

        One scale per output channel leaves them to the kernel that multiplies by those scales, even where there is one
        channel, and groups of several channels to the next one.
        """
        if self.is_scaled_apart(node) or self._is_grouped(node) or self._makes_one_channel(node):
            return ()
        if self.is_folded(node):
            return ()
        readers = self._flow.readers(node.outputs[0])
        taken: tuple[Node, ...] = ()
        sums = self._precision[node.name] is not DType.FLOAT8
        while (
            sums
            and len(readers) == 1
            and readers[0].op == "Add"
            and self._is_last_branch((node, *taken), readers[0])
            and not (self._is_constant_sum(readers[0]) and self._has_own_bias(node))
        ):
            taken, readers = (*taken, *readers), self._flow.readers(readers[0].outputs[0])
        if len(readers) == 1 and readers[0].op in CONV_ACTIVATIONS:
            taken += readers
        elif (swish := is_swish(readers)) or (len(readers) == 1 and readers[0].op in LONGER_ACTIVATIONS):
            last = next(reader for reader in readers if reader.op == "Mul") if swish else readers[0]
            taken += () if self._is_touched(last.outputs[0]) else readers
        if taken and readers and readers[0].op == "HardSigmoid" and self._is_constant_sum(taken[-1]):
            return taken[:-1]  # the constants of both are one
        return taken

    def _is_constant_sum(self, add: Node) -> bool:
        return add.op == "Add" and any(map(self._flow.view.is_constant, add.inputs))

    def _has_own_bias(self, node: Node) -> bool:
        """Whether a float convolution holds a bias, so that a constant behind it is none."""
        return len(node.inputs) > _FACTORS and not self._precision[node.name].is_quantized

    def _quantize(self, node: Node) -> tuple[Node, ...]:
        """The Q behind a matrix product of few bits without a bias, which needs no kernel where all factors have one scale.

        It moves in front of nodes that only give the values another order; those that leave even that alone are taken along.
        """
        view = self._flow.view
        kept: list[Node] = []
        readers = self._flow.readers(node.outputs[0])
        while len(readers) == 1 and readers[0].op in LAYOUT:
            kept += readers if keeps_order(view, readers[0]) or moves_ones(view, readers[0]) else ()
            readers = self._flow.readers(readers[0].outputs[0])
        if not self._precision[node.name].is_quantized or self.is_scaled_behind(node):
            return ()
        return (*kept, *readers) if len(readers) == 1 and readers[0].op == "QuantizeLinear" else ()

    def _is_grouped(self, node: Node) -> bool:
        """Whether a convolution has groups, and is not depthwise; transposed ones do their activation all the same."""
        if node.op != "Conv":
            return False
        groups = node.attribute("group", 1)
        shape = self._flow.view.info(node.inputs[1]).shape or ()
        return bool(groups > 1 and len(shape) > 1 and shape[1] != 1)

    def _makes_one_channel(self, node: Node) -> bool:
        """Whether a convolution of few bits has a single output channel."""
        shape = self._flow.view.info(node.inputs[1]).shape or ()
        return node.op == "Conv" and self._precision[node.name].is_quantized and shape[:1] == (1,)

    def _is_touched(self, tensor: str) -> bool:
        """Whether something behind a tensor makes a kernel that can do its activation too."""
        readers = self._flow.readers(tensor)
        touching = any(reader.op not in NOT_TOUCHING for reader in readers)
        return touching or self._flow.view.is_output(tensor)

    def is_scaled_apart(self, node: Node) -> bool:
        """Whether a product multiplies few bits and one of its factors has more than one scale."""
        pairs = [self._flow.origin(node, index) for index in range(_FACTORS)]
        single = all(pair is not None and len(pair.scale) == 1 for pair in pairs)
        return self._precision[node.name].is_quantized and not single

    def _is_last_branch(self, branch: tuple[Node, ...], add: Node) -> bool:
        """Whether no product makes what else an Add of two values sums after the first of `branch`."""
        taken = {node.name for node in branch}
        makers = [self._flow.view.producer(tensor) for tensor in add.inputs]
        waiting = [maker for maker in makers if maker is not None and maker.name not in taken]
        for _ in range(_LOOKED_AT):
            if not waiting:
                break
            node = waiting.pop()
            if node.op in PRODUCTS and node.position > branch[0].position:
                return False
            if node.op not in PRODUCTS and node.position > branch[0].position:
                waiting += filter(None, map(self._flow.view.producer, node.inputs))
        return True


def swaps_last(node: Node) -> bool:
    """Whether a Transpose swaps the last two axes and no others."""
    order = list(node.attribute("perm", ()))
    return len(order) > 1 and order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]
