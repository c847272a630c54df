"""`calibrate.method: auto`: the calibrator is chosen by what comes out of the network, not by what goes into a tensor.

No calibrator is best on every network: clipping that quietens each tensor can silence the one channel a detector
lives on. Which one is right shows at the outputs. All candidate tables come from one collection, and one session runs
them all: ranges and biases are inputs of the Q/DQ model (`graph.tunable`), weights stay constants.

1. Every competing calibrator is run on the choosing samples; the quietest table wins. The measure is the noise of the
   outputs relative to their signal, each output weighing the same.
2. As far as the budget goes, each quarter of the network, in graph order, is tried with the runner-up's ranges and
   keeps them where the output gains. The mixture counts only if it is quieter on the other samples too, which took
   no part: a gain that does not repeat is chance.

Where biases are going to be corrected the candidates are judged with corrected biases, since correction takes back
much of what clipping does to the means. The shifts are those of each layer's own error (`graph.layer_errors`), which
one session gives for all layers: on mobilenet_v1_025 they order the calibrators as the full correction does, and
without them the order is another one (max 11.90 dB and mse 11.95 plain, 18.36 and 18.19 corrected).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.accuracy.metric import energy
from qdqtool.accuracy.pairing import feeds_for
from qdqtool.backends.ort import OrtRunner, open_runner
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.samples import Samples
from qdqtool.calibration.table import Constants, groups, make_tables, working_methods
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, NodeShift, TensorRange
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import AUTO, CalibrationOptions, InsertOptions
from qdqtool.graph.instrumented.layer_errors import layer_errors
from qdqtool.graph.instrumented.tunable import tunable
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline.bias import believed

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHOOSING: Final = 16
"""Samples that choose."""
CHECKING: Final = 16
"""Other samples, on which a mixture must be better too."""
RUNS: Final = 6 * (CHOOSING + CHECKING)
"""Inferences that may be spent: six passes over all of these samples."""
_SHIFTING: Final = 8
"""Samples that give a candidate its bias shifts."""
_BLOCKS: Final = 4
_WORTHWHILE: Final = 10 ** (0.2 / 10)
"""How many times quieter a mixture must be, 0.2 dB: on a ViT one that gained less here lost as much elsewhere."""

OnProgress = Callable[[int, "int | None"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A table and how noisy it makes the outputs.

    Attributes:
        method: the calibrator.
        table: all its ranges, with the shifts it was judged with.
        noise: energy of the outputs' differences over their energy, averaged over the outputs.
    """

    method: str
    table: CalibrationTable
    noise: float

    @property
    def decibel(self) -> float:
        """Signal to noise of the outputs; infinite without noise."""
        return -10 * math.log10(self.noise) if self.noise > 0 else math.inf


def competing() -> tuple[str, ...]:
    """The calibrators that are compared, in alphabetical order; broken ones of other distributions are left out."""
    return tuple(name for name in working_methods() if CALIBRATORS.load(name).competes)


def choose(
    model: Model,
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    samples: SampleSource,
    on_progress: OnProgress | None = None,
) -> CalibrationTable:
    """The table whose model's outputs are the least noisy; each range says its calibrator and what it gained.

    Overrides and factors of the recipe hold in every candidate. Biases are not shifted yet: `correct_biases` comes
    after. At most 192 inferences are spent.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    methods = competing()
    choices = [options.model_copy(update={"method": method}) for method in methods]
    tables = dict(zip(methods, make_tables(collected[0], placement, collected[1], choices), strict=True))
    if not groups(placement):
        # Weights alone, or nothing: no calibrator has a say.
        return tables[methods[0]]
    taken = list(islice(_spread(samples, CHOOSING + CHECKING), CHOOSING + CHECKING))
    trial = _Trial(model, placement, tables[methods[0]], options, taken, on_progress)
    candidates = sorted(
        (trial.candidate(method, table) for method, table in tables.items()), key=lambda one: one.noise
    )
    winner = candidates[0]
    mixed = trial.mixture(winner, candidates[1], groups(placement)) if len(candidates) > 1 else winner
    worst = candidates[-1]
    return _explained(mixed, winner, worst, {entry.method: entry.table for entry in candidates})


class _Trial:
    """The float outputs, one session for all tables, and what was spent."""

    def __init__(
        self,
        model: Model,
        placement: Placement,
        table: CalibrationTable,
        options: CalibrationOptions,
        taken: Sequence[Sample],
        on_progress: OnProgress | None,
    ) -> None:
        self._on_progress = on_progress
        self._spent = 0
        # Neighbours in a data set are alike: every second sample checks, so that both halves see all of it.
        self._choosing, self._checking = list(taken[0::2]), list(taken[1::2])
        nodes = [node.name for node in shiftable(model.view)] if options.bias == "correct" else []
        self._tunable = tunable(insert(model, placement, table, InsertOptions()), nodes)
        self._runner = _runner(self._tunable.model, "candidate tables")
        self._errors: tuple[OrtRunner, Mapping[str, str]] | None = None
        if self._tunable.shifts:
            apart, outputs = layer_errors(self._tunable.model, frozenset(self._tunable.shifts))
            if outputs:
                self._errors = (_runner(apart, "errors of single layers"), outputs)
        plain = _runner(model, "float model")
        self._plain = {id(sample): self._run(plain, sample, {}) for sample in taken}
        del plain

    def candidate(self, method: str, table: CalibrationTable) -> Candidate:
        """The table, its biases shifted where the recipe asks for it, and its noise on the choosing samples."""
        table = self._shifted(table)
        return Candidate(method=method, table=table, noise=self._noise(table, self._choosing))

    def mixture(self, winner: Candidate, other: Candidate, tied: Sequence[tuple[str, ...]]) -> Candidate:
        """The winner with the other's ranges in those blocks of the network where that pays on all samples."""
        best = winner
        for block in self._blocks(tied):
            if self._spent + len(self._choosing) + 2 * len(self._checking) > RUNS:
                break
            table = _swapped(best.table, other.table, block)
            if table.ranges == best.table.ranges:
                continue
            noise = self._noise(table, self._choosing)
            if noise * _WORTHWHILE < best.noise:
                best = Candidate(method=AUTO, table=table, noise=noise)
        if best is winner or not self._checking:
            return winner
        mixed, single = (self._noise(one.table, self._checking) for one in (best, winner))
        return best if mixed * _WORTHWHILE < single else winner

    def _blocks(self, tied: Sequence[tuple[str, ...]]) -> list[frozenset[str]]:
        """The tuned tensors in parts of the network, with all that must share their ranges."""
        order = list(self._tunable.scales)
        group_of = {name: group for group in tied for name in group}
        size = max(1, math.ceil(len(order) / _BLOCKS))
        blocks: list[frozenset[str]] = []
        known: set[str] = set()
        for start in range(0, len(order), size):
            part = {
                one for name in order[start : start + size] for one in group_of.get(name, (name,))
            } - known
            known |= part
            if part:
                blocks.append(frozenset(part))
        return blocks

    def _shifted(self, table: CalibrationTable) -> CalibrationTable:
        if self._errors is None:
            return table
        runner, outputs = self._errors
        rows: dict[str, list[NDArray[np.float32]]] = {node: [] for node in outputs}
        for sample in self._choosing[:_SHIFTING]:
            values = self._run(runner, sample, self._tunable.feeds(table), price=2)
            for node, name in outputs.items():
                rows[node].append(values[name].astype(np.float32))
        if len(self._choosing) < 2:
            return table
        shifts = ((node, believed(np.stack(entries))) for node, entries in rows.items())
        return replace(
            table,
            shifts=tuple(
                NodeShift(node=node, shift=tuple(float(value) for value in shift)) for node, shift in shifts
            ),
        )

    def _noise(self, table: CalibrationTable, samples: Sequence[Sample]) -> float:
        feeds = self._tunable.feeds(table)
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        for sample in samples:
            outputs = self._run(self._runner, sample, feeds)
            for name, wanted in self._plain[id(sample)].items():
                left, right = wanted.astype(np.float64), outputs[name].astype(np.float64)
                if left.shape != right.shape:
                    continue
                noise[name] = noise.get(name, 0.0) + energy(right - left)
                signal[name] = signal.get(name, 0.0) + energy(left)
        shares = [noise[name] / signal[name] for name in noise if signal[name] > 0]
        return float(np.mean(shares)) if shares else 0.0

    def _run(
        self, runner: OrtRunner, sample: Sample, more: Mapping[str, NDArray[Any]], price: int = 1
    ) -> dict[str, NDArray[Any]]:
        self._spent += price
        if self._on_progress is not None:
            self._on_progress(min(self._spent, RUNS), RUNS)
        fed = Sample(name=sample.name, feeds={**sample.feeds, **more}, label=sample.label)
        return runner.run(feeds_for(runner, fed))


def _runner(model: Model, description: str) -> OrtRunner:
    return open_runner(serialize(model), description=description)


def _spread(samples: SampleSource, count: int) -> Iterator[Sample]:
    """So many samples from all over the source: data sets are often sorted by class."""
    step = max(1, len(samples) // count)
    if isinstance(samples, Samples):
        yield from samples.every(step)
    else:
        yield from islice(iter(samples), 0, None, step)


def _swapped(table: CalibrationTable, other: CalibrationTable, tensors: frozenset[str]) -> CalibrationTable:
    theirs = other.by_tensor()
    ranges = tuple(theirs[entry.tensor] if entry.tensor in tensors else entry for entry in table.ranges)
    return replace(table, ranges=ranges)


def _explained(
    best: Candidate, winner: Candidate, worst: Candidate, tables: Mapping[str, CalibrationTable]
) -> CalibrationTable:
    """The chosen table without shifts; each range with what its choice gained at the output, in dB."""
    single = winner.table.by_tensor()

    def explained(entry: TensorRange) -> TensorRange:
        mine = single[entry.tensor]
        swapped = entry.amax != mine.amax
        gain = best.decibel - winner.decibel if swapped else winner.decibel - worst.decibel
        alike = all(table.by_tensor()[entry.tensor].amax == entry.amax for table in tables.values())
        return entry if alike or not math.isfinite(gain) else replace(entry, gain_db=round(gain, 2))

    return replace(best.table, ranges=tuple(explained(entry) for entry in best.table.ranges), shifts=())
