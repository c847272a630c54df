"""Reads example inputs and batches in the forms of common training loops."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from qdqtool.backends.torch_qat.flat import flatten, placeholders
from qdqtool.backends.torch_qat.quantized_model import fold_norms
from qdqtool.core.recipe import QatOptions
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError, UsageError


def example_of(inputs: Any, network: nn.Module) -> tuple[tuple[torch.Tensor, ...], tuple[str, ...]]:
    """Return example inputs in the order of forward(), and their names. Each has one sample, on the device of the network.

    The names are empty if the inputs have none.

    Raises:
        UsageError: the inputs have another type.
    """
    named = isinstance(inputs, Mapping)
    if named:
        order = {name: place for place, name in enumerate(inspect.signature(network.forward).parameters)}
        unknown = [name for name in inputs if name not in order]
        if unknown:
            raise UsageError(
                f"forward() of {type(network).__name__} has no {', '.join(map(repr, unknown))}",
                fix=f"use the names of its inputs: {', '.join(order)}",
                where="example_inputs",
            )
        inputs = {name: inputs[name] for name in sorted(inputs, key=order.__getitem__)}
    values = inputs.values() if named else inputs
    values = tuple(values) if isinstance(inputs, (Mapping, tuple, list)) else (values,)
    if not values or not all(isinstance(value, torch.Tensor) and value.ndim for value in values):
        raise UsageError(
            f"example inputs cannot be read from {type(inputs).__name__}",
            fix="pass a tensor with a batch dimension, or a tuple or dict of them",
            where="example_inputs",
        )
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    return tuple(value[:1].to(device) for value in values), tuple(inputs) if named else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """A PyTorch network, traced to one flat graph.

    Attributes:
        flat: the graph; its parameters are those of the network.
        example: one sample of every input.
        inputs: names of the inputs.
    """

    flat: fx.GraphModule
    example: tuple[torch.Tensor, ...]
    inputs: tuple[str, ...]


def trace(
    network: nn.Module, example_inputs: Any, options: QatOptions, where: str = "example_inputs"
) -> Traced:
    """Trace the network for training and export, with BatchNorm folded if the recipe requests it.

    Raises:
        UsageError: it cannot be traced, or the example inputs, which came from `where`, do not fit.
    """
    example, order = example_of(example_inputs, network)
    flat = flatten(network, example, order)
    if options.batchnorm == "fold":
        flat = fold_norms(flat)
    names = placeholders(flat)
    if len(names) != len(example):
        raise UsageError(
            f"there are {count_noun(len(example), 'input')}, but forward() takes {len(names)}: {', '.join(names)}",
            fix="pass an example for every input of forward()",
            where=where,
        )
    return Traced(flat=flat, example=example, inputs=names)


def feeds_of(loader: Iterable[Any], names: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """Return the inputs of a loader's batches as arrays by name. From a pair (inputs, targets), take the inputs.

    Raises:
        InputFileError: a batch holds no such inputs.
    """
    feeds: list[dict[str, Any]] = []
    count = 0
    for number, batch in enumerate(loader):
        values = _inputs(batch, names)
        if values is None:
            raise InputFileError(
                f"the batch lacks tensors for the inputs of forward(): {', '.join(names)}",
                fix="pass a tensor, (inputs, targets), or a dict with the input names of forward()",
                where=f"loader, batch {number}",
            )
        feed = {
            name: value[: limit - count].detach().cpu().numpy()
            for name, value in zip(names, values, strict=True)
        }
        feeds.append(feed)
        count += len(feed[names[0]])
        if count >= limit:
            break
    return feeds


def _inputs(batch: Any, names: Sequence[str]) -> tuple[torch.Tensor, ...] | None:
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        values = tuple(batch.get(name) for name in names)
    else:
        values = tuple(batch)
        if values and not isinstance(values[0], torch.Tensor):
            return _inputs(values[0], names)
        values = values[: len(names)]
    whole = len(values) == len(names) and all(isinstance(value, torch.Tensor) for value in values)
    return values if whole else None
