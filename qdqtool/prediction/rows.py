"""Float products of one row in TensorRT for RTX: which of their neighbours they share a kernel with.

    Tanh ─ MatMul │ Add ─ Relu ─ MatMul │ Add          a bias at the end of the network is a kernel of its own

Such a product is no matrix kernel but products that are added up, in a generated kernel, which takes more along: what is
computed element by element in front of it; behind it a bias with an activation where another such product reads them, or
else a Relu alone. A sum of 448 values and more takes all of both. From 2^18 weights on it is a matrix kernel, which
does what is behind it at the end of the network.

Evidence: RTX 1.7.1, FP32, SM86: chains of one to four MatMul and Gemm of 16 to 2048 rows and 2 to 1000 columns with biases
and activations in front of, between and behind them (56 builds); 384 values are added up without their bias, 448 with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.prediction.sums import axes, is_row, is_scalar_product, is_written_out
from qdqtool.trt.ops import LAYOUT, MATRIX_PRODUCTS, OWN_KERNELS, PRODUCTS, QUANTIZE

_LONG = 448
"""Values in a sum from which on its kernel adds the bias; see this file's docstring."""
_LARGE = 1 << 18
"""Weights from which on a matrix kernel multiplies one row; 240000 are added up."""
_FACTORS = 2
_NOT_ELEMENTWISE = PRODUCTS | OWN_KERNELS | {QUANTIZE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What becomes of the kernels around products of one row.

    Attributes:
        joined: product -> the members (by number) that its kernel takes along.
        apart: products whose bias is a kernel of its own, that no other node stands in.
    """

    joined: Mapping[str, tuple[int, ...]]
    apart: tuple[str, ...]


def rows(flow: Flow, members: Sequence[Sequence[str]], low: Collection[str]) -> Rows:
    """Decide for all float products of one row.

    Args:
        flow: the model.
        members: the nodes of every kernel so far; a node may stand in two, the first of which sums.
        low: the products that multiply few bits.
    """
    return _Joining(flow, members, low).found()


class _Joining:
    """Looks at the kernels in front of and behind each product, in graph order."""

    def __init__(self, flow: Flow, members: Sequence[Sequence[str]], low: Collection[str]) -> None:
        self._view = flow.view
        self._members = [[flow.view.by_name[name] for name in names] for names in members]
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for number, names in enumerate(members):
            for name in names:
                self._first.setdefault(name, number)
                self._last[name] = number
        self._products = {
            node.name: node
            for node in flow.products()
            if node.name not in low
            and self._is_one_row(node)
            and members[self._first[node.name]] == [node.name]
        }

    def found(self) -> Rows:
        """What is joined, and what is apart."""
        taken: set[int] = set()
        joined: dict[str, tuple[int, ...]] = {}
        apart: list[str] = []
        for name, node in self._products.items():
            small = self._is_small(node)
            front = self._front(node) if small else None
            front = None if front in taken else front
            normalizes = front is not None and any(axes(self._view, each) for each in self._members[front])
            behind = self._behind(node)
            behind = None if behind in taken or not self._takes(node, behind, normalizes) else behind
            found = tuple(number for number in (front, behind) if number is not None)
            taken.update(found)
            if found:
                joined[name] = found
            if (
                small
                and not self._view.uses(node.outputs[0])
                and self._is_biased(node)
                and self._sum(node) < _LONG
            ):
                apart.append(name)
        return Rows(joined=joined, apart=tuple(apart))

    def _is_one_row(self, node: Node) -> bool:
        """Whether a product with stored weights has one row, and is neither a single sum nor written out."""
        view = self._view
        if node.op not in MATRIX_PRODUCTS or not view.is_constant(node.inputs[1]) or not is_row(view, node):
            return False
        return not is_scalar_product(view, node) and not is_written_out(view, node)

    def _is_small(self, node: Node) -> bool:
        """Whether a generated kernel adds a product up, and no matrix kernel multiplies it."""
        return (self._view.info(node.inputs[1]).elements or 0) < _LARGE

    def _sum(self, node: Node) -> int:
        """Values that each result of a product adds up; 0 where that is not known."""
        shape = self._view.info(node.inputs[1]).shape or ()
        turned = node.op == "Gemm" and node.attribute("transB", 0)
        size = shape[-1 if turned else 0] if len(shape) == _FACTORS else 0
        return size if isinstance(size, int) else 0

    def _is_biased(self, node: Node) -> bool:
        return len(node.inputs) > _FACTORS

    def _front(self, node: Node) -> int | None:
        """The kernel that makes what a product alone reads, element by element."""
        maker = self._view.producer(node.inputs[0])
        if maker is None or len(self._view.uses(node.inputs[0])) > 1:
            return None
        number = self._last.get(maker.name)
        return number if number is not None and self._is_elementwise(number) else None

    def _behind(self, node: Node) -> int | None:
        """The kernel of the only reader of a product, if it computes element by element."""
        uses = self._view.uses(node.outputs[0])
        if len(uses) != 1 or self._view.is_output(node.outputs[0]):
            return None
        number = self._last.get(uses[0].node.name)
        return number if number is not None and self._is_elementwise(number) else None

    def _is_elementwise(self, number: int) -> bool:
        """Whether a kernel sums and rounds nothing; it may normalize by the sums of another."""
        nodes = self._members[number]
        if any(node.op in _NOT_ELEMENTWISE for node in nodes):
            return False
        return not any(axes(self._view, node) and self._first[node.name] == number for node in nodes)

    def _takes(self, product: Node, number: int | None, normalizes: bool) -> bool:
        """Whether the kernel of a product does what is behind it."""
        if number is None:
            return False
        nodes = self._members[number]
        readers = [use.node for node in nodes for tensor in node.outputs for use in self._view.uses(tensor)]
        if not self._is_small(product):
            return all(reader in nodes for reader in readers)
        if self._sum(product) >= _LONG:
            return True
        first = self._view.uses(product.outputs[0])[0].node
        adds = first.op == "Add" and any(map(self._view.is_constant, first.inputs))
        computing = [node for node in nodes if node.op not in LAYOUT and not (adds and node is first)]
        biased = adds or self._is_biased(product)
        if any(reader.name in self._products and self._is_small(reader) for reader in readers):
            return biased and bool(computing) and not normalizes
        return not biased and all(node.op == "Relu" for node in computing)
