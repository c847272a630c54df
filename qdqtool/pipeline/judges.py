"""Which samples judge tables, and which are fitted to.

A large model is judged by few samples, since each costs an inference of every candidate; a small one by all that there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import prod
from typing import Final

from qdqtool.backends.shapes import batch_place, usual_shapes
from qdqtool.calibration.samples import Samples
from qdqtool.core.build import Shape
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.graph.canonical.settled import length_of
from qdqtool.graph.view import GraphView

TAKEN: Final = 32
"""Samples that choose and correct biases; half as many choose worse."""
_TAKEN_OF_SMALL: Final = 256
"""The same for models whose inferences cost next to nothing: on small images single samples may hold most of the noise."""
_SMALL: Final = 1 << 20
"""Elements of all tensors of one sample, in a model that is small."""


def taken(view: GraphView, whole: int) -> int:
    """How many of so many samples choose and correct biases: 32, more of a small model."""
    return max(TAKEN, min(_TAKEN_OF_SMALL, whole)) if is_small(view) else TAKEN


def is_small(view: GraphView) -> bool:
    """Whether an inference costs next to nothing, inputs of free size being as large as most are."""
    return sum(sizes(view, usual_shapes(view.inputs))) <= _SMALL


def sizes(view: GraphView, shapes: Mapping[str, Shape]) -> Iterator[int]:
    """Elements of each tensor of one sample for inputs of these shapes; of what is not known a single one."""
    lengths = {
        dim: length
        for info in view.inputs
        for place, (dim, length) in enumerate(zip(info.shape or (), shapes.get(info.name, ()), strict=False))
        if isinstance(dim, str) and place != batch_place(info.shape or ())
    }
    for node in view.nodes:
        for name in node.outputs:
            found = (length_of(dim, lengths) for dim in view.info(name).shape or ())
            yield prod(1 if length is None else length for length in found)


def others(view: GraphView, samples: SampleSource, count: int) -> tuple[Sample, ...]:
    """At most so many of the samples to fit something to, in order: see `fitting_numbers`."""
    numbers = fitting_numbers(view, len(samples))
    return tuple(islice((sample for number, sample in enumerate(samples) if number in numbers), count))


def fitting_numbers(view: GraphView, whole: int) -> frozenset[int]:
    """Which of so many samples are fitted to: those that `Reference` does not take, or every other one where it takes most.

    What is fitted to the samples that judge it is found better than it is: rounding may gain on samples
    it has seen, and lose on others. So the others judge.
    """
    wanted = taken(view, whole)
    step = max(1, whole // wanted)
    if step == 1:
        return frozenset(range(1, whole, 2))
    return frozenset(range(whole)) - {number * step for number in range(wanted)}


def spread(samples: SampleSource, count: int) -> Iterator[Sample]:
    """So many samples from all over the source: data sets are often sorted by class."""
    step = max(1, len(samples) // count)
    if isinstance(samples, Samples):
        yield from samples.every(step)
    else:
        yield from islice(iter(samples), 0, None, step)


def spread_over(samples: tuple[Sample, ...], most: int) -> tuple[Sample, ...]:
    """At most so many of the samples, but one at least, from all over them."""
    whole, count = len(samples), max(1, most)
    return tuple(samples[number * whole // count] for number in range(count)) if count < whole else samples
