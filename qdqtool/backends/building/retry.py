"""Repeats a build without the Q/DQ of a node that has no kernel, a limited number of times.

"Could not find any implementation for node X" is what TensorRT says when no kernel fits the precisions around X;
taking the Q/DQ off X's inputs lets it run in float. Every node given up is reported, and the model that was built in
the end is kept beside the engine.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtool.backends.building.failures import NoKernelError
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.protocols import Builder

if TYPE_CHECKING:
    from qdqtool.graph.model import Model

MODEL = "model.retried.onnx"
"""Name of the model file that was finally built, stored next to the engine."""


def build_with_retries(
    builder: Builder, request: BuildRequest, on_progress: OnProgress | None = None, *, most: int = 3
) -> tuple[BuildResult, BuildCost]:
    """Build, removing the Q/DQ of at most `most` nodes or fused groups without a kernel.

    The notes of the result list the nodes.

    Raises:
        BuildError: as the builder does; also when a node without a kernel has no Q/DQ to give up.
    """
    given_up: list[tuple[str, ...]] = []
    current = request
    for _ in range(most):
        built, error = _attempt(builder, current, on_progress)
        if built is not None:
            return _with_notes(built, given_up)
        assert error is not None
        given_up.append(_float_instead(request, given_up, error))
        current = replace(request, model=request.folder / MODEL)
    return _with_notes(builder.build(current, on_progress), given_up)


def _attempt(
    builder: Builder, request: BuildRequest, on_progress: OnProgress | None
) -> tuple[tuple[BuildResult, BuildCost] | None, NoKernelError | None]:
    try:
        return builder.build(request, on_progress), None
    except NoKernelError as error:
        return None, error


def _with_notes(
    built: tuple[BuildResult, BuildCost], given_up: list[tuple[str, ...]]
) -> tuple[BuildResult, BuildCost]:
    result, cost = built
    notes = [f"no INT8 kernel for {', '.join(names)}: built without its Q/DQ" for names in given_up]
    notes += [f"{MODEL} is the model that was built"] if given_up else []
    return replace(result, notes=(*result.notes, *notes), model=MODEL if given_up else ""), cost


def _float_instead(
    request: BuildRequest, given_up: list[tuple[str, ...]], error: NoKernelError
) -> tuple[str, ...]:
    """Write the model without the Q/DQ of `given_up` and of the nodes that the error names. Return the newly added nodes.

    Raises:
        NoKernelError: the error itself, when it names no node with Q/DQ.
    """
    from qdqtool.backends.writing import write
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.qdq.unquantize import unquantize

    model = load(request.model)
    already = {name for names in given_up for name in names}
    names = tuple(name for name in _quantized_nodes(model, error.node) if name not in already)
    if not names:
        raise error
    write(unquantize(model, already | set(names)), request.folder / MODEL, step="build")
    return names


def _quantized_nodes(model: Model, engine_name: str) -> tuple[str, ...]:
    """Return the nodes that an engine layer's name refers to and that read a DequantizeLinear.

    `a + b`, `a || b` and `PWN(PWN(a), b)` name all their nodes; `{ForeignNode[a...z]}` names the first and the last,
    and means all between them.
    """
    view = model.view
    spaced = engine_name.replace("...", " ... ")
    named = [node for node in view.nodes if _mentions(spaced, node.name)]
    if "ForeignNode[" in engine_name and len(named) > 1:
        named = list(view.nodes[named[0].position : named[-1].position + 1])
    return tuple(
        node.name
        for node in named
        if any(maker and maker.op == "DequantizeLinear" for maker in map(view.producer, node.inputs))
    )


def _mentions(text: str, name: str) -> bool:
    """Return whether `text` contains `name` as a whole, and not only as part of a longer name."""
    return name in text and re.search(rf"(?<![\w/.:-]){re.escape(name)}(?![\w/.:-])", text) is not None
