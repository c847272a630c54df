"""Runs candidate tables of one network in one session; in batches, if the network allows batches.

Ranges and biases are inputs of the Q/DQ model (`graph.instrumented.tunable`), and weights stay constants. A candidate
continues from the samples that it has run (`continued`). One that is clearly noisier stops early (`raced`).
`pipeline.ranges.reference` has the outputs of the float model.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import energy
from qdqtool.accuracy.side_by_side import feeds_for
from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.evidence import better
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.endings import returning, scores
from qdqtool.graph.instrumented.blocked import put_in, with_stand_ins
from qdqtool.graph.instrumented.corrected import Corrected, correct_nodes
from qdqtool.graph.instrumented.tunable import Tunable, tunable, with_folded_weights
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.layer_walk import DOUBT, LayerWalk, believed_shifts, shrink_means
from qdqtool.pipeline.ranges.reference import Budget, Reference, join_samples
from qdqtool.pipeline.ranges.samples import CHOOSING, FEWEST, OF_LARGE, spread_over
from qdqtool.pipeline.search.experiment import OutputNoise
from qdqtool.platform import give_back, processors
from qdqtool.runtime.runner import OrtRunner, open_model, open_rewritten

Values = Mapping[str, NDArray[Any]]

_SHIFTING: Final = CHOOSING
"""Samples that determine the bias shifts of a candidate if samples run one by one."""
_SURE: Final = 0.957
"""Confidence at which a candidate counts as noisier: two standard errors on 8 samples (Student's t, 7 degrees of freedom)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedTable(OutputNoise):
    """A table, and the noise of the outputs when this table is used.

    Attributes:
        method: the calibrator.
        table: the ranges, with the shifts of the trial.
        differences: differences whose means are the shifts, (samples, channels) by node, if batches correct biases while they run.
    """

    method: str
    table: CalibrationTable
    differences: Values = field(default_factory=dict, repr=False, compare=False)


class TrialSession:
    """An onnxruntime session in which several calibration tables run with the same weights.

    If biases are corrected and the model accepts batches, each evaluation is one run of a batch that corrects the
    biases on its way. Otherwise samples run one by one. The shifts then come from a walk over the layers with a few
    samples. Shifts from each layer's own error would rank the calibrators differently than the complete correction
    does.
    """

    def __init__(
        self,
        model: Model,
        placement: Placement,
        table: CalibrationTable,
        reference: Reference,
        budget: Budget,
    ) -> None:
        self.reference, self.budget = reference, budget
        if reference.layers:
            # Every candidate feeds or computes its own shifts: shifts in the biases would count twice.
            unshifted = (replace(entry, shift=(0.0,) * len(entry.shift)) for entry in table.shifts)
            table = replace(table, shifts=tuple(unshifted))
        quantized = with_emulated_blocks(insert(model, placement, table, InsertOptions()))
        self._scores = scores(quantized.view, reference.ends)
        quantized = returning(quantized, self._scores)
        folder = TemporaryDirectory(prefix="qdqtool-trial-", ignore_cleanup_errors=True)
        weakref.finalize(self, folder.cleanup)
        quantized = with_folded_weights(quantized, Path(folder.name))
        self._corrected: Corrected | None = None
        self._walk: LayerWalk | None = None
        ranges = frozenset(entry.tensor for entry in table.ranges)
        self.tunable = tunable(quantized, () if reference.together else reference.layers, ranges)
        if reference.together:
            del quantized
            self._runner, corrected = _open_correcting(self.tunable, reference.layers)
            # From here on the session holds the weights; copies of them would determine the peak memory of the whole
            # job.
            self.tunable = replace(self.tunable, model=model)
            self._corrected = replace(corrected, model=model)
            del corrected
            give_back()
            return
        self._runner = open_model(self.tunable.model, description="candidate tables", crowded=True)
        if self.tunable.shifts:
            view = self.tunable.model.view
            self._walk = LayerWalk(self.tunable.model, [view.by_name[name] for name in self.tunable.shifts])

    def candidate(
        self,
        method: str,
        table: CalibrationTable,
        samples: Sequence[Sample],
        among: Sequence[Sample] | None = None,
    ) -> TriedTable:
        """Run a table on some samples and measure its noise; shift its biases if the recipe corrects them.

        The noise is relative to the signal of these samples, or of all samples in `among`, of which these are the
        first.
        """
        among = among or samples
        if self._corrected is not None and samples:
            begun = TriedTable(method=method, table=table, shares=())
            return self.continued([begun], samples, among)[0]
        table = table if table.shifts else self._shift_table(table)
        outputs_of_each = self._each(self._runner, samples, self.tunable.feeds(table))
        return TriedTable(method=method, table=table, shares=self._shares(among, outputs_of_each))

    def candidates(
        self,
        tables: Mapping[str, CalibrationTable],
        samples: Sequence[Sample],
        among: Sequence[Sample] | None = None,
    ) -> list[TriedTable]:
        """Run several tables as `candidate` runs one table. Return the results in the order of `tables`."""
        if self._corrected is None or not samples:
            return [self.candidate(method, table, samples, among) for method, table in tables.items()]
        begun = [TriedTable(method=method, table=table, shares=()) for method, table in tables.items()]
        return self.continued(begun, samples, among)

    def continued(
        self,
        candidates: Sequence[TriedTable],
        samples: Sequence[Sample],
        among: Sequence[Sample] | None = None,
    ) -> list[TriedTable]:
        """Run the remaining samples with tables that have run the first samples, in batches.

        If all samples fit into one batch, they run as one batch, including the first samples; this is exact. As many
        candidates run in parallel as fit into memory, because small layers leave processors idle.
        """
        if self.reference.fitting >= len(samples):
            candidates = [
                candidate
                if len(candidate.shares) == len(samples)
                else replace(candidate, shares=(), differences={})
                for candidate in candidates
            ]
        left = [len(samples) - len(candidate.shares) for candidate in candidates]
        self.budget.spend(sum(left))
        at_once = max(1, min(len(left), processors(), self.reference.fitting // max(1, *left)))
        with ThreadPoolExecutor(at_once) as pool:
            run = partial(self._continue_candidate, samples=samples, among=among or samples, at_once=at_once)
            return list(pool.map(run, candidates))

    def close(self) -> None:
        """Free the memory of the session. Afterwards it cannot evaluate tables."""
        del self._runner
        self._walk = None
        give_back()

    def checked(self, candidate: TriedTable) -> float:
        """Return the output noise of a table on the samples that check the choice."""
        return self.candidate("", candidate.table, self.reference.checking).noise

    def raced(
        self, tables: Mapping[str, CalibrationTable], samples: Sequence[Sample], *, some_leave: bool
    ) -> list[TriedTable]:
        """Measure the output noise of several tables on these samples; noisy tables may stop early.

        Return the finished tables, the least noisy first, then those that stopped early.

        With `some_leave`, a table stops if it is significantly noisier than the best one on the samples that both
        ran. If samples run one by one, a table also stops if its noise exceeds the noise of a finished table. The
        table that looks best runs next.
        """
        if not self.is_batched:
            done, left = self._one_by_one(tables, samples, some_leave=some_leave)
            return sorted(done, key=lambda tried: tried.noise) + sorted(left, key=lambda tried: tried.mean)
        if not some_leave:
            return sorted(self.candidates(tables, samples), key=lambda tried: tried.noise)
        began = self.candidates(tables, samples[:OF_LARGE], among=samples)
        best = min(began, key=lambda tried: tried.noise)
        left = [tried for tried in began if _is_noisier(tried, best)]
        done = self.continued([tried for tried in began if tried not in left], samples)
        return sorted(done, key=lambda tried: tried.noise) + sorted(left, key=lambda tried: tried.noise)

    def _one_by_one(
        self, tables: Mapping[str, CalibrationTable], samples: Sequence[Sample], *, some_leave: bool
    ) -> tuple[list[TriedTable], list[TriedTable]]:
        """Run tables a few samples at a time. Return those that ran all, and those that stopped early."""
        running = {method: self.started(method, table) for method, table in tables.items()}
        done: list[TriedTable] = []
        left: list[TriedTable] = []
        while running:
            method = min(running, key=lambda name: running[name].mean)
            running[method] = candidate = self.advanced(running[method], samples)
            if len(candidate.shares) == len(samples):
                done.append(running.pop(method))
            least = min((finished.noise for finished in done), default=math.inf)
            left += [running.pop(name) for name in [*running] if running[name].noise > least]
            if some_leave and all(candidate.shares for candidate in running.values()):
                best = min([*running.values(), *done], key=lambda candidate: candidate.mean)
                noisier = [name for name, candidate in running.items() if _is_noisier(candidate, best)]
                left += [running.pop(name) for name in noisier]
        return done, left

    def started(self, method: str, table: CalibrationTable) -> TriedTable:
        """Return a table as a trial without results; `advanced` then runs samples with it."""
        return TriedTable(method=method, table=table if table.shifts else self._shift_table(table), shares=())

    def advanced(self, candidate: TriedTable, samples: Sequence[Sample]) -> TriedTable:
        """Run the next `CHOOSING` of `samples` with a table.

        The noise is relative to the signal of all `samples`.
        """
        first = len(candidate.shares)
        outputs = self._each(
            self._runner, samples[first : first + CHOOSING], self.tunable.feeds(candidate.table)
        )
        return replace(candidate, shares=candidate.shares + self._shares(samples, outputs, first))

    @property
    def is_batched(self) -> bool:
        """True if samples run in batches, so that a table cannot stop after a single sample."""
        return self._corrected is not None

    def at_once(self, judgements: int = 1) -> tuple[Sample, ...]:
        """Return the samples for one evaluation of a table, as many as the budget allows for this number of evaluations.

        The number is limited by the session, and by the budget for `judgements` evaluations.
        """
        most = (self.budget.most - self.budget.spent) // max(1, judgements)
        if self._corrected is not None:
            return self.reference.affordable(most)
        # the walk over the layers, which gives every candidate its shifts, runs first
        most -= 0 if self._walk is None else _SHIFTING
        return spread_over(self.reference.samples, most)

    def _continue_candidate(
        self, candidate: TriedTable, samples: Sequence[Sample], among: Sequence[Sample], at_once: int
    ) -> TriedTable:
        """Run the remaining samples with a table, in several batches if memory requires it."""
        left = samples[len(candidate.shares) :]
        count = self._batches(len(left), at_once)
        for part in range(count):
            batch = left[part * len(left) // count : (part + 1) * len(left) // count]
            candidate = self._after(candidate, batch, len(samples), among)
        return candidate

    def _after(
        self, candidate: TriedTable, batch: Sequence[Sample], whole: int, among: Sequence[Sample]
    ) -> TriedTable:
        """Run one more batch with a table. Its bias shifts come from all samples that it has run."""
        assert self._corrected is not None
        before = candidate.differences
        values = self._corrected_run(candidate.table, batch, whole, before)
        # Outputs are in the memory of their session, which would be kept as long as they are.
        differences = {
            node: np.concatenate([before[node], values[name]]) if before else values[name].copy()
            for node, name in self._corrected.differences.items()
        }
        shifts = tuple(
            NodeShift(node=node, shift=tuple(np.nan_to_num(values[name]).tolist()))
            for node, name in self._corrected.shifts.items()
        )
        outputs = _apart(self._name_outputs(values), [self.reference.outputs(sample) for sample in batch])
        return replace(
            candidate,
            table=replace(candidate.table, shifts=shifts),
            shares=candidate.shares + self._shares(among, outputs, len(candidate.shares)),
            differences=differences,
        )

    def settled(self, candidate: TriedTable, samples: Sequence[Sample]) -> TriedTable:
        """Rerun the first half of the batches, with bias shifts that all batches determine.

        If all samples ran as one batch, return the table unchanged.

        The first batches ran with shifts from few samples. So the batches of the first half run again in order, with
        shifts from their own differences and those of all other batches. In networks with strongly nonlinear
        activations, the result then depends less on the order of the samples. A second run of the other batches takes
        twice as long, and gains no more than chance (`docs/verified.md`).
        """
        count = self._batches(len(samples))
        if self._corrected is None or count <= 1 or not candidate.differences:
            return candidate
        rows = {node: differences.copy() for node, differences in candidate.differences.items()}
        for part in range(math.ceil(count / 2)):
            batch = slice(part * len(samples) // count, (part + 1) * len(samples) // count)
            self.budget.spend(batch.stop - batch.start)
            kept = {node: np.delete(differences, batch, axis=0) for node, differences in rows.items()}
            values = self._corrected_run(candidate.table, samples[batch], len(samples), kept)
            for node, name in self._corrected.differences.items():
                rows[node][batch] = values[name]
        shifts = tuple(
            NodeShift(node=node, shift=tuple(shrink_means(differences).tolist()))
            for node, differences in rows.items()
        )
        return replace(candidate, table=replace(candidate.table, shifts=shifts), differences=rows)

    def _batches(self, count: int, at_once: int = 1) -> int:
        """Return how many batches `count` samples need, if `at_once` tables share the memory."""
        return math.ceil(count / max(FEWEST, self.reference.fitting // at_once))

    def _corrected_run(
        self, table: CalibrationTable, batch: Sequence[Sample], whole: int, earlier: Values
    ) -> Values:
        assert self._corrected is not None
        means = self.reference.means(batch)
        feeds = {
            **join_samples(None, batch),
            **self.tunable.feeds(table),
            **self._corrected.feeds(means, DOUBT, whole, earlier),
        }
        return self._runner.run(feeds)

    def _shift_table(self, table: CalibrationTable) -> CalibrationTable:
        samples = self.reference.choosing[:_SHIFTING]
        if self._walk is None or len(samples) < FEWEST:
            return table
        float_means = self.reference.layer_means(samples)
        self.budget.spend(len(samples))
        ranges = self.tunable.feeds(replace(table, shifts=()))
        feeds = [{**sample.feeds, **ranges} for sample in samples]
        return replace(table, shifts=believed_shifts(self._walk, float_means, feeds))

    def _each(self, runner: OrtRunner, samples: Sequence[Sample], more: Values) -> list[Values]:
        """Run samples separately, several samples at a time, and return the outputs of each sample."""
        self.budget.spend(len(samples))

        def run(sample: Sample) -> Values:
            fed = Sample(name=sample.name, feeds={**sample.feeds, **more}, label=sample.label)
            return self._name_outputs(runner.run(feeds_for(runner, fed)))

        with ThreadPoolExecutor(runner.at_once) as pool:
            return list(pool.map(run, samples))

    def _name_outputs(self, values: Values) -> Values:
        """Return the compared output values by their names in the float model."""
        return {name: values[tensor] for name, tensor in self._scores.items()}

    def _shares(
        self, samples: Sequence[Sample], outputs: Sequence[Values], first: int = 0
    ) -> tuple[float, ...]:
        """Return the output noise of the samples from number `first` on, relative to the signal of all samples.

        `outputs` has the outputs of each sample from `first` on.
        """
        expected = [self.reference.outputs(sample) for sample in samples]
        if not expected:
            return ()
        judged = expected[first : first + len(outputs)]
        shares = np.zeros(len(judged))
        heard = 0
        for names in self.reference.quantities:
            noise, signal = np.zeros(len(judged)), 0.0
            for name in (name for name in names if name in expected[0]):
                pairs = [(plain[name], got[name]) for plain, got in zip(judged, outputs, strict=True)]
                if any(left.shape != right.shape for left, right in pairs):
                    continue
                signal += sum(energy(plain[name].astype(np.float64)) for plain in expected)
                noise += [energy(right.astype(np.float64) - left.astype(np.float64)) for left, right in pairs]
            if signal > 0:
                heard += 1
                shares += noise / signal
        return tuple(float(share) for share in shares / max(1, heard))


def _open_correcting(tuned: Tunable, layers: Sequence[str]) -> tuple[OrtRunner, Corrected]:
    """Open the session that corrects biases while it runs, in the fastest layout for convolutions if possible."""
    plain = tuned.model
    convolutions = [name for name in layers if plain.view.by_name[name].op == "Conv"]
    correcting = correct_nodes(plain, layers, bare=convolutions)
    stand_ins = with_stand_ins(
        correcting.model,
        frozenset(tuned.scales.values()),
        {name: shift for name, shift in correcting.shifts.items() if name in set(convolutions)},
        plain.view,
        correcting.tail,
    )
    if stand_ins is not None:
        runner = open_rewritten(
            stand_ins.model, partial(put_in, stand_in=stand_ins), description="candidate tables"
        )
        if runner is not None:
            return runner, correcting
    correcting = correct_nodes(plain, layers)
    return open_model(correcting.model, description="candidate tables"), correcting


def _is_noisier(candidate: TriedTable, best: TriedTable) -> bool:
    """Return True if the table `candidate` is significantly noisier than `best` on the samples that both ran.

    Not corrected for the number of candidates: the question is whether this one is worth more samples. With a correction `max`,
    which clips nothing on the samples that judge, stays in means that are noisier on other samples.
    """
    both = min(len(candidate.shares), len(best.shares))
    return better(best.shares[:both], candidate.shares[:both], confidence=_SURE)


def _apart(values: Values, like: Sequence[Values]) -> list[dict[str, NDArray[Any]]]:
    """Split the outputs of a batch into the outputs of single samples, with the shapes in `like`."""
    split: list[dict[str, NDArray[Any]]] = [{} for _ in like]
    for name in like[0]:
        ends = np.cumsum([len(sample[name]) for sample in like])[:-1]
        for outputs, part in zip(split, np.split(values[name], ends), strict=True):
            outputs[name] = part
    return split
