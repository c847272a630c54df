"""What a product's own kernel does with its result in an engine of TensorRT for RTX.

Convolutions add bias and residual and apply an activation, matrix products quantize. INT8 with one scale per output
channel leaves all of it to a generated kernel, which multiplies by those scales.

Learned from engines of RTX 1.7.1 with one product and one thing behind it.
"""

from __future__ import annotations

from qdqtool.core.dtypes import DType
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.prediction.layers import is_swish
from qdqtool.trt.ops import CONV_ACTIVATIONS, LAYOUT, LONGER_ACTIVATIONS, NOT_TOUCHING, PRODUCTS

_FACTORS = 2
_LOOKED_AT = 24
"""Nodes in front of the other input of a sum that are looked at."""


class Epilogues:
    """Answers what each product takes along."""

    def __init__(self, flow: Flow, precision: dict[str, DType]) -> None:
        self._flow = flow
        self._precision = precision

    def of(self, node: Node) -> tuple[Node, ...]:
        """The nodes behind a product that its own kernel computes, in order."""
        return self._activation(node) if node.op.startswith("Conv") else self._quantize(node)

    def _activation(self, node: Node) -> tuple[Node, ...]:
        """The activation that a convolution does itself, and the bias and residual Add in front of it.

        INT8 with one scale per output channel leaves them to the kernel that multiplies by those scales, and groups of
        several channels to the next one.
        """
        if self._is_scaled_apart(node) or self._is_grouped(node):
            return ()
        readers = self._flow.readers(node.outputs[0])
        taken: tuple[Node, ...] = ()
        while (
            len(readers) == 1 and readers[0].op == "Add" and self._is_last_branch((node, *taken), readers[0])
        ):
            taken, readers = (*taken, *readers), self._flow.readers(readers[0].outputs[0])
        if len(readers) == 1 and readers[0].op in CONV_ACTIVATIONS:
            taken += readers
        elif (swish := is_swish(readers)) or (len(readers) == 1 and readers[0].op in LONGER_ACTIVATIONS):
            last = next(reader for reader in readers if reader.op == "Mul") if swish else readers[0]
            taken += () if self._is_touched(last.outputs[0]) else readers
        return taken

    def _quantize(self, node: Node) -> tuple[Node, ...]:
        """The Q behind an INT8 matrix product without a bias, which needs no kernel where all factors have one scale.

        It moves in front of nodes that only give the values another order.
        """
        readers = self._flow.readers(node.outputs[0])
        while len(readers) == 1 and readers[0].op in LAYOUT:
            readers = self._flow.readers(readers[0].outputs[0])
        biased = len(node.inputs) > _FACTORS
        if biased or self._precision[node.name] is not DType.INT8 or self._is_scaled_apart(node):
            return ()
        return readers if len(readers) == 1 and readers[0].op == "QuantizeLinear" else ()

    def _is_grouped(self, node: Node) -> bool:
        """Whether a convolution has groups, and is not depthwise; transposed ones do their activation all the same."""
        if node.op != "Conv":
            return False
        groups = node.attribute("group", 1)
        shape = self._flow.view.info(node.inputs[1]).shape or ()
        return bool(groups > 1 and len(shape) > 1 and shape[1] != 1)

    def _is_touched(self, tensor: str) -> bool:
        """Whether something behind a tensor makes a kernel that can do its activation too."""
        readers = self._flow.readers(tensor)
        touching = any(reader.op not in NOT_TOUCHING for reader in readers)
        return touching or self._flow.view.is_output(tensor)

    def _is_scaled_apart(self, node: Node) -> bool:
        """Whether a product is INT8 and one of its factors has more than one scale."""
        pairs = [self._flow.origin(node, index) for index in range(_FACTORS)]
        single = all(pair is not None and len(pair.scale) == 1 for pair in pairs)
        return self._precision[node.name] is DType.INT8 and not single

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
