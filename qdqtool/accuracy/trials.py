"""Runs subsets of the quantized nodes of one model over samples, and remembers what each sample showed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import METRICS, Hit, energy
from qdqtool.accuracy.pairing import Pair, comparable, feeds_for
from qdqtool.accuracy.run_store import Memory, RunStore, Shown
from qdqtool.accuracy.scores import class_scores
from qdqtool.accuracy.task import HitCount, check_label, first_row
from qdqtool.core.comparison import TaskAccuracy
from qdqtool.core.protocols import Runner, Sample, SampleSource
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.tensors import TensorInfo

OnRun = Callable[[int, int], None]
Subsets = Mapping[str, frozenset[str]]
"""Nodes that are quantized, by a name for the subset."""
_TASKS = {"classify": "top1", "agreement": "agreement"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one subset did over all samples.

    Attributes:
        noise: energy of the difference to the float model relative to its energy, averaged over the outputs.
        task: accuracy against the float model; None where nothing is asked or known.
    """

    noise: float
    task: TaskAccuracy | None

    @property
    def decibel(self) -> float | None:
        """The noise as SQNR; None where there is none."""
        return -10 * math.log10(self.noise) if self.noise else None


class TrialRunner:
    """One model with switches, ready to be run with any subset of its nodes quantized.

    Runs that are already in `store` are not repeated; `workers` subsets run at the same time.
    """

    def __init__(
        self,
        runner: Runner,
        switches: Mapping[str, str],
        options: CompareOptions,
        *,
        store: RunStore | None = None,
        workers: int = 1,
    ) -> None:
        self._runner = runner
        self._switches = switches
        self._scored = options.output or runner.outputs[0]
        self._task = _TASKS.get(options.task)
        self._store: RunStore = store if store is not None else Memory()
        self._workers = workers

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that can be switched, in graph order."""
        return tuple(self._switches)

    def run(
        self, subsets: Subsets, samples: SampleSource, limit: int | None = None, on_run: OnRun | None = None
    ) -> dict[str, Outcome]:
        """What every subset does over the first `limit` samples; of equal subsets one is run.

        `on_run` is called after each sample with the number of runs done and of all runs.
        """
        total = len(samples) if limit is None else min(limit, len(samples))
        keys = {name: _key(subset) for name, subset in subsets.items()}
        wanted = {keys[name]: subset for name, subset in subsets.items()}
        shown: dict[str, list[Shown]] = {name: [] for name in subsets}
        for number, sample in enumerate(islice(iter(samples), total)):
            known = self._store.read(number)
            missing = {key: subset for key, subset in wanted.items() if key not in known}
            if missing:
                fresh = self._show(sample, missing)
                self._store.write(number, fresh)
                known |= fresh
            for name, entries in shown.items():
                entries.append(known[keys[name]])
            if on_run is not None:
                on_run((number + 1) * len(subsets), total * len(subsets))
        return {name: self._outcome(entries) for name, entries in shown.items()}

    def _show(self, sample: Sample, subsets: Subsets) -> dict[str, Shown]:
        """Run the float model once and every subset once."""
        plain = self._outputs(sample, frozenset())
        with ThreadPoolExecutor(self._workers) as pool:
            found = pool.map(lambda subset: self._outputs(sample, subset), subsets.values())
            return {
                name: self._compare(sample, plain, outputs)
                for name, outputs in zip(subsets, found, strict=True)
            }

    def _outputs(self, sample: Sample, subset: frozenset[str]) -> dict[str, NDArray[Any]]:
        switched = {switch: np.array(node in subset) for node, switch in self._switches.items()}
        return self._runner.run(feeds_for(self._runner, _with(sample, switched)))

    def _compare(
        self, sample: Sample, plain: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Shown:
        noise, signal = [], []
        for name in self._runner.outputs:
            left, right = comparable(plain[name], outputs[name], Pair(reference=name, candidate=name), sample)
            noise.append(energy(right - left))
            signal.append(energy(left))
        hits = self._hits(sample, plain[self._scored], outputs[self._scored])
        return Shown(noise=tuple(noise), signal=tuple(signal), hits=hits)

    def _hits(self, sample: Sample, plain: NDArray[Any], output: NDArray[Any]) -> tuple[float, float] | None:
        if self._task is None:
            return None
        metric: Hit = METRICS.load(self._task)
        left, right = (class_scores(first_row(side, sample)) for side in (plain, output))
        if left is None or right is None or len(left) < metric.classes:
            return None
        check_label(sample, len(left))
        truth = sample.label if metric.truth == "label" else int(left.argmax())
        if truth is None:
            return None
        return metric.hit(left, truth), metric.hit(right, truth)

    def _outcome(self, entries: Sequence[Shown]) -> Outcome:
        noise = np.sum([entry.noise for entry in entries], axis=0)
        signal = np.sum([entry.signal for entry in entries], axis=0)
        known = signal > 0
        count = None if self._task is None else HitCount(self._task, METRICS.load(self._task))
        for entry in entries:
            if count is not None and entry.hits is not None:
                count.record(*entry.hits)
        return Outcome(
            noise=float((noise[known] / signal[known]).mean()) if known.any() else 0.0,
            task=None if count is None else count.result(),
        )


def _key(subset: frozenset[str]) -> str:
    """What a store calls a subset: whatever a study is about, the same nodes have the same name, and no others."""
    return hashlib.sha256(repr(sorted(subset)).encode()).hexdigest()[:32]


def inputs_without(runner: Runner, switches: Mapping[str, str]) -> tuple[TensorInfo, ...]:
    """What samples must feed: the model's own inputs."""
    own = set(switches.values())
    return tuple(info for info in runner.inputs if info.name not in own)


def _with(sample: Sample, more: Mapping[str, NDArray[Any]]) -> Sample:
    return Sample(name=sample.name, feeds={**sample.feeds, **more}, label=sample.label)
