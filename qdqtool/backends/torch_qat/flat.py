"""Traces a PyTorch network to a flat graph. Every step gets a unique name, which survives the export."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from qdqtool.errors import UsageError

# --- attention -------------------------------------------------------------------------------------------------------
# Expands scaled_dot_product_attention into its two MatMuls, so that both are trained and exported in the same way.
#
# As a single step, torch would run it in float, and the inputs of its products would have no quantizers. The scale
# multiplies the scores and not the queries, so that Q/DQ pairs are directly after the projections.


_CALLS = {functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default}
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def expand(traced: fx.GraphModule) -> None:
    """Replace attention calls by MatMul and Softmax steps, in place.

    Calls with dropout, a causal mask or grouped-query heads remain unchanged.
    """
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target in _CALLS:
            arguments = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
            if not (arguments.get("dropout_p") or arguments.get("is_causal") or arguments.get("enable_gqa")):
                with traced.graph.inserting_before(node):
                    product = _products(traced.graph, arguments)
                node.replace_all_uses_with(product)
                traced.graph.erase_node(node)


def _products(graph: fx.Graph, arguments: dict[str, Any]) -> fx.Node:
    keys = graph.call_function(torch.transpose, (arguments["key"], -2, -1))
    scores = graph.call_function(torch.matmul, (arguments["query"], keys))
    scores = graph.call_function(_scale_scores, (scores, arguments["query"], arguments.get("scale")))
    if arguments.get("attn_mask") is not None:
        scores = graph.call_function(_mask_scores, (scores, arguments["attn_mask"]))
    weights = graph.call_function(torch.softmax, (scores, -1))
    return graph.call_function(torch.matmul, (weights, arguments["value"]))


def _scale_scores(scores: torch.Tensor, query: torch.Tensor, scale: float | None) -> torch.Tensor:
    return scores * (query.shape[-1] ** -0.5 if scale is None else scale)


def _mask_scores(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # The lowest float instead of -Inf: a completely masked row would become NaN.
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask


# --- exported --------------------------------------------------------------------------------------------------------
# Records networks that torch.fx cannot trace with torch.export, and returns the weights to their layers.
#
# torch.export follows branches and loops over shapes, fixes the shapes, and lists the weights as constants of the
# graph. Training and quantizers need the weights in the layers that use them.


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
    """Record the network with torch.export, with a dynamic batch dimension; parameters are shared with `model`."""
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
    # The recorded graph holds only the leaves of lists and dicts; its generated code handles the structure.
    spec = program.call_spec.out_spec
    plain.output(result if spec is None else plain.call_function(_find_structure(spec), (result,)))
    return fx.GraphModule(recorded, plain)


def _find_structure(spec: Any) -> Any:
    def restore_structure(leaves: Any) -> Any:
        return torch.utils._pytree.tree_unflatten(list(leaves), spec)  # noqa: SLF001

    return restore_structure


def _own_weight(recorded: fx.GraphModule, node: fx.Node) -> None:
    weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or len(weight.users) > 1:
        return
    if isinstance(bias, fx.Node) and bias.op != "get_attr":
        return
    layer = Weighted(
        node.target,
        _member(recorded, str(weight.target)),
        _member(recorded, str(bias.target)) if isinstance(bias, fx.Node) else None,
    )
    name = f"layer_{node.name}"
    recorded.add_submodule(name, layer)
    node.op, node.target, node.args = "call_module", name, (node.args[0], *node.args[3:])


def _own_norm(recorded: fx.GraphModule, node: fx.Node) -> None:
    """Turn a recorded BatchNorm back into a module, so that it can be folded or frozen."""
    value, weight, bias, mean, variance, _, momentum, epsilon, _ = node.args
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    running = _member(recorded, str(mean.target))
    norm: Any = kinds[node.meta["val"].ndim](
        len(running), eps=epsilon, momentum=momentum, affine=weight is not None
    )
    norm.running_mean, norm.running_var = running, _member(recorded, str(variance.target))
    if weight is not None:
        norm.weight, norm.bias = _member(recorded, str(weight.target)), _member(recorded, str(bias.target))
    name = f"norm_{node.name}"
    recorded.add_submodule(name, norm.eval())
    node.op, node.target, node.args = "call_module", name, (value,)


def _member(module: nn.Module, path: str) -> Any:
    member: Any = module
    for part in path.split("."):
        member = getattr(member, part)
    return member


# --- flat ------------------------------------------------------------------------------------------------------------


_LOGGER = logging.getLogger(__name__)
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers that are wrapped separately inside a part that cannot be traced."""
_REFUSALS = (
    fx.proxy.TraceError,
    TypeError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    AttributeError,
    AssertionError,
    KeyError,
)
"""Exceptions of torch when a network's path depends on its data."""


def flatten(
    model: nn.Module, example: tuple[torch.Tensor, ...] = (), names: tuple[str, ...] = ()
) -> fx.GraphModule:
    """Return the network as one flat graph of named modules; parameters are shared with `model`.

    The inputs of the graph are the inputs of forward() with an example: the first ones, or those called `names`.

    If torch.fx cannot trace a network, `torch.export` records it with the example inputs, which fixes all values that
    depend on shapes. If that fails too, parts that cannot be traced stay whole. Such a part is one step, in which
    only its Conv and Linear layers are trained. The whole network may be such a part.

    Functions that read `self.training` are fixed to their behaviour in evaluation; modules (nn.Dropout) are not.

    Raises:
        UsageError: the network's path depends on its data, so that it cannot be traced.
    """
    model.eval()
    defaults = _defaults(model, len(example), names) if example else {}
    try:
        return _name_modules(_without(fx.symbolic_trace(model, concrete_args=defaults or None), defaults))
    except _REFUSALS as error:
        refusal: Exception = error
    if example:
        try:
            return _name_modules(record(model, example, names))
        except (*_REFUSALS, torch._dynamo.exc.TorchDynamoException) as error:  # noqa: SLF001 -- no public base class
            refusal = error
    whole = _untraceable(model, defaults)
    if model not in whole:
        graph = _Around(whole).trace(model, defaults or None)
        _warn(name for name, module in model.named_modules() if module in whole)
        return _name_modules(_without(fx.GraphModule(model, graph), defaults))
    if example and any(isinstance(module, LAYERS) for module in model.modules()):
        _warn([type(model).__name__])
        return _name_modules(_as_one_step(model, len(example), names))
    raise UsageError(
        f"{type(model).__name__} cannot be traced: {' '.join(str(refusal).split())[:300]}",
        fix="remove branches and loops that depend on data from forward(), move them into a separate module, or mark them with torch.fx.wrap",
        where="qat.model",
    ) from refusal


def _warn(parts: Iterable[str]) -> None:
    """Warn that the control flow of these parts is exported as the example inputs take it."""
    _LOGGER.warning(
        "the control flow of %s depends on data: only its layers get quantizers, and the exported model follows the path of the example inputs",
        ", ".join(parts),
    )


def _as_one_step(model: nn.Module, count: int, names: tuple[str, ...]) -> fx.GraphModule:
    """Return a graph in which the whole network is a single step."""
    graph = fx.Graph()
    arguments = names or tuple(inspect.signature(model.forward).parameters)[:count]
    inputs = {name: graph.placeholder(name) for name in arguments}
    graph.output(
        graph.call_module("network", kwargs=inputs)
        if names
        else graph.call_module("network", tuple(inputs.values()))
    )
    return fx.GraphModule({"network": model}, graph)


def _defaults(model: nn.Module, count: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the default values of those arguments of forward() that are not passed."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    left = [entry for entry in parameters if entry.name not in names] if names else parameters[count:]
    return {entry.name: entry.default for entry in left if entry.default is not inspect.Parameter.empty}


def _without(traced: fx.GraphModule, defaults: Mapping[str, Any]) -> fx.GraphModule:
    """Remove forward() inputs that keep their default values, and the tracer's checks of them."""
    for node in list(traced.graph.nodes):
        name, _, number = str(node.target).rpartition("_")  # torch.fx numbers the inputs that it fixes
        if node.op == "placeholder" and name in defaults and number.isdecimal():
            _erase(node)
        elif node.op == "placeholder" and str(node.target).startswith("*") and not node.users:
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def _erase(node: fx.Node) -> None:
    for reader in list(node.users):
        _erase(reader)
    node.graph.erase_node(node)


class _Around(fx.Tracer):
    """A torch.fx tracer that treats the modules in `whole` as single steps."""

    def __init__(self, whole: set[nn.Module]) -> None:
        super().__init__()
        self._whole = whole

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self._whole or super().is_leaf_module(m, module_qualified_name)


def _untraceable(model: nn.Module, defaults: dict[str, Any]) -> set[nn.Module]:
    """Return the innermost modules that torch.fx cannot trace, or `model` itself."""
    whole: set[nn.Module] = set()
    # Children come after their parents: in reverse order, each inner module is handled before its outer module.
    for module in reversed(list(model.modules())):
        tracer = _Around(whole)
        if next(module.children(), None) is None and tracer.is_leaf_module(module, ""):
            continue
        if module is not model and isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            continue
        try:
            tracer.trace(module, (defaults or None) if module is model else None)
        except _REFUSALS:
            whole.add(module)
    return whole


def _name_modules(traced: fx.GraphModule) -> fx.GraphModule:
    expand(traced)
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    root: dict[str, Any] = {}
    visited: set[str] = set()
    for node in traced.graph.nodes:
        node.meta = {}
        if node.op != "placeholder" and hasattr(fx.GraphModule, node.name):
            # A step called `to` or `float` would hide a method of its module.
            node.name = f"{node.name}_step"
        target = str(node.target)
        if node.op == "get_attr":
            node.target = f"constant_{target.replace('.', '_')}"
            root[node.target] = _member(traced, target)
        elif node.op == "call_module":
            root[node.name] = _own(traced.get_submodule(target), calls[target], first=target not in visited)
            visited.add(target)
        elif node.op == "call_function":
            root[node.name] = Step(node.target)
        elif node.op == "call_method":
            root[node.name] = Step(_refuse_call, target)
        if node.op.startswith("call_"):
            node.op, node.target = "call_module", node.name
    flat = fx.GraphModule(root, traced.graph)
    flat.graph.lint()
    return flat


def _own(module: nn.Module, calls: int, *, first: bool) -> nn.Module:
    """Return a module for one call in the traced graph. A module without weights is copied for each call.

    If it is called several times, a module without weights is copied, and one with weights is shared.
    """
    if calls == 1:
        return module
    if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
        return copy.deepcopy(module)
    # A call through a bound method records no scope of its own: a scope would give all calls one name.
    shared = Step(module.forward)
    if first:
        # Registered once, so that a checkpoint holds its weights once.
        shared.shared = module
    return shared


def _refuse_call(*_: Any) -> None:
    raise AssertionError("a method call never calls its function")


def placeholders(flat: fx.GraphModule) -> tuple[str, ...]:
    """Return the names of the network's inputs."""
    return tuple(node.name for node in flat.graph.nodes if node.op == "placeholder")


def run(flat: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Run the network and return its outputs, floating-point tensors as FP32.

    The outputs may be a tensor, or any structure of tuples, lists, dicts and dataclasses.
    """
    return _as_float(flat(*inputs))


def tensors(outputs: Any) -> tuple[torch.Tensor, ...]:
    """Return all tensors in nested lists, tuples and dicts, in order."""
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    return tuple(leaf for part in _parts(outputs) for leaf in tensors(part))


def _parts(outputs: Any) -> tuple[Any, ...]:
    if isinstance(outputs, Mapping):
        return tuple(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return tuple(outputs)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return tuple(getattr(outputs, field.name) for field in dataclasses.fields(outputs))
    return ()


def with_tensors_only(flat: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of the network that returns a plain tuple of tensors, because ONNX supports no other structure."""
    graph = copy.deepcopy(flat.graph)
    output = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        plain = graph.call_function(tensors, (output.args[0],))
    output.args = (plain,)
    network = fx.GraphModule(flat, graph)
    return network.train(flat.training)


def _as_float(outputs: Any) -> Any:
    return map_tensors(outputs, lambda value: value.float() if value.is_floating_point() else value)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a copy of a structure with `change` applied to every tensor, in the order of `tensors()`."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, Mapping):
        # A copy instead of `replace`, which would run __post_init__ again.
        result = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(result, field.name, map_tensors(getattr(value, field.name), change))
        return result
    if isinstance(value, Mapping):
        entries = {name: map_tensors(entry, change) for name, entry in value.items()}
        return entries if type(value) is dict else type(value)(**entries)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(entry, change) for entry in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(entry, change) for entry in value)
    return value


def join_batches(batches: Sequence[Any], counts: Sequence[int]) -> Any:
    """Join batches into one structure; `counts` has the number of samples of each batch.

    Lists with an entry for each sample, such as the boxes of each picture, become one list. A tensor without a sample
    dimension must be equal in all batches, or be a single number, which comes from the first batch.

    Raises:
        UsageError: values of later batches would be lost.
    """
    if _is_per_sample(batches, counts):
        return [entry for batch in batches for entry in batch]
    columns = [tensors(batch) for batch in batches]
    if len({len(column) for column in columns}) > 1:
        raise _unjoinable("the number of tensors differs between batches")
    leaves = iter([_join_column(column, counts) for column in zip(*columns, strict=True)])
    return map_tensors(batches[0], lambda _: next(leaves))


def _join_column(column: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    first = column[0]
    if first.ndim and all(len(value) == count for value, count in zip(column, counts, strict=True)):
        return torch.cat(list(column))
    if first.ndim and not all(torch.equal(first, value) for value in column):
        raise _unjoinable(
            f"a tensor of shape {tuple(first.shape)} in a batch of {counts[0]} has no row per sample"
        )
    return first


def _unjoinable(problem: str) -> UsageError:
    return UsageError(
        f"the batches cannot be joined for the metric: {problem}",
        fix="return tensors with one row per sample, filled up to one length, or a list with one entry per sample",
        where="qat.metric",
    )


def _is_per_sample(batches: Sequence[Any], counts: Sequence[int]) -> bool:
    """Return True if all batches are lists with one entry per sample, and not of tensors with one row per sample."""
    pairs = list(zip(batches, counts, strict=True))
    are_long = all(isinstance(batch, (tuple, list)) and len(batch) == count for batch, count in pairs)
    leaves = ((leaf, count) for batch, count in pairs for leaf in tensors(batch))
    return are_long and any(not leaf.ndim or len(leaf) != count for leaf, count in leaves)


def pick_samples(value: Any, rows: Any, count: int) -> Any:
    """Return the samples with the numbers `rows`, from a structure of tensors.

    A tensor whose first dimension is `count` has one row per sample; other tensors are returned whole.
    """
    chosen = torch.as_tensor(rows)
    if _is_per_sample([value], [count]):
        return [value[row] for row in chosen.tolist()]
    return map_tensors(value, lambda leaf: leaf[chosen] if leaf.ndim and len(leaf) == count else leaf)


# --- step -------------------------------------------------------------------------------------------------------------
# Wraps function calls of a network as modules.


class Step(nn.Module):
    """One function or method call of a traced network as a module, so that the exporter keeps its name."""

    def __init__(self, function: Callable[..., Any], method: str = "") -> None:
        super().__init__()
        self.function = function
        self.method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.method:
            return getattr(args[0], self.method)(*args[1:], **kwargs)
        return self.function(*args, **kwargs)


class Weighted(Step):
    """A traced call whose weight and bias become parameters of a module."""

    def __init__(self, function: Callable[..., Any], weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(function)
        self.weight = weight
        self.bias = bias

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(args[0], self.weight, self.bias, *args[1:], **kwargs)
