"""Divides samples into those for calibration, for choices, for checks, and for fits.

    calibrate   all samples give histograms
    choose      `choosing` takes samples from all over the source, as many as the network's size allows (`count_taken`); `some_first`
                puts those first that every candidate of a large network runs
    check       `choosing_and_checking` takes two small parts of these without a common sample
    folds       few samples: ranges of three quarters run the fourth (`fold`, `without`)
    fit         rounding and equalization use other samples than those that choose (`fitting_samples`, `fitting_numbers`)
    search      `from_all_over` takes the samples that a search of float nodes runs

Reports use the evaluation samples, and no sample that chose, if the user gives any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final, TypeVar

from qdqtool.backends.shapes import batch_place, usual_shapes
from qdqtool.calibration.samples.opening import SamplePart, picked
from qdqtool.core.protocols import Sample, SampleSource, Shape
from qdqtool.graph.canonical.shapes import length_of
from qdqtool.graph.view import GraphView

Part = TypeVar("Part")

TAKEN: Final = 32
"""Samples that choose and correct biases; half as many choose worse ranges."""
CHOOSING: Final = 8
"""Samples that run at a time while calibrators are compared, and on which equalization is chosen."""
CHECKING: Final = 8
"""Samples that check a gain seen on `CHOOSING` samples."""
FOLDS: Final = 4
"""Number of parts into which few samples are divided. With two parts, each part has too few samples to show rare values."""
OF_LARGE: Final = 8
"""Samples that every calibrator runs if trials are expensive; calibrators that are significantly noisier on them stop there."""
FEWEST: Final = 2
"""Fewest samples on which two candidates can be compared."""
_TAKEN_OF_LARGE: Final = 2 * TAKEN
"""Most samples that choose for models with expensive inferences: if their outputs have few numbers."""
_FEW_NUMBERS: Final = 8
"""Numbers of all outputs of a sample up to which its noise depends on chance."""
_TAKEN_OF_SMALL: Final = 256
"""Most samples that choose for models with cheap inferences: on small images single samples may make most of the noise."""
_SMALL: Final = 1 << 20
"""Elements of all tensors of one sample up to which a model is small."""


def count_taken(view: GraphView, whole: int) -> int:
    """Return how many of `whole` samples choose ranges and correct biases.

    32, up to 64 if the outputs have few numbers, or up to 256 if the model is small.
    """
    most = _TAKEN_OF_LARGE if has_few_numbers(view) else TAKEN
    return max(TAKEN, min(_TAKEN_OF_SMALL if is_small(view) else most, whole))


def has_few_numbers(view: GraphView) -> bool:
    """Return True if the outputs for a sample have few numbers in total, such as the scores of two classes."""
    total = 0
    for info in view.outputs:
        rows = (info.shape or ())[1:]
        lengths = [length for length in rows if isinstance(length, int)]
        if info.shape is None or len(lengths) < len(rows):
            return False
        total += prod(lengths)
    return total <= _FEW_NUMBERS


def is_small(view: GraphView) -> bool:
    """Return True if the tensors of a sample have few elements; dynamic dimensions get usual lengths."""
    return sum(sizes(view, usual_shapes(view.inputs))) <= _SMALL


def sizes(view: GraphView, shapes: Mapping[str, Shape]) -> Iterator[int]:
    """Yield the number of elements of each tensor of one sample, for inputs of these shapes; unknown lengths count as 1."""
    lengths = {
        dim: length
        for info in view.inputs
        for place, (dim, length) in enumerate(zip(info.shape or (), shapes.get(info.name, ()), strict=False))
        if isinstance(dim, str) and place != batch_place(info.shape or ())
    }
    for node in view.nodes:
        for name in node.outputs:
            lengths_of = (length_of(dim, lengths) for dim in view.info(name).shape or ())
            yield prod(1 if length is None else length for length in lengths_of)


def choosing_numbers(whole: int, count: int) -> tuple[int, ...]:
    """Return the numbers of `count` of `whole` samples, evenly spaced: data sets are often sorted by class.

    Return all numbers if there are fewer samples.
    """
    count = min(count, whole)
    return tuple(number * whole // count for number in range(count))


def choosing(samples: SampleSource, count: int) -> tuple[Sample, ...]:
    """Return the samples that choose ranges, see `choosing_numbers`; fewer if the source has fewer samples."""
    return tuple(picked(samples, choosing_numbers(len(samples), count)))


def choosing_and_checking(samples: tuple[Sample, ...]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return evenly spaced samples that choose ranges, and others that check the choice.

    Neighbours in a data set are similar.
    """
    pairs = choosing_numbers((len(samples) + 1) // 2, min(CHOOSING, CHECKING))
    checking = tuple(sample for pair in pairs for sample in samples[2 * pair + 1 : 2 * pair + 2])
    return tuple(samples[2 * pair] for pair in pairs), checking


def some_first(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Reorder samples so that an evenly spaced subset, which every calibrator runs, comes first."""
    first = choosing_numbers(len(samples), OF_LARGE)
    return (
        *(samples[place] for place in first),
        *(sample for place, sample in enumerate(samples) if place not in first),
    )


def fold(samples: tuple[Sample, ...], part: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return one of `FOLDS` evenly spaced parts of the samples, and the other samples."""
    outside = tuple(sample for number, sample in enumerate(samples) if number % FOLDS != part)
    return samples[part::FOLDS], outside


def without(parts: Sequence[Part], part: int) -> tuple[Part, ...]:
    """Return all parts except number `part`."""
    return tuple(entry for number, entry in enumerate(parts) if number != part)


def from_all_over(samples: SampleSource, most: int) -> SamplePart:
    """Return at most `most` evenly spaced samples of the source. They are not kept in memory."""
    return SamplePart(samples, choosing_numbers(len(samples), most))


def fitting_samples(view: GraphView, samples: SampleSource, count: int) -> tuple[Sample, ...]:
    """Return at most `count` evenly spaced samples for a fit, in order: see `fitting_numbers`."""
    numbers = sorted(fitting_numbers(view, len(samples)))
    return tuple(picked(samples, [numbers[place] for place in choosing_numbers(len(numbers), count)]))


def fitting_numbers(view: GraphView, whole: int) -> frozenset[int]:
    """Return the samples for a fit, by number: those that do not choose ranges.

    If most samples choose ranges, return every second sample. A single sample fits and chooses.

    If samples both fit and evaluate a change, they overrate it: rounding may gain on its own samples and lose on
    others. So other samples evaluate the change.
    """
    if whole < 2:
        return frozenset(range(whole))
    chosen = choosing_numbers(whole, count_taken(view, whole))
    if whole < 2 * len(chosen):
        return frozenset(range(1, whole, 2))
    return frozenset(range(whole)).difference(chosen)


def spread_over(samples: tuple[Sample, ...], most: int) -> tuple[Sample, ...]:
    """Return at most `most` evenly spaced samples, and at least one."""
    return tuple(samples[number] for number in choosing_numbers(len(samples), max(1, most)))
