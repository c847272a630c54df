"""Makes two models return their common inner tensors, so that a comparison can say where they part."""

from __future__ import annotations

from pathlib import Path

from qdqtool.core.dtypes import DType
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.probe import Probe, probe
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


def watch_inside(first: Model, second: Model, folder: Path) -> tuple[Probe, Probe, frozenset[str]]:
    """Both models made to return their outputs and their common tensors, and the names of the latter.

    `folder` is where the models are written, each into a folder of its own.

    Raises:
        UsageError: they have no inner tensor in common.
    """
    inner = shared_tensors(first, second)
    if not inner:
        raise UsageError(
            "the two models have no inner tensor in common",
            fix="compare the float model that was prepared for insertion (model.prepared.onnx) with the Q/DQ model",
        )
    probes = []
    for name, model in (("first", first), ("second", second)):
        own = folder / name
        own.mkdir()
        probes.append(probe(model, [*(info.name for info in model.view.outputs), *inner], own))
    return probes[0], probes[1], frozenset(inner)


def _is_float(model: Model, name: str) -> bool:
    return model.view.info(name).dtype in {DType.FLOAT32, DType.FLOAT16}
