"""Ranks quantized nodes by what quantizing each of them alone does to the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from qdqtool.backends.ort import open_runner
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Decision, Placement
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.insert import insert
from qdqtool.graph.model import Model
from qdqtool.graph.save import serialize

_SAMPLES = 8
"""How many samples are enough to order nodes; the sweep itself uses all of them."""


def rank(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: SampleSource,
    on_progress: Callable[[int, int | None], None],
) -> tuple[str, ...]:
    """Names of the quantized nodes, the one that adds most noise to the outputs first; ties by name."""
    feeds = [sample.feeds for sample in islice(samples, _SAMPLES)]
    reference = open_runner(serialize(model), description="float")
    wanted = [reference.run(feed) for feed in feeds]
    nodes = list(dict.fromkeys(decision.slot.node for decision in placement.quantized))
    noise: dict[str, float] = {}
    for done, node in enumerate(nodes):
        alone = replace(placement, decisions=tuple(_only(node, decision) for decision in placement.decisions))
        candidate = open_runner(serialize(insert(model, alone, table, InsertOptions())), description=node)
        got = [candidate.run(feed) for feed in feeds]
        noise[node] = sum(
            float(np.square(np.asarray(mine[name], np.float64) - theirs[name]).sum())
            for mine, theirs in zip(wanted, got, strict=True)
            for name in mine
            if np.issubdtype(mine[name].dtype, np.floating)
        )
        on_progress(done + 1, len(nodes))
    return tuple(sorted(nodes, key=lambda node: (-noise[node], node)))


def _only(node: str, decision: Decision) -> Decision:
    return decision if decision.slot.node == node else replace(decision, quantize=False)
