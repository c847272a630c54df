"""Lawful ways to compute a Q/DQ model on this machine, made from the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qdqtool.accuracy.explain import Emulations
from qdqtool.core.dtypes import DType
from qdqtool.core.protocols import Runner
from qdqtool.errors import UsageError
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.emulation.integer_form import integer_form
from qdqtool.graph.emulation.wide_regions import Regions
from qdqtool.graph.instrumented.jitter import jittered
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import quantized_ops

_LAST_BITS = (3e-7, 3e-7, 1e-6, 1e-6)
"""How far scales are moved, relative to themselves: as far as another order of FP32 operations may move a value."""
_MORE_BITS = (3e-6, 3e-6)
"""As far as approximations of exponentials, roots and the like may."""
Open = Callable[[Model, str], Runner]
"""Makes a runner of a model; the second argument says in words what it is."""


def emulations(model: Model, open_model: Open, regions: Regions | None = None) -> Emulations:
    """The graph as it stands and with other lawful roundings, its integer-exact form, and for FP16 the fused forms.

    `regions` are the kernels of a real engine as sets of ONNX node names; None takes the usual epilogues.

    Raises:
        UsageError: the model has no Q/DQ nodes.
    """
    if not quantized_ops(model):
        raise UsageError(
            "has no Q/DQ nodes, so there is nothing to emulate",
            fix="pass the Q/DQ model that the engine was built from",
            where=str(model.path),
        )
    model = with_emulated_blocks(model)
    graph = {
        "the graph as it stands": model,
        "integer sums": integer_form(model, ()).model,
        "integer sums, scaled by reciprocals": integer_form(model, (), reciprocal=True).model,
    }
    graph |= _others(model, _LAST_BITS, "other last bits")
    fused = {
        "fused kernels": integer_form(model, regions).model,
        "fused kernels, scaled by reciprocals": integer_form(model, regions, reciprocal=True).model,
    }
    return Emulations(
        graph={name: open_model(form, name) for name, form in graph.items()},
        fused={name: open_model(form, name) for name, form in fused.items()} if _has_halves(model) else {},
        rare={
            name: open_model(form, name)
            for name, form in _others(model, _MORE_BITS, "approximations").items()
        },
    )


def _others(model: Model, reaches: Sequence[float], name: str) -> dict[str, Model]:
    forms = [jittered(model, number, reach) for number, reach in enumerate(reaches, start=len(name))]
    return {f"{name} {number}": form for number, form in enumerate(forms, start=1) if form is not None}


def _has_halves(model: Model) -> bool:
    return any(
        model.view.info(name).dtype is DType.FLOAT16 for node in model.view.nodes for name in node.outputs
    )
