"""Makes two models return their common inner tensors, so that a comparison can say where they part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from qdqtool.core.dtypes import DType
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.probe import Probe, probe, within
from qdqtool.graph.model import Model


def shared_tensors(first: Model, second: Model) -> tuple[str, ...]:
    """Float tensors that nodes of both models make, outputs left out, in the order of the first."""
    theirs = {name for node in second.view.nodes for name in node.outputs}
    return tuple(
        name
        for node in first.view.nodes
        for name in node.outputs
        if name in theirs
        and not first.view.is_output(name)
        and _is_float(first, name)
        and _is_float(second, name)
    )


def turns(models: tuple[Model, Model], room: int) -> int:
    """How many runs `watch_inside` takes for each sample."""
    return sum(1 for _ in within(models[0], shared_tensors(*models), room))


def watch_inside(
    models: tuple[Model, Model], folder: Path, *, room: int
) -> Iterator[tuple[Probe, Probe, frozenset[str]]]:
    """Both models made to return some of their common tensors, and nothing that comes after these, and their names.

    As many tensors at a time as fit into `room` bytes on each side; every tensor has its turn. `folder` is where the
    models are written, which are gone with the next turn.

    Raises:
        UsageError: they have no inner tensor in common.
    """
    inner = shared_tensors(*models)
    if not inner:
        raise UsageError(
            "the two models have no inner tensor in common",
            fix="compare the float model that was prepared for insertion (model.prepared.onnx) with the Q/DQ model",
        )
    for names in within(models[0], inner, room):
        with TemporaryDirectory(dir=folder) as left, TemporaryDirectory(dir=folder) as right:
            first, second = (
                probe(model, names, Path(place)) for model, place in zip(models, (left, right), strict=True)
            )
            yield first, second, frozenset(names)


def _is_float(model: Model, name: str) -> bool:
    return model.view.info(name).dtype in {DType.FLOAT32, DType.FLOAT16}
