"""A Q/DQ network and its float form, whose nodes can be switched, for searches over float nodes."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.parts import with_parts
from qdqtool.core.calibration import NodeShift
from qdqtool.core.evidence import largest_loss, largest_mean
from qdqtool.core.protocols import Feeds, SampleSource
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.sensitivity import FloatSet
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.stages import StagedModel
from qdqtool.graph.onnx_io.save import digest
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.view import Model
from qdqtool.io.files import write_bytes
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline.comparing import LARGE
from qdqtool.pipeline.search.subsets import RunStore, SampleRun, Subset, SubsetOutcome, TrialRunner
from qdqtool.pipeline.writing import our_fault, run_plainly
from qdqtool.platform import processors
from qdqtool.runtime.runner import OrtRunner, open_piece
from qdqtool.trt.ops import PRODUCTS

# --- staged ----------------------------------------------------------------------------------------------------------
# Runs many subsets of the quantized nodes of one model, each stage once for all subsets that agree up to there.
#
# The subsets form a tree: paths separate at a stage if subsets quantize different nodes of it. The tree is walked
# depth first, so only the tensors along one path are in memory. Searches request one node alone, or all nodes but one:
# up to this node, their paths are the float network or the quantized network, and each runs once. After it, if paths
# no longer separate, stages run in a few large parts. A cut has a cost: onnxruntime cannot fuse across it, and tensors
# are copied.


_ROOM: Final = 512 << 20
"""Bytes for tensors along one path, over all samples that run along it together: they share the opening of sessions."""
_LARGE: Final = 4
"""Number of stages in a part that runs as one model if no node in it is switched."""
_TOGETHER: Final = 32
"""Most samples that run along a path together; more samples would not save more openings of sessions."""

_FILED: Final = 8 << 20
"""Bytes of weights from which all forms of stages read the weights from one file: copying weights into a form took as
long as opening it.
"""

Tensors = Mapping[str, "NDArray[Any]"]


class StagedRunner:
    """Runs all subsets of the nodes of one model, with onnxruntime.

    Both plain forms of every stage, float and all quantized, stay open; of the others a few. Sessions of large models read
    their weights where the file is mapped into memory.

    Args:
        staged: the model in stages.
        description: description in words.
        workers: samples that run in parallel, each in one thread; 0 uses one worker per processor. (Threads that
            share one sample spin in every session between its runs: ten times the processor time.)
        optimized: let onnxruntime fuse nodes. A cut may separate nodes that onnxruntime fuses in the whole model, so
            the last bit of a float may differ. Without fusions, every bit equals that of the whole model.
        network: the quantized model itself. If it runs on samples on which stages fail, the error is ours.
    """

    def __init__(
        self,
        staged: StagedModel,
        description: str,
        *,
        workers: int = 0,
        optimized: bool = True,
        network: Model | None = None,
    ) -> None:
        self._staged = staged
        self._network = network
        self._workers = workers or processors()
        self._optimized = optimized
        self._plain: dict[tuple[range, bool], OrtRunner] = {}
        self._mixed: OrderedDict[tuple[range, Subset], OrtRunner] = OrderedDict()
        self._together: int | None = None
        folder = TemporaryDirectory(prefix="qdqtool-stages-", ignore_cleanup_errors=True)
        weakref.finalize(self, folder.cleanup)
        self._folder = Path(folder.name)
        self._stored = staged.stored(self._folder) if staged.weight_bytes >= _FILED else {}
        self.description = description
        self.inputs = staged.inputs
        self.outputs = staged.outputs
        self.nodes = staged.nodes

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads that stay alive, because each new thread would allocate a separate heap for its results."""
        pool = ThreadPoolExecutor(self._workers)
        weakref.finalize(self, pool.shutdown)
        return pool

    def together(self, feeds: Feeds) -> int:
        """Return how many samples of this size can run at once; run the float model if shapes are unknown."""
        if self._together is None:
            held: dict[str, int] = {name: array.nbytes for name, array in feeds.items()}
            sizes = self._staged.sizes({name: array.shape for name, array in feeds.items()})
            if sizes is not None:
                held |= sizes
            else:
                with self._ours([feeds]):
                    self._walk(
                        [dict(feeds)],
                        {"": frozenset()},
                        lambda states: held.update({name: array.nbytes for name, array in states[0].items()}),
                    )
            self._together = max(1, min(_TOGETHER, _ROOM // max(1, sum(held.values()))))
        return self._together

    def run(
        self, feeds: Sequence[Feeds], subsets: Mapping[str, Subset]
    ) -> Iterator[tuple[str, Sequence[Tensors]]]:
        """Yield each subset's name with its outputs for all samples. Subsets with a common beginning follow each other.

        The first subset is yielded first.

        Raises:
            InputFileError: a sample does not fit, or the model fails on it.
            Bug: only its stages fail.
        """
        whole = {name: self._staged.with_followers(subset) for name, subset in subsets.items()}
        with self._ours(feeds):
            yield from self._descend(0, [dict(sample) for sample in feeds], whole, None)

    def _ours(self, feeds: Sequence[Feeds]) -> AbstractContextManager[None]:
        """Guard runs of stages: if a stage fails, run the whole network; if that works, report a bug."""
        network = self._network
        if network is None:
            return nullcontext()
        return our_fault(lambda: run_plainly(with_float_caches(network), feeds))

    def _walk(
        self,
        states: Sequence[Tensors],
        subsets: Mapping[str, Subset],
        on_states: Callable[[Sequence[Tensors]], None],
    ) -> None:
        for _ in self._descend(0, states, subsets, on_states):
            pass

    def _descend(
        self,
        number: int,
        states: Sequence[Tensors],
        subsets: Mapping[str, Subset],
        on_states: Callable[[Sequence[Tensors]], None] | None,
    ) -> Iterator[tuple[str, Sequence[Tensors]]]:
        while number < len(self._staged.stages):
            if on_states is not None:
                on_states(states)
            part = self._next(number, subsets) if on_states is None else range(number, number + 1)
            nodes = self._nodes(part)
            paths: dict[Subset, dict[str, Subset]] = {}
            for name, subset in subsets.items():
                paths.setdefault(subset & nodes, {})[name] = subset
            if len(paths) > 1:
                for form, members in paths.items():
                    yield from self._descend(part.stop, self._behind(part, form, states), members, on_states)
                return
            # No path returns here: free the tensors before it.
            number, states = part.stop, self._behind(part, next(iter(paths)), states)
        if on_states is not None:
            on_states(states)
        for name in subsets:
            yield name, [{output: state[output] for output in self.outputs} for state in states]

    def _nodes(self, part: range) -> Subset:
        return frozenset(node for number in part for node in self._staged.stages[number].switchable)

    def _next(self, number: int, subsets: Mapping[str, Subset]) -> range:
        """Return the next stages to run: several if all subsets have all their nodes quantized, or all float.

        Otherwise, return a single stage.
        """
        if number % _LARGE == 0:
            large = range(number, min(number + _LARGE, len(self._staged.stages)))
            nodes = self._nodes(large)
            forms = {subset & nodes for subset in subsets.values()}
            if len(forms) == 1 and forms <= {frozenset(), nodes}:
                return large
        return range(number, number + 1)

    def _behind(self, part: range, form: Subset, states: Sequence[Tensors]) -> list[Tensors]:
        """Run the stages in `part` for every sample, and return the tensors that later stages need."""
        alive = self._staged.stages[part[-1]].alive
        if not self._staged.outputs_of(part):
            return [_only(state, alive) for state in states]
        runner = self._runner(part, form)
        inputs = self._staged.inputs_of(part)

        def behind(state: Tensors) -> Tensors:
            return _only({**state, **runner.run({name: state[name] for name in inputs})}, alive)

        if self._workers == 1 or len(states) == 1:
            return [behind(state) for state in states]
        return list(self._pool.map(behind, states))

    def _runner(self, part: range, form: Subset) -> OrtRunner:
        """Return a session for the stages in `part`, with the nodes in `form` quantized."""
        if not form or form == self._nodes(part):
            plain = (part, bool(form))
            if plain not in self._plain:
                self._plain[plain] = self._open_form(part, form)
            return self._plain[plain]
        mixed = (part, form)
        if mixed in self._mixed:
            self._mixed.move_to_end(mixed)
            return self._mixed[mixed]
        # Their weights together stay below a quarter of the model's.
        while len(self._mixed) > len(self._staged.stages) // 4:
            self._mixed.popitem(last=False)
        self._mixed[mixed] = self._open_form(part, form)
        return self._mixed[mixed]

    def _open_form(self, part: range, form: Subset) -> OrtRunner:
        source = self._folder / "stages.onnx"
        write_bytes(source, self._staged.variant(part, form, self._stored), lasting=False)
        return open_piece(
            source,
            description=f"{self.description}, stages {part[0]} to {part[-1]}",
            optimized=self._optimized,
            threads=1,
            packed=self._staged.weight_bytes < LARGE,
        )


def _only(state: Tensors, names: frozenset[str]) -> Tensors:
    return {name: array for name, array in state.items() if name in names}


# --- switched --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Groups of nodes that are switched together between quantized and float, by name."""

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
        """Return the accuracy if these units are float. With a `confidence` (0 to 1), add bounds for unseen samples."""
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
    """Return each sample's loss: 1 if only the float model is right, -1 if only the quantized model is."""
    return np.array([run.hits[0] - run.hits[1] for run in runs if run.hits is not None], np.float64)


def units_of(nodes: Sequence[str], groups: Sequence[str], compute: frozenset[str]) -> Units:
    """Return the units of these nodes: single nodes, or the nodes of a glob pattern. The first pattern that matches counts.

    Raises:
        UsageError: there are no nodes, or a group matches none.
    """
    if not nodes:
        raise UsageError(
            "the model has no quantized nodes", fix="pass a Q/DQ model, or a float model and a recipe"
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
        """Return an executor for sets of float nodes on these samples; with `kept`, it continues earlier runs in this file."""
        about = {
            "model": digest(self._second),
            "shifts": [asdict(entry) for entry in self._shifts],
            "samples": samples.digest,
            "labels": labels,
            "compare": compare.model_dump(mode="json"),
        }
        store = RunStore(kept, digest_of(about))
        return TrialRunner(self._runner, compare, store=store, parts=self._parts)
