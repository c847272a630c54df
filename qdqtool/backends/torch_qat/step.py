"""Wraps function calls of a network as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Step(nn.Module):
    """One function or method call of the network as a module, so that the exporter keeps its name."""

    def __init__(self, function: Callable[..., Any], method: str = "") -> None:
        super().__init__()
        self.function = function
        self.method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.method:
            return getattr(args[0], self.method)(*args[1:], **kwargs)
        return self.function(*args, **kwargs)


class Weighted(Step):
    """A call with a weight, and optionally a bias, which become its parameters."""

    def __init__(self, function: Callable[..., Any], weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(function)
        self.weight = weight
        self.bias = bias

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(args[0], self.weight, self.bias, *args[1:], **kwargs)
