"""Runs reference and candidate side by side over the same samples and measures their difference."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.detections import count_listed as listed_of
from qdqtool.accuracy.metric import SAME, SILENT, Floats, Meter, Reading, distance, energy
from qdqtool.accuracy.parts import OutputPart
from qdqtool.accuracy.side_by_side import Outputs, Pair, abreast, comparable, describe_unpaired, pair_outputs
from qdqtool.accuracy.task import Task
from qdqtool.core.comparison import (
    Comparison,
    Measure,
    OutputComparison,
    PartComparison,
    SampleError,
    SqnrEstimate,
)
from qdqtool.core.evidence import ratio_interval
from qdqtool.core.protocols import Runner, Sample, SampleSource
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.wording import count_noun, list_names
from qdqtool.errors import InputFileError, UsageError

# --- two runners over samples ----------------------------------------------------------------------------------------

OnSample = Callable[[int, int], None]
"""Called after each sample with the number of finished samples and their total."""


def compare(
    reference: Runner,
    candidate: Runner,
    samples: SampleSource,
    options: CompareOptions,
    *,
    inside: frozenset[str] = frozenset(),
    parts: Sequence[OutputPart] = (),
    on_progress: OnSample | None = None,
) -> Comparison:
    """Compare two models over the samples: metrics per output, task metrics and worst samples.

    Memory does not grow with the number of samples.

    Both runners get each sample once. Task metrics need labels in the samples, except `agreement`. Outputs named in
    `inside` are intermediate tensors that the runners also return; they are measured, and listed separately. If the
    runners return nothing else, there is no SQNR estimate and no task. `parts` are the parts of outputs that both
    models return (`accuracy.parts`).

    Raises:
        UsageError: an unknown metric or output, or runners without a common output.
        InputFileError: no samples, outputs of different shapes, NaN outputs, labels out of range.
    """
    meeting = _Meeting(reference, candidate, options, inside, parts)
    meeting.run(samples, on_progress)
    return meeting.result(meaningful=samples.meaningful)


def compare_noise(
    reference: Runner, candidate: Runner, samples: SampleSource, options: CompareOptions
) -> tuple[Comparison, tuple[float, ...]]:
    """Return the result of `compare`, and the contribution of each sample to the ratio of noise to signal.

    Without measured outputs, the contributions are ().
    """
    meeting = _Meeting(reference, candidate, options, frozenset(), ())
    meeting.run(samples, None)
    return meeting.result(meaningful=samples.meaningful), meeting.shares


_NAMED: Final = 3
"""Most outputs that a note names."""
_OF_ANOTHER_LENGTH: Final = (
    Measure(
        metric="sqnr_db",
        value=None,
        unit="dB",
        note="not measured: the candidate has a different number of values",
    ),
)


class _Meeting:
    """A comparison of two models in progress: the metrics so far, and the samples that ran."""

    def __init__(
        self,
        reference: Runner,
        candidate: Runner,
        options: CompareOptions,
        inside: frozenset[str],
        parts: Sequence[OutputPart],
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._limit = options.limit
        part_of = {name: part for part in parts for name in part.names}
        self._paired = pair_outputs(reference, candidate)
        self._pairs = [pair for pair in self._paired if pair.reference not in part_of]
        self._parts = {
            part: [pair for pair in self._paired if part_of.get(pair.reference) is part] for part in parts
        }
        self._inside = inside
        self._scored = _find_scored_pairs(
            [pair for pair in self._pairs if pair.reference not in inside], options.output
        )
        distances = {name: distance(name) for name in options.metrics}
        self._units = {name: distance.unit for name, distance in distances.items()}
        self._meters: dict[Pair, dict[str, Meter]] = {
            pair: {name: distance.start() for name, distance in distances.items()} for pair in self._pairs
        }
        self._task = Task(options.task, options.extra_columns)
        self._worst = Worst()
        self._hidden = {part.output for part in parts}
        self._idle = self._hidden - {part.output for part in parts if part.names}
        self._outputs = {pair.reference for pair in (self._scored if options.output else self._pairs)}
        self._energies: dict[str, list[tuple[float, float]]] = {
            pair.reference: [] for pair in self._pairs if pair.reference in self._outputs - inside
        }
        self._of_parts: dict[OutputPart, list[tuple[float, float]]] = {
            part: [] for part in parts if part.names
        }
        self._lost_parts: dict[str, str] = {}
        self._unmeasured: dict[str, list[str]] = {}
        self._lists: list[str] = []
        self.count = 0

    def run(self, samples: SampleSource, on_progress: OnSample | None) -> None:
        """Run reference and candidate on all samples, and update the metrics.

        Raises:
            InputFileError: there are no samples, or one does not fit.
        """
        limit = self._limit
        total = len(samples) if limit is None else min(limit, len(samples))
        both = abreast(self._reference, self._candidate, islice(iter(samples), total))
        for done, (sample, left, right) in enumerate(both, start=1):
            self.add(sample, left, right)
            # freed before the next sample runs: inner tensors of both sides can take most of the memory
            del left, right
            if on_progress is not None:
                on_progress(done, total)
        if not self.count:
            raise InputFileError(
                "there are no samples", fix="give at least one sample", where=samples.description
            )

    def add(self, sample: Sample, left: Outputs, right: Outputs) -> None:
        values = {}
        for pair, meters in tuple(self._meters.items()):
            try:
                a, b = comparable(left[pair.reference], right[pair.candidate], pair, sample)
            except InputFileError:
                if self._is_list(pair, left, right):
                    del self._meters[pair]
                    self._energies.pop(pair.reference, None)
                    self._lists.append(pair.reference)
                    continue
                wild = _wild(left[pair.reference], right[pair.candidate])
                if wild is None or pair.reference not in self._inside:
                    raise
                del self._meters[pair]
                self._unmeasured.setdefault(wild, []).append(pair.reference)
                continue
            if pair.reference not in self._inside | self._hidden:
                values[pair.reference] = (a, b)
            if pair.reference in self._energies:
                self._energies[pair.reference].append((energy(a), energy(b - a)))
            for meter in meters.values():
                meter.add(a, b)
        for part, pairs in self._parts.items():
            values |= self._part(part, pairs, left, right, sample)
        if self._scored:
            mine = {pair.reference: left[pair.reference] for pair in self._scored}
            theirs = {pair.reference: right[pair.candidate] for pair in self._scored}
            self._task.add(mine, theirs, sample)
        self._worst.add(sample.name, values)
        self.count += 1

    def _part(
        self, part: OutputPart, pairs: Sequence[Pair], left: Outputs, right: Outputs, sample: Sample
    ) -> dict[str, tuple[Floats, Floats]]:
        """Add the values of one output part for one sample; return them under the part's name in reports."""
        if part not in self._of_parts:
            return {}  # the model has no such tensors, or they cannot be measured
        try:
            values = [comparable(left[pair.reference], right[pair.candidate], pair, sample) for pair in pairs]
        except InputFileError as error:
            # the output itself may be correct: a Where may never choose the NaN values
            self._lost_parts[_words(part)] = error.what
            del self._of_parts[part]
            return {}
        a, b = (np.concatenate([pair[side].ravel() for pair in values]) for side in (0, 1))
        self._of_parts[part].append((energy(a), energy(b - a)))
        return {_words(part): (a, b)}

    def _is_list(self, pair: Pair, left: Outputs, right: Outputs) -> bool:
        """Return True if an output is a list of detections whose length differs between the models."""
        mine, theirs = left[pair.reference], right[pair.candidate]
        if pair.reference in self._inside or mine.ndim != theirs.ndim or mine.shape == theirs.shape:
            return False
        if pair.reference in self._hidden:
            return True
        different = [axis for axis in range(mine.ndim) if mine.shape[axis] != theirs.shape[axis]]
        if not mine.size:  # the layout of an empty list is unknown
            count = listed_of({scored.candidate: right[scored.candidate] for scored in self._scored})
            return [theirs.shape[axis] for axis in different] == [count]
        count = listed_of({scored.reference: left[scored.reference] for scored in self._scored})
        return [mine.shape[axis] for axis in different] == [count]

    def _unmeasured_notes(self) -> Iterator[str]:
        for wild, names in self._unmeasured.items():
            count = count_noun(len(names), "tensor inside is", "tensors inside are")
            yield f"{count} not compared, first {names[0]!r}: {wild} there"

    def result(self, *, meaningful: bool) -> Comparison:
        return Comparison(
            reference=self._reference.description,
            candidate=self._candidate.description,
            samples=self.count,
            meaningful=meaningful,
            outputs=self._with_task(self._compare_outputs(lambda name: name not in self._inside)),
            task=self._task.results(),
            one_answer=self._task.is_one_answer,
            worst=self._worst.listed(),
            notes=(
                *_chosen_notes(self._of_parts),
                *describe_unpaired(self._reference, self._candidate, self._paired),
                *self._task.notes(meaningful=meaningful),
                *self._unmeasured_notes(),
                *(f"{name} is not compared separately: {why}" for name, why in self._lost_parts.items()),
            ),
            tensors=self._compare_outputs(lambda name: name in self._inside),
            sqnr=self._sqnr(),
            parts=tuple(_compared_part(part, energies) for part, energies in self._of_parts.items()),
        )

    @property
    def shares(self) -> tuple[float, ...]:
        """The noise of each sample, divided by the signal of all samples; () without a measured signal."""
        _, signal, noise = self._measured
        return tuple((noise / signal.sum()).tolist()) if signal.sum() > 0 else ()

    @property
    def _measured(self) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
        """The names of the measured outputs, and the mean signal and noise of each sample."""
        excluded = self._idle | {part.output for part in self._of_parts}
        measured = [
            (output, energies) for output, energies in self._energies.items() if output not in excluded
        ]
        measured += [
            (part.output, energies)
            for part, energies in self._of_parts.items()
            if part.output in self._outputs
        ]
        if not measured:
            return [], np.zeros(0), np.zeros(0)
        every = np.array([energies for _, energies in measured], np.float64)
        whole = every[..., :1].sum(axis=1, keepdims=True)
        if len(every) > 1:
            # The noise of each output is divided by its own signal: boxes are a hundred times larger than scores.
            every = (every / np.where(whole > 0, whole, 1))[whole[:, 0, 0] > 0]
        signal, noise = every.mean(axis=0).T if len(every) else np.zeros((2, 1))
        return [*dict.fromkeys(output for output, _ in measured)], signal, noise

    def _sqnr(self) -> SqnrEstimate | None:
        """Return the SQNR of all measured outputs and parts, over all samples together."""
        outputs, signal, noise = self._measured
        if not (0 < signal.sum() < math.inf and 0 < noise.sum() < math.inf):
            return None
        reach = ratio_interval(signal, noise)
        return SqnrEstimate(
            output=list_names(outputs, 1),
            sqnr_db=10 * math.log10(signal.sum() / noise.sum()),
            low=None if reach is None else reach.low,
            high=None if reach is None else reach.high,
        )

    def _compare_outputs(self, is_shown: Callable[[str], bool]) -> tuple[OutputComparison, ...]:
        return tuple(
            OutputComparison(
                output=pair.reference,
                measures=_OF_ANOTHER_LENGTH
                if pair.reference in self._lists
                else self._measures(self._meters[pair]),
            )
            for pair in self._pairs
            if is_shown(pair.reference) and (pair in self._meters or pair.reference in self._lists)
        )

    def _with_task(self, outputs: tuple[OutputComparison, ...]) -> tuple[OutputComparison, ...]:
        """Add the further figures of the task, such as perplexity, to the entry of the scored output."""
        more = self._task.measures()
        scored = self._scored[0].reference if self._scored else ""
        return tuple(
            replace(entry, measures=(*entry.measures, *more)) if more and entry.output == scored else entry
            for entry in outputs
        )

    def _measures(self, meters: dict[str, Meter]) -> tuple[Measure, ...]:
        readings = {name: _finite(meter.reading()) for name, meter in meters.items()}
        return tuple(
            Measure(metric=name, value=reading.value, unit=self._units[name], note=reading.note)
            for name, reading in readings.items()
        )


def _compared_part(part: OutputPart, energies: Sequence[tuple[float, float]]) -> PartComparison:
    signal, noise = np.array(energies, np.float64).sum(axis=0)
    note = SILENT if not signal else SAME if not noise else ""
    measured = not note and math.isfinite(signal) and math.isfinite(noise)
    return PartComparison(
        output=part.output,
        tensors=part.tensors,
        chosen=part.chosen,
        sqnr_db=10 * math.log10(signal / noise) if measured else None,
        note=note,
    )


def _chosen_notes(parts: Iterable[OutputPart]) -> Iterator[str]:
    """Yield a note for outputs whose rows the network selects, such as the best detections."""
    outputs = dict.fromkeys(part.output for part in parts if part.chosen)
    if outputs:
        yield (
            f"the network selects and sorts the rows of {list_names(list(outputs), _NAMED)}: a row in another position counts as noise. The tensors before the selection show the noise of the network"
        )


def _words(part: OutputPart) -> str:
    first, *further = part.tensors
    return f"{part.output}: {first}" + (f" and {len(further)} more" if further else "")


def _wild(left: NDArray[Any], right: NDArray[Any]) -> str | None:
    """Return why an inner tensor cannot be compared; None if it can.

    It may list detections, or have NaN or infinity: models compute such values in padding, and mask them later.
    """
    if left.shape != right.shape:
        return "the shapes differ"
    for values, words in (
        (left, "the reference contains NaN or infinity"),
        (right, "only the candidate contains NaN or infinity"),
    ):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return words
    return None


def _finite(reading: Reading) -> Reading:
    """Return the result of a metric; if it is infinite or NaN, return a note instead of the value."""
    if reading.value is None or math.isfinite(reading.value):
        return reading
    return Reading(value=None, note="the values are too large to measure")


def _find_scored_pairs(pairs: list[Pair], output: str) -> list[Pair]:
    """Return the outputs that may hold class scores: all outputs, or the requested one.

    Raises:
        UsageError: no pair is called so.
    """
    if not pairs or not output:
        return pairs
    for pair in pairs:
        if output in {pair.reference, pair.candidate}:
            return [pair]
    names = ", ".join(repr(pair.reference) for pair in pairs)
    raise UsageError(f"unknown output {output!r}", fix=f"set compare.output to one of {names}")


# --- worst samples ---------------------------------------------------------------------------------------------------
# Number of samples with the largest loss that are named.

_KEPT: Final = 10
"""Samples with the most noise, for inspection by hand."""


@dataclass(frozen=True, slots=True)
class _Energies:
    """Energy of an output and of its error, for each sample that has the output."""

    places: array[int] = field(default_factory=lambda: array("q"))
    signals: array[float] = field(default_factory=lambda: array("d"))
    noises: array[float] = field(default_factory=lambda: array("d"))


class Worst:
    """Finds the samples with the most noise in any output, each once.

    The noise of a sample is relative to its signal, or to the mean signal if its signal is smaller.

    A picture without objects has scores near zero, and their small noise would count more than lost objects. For each
    output of a sample, 24 bytes and its name are kept.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._energies: dict[str, _Energies] = defaultdict(_Energies)

    def add(self, sample: str, pairs: dict[str, tuple[Floats, Floats]]) -> None:
        """Add the signal and noise energy of all outputs of one sample."""
        for output, (reference, candidate) in pairs.items():
            signal, noise = energy(reference), energy(candidate - reference)
            # values that are too large to be squared give no SQNR
            if math.isfinite(signal) and math.isfinite(noise):
                kept = self._energies[output]
                kept.places.append(len(self._names))
                kept.signals.append(signal)
                kept.noises.append(noise)
        # The file name is enough to find the sample, and does not depend on the folder.
        self._names.append(sample.rpartition("/")[2])

    def listed(self) -> tuple[SampleError, ...]:
        """Return the samples with the most noise, the worst first, without samples that have no noise or no signal."""
        worst: dict[int, tuple[float, SampleError]] = {}
        for output, kept in self._energies.items():
            signal, noise = np.frombuffer(kept.signals), np.frombuffer(kept.noises)
            shares = noise / np.maximum(np.maximum(signal, signal.mean()), np.finfo(np.float64).tiny)
            for number in np.argsort(-shares, kind="stable"):
                place, share = kept.places[number], float(shares[number])
                if not (signal[number] and noise[number]) or share <= worst.get(place, (0.0,))[0]:
                    continue
                level = 10 * (math.log10(signal[number]) - math.log10(noise[number]))
                worst[place] = share, SampleError(sample=self._names[place], output=output, sqnr_db=level)
        ranked = sorted(worst.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(entry for _, (_, entry) in ranked[:_KEPT])
