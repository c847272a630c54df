"""Layers that launch nothing: what a tensor was before them, and what it becomes behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from qdqtool.core.engine import Role
from qdqtool.core.report import LayerRow, TensorRow


class Silent:
    """The ways through layers that launch nothing, such as NoOp and Constant."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self._before: dict[str, list[TensorRow]] = defaultdict(list)
        self._after: dict[str, list[TensorRow]] = defaultdict(list)
        made = {tensor.name for row in rows if row.role is not Role.NONE for tensor in row.outputs}
        for row in rows:
            if row.role is Role.NONE:
                names = {tensor.name for tensor in row.inputs}
                for tensor in row.outputs:
                    if tensor.name not in made | names:
                        self._before[tensor.name] += row.inputs
                for tensor in row.inputs:
                    self._after[tensor.name] += [end for end in row.outputs if end.name not in names]

    def before(self, tensor: TensorRow) -> list[TensorRow]:
        """The tensors that `tensor` is another word for: itself, or none where it is a constant."""
        return _ends(tensor, self._before)

    def after(self, tensor: TensorRow) -> list[TensorRow]:
        """The tensors that `tensor` becomes in the end: itself where no such layer reads it."""
        return _ends(tensor, self._after)


def _ends(start: TensorRow, steps: dict[str, list[TensorRow]]) -> list[TensorRow]:
    found: dict[str, TensorRow] = {}
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.name in steps:
            waiting += steps[tensor.name]
        else:
            found[tensor.name] = tensor
    return list(found.values())
