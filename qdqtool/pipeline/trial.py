"""Judges calibration tables by the outputs of the network: one session for all tables of one Q/DQ model.

An output that comes from a softmax is judged by the scores that go into it (`graph.endings`): where classes are sure,
a few samples hold all of the outputs' noise, and which calibrator is the best on them says little of others. One that holds
boxes and scores is judged by both, each weighing the same, and one whose rows a TopK or a NonMaxSuppression chose by what it chose from.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.accuracy.metric import energy
from qdqtool.accuracy.pairing import feeds_for
from qdqtool.calibration.watch import WatchedValues
from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.endings import endings, quantities, returning, scores
from qdqtool.graph.instrumented.blocked_qdq import put_in, with_stand_ins
from qdqtool.graph.instrumented.corrected import Corrected, Means, channel_means, corrected
from qdqtool.graph.instrumented.folded import with_folded_weights
from qdqtool.graph.instrumented.tunable import Tunable, tunable
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import GraphView, Node
from qdqtool.pipeline.judges import TAKEN, sizes, spread, spread_over, taken
from qdqtool.pipeline.layer_walk import LayerWalk, float_means
from qdqtool.platform import give_back, processors
from qdqtool.runtime.runner import OrtRunner, open_model, open_rewritten
from qdqtool.trt.ops import BRANCHING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = Mapping[str, NDArray[Any]]

CHOOSING: Final = 8
"""Samples that run at a time while calibrators race, and on which equalization is chosen."""
CHECKING: Final = 8
"""Samples on which what gains by equalization must be better too."""
PASSES: Final = 6
"""What choosing a calibrator may cost: so many inferences for each sample that is taken."""
_SHIFTING: Final = CHOOSING
"""Samples that give a candidate its bias shifts where samples run one by one."""
_DOUBT: Final = 4.0
"""Squared standard errors that a squared shift must exceed before any of it is believed."""
_ROOM: Final = 64 << 20
"""Bytes that the live tensors of all samples may take that run at a time."""
_DEAR: Final = 320 << 20
"""The same of all samples of a judgement, whether they run at a time or not: those of large tensors take longest."""
_LIVE: Final = 3
"""Tensors of the largest size that are alive at once."""
_SILENT: Final = 1e-15
"""Share of noise below which a sample has none: rounding of FP32 leaves more."""
# Samples on which two ways can be told apart at all.
_FEWEST: Final = 2

OnProgress = Callable[[int, "int | None"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedTable:
    """A table and how noisy it makes the outputs.

    Attributes:
        method: the calibrator.
        table: all its ranges, with the shifts it was judged with.
        shares: for each sample what it adds to `noise`.
        differences: what its shifts are the means of, (samples, channels) by node, where batches correct them on their way.
    """

    method: str
    table: CalibrationTable
    shares: tuple[float, ...]
    differences: Values = field(default_factory=dict, repr=False, compare=False)

    @property
    def noise(self) -> float:
        """Energy of the outputs' differences over their energy, averaged over the outputs."""
        return sum(self.shares)

    @property
    def mean(self) -> float:
        """What one sample adds to it."""
        return self.noise / max(1, len(self.shares))

    def on(self, places: Sequence[int]) -> TriedTable:
        """The same on the samples at these places only."""
        return replace(self, shares=tuple(self.shares[place] for place in places))

    @property
    def levels(self) -> tuple[float, ...]:
        """Each sample's share in dB."""
        return tuple(10 * math.log10(max(share, _SILENT)) for share in self.shares)

    @property
    def decibel(self) -> float:
        """Signal to noise of the outputs; infinite without noise."""
        return decibels(self.noise)


@dataclass(kw_only=True, slots=True)
class Budget:
    """Inferences that were spent, of how many.

    Attributes:
        most: how many may be spent.
        on_progress: told how many were.
        spent: so many were.
    """

    most: int = PASSES * TAKEN
    on_progress: OnProgress | None = None
    spent: int = 0

    def spend(self, count: int) -> None:
        """So many more inferences."""
        self.spent += count
        if self.on_progress is not None:
            self.on_progress(min(self.spent, self.most), self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPass:
    """What the pass that collected histograms kept of the samples that judge.

    Attributes:
        watch: the samples, with the float network's outputs, and those of the first two as one batch.
        means: which of the kept values tell the means of layers; of none where the model takes no batches.
    """

    watch: WatchedValues
    means: Means


class Reference:
    """The samples that choose and those that check, and what the float model gives for them.

    Attributes:
        samples: all of them, in their order.
        choosing: some, from all over them.
        checking: as many others.
        layers: nodes whose biases can be corrected, in graph order; none where that is not wanted.
        together: whether the model takes a batch of samples and gives what it gives one by one.
        ends: by output what is judged in its place; see `graph.endings`.
        quantities: the names of what is judged, those that count as one together.
    """

    _by_scores = True

    def __init__(
        self,
        model: Model,
        samples: SampleSource,
        budget: Budget,
        *,
        bias: bool = False,
        count: int | None = None,
        seen: FloatPass | Reference | None = None,
    ) -> None:
        """Run the float model on samples that judge, as many of `samples` as its size allows, or `count`.

        `bias` says that biases are corrected, for which the means of its layers are needed. `seen` holds what an earlier pass
        kept, or is the same for another form of the model, whose outputs are taken over where no means are needed.
        """
        count = count or taken(model.view, len(samples))
        if isinstance(seen, FloatPass):
            judges = tuple(one.sample for one in seen.watch.seen)
        else:
            judges = tuple(islice(spread(samples, count), count))
        self.samples = judges
        step = max(1, len(samples) // count)
        self._numbers = {id(sample): place * step for place, sample in enumerate(judges)}
        budget.most = PASSES * len(judges)
        # Neighbours in a data set are alike: both parts come from all over it.
        step = max(2, len(judges) // CHOOSING)
        self.choosing, self.checking = judges[0::step][:CHOOSING], judges[1::step][:CHECKING]
        self.budget = budget
        self.layers = tuple(node.name for node in shiftable(model.view)) if bias else ()
        self._model = model
        self.ends = endings(model.view, softmax=self._by_scores)
        self._scores = scores(model.view, self.ends)
        self.quantities = quantities(model.view, self.ends)
        self._outputs: dict[int, Values] = {}
        self._places = {id(sample): place for place, sample in enumerate(judges)}
        self._means: Values = {}
        self._layer_means: Mapping[str, NDArray[np.float32]] | None = None
        self.together = False
        alike = len({_shapes(sample) for sample in judges}) == 1
        if isinstance(seen, FloatPass):
            self.together = self._taken_from(seen) and alike
            return
        if seen is not None and not self.layers and self._took_over(seen):
            return
        if self.layers and len(judges) >= _FEWEST and alike and may_be_batched(model.view, self.layers):
            try:
                self.together = self._measured(free=True)
            except InputFileError:
                self.together = False
        if not self.together:
            self._measured(free=False)

    def of(self, model: Model) -> Reference:
        """The same samples for another form of the float model, which computes the same."""
        count = len(self.samples)
        bias = bool(self.layers)
        return type(self)(model, self.source, self.budget, bias=bias, count=count, seen=self)

    @property
    def source(self) -> SampleSource:
        """All of them, to collect from."""
        return _Taken(self.samples)

    def number(self, sample: Sample) -> int:
        """Which of the samples it was taken from one of them is."""
        return self._numbers[id(sample)]

    def outputs(self, sample: Sample) -> Values:
        """What is judged of the float outputs for one of the samples, by output."""
        return self._outputs[id(sample)]

    def means(self, samples: Sequence[Sample]) -> dict[str, NDArray[np.float32]]:
        """Mean output of each channel of each layer for some of the samples, (samples, channels)."""
        rows = [self._places[id(sample)] for sample in samples]
        return {node: means[rows] for node, means in self._means.items()}

    def layer_means(self, samples: Sequence[Sample]) -> Mapping[str, NDArray[np.float32]]:
        """The same for samples that run one by one, measured where layers write, and once."""
        if self._layer_means is None:
            self.budget.spend(len(samples))
            nodes = [self._model.view.by_name[name] for name in self.layers]
            self._layer_means = float_means(self._model, nodes, [sample.feeds for sample in samples])
        return self._layer_means

    @cached_property
    def fitting(self) -> int:
        """How many samples fit into memory at a time."""
        return max(_FEWEST, _ROOM // self._live)

    def affordable(self, most: int) -> tuple[Sample, ...]:
        """At most so many samples, from all over them; fewer of large ones, but 8 at least."""
        return spread_over(self.samples, min(most, max(CHOOSING, _DEAR // self._live)))

    @cached_property
    def _live(self) -> int:
        """Bytes of the live tensors of one sample."""
        feeds = self.samples[0].feeds if self.samples else {}
        shapes = {name: value.shape for name, value in feeds.items()}
        return 4 * _LIVE * max(1, *sizes(self._model.view, shapes))

    def _measured(self, *, free: bool) -> bool:
        """Run the float model on all samples; whether it gives for two in a batch what it gives for each."""
        watched = channel_means(returning(self._model, self._scores), self.layers if free else (), free=free)
        runner = open_model(watched.model, description="float model", crowded=True)
        rows: list[Values] = []

        def run(sample: Sample) -> Values:
            return runner.run(feeds_for(runner, sample))

        with ThreadPoolExecutor(runner.at_once) as pool:
            for sample, values in zip(self.samples, pool.map(run, self.samples), strict=True):
                self.budget.spend(1)
                self._outputs[id(sample)] = self._named(values)
                rows.append({name: values[name] for name in watched.outputs.values()})
        self._means = watched.of(rows)
        if not free:
            return False
        self.budget.spend(_FEWEST)
        return self._is_alike(runner.run(_joined(runner, self.samples[:_FEWEST])))

    def _taken_from(self, seen: FloatPass) -> bool:
        """Take over what was kept; whether the model gives for two samples in a batch what it gives for each."""
        kept = seen.watch.seen
        self._outputs = {id(one.sample): self._named(one.values) for one in kept}
        self._means = seen.means.of([one.values for one in kept])
        self.budget.spend(len(kept))
        if seen.watch.pair is None:
            return False
        self.budget.spend(_FEWEST)
        return self._is_alike(seen.watch.pair)

    def _took_over(self, like: Reference) -> bool:
        """Take what another form of the model gives for the same samples; False where it is not the same that is judged."""
        if len(like.samples) != len(self.samples) or like.ends.keys() != self.ends.keys():
            return False
        self._outputs = {
            id(mine): like.outputs(its) for mine, its in zip(self.samples, like.samples, strict=True)
        }
        self.budget.spend(len(self.samples))
        return all(found.keys() == self._scores.keys() for found in self._outputs.values())

    def _named(self, values: Values) -> Values:
        """What is judged, by output."""
        return {name: values[tensor] for name, tensor in self._scores.items() if tensor in values}

    def _is_alike(self, found: Values) -> bool:
        """Whether what is judged for the first two samples as one batch is that for each, but for rounding."""
        both = self._named(found)
        single = [self.outputs(sample) for sample in self.samples[:_FEWEST]]
        return all(
            all(one[name].ndim for one in single)
            and both[name].shape[:1] == (sum(len(one[name]) for one in single),)
            and both[name].shape[1:] == single[0][name].shape[1:]
            and _is_close(both[name], np.concatenate([one[name] for one in single]))
            for name in single[0]
        )


class OutputReference(Reference):
    """The same where an output behind a softmax is judged as it comes out: for what is told of it."""

    _by_scores = False


def _is_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays differ by no more than rounding; what is near zero among large values by that of these."""
    finite = np.abs(one[np.isfinite(one)])
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-4 * max(1.0, float(finite.max(initial=0.0)))))


@dataclass(frozen=True)
class _Taken:
    """Samples in memory."""

    samples: tuple[Sample, ...]
    description: str = "samples that choose"
    meaningful: bool = True
    digest: str = ""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


class TrialSession:
    """One session for all tables whose weights are those of `table`.

    Where biases are corrected and the model takes batches, each judgement is one run of a batch that corrects the biases
    on its way. Otherwise samples run one by one, with the shifts that a walk over the layers with a few of them asks for:
    shifts of each layer's own error alone put the calibrators in another order than
    they have once all is corrected.
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
        made = with_emulated_blocks(insert(model, placement, table, InsertOptions()))
        self._scores = scores(made.view, reference.ends)
        made = returning(made, self._scores)
        folder = TemporaryDirectory(prefix="qdqtool-trial-", ignore_cleanup_errors=True)
        weakref.finalize(self, folder.cleanup)
        made = with_folded_weights(made, Path(folder.name))
        self._corrected: Corrected | None = None
        self._walk: LayerWalk | None = None
        ranges = frozenset(entry.tensor for entry in table.ranges)
        self.tunable = tunable(made, () if reference.together else reference.layers, ranges)
        if reference.together:
            del made
            self._runner, found = _opened(self.tunable, reference.layers)
            # From here on the session holds the weights: copies of them would set the peak of the whole job.
            self.tunable = replace(self.tunable, model=model)
            self._corrected = replace(found, model=model)
            del found
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
        """The table, its biases shifted where the recipe asks for it, and its noise on some samples.

        The noise is over the signal of these, or of all `among` which they are the first.
        """
        among = among or samples
        if self._corrected is not None and samples:
            begun = TriedTable(method=method, table=table, shares=())
            return self.continued([begun], samples, among)[0]
        table = table if table.shifts else self._shifted(table)
        outputs_of_each = self._each(self._runner, samples, self.tunable.feeds(table))
        return TriedTable(method=method, table=table, shares=self._shares(among, outputs_of_each))

    def candidates(
        self,
        tables: Mapping[str, CalibrationTable],
        samples: Sequence[Sample],
        among: Sequence[Sample] | None = None,
    ) -> list[TriedTable]:
        """The same for several tables, in their order."""
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
        """The same candidates after the rest of the samples, of which they ran the first; only where a judgement is a batch.

        Where all samples fit into one batch they run as one, also the first: that is exact. As many candidates run at a time
        as fit: small layers leave processors idle.
        """
        if self.reference.fitting >= len(samples):
            candidates = [
                one if len(one.shares) == len(samples) else replace(one, shares=(), differences={})
                for one in candidates
            ]
        left = [len(samples) - len(one.shares) for one in candidates]
        self.budget.spend(sum(left))
        at_once = max(1, min(len(left), processors(), self.reference.fitting // max(1, *left)))
        with ThreadPoolExecutor(at_once) as pool:
            run = partial(self._continued, samples=samples, among=among or samples, at_once=at_once)
            return list(pool.map(run, candidates))

    def close(self) -> None:
        """Give back the memory of the session; nothing can be judged any more."""
        del self._runner
        self._walk = None
        give_back()

    def checked(self, candidate: TriedTable) -> float:
        """The noise of a candidate on the checking samples."""
        return self.candidate("", candidate.table, self.reference.checking).noise

    def started(self, method: str, table: CalibrationTable) -> TriedTable:
        """A candidate that has run no sample yet, for `advanced`."""
        return TriedTable(method=method, table=table if table.shifts else self._shifted(table), shares=())

    def advanced(self, candidate: TriedTable, samples: Sequence[Sample], count: int) -> TriedTable:
        """The same after so many more of the samples, run one by one; its noise is over the signal of all of them."""
        first = len(candidate.shares)
        outputs = self._each(
            self._runner, samples[first : first + count], self.tunable.feeds(candidate.table)
        )
        return replace(candidate, shares=candidate.shares + self._shares(samples, outputs, first))

    @property
    def is_batched(self) -> bool:
        """Whether a judgement is one run of a batch, in which samples cannot be taken apart."""
        return self._corrected is not None

    def at_once(self, judgements: int = 1) -> tuple[Sample, ...]:
        """As many samples as one judgement can be of, and as so many judgements can be of within the budget."""
        most = (self.budget.most - self.budget.spent) // max(1, judgements)
        if self._corrected is not None:
            return self.reference.affordable(most)
        # the walk over the layers, which gives every candidate its shifts, is run before
        most -= 0 if self._walk is None else _SHIFTING
        return spread_over(self.reference.samples, most)

    def _continued(
        self, candidate: TriedTable, samples: Sequence[Sample], among: Sequence[Sample], at_once: int
    ) -> TriedTable:
        """The candidate after the rest of the samples, in as many batches as do not fit together, one after the other."""
        left = samples[len(candidate.shares) :]
        count = self._batches(len(left), at_once)
        for part in range(count):
            batch = left[part * len(left) // count : (part + 1) * len(left) // count]
            candidate = self._after(candidate, batch, len(samples), among)
        return candidate

    def _after(
        self, candidate: TriedTable, batch: Sequence[Sample], whole: int, among: Sequence[Sample]
    ) -> TriedTable:
        """The candidate after one more batch of a `whole` of so many samples; its shifts are those that all it has run ask for."""
        assert self._corrected is not None
        before = candidate.differences
        values = self._corrected_run(candidate.table, batch, whole, before)
        # What a session returns lies in its memory, all of which would stay as long.
        differences = {
            node: np.concatenate([before[node], values[name]]) if before else values[name].copy()
            for node, name in self._corrected.differences.items()
        }
        shifts = tuple(
            NodeShift(node=node, shift=tuple(np.nan_to_num(values[name]).tolist()))
            for node, name in self._corrected.shifts.items()
        )
        found = _apart(self._named(values), [self.reference.outputs(sample) for sample in batch])
        return replace(
            candidate,
            table=replace(candidate.table, shifts=shifts),
            shares=candidate.shares + self._shares(among, found, len(candidate.shares)),
            differences=differences,
        )

    def settled(self, candidate: TriedTable, samples: Sequence[Sample]) -> TriedTable:
        """The candidate with shifts that most of the samples had a say in; itself where all of them ran as one.

        The first batches ran with the shifts that few samples ask for. So those that ran when less than half of the samples
        had run go once more, with what their own differences and the others' ask for, one after the other: of networks whose
        activations are far from linear the result depends less on the order of the samples then. Running the others again
        too takes twice as long, and gains no more than chance (`docs/verified.md`).
        """
        count = self._batches(len(samples))
        if self._corrected is None or count <= 1 or not candidate.differences:
            return candidate
        rows = {node: found.copy() for node, found in candidate.differences.items()}
        for part in range(math.ceil(count / 2)):
            batch = slice(part * len(samples) // count, (part + 1) * len(samples) // count)
            self.budget.spend(batch.stop - batch.start)
            others = {node: np.delete(found, batch, axis=0) for node, found in rows.items()}
            values = self._corrected_run(candidate.table, samples[batch], len(samples), others)
            for node, name in self._corrected.differences.items():
                rows[node][batch] = values[name]
        shifts = tuple(
            NodeShift(node=node, shift=tuple(believed(found).tolist())) for node, found in rows.items()
        )
        return replace(candidate, table=replace(candidate.table, shifts=shifts), differences=rows)

    def _batches(self, count: int, at_once: int = 1) -> int:
        """In how many batches so many samples run, `at_once` of them at a time."""
        return math.ceil(count / max(_FEWEST, self.reference.fitting // at_once))

    def _corrected_run(
        self, table: CalibrationTable, batch: Sequence[Sample], whole: int, earlier: Values
    ) -> Values:
        assert self._corrected is not None
        means = self.reference.means(batch)
        feeds = {
            **_joined(None, batch),
            **self.tunable.feeds(table),
            **self._corrected.feeds(means, _DOUBT, whole, earlier),
        }
        return self._runner.run(feeds)

    def _shifted(self, table: CalibrationTable) -> CalibrationTable:
        samples = self.reference.choosing[:_SHIFTING]
        if self._walk is None or len(samples) < _FEWEST:
            return table
        wanted = self.reference.layer_means(samples)
        self.budget.spend(len(samples))
        ranges = self.tunable.feeds(replace(table, shifts=()))
        found: list[NodeShift] = []

        def corrected(node: Node, means: NDArray[np.float32]) -> NDArray[np.float32]:
            shift = believed(wanted[node.name] - means)
            found.append(NodeShift(node=node.name, shift=tuple(float(value) for value in shift)))
            return np.broadcast_to(shift, means.shape)

        self._walk.run([{**sample.feeds, **ranges} for sample in samples], corrected)
        return replace(table, shifts=tuple(found))

    def _each(self, runner: OrtRunner, samples: Sequence[Sample], more: Values) -> list[Values]:
        """Outputs of each sample by itself; several are run at a time."""
        self.budget.spend(len(samples))

        def run(sample: Sample) -> Values:
            fed = Sample(name=sample.name, feeds={**sample.feeds, **more}, label=sample.label)
            return self._named(runner.run(feeds_for(runner, fed)))

        with ThreadPoolExecutor(runner.at_once) as pool:
            return list(pool.map(run, samples))

    def _named(self, values: Values) -> Values:
        """What is judged, by output."""
        return {name: values[tensor] for name, tensor in self._scores.items()}

    def _shares(
        self, samples: Sequence[Sample], found: Sequence[Values], first: int = 0
    ) -> tuple[float, ...]:
        """Noise of the samples from number `first` on over the signal of all; `found` are the outputs of each of them."""
        wanted = [self.reference.outputs(sample) for sample in samples]
        if not wanted:
            return ()
        judged = wanted[first : first + len(found)]
        shares = np.zeros(len(judged))
        heard = 0
        for names in self.reference.quantities:
            noise, signal = np.zeros(len(judged)), 0.0
            for name in (name for name in names if name in wanted[0]):
                pairs = [(plain[name], got[name]) for plain, got in zip(judged, found, strict=True)]
                if any(left.shape != right.shape for left, right in pairs):
                    continue
                signal += sum(energy(plain[name].astype(np.float64)) for plain in wanted)
                noise += [energy(right.astype(np.float64) - left.astype(np.float64)) for left, right in pairs]
            if signal > 0:
                heard += 1
                shares += noise / signal
        return tuple(float(share) for share in shares / max(1, heard))


def _opened(tuned: Tunable, layers: Sequence[str]) -> tuple[OrtRunner, Corrected]:
    """The session that corrects biases on its way; where convolutions allow it in the layout in which they are fastest."""
    plain = tuned.model
    convolutions = [name for name in layers if plain.view.by_name[name].op == "Conv"]
    found = corrected(plain, layers, bare=convolutions)
    given = with_stand_ins(
        found.model,
        frozenset(tuned.scales.values()),
        {name: shift for name, shift in found.shifts.items() if name in set(convolutions)},
        plain.view,
        found.tail,
    )
    if given is not None:
        runner = open_rewritten(given.model, partial(put_in, given=given), description="candidate tables")
        if runner is not None:
            return runner, found
    found = corrected(plain, layers)
    return open_model(found.model, description="candidate tables"), found


def believed(differences: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean over samples of each channel, shrunk by its uncertainty (positive-part James-Stein).

    A channel that was NaN or infinite in a sample tells nothing, and is believed nothing.
    """
    mean = differences.mean(axis=0, dtype=np.float64)
    doubt = differences.var(axis=0, ddof=1, dtype=np.float64) / len(differences)
    share = np.maximum(0.0, 1.0 - _DOUBT * doubt / np.maximum(mean**2, np.finfo(np.float64).tiny))
    shift = mean * share
    believed: NDArray[np.float32] = np.where(np.isfinite(shift), shift, 0.0).astype(np.float32)
    return believed


def may_be_batched(view: GraphView, layers: Sequence[str]) -> bool:
    """Whether a batch of samples is worth a try: leading dimensions are free or 1, and layers compute in FP32.

    A condition of an If or a Loop holds for a whole batch, so that samples of one batch cannot take different branches.
    """
    if any(node.op in BRANCHING for node in view.nodes):
        return False
    shapes = [info.shape or () for info in view.inputs]
    of_floats = all(view.info(view.by_name[node].outputs[0]).dtype is DType.FLOAT32 for node in layers)
    return of_floats and all(shape and (shape[0] == 1 or isinstance(shape[0], str)) for shape in shapes)


def _shapes(sample: Sample) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, np.shape(value)) for name, value in sorted(sample.feeds.items()))


def _joined(runner: OrtRunner | None, samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
    """The samples as one batch; with a runner, what it is fed of them."""
    feeds = [sample.feeds if runner is None else feeds_for(runner, sample) for sample in samples]
    return {name: _rows([feed[name] for feed in feeds]) for name in feeds[0]}


def _apart(values: Values, wanted: Sequence[Values]) -> list[dict[str, NDArray[Any]]]:
    """The outputs of a batch sample by sample, each with as many rows as are wanted."""
    found: list[dict[str, NDArray[Any]]] = [{} for _ in wanted]
    for name in wanted[0]:
        ends = np.cumsum([len(one[name]) for one in wanted])[:-1]
        for one, part in zip(found, np.split(values[name], ends), strict=True):
            one[name] = part
    return found


def _rows(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(values) if len(values) > 1 else values[0]


def decibels(noise: float) -> float:
    """Signal to noise for a share of noise; infinite without noise."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
