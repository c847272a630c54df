"""A traced network in which every step has a name of its own, so that steps can be found again after export."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from qdqtool.errors import UsageError


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


def flatten(model: nn.Module) -> fx.GraphModule:
    """The network as one flat graph of named modules; parameters are shared with `model`.

    Functions that ask for `self.training` are fixed to what they do in evaluation; modules (nn.Dropout) are not.

    Raises:
        UsageError: the network's path depends on its data, so that it cannot be traced.
    """
    model.eval()
    try:
        traced = fx.symbolic_trace(model)
    except (
        fx.proxy.TraceError,
        TypeError,
        ValueError,
        RuntimeError,
        NotImplementedError,
        AttributeError,
    ) as error:
        raise UsageError(
            f"{type(model).__name__} cannot be traced: {' '.join(str(error).split())[:300]}",
            fix="take branches and loops that depend on data out of forward(), or mark them with torch.fx.wrap",
            where="qat.model",
        ) from error
    return _named(traced)


def _named(traced: fx.GraphModule) -> fx.GraphModule:
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    root: dict[str, Any] = {}
    for node in traced.graph.nodes:
        node.meta = {}
        target = str(node.target)
        if node.op == "get_attr":
            node.target = f"constant_{target.replace('.', '_')}"
            root[node.target] = _attribute(traced, target)
        elif node.op == "call_module":
            root[node.name] = _own(traced.get_submodule(target), calls[target])
        elif node.op == "call_function":
            root[node.name] = Step(node.target)
        elif node.op == "call_method":
            root[node.name] = Step(_unused, target)
        if node.op.startswith("call_"):
            node.op, node.target = "call_module", node.name
    flat = fx.GraphModule(root, traced.graph)
    flat.graph.lint()
    return flat


def _own(module: nn.Module, calls: int) -> nn.Module:
    """The module itself; one without weights that is called several times is copied for each call."""
    if calls == 1:
        return module
    if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
        return copy.deepcopy(module)
    # Through a bound method the module leaves no scope of its own, which would name all calls alike.
    shared = Step(module.forward)
    shared.shared = module
    return shared


def _attribute(module: nn.Module, target: str) -> Any:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _unused(*_: Any) -> None:
    raise AssertionError("a method call never calls its function")


def placeholders(flat: fx.GraphModule) -> tuple[str, ...]:
    """Names of the network's inputs."""
    return tuple(node.name for node in flat.graph.nodes if node.op == "placeholder")


def run(flat: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """What the network returns, tensors as FP32: a tensor, or any structure of tuples, lists and dicts of them."""
    return tree_map(_as_float, flat(*inputs))


def tensors(outputs: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a structure, in its order."""
    return tuple(leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))


def _as_float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
