"""The subject of searches over float nodes: a Q/DQ network and its float form, with nodes that can be switched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import log10
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.intervals import largest_loss, largest_mean
from qdqtool.accuracy.parts import with_parts
from qdqtool.core.calibration import NodeShift
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.sensitivity import FloatSet
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.stages import StagedModel
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import digest
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.search.staged import StagedRunner
from qdqtool.pipeline.search.subsets import RunStore, SampleRun, SubsetOutcome, TrialRunner
from qdqtool.trt.ops import PRODUCTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Units of nodes that are switched together, by name, and the nodes that count as compute nodes."""

    members: Mapping[str, tuple[str, ...]]
    compute: frozenset[str]

    def nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return all nodes of these units."""
        return tuple(node for name in names for node in self.members[name])

    def without(self, kept: Iterable[str]) -> frozenset[str]:
        """Return the nodes that stay quantized if these units are float."""
        gone = set(kept)
        return frozenset(self.nodes(name for name in self.members if name not in gone))

    def float_set(self, kept: Sequence[str], outcome: SubsetOutcome, confidence: float = 0.0) -> FloatSet:
        """Return the result of keeping these units float. With a `confidence` (0 to 1), add bounds for other samples."""
        losses = losses_of(outcome.runs)
        most = (
            largest_mean(np.array(outcome.shares) * len(outcome.shares), confidence) if confidence else None
        )
        return FloatSet(
            kept=self.nodes(kept),
            sqnr_db=outcome.decibel,
            task=outcome.task,
            int8_nodes=len(self.compute & self.without(kept)),
            total_nodes=len(self.compute),
            least_db=-10 * log10(most) if most else None,
            worst_drop=100 * largest_loss(losses, confidence) if confidence and len(losses) else None,
        )


def losses_of(runs: Sequence[SampleRun]) -> NDArray[np.float64]:
    """Return the loss of each sample: 1 if only the float model was right, -1 if only the quantized one was."""
    return np.array([run.hits[0] - run.hits[1] for run in runs if run.hits is not None], np.float64)


def units_of(nodes: Sequence[str], groups: Sequence[str], compute: frozenset[str]) -> Units:
    """Return the units of these nodes: each node, or the nodes that match a glob pattern. The first match counts.

    Raises:
        UsageError: there are no nodes, or a group matches none.
    """
    if not nodes:
        raise UsageError(
            "the model has no quantized nodes", fix="pass a Q/DQ model, or a float one with a recipe"
        )
    members: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        name = next((pattern for pattern in groups if fnmatchcase(node, pattern)), node)
        members[name] = (*members.get(name, ()), node)
    empty = [pattern for pattern in groups if pattern not in members]
    if empty:
        raise UsageError(
            f"no quantized node matches the group {empty[0]!r}",
            fix=f"use a glob pattern over node names, such as {nodes[0]!r}",
        )
    return Units(members=members, compute=compute)


class SwitchedNetwork:
    """A Q/DQ network whose nodes can be switched to float, and the parts of its outputs that are measured.

    Args:
        model: the Q/DQ model.
        shifts: the bias corrections in it.
        plain: its float form; None if only the Q/DQ model is there.
        description: the network, in words.
        workers: samples that run at the same time; 0 takes one per processor.
    """

    def __init__(
        self,
        model: Model,
        shifts: tuple[NodeShift, ...],
        plain: Model | None,
        *,
        description: str,
        workers: int = 0,
    ) -> None:
        self._model, self._shifts, self._workers = model, shifts, workers
        self._description = description
        first, self._second, self._parts = with_parts(plain or model, model)
        self.staged = StagedModel(self._second, shifts, plain=first if plain else None)
        self.fixed = tuple(node for node in self.staged.stuck if node not in self.staged.nodes)
        """Quantized nodes that cannot be switched."""

    @cached_property
    def _runner(self) -> StagedRunner:
        return StagedRunner(self.staged, self._description, workers=self._workers, network=self._model)

    @cached_property
    def compute(self) -> frozenset[str]:
        """All compute nodes, also those that cannot be switched."""
        return frozenset(node.name for node in self._model.view.nodes if node.op in PRODUCTS)

    def trials(
        self,
        samples: SampleSource,
        compare: CompareOptions,
        kept: Path | None = None,
        labels: str | None = None,
    ) -> TrialRunner:
        """Return an executor of sets of nodes on these samples. With `kept`, it continues from the runs in this file."""
        about = {
            "model": digest(self._second),
            "shifts": [asdict(entry) for entry in self._shifts],
            "samples": samples.digest,
            "labels": labels,
            "compare": compare.model_dump(mode="json"),
        }
        key = hashlib.sha256(canonical(about).encode()).hexdigest()
        return TrialRunner(self._runner, compare, store=RunStore(kept, key), parts=self._parts)
