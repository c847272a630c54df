"""Records networks that torch.fx cannot trace with torch.export, and gives layers their weights back.

torch.export follows branches and loops over shapes, which it fixes, and lists the weights as constants of the graph.
Training needs them at the layer that uses them, where quantizers look for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qdqtool.backends.torch_qat.step import Weighted

_ATEN = torch.ops.aten
_LAYERS = {
    _ATEN.linear.default,
    _ATEN.conv1d.default,
    _ATEN.conv2d.default,
    _ATEN.conv3d.default,
    _ATEN.conv_transpose1d.default,
    _ATEN.conv_transpose2d.input,
    _ATEN.conv_transpose3d.input,
}
_FUNCTIONS = {
    _ATEN.arange.default: torch.arange,
    _ATEN.arange.start: torch.arange,
    _ATEN.full.default: torch.full,
    _ATEN.ones.default: torch.ones,
    _ATEN.zeros.default: torch.zeros,
}
"""Replacements for operators that take only numbers, for exporters that represent sizes as tensors."""
_METHODS = {_ATEN.sym_size.int: "size"}
"""Operators that are replaced by a method call, so that an exporter sees where a size comes from."""


def record(
    model: nn.Module, example: tuple[torch.Tensor, ...], names: tuple[str, ...] = ()
) -> fx.GraphModule:
    """Record the network with torch.export, with a free batch dimension; parameters are shared with `model`."""
    batch = tuple(value if len(value) > 1 else torch.cat([value, value]) for value in example)
    free = [{0: torch.export.Dim.AUTO} for _ in batch]
    if names:
        program = torch.export.export(
            model,
            (),
            kwargs=dict(zip(names, batch, strict=True)),
            dynamic_shapes=dict(zip(names, free, strict=True)),
        )
    else:
        program = torch.export.export(model, batch, dynamic_shapes=tuple(free))
    recorded: Any = program.module(check_guards=False)
    for node in list(recorded.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _LAYERS:
            _own_weight(recorded, node)
        elif node.target is _ATEN.batch_norm.default:
            _own_norm(recorded, node)
        elif node.target in _FUNCTIONS:
            node.target = _FUNCTIONS[node.target]
        elif node.target in _METHODS:
            node.op, node.target = "call_method", _METHODS[node.target]
    recorded.graph.eliminate_dead_code()
    plain = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    result = plain.graph_copy(recorded.graph, values)
    # Of lists and dicts the recorded graph holds the leaves only; the structure is its own code's work.
    spec = program.call_spec.out_spec
    plain.output(result if spec is None else plain.call_function(_structured(spec), (result,)))
    return fx.GraphModule(recorded, plain)


def _structured(spec: Any) -> Any:
    def structured(leaves: Any) -> Any:
        return torch.utils._pytree.tree_unflatten(list(leaves), spec)  # noqa: SLF001

    return structured


def _own_weight(recorded: fx.GraphModule, node: fx.Node) -> None:
    weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or len(weight.users) > 1:
        return
    if isinstance(bias, fx.Node) and bias.op != "get_attr":
        return
    layer = Weighted(
        node.target,
        _parameter(recorded, weight),
        _parameter(recorded, bias) if isinstance(bias, fx.Node) else None,
    )
    name = f"layer_{node.name}"
    recorded.add_submodule(name, layer)
    node.op, node.target, node.args = "call_module", name, (node.args[0], *node.args[3:])


def _own_norm(recorded: fx.GraphModule, node: fx.Node) -> None:
    """Turn a recorded BatchNorm back into a module, so that it can be folded and its statistics updated or frozen."""
    value, weight, bias, mean, variance, _, momentum, epsilon, _ = node.args
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    running = _parameter(recorded, mean)
    norm: Any = kinds[node.meta["val"].ndim](
        len(running), eps=epsilon, momentum=momentum, affine=weight is not None
    )
    norm.running_mean, norm.running_var = running, _parameter(recorded, variance)
    if weight is not None:
        norm.weight, norm.bias = _parameter(recorded, weight), _parameter(recorded, bias)
    name = f"norm_{node.name}"
    recorded.add_submodule(name, norm.eval())
    node.op, node.target, node.args = "call_module", name, (value,)


def _parameter(recorded: fx.GraphModule, node: fx.Node) -> Any:
    found: Any = recorded
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found
