"""Opens the samples of a recipe, and chooses shapes of random samples for models with dynamic dimensions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.backends import shapes
from qdqtool.backends.shapes import batch_place
from qdqtool.calibration.samples import SampleInput, Samples, open_samples
from qdqtool.calibration.samples.opening import NanPolicy
from qdqtool.core.protocols import Runner
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import QdqError, UsageError
from qdqtool.graph.canonical.shapes import peak_bytes
from qdqtool.io.files import budget
from qdqtool.platform import bounded_memory
from qdqtool.runtime.runner import open_model

if TYPE_CHECKING:
    from qdqtool.backends.shapes import Shapes
    from qdqtool.graph.view import Model

_log = logging.getLogger(__name__)
_LENGTHS = (64, 256, 32, 512, 16, 1024, 8, 4096, 2, 1, 16000)
"""Lengths to try if a model fails on the usual ones. Text encoders end at 64 to 77 tokens, speech models need
frames of 256 to 512 values (Silero VAD 192 to 703), and others a second of 16 kHz.
"""
_MANY = (64, 256, 512)
"""Lengths of the leading dimension to try if a model fails on 1: frames of a recording that convolutions without
padding shorten (madmom's chords and beats need 64 frames or more).
"""
_MOST_TRIES = 48
"""Most shapes that are tried; most runs fail within milliseconds, at the first node whose input does not fit."""
_MOST_ELEMENTS = 1 << 24
"""Most elements of one input that is tried."""
_MOST_MEMORY = 2 << 30
"""Most bytes for the values inside a model, as shapes predict, on one sample of the default shape. Later steps take
several times as much.
"""
_SHARE = 4
"""Divisor of the memory budget: the values inside a model may take this part of it."""
_SLACK = 2
"""Ratio of the bytes that a run may take to the bytes that shapes predict: onnxruntime requests blocks of up
to twice the size.
"""


def samples_for(
    source: SampleInput,
    inputs: tuple[TensorInfo, ...],
    recipe: Recipe,
    runner: Callable[[], Runner],
    *,
    labels: str | None = None,
    limit: int | None = None,
    on_nan: NanPolicy | None = None,
) -> Samples:
    """Open samples as a recipe prepares them. Random samples get shapes with which the model runs: see `add_usual_shapes`.

    `on_nan` replaces the recipe's `samples.nan`. The other arguments are those of `open_samples`.

    Raises:
        UsageError, InputFileError: as `open_samples` and `runnable_shapes`.
    """
    return open_samples(
        add_usual_shapes(source, inputs, recipe.build.opt_shapes, runner),
        inputs,
        recipe.samples.preprocess,
        labels=labels,
        limit=limit,
        on_nan=on_nan or recipe.samples.nan,
    )


class Opener:
    """Opens a model in onnxruntime when it is called, and estimates the memory of one inference."""

    def __init__(self, make: Callable[[], Model]) -> None:
        self._make = make

    @cached_property
    def model(self) -> Model:
        """The model; it is made at the first access."""
        return self._make()

    def __call__(self) -> Runner:
        return open_model(self.model, description="random samples")

    def peak(self, sample_shapes: Shapes) -> int:
        """Return a lower bound, in bytes, for the inner tensors of one sample of these shapes."""
        return peak_bytes(self.model, sample_shapes)


def add_usual_shapes(
    samples: SampleInput,
    inputs: tuple[TensorInfo, ...],
    usual: str,
    runner: Callable[[], Runner],
) -> SampleInput:
    """Add shapes with which the model runs to random samples that have no shapes; leave other samples unchanged.

    `usual` are the shapes of the engine as a recipe spells them; without, `runnable_shapes` finds some, for which `runner`
    opens the model.
    """
    if not isinstance(samples, str):
        return samples
    is_shapeless = samples.startswith("random") and "," not in samples
    if not is_shapeless or Path(samples).exists():
        return samples
    spelled = usual or shapes.format_shapes(runnable_shapes(inputs, runner))
    if not spelled:
        return samples
    words, bracket, part = samples.partition("[")
    return f"{words},{spelled}{bracket}{part}"


def shapes_of(model: Model) -> Shapes:
    """Return shapes for the dynamic dimensions of a model, with which onnxruntime runs it if any are found."""
    return runnable_shapes(model.view.inputs, opener(model))


def opener(model: Model) -> Opener:
    """Return an opener of the model in onnxruntime."""
    return Opener(lambda: model)


def runnable_shapes(inputs: tuple[TensorInfo, ...], runner: Callable[[], Runner]) -> Shapes:
    """Return the usual shapes for dynamic dimensions. If the model fails on them, return the first shapes on which it runs.

    Shapes that would take too much memory are not tried: an `Opener` estimates it, and every trial run is limited. A
    model whose only dynamic dimension is the batch is not opened. If no shapes work, or if the model cannot be opened,
    the usual shapes are returned; the next run then reports the fault.

    Raises:
        UsageError: the usual shapes would take too much memory, and the model runs with none that takes less.
    """
    usual = shapes.usual_shapes(inputs)
    free = _free(inputs)
    if not free:
        return usual
    try:
        opened = runner()
    except QdqError:
        return usual
    leading = dict.fromkeys(info.shape[0] for info in inputs if info.shape and isinstance(info.shape[0], str))
    tries = (shapes.usual_shapes(inputs, lengths) for lengths in _lengths(free, tuple(leading)))
    small = (
        candidate for candidate in tries if all(prod(shape) <= _MOST_ELEMENTS for shape in candidate.values())
    )
    memory = _Memory(runner)
    for candidate in islice(small, _MOST_TRIES):
        if memory.allows(candidate) and _runs(opened, candidate, memory.bound):
            if memory.refused and memory.refused[0] == usual:
                _say(usual, memory.peaks[0], candidate)
            return candidate
    if memory.refused and memory.refused[0] == usual:
        raise UsageError(
            f"random samples of the usual shapes ({shapes.format_shapes(usual)}) need {_size(memory.peaks[0])} of memory or more, and the model ran on none of the smaller shapes that were tried",
            fix=_choose(usual),
        )
    return usual


def _choose(usual: Shapes) -> str:
    """Describe how to set other shapes of random samples, with small lengths."""
    small = shapes.format_shapes(
        {name: (*shape[:2], *(min(length, 64) for length in shape[2:])) for name, shape in usual.items()}
    )
    return (
        f"give shapes, as `--samples random:16,{small}` or `--opt-shapes {small}` (recipe: build.opt_shapes)"
    )


@cache
def _warn_once(text: str) -> None:
    """Log a hint on shapes once, although every step of a command asks for shapes."""
    _log.warning(text)


def _say(usual: Shapes, peak: int, smaller: Shapes) -> None:
    _warn_once(
        f"random samples have the shapes {shapes.format_shapes(smaller)}: with {shapes.format_shapes(usual)} one sample would need {_size(peak)} or more; for others, {_choose(usual)}"
    )


def _size(count: int) -> str:
    """Write a number of bytes with its unit."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


class _Memory:
    """Decides which shapes of random samples may be tried, by the memory that a model needs.

    Attributes:
        bound: bytes that the values inside the model may take.
        refused: the shapes that would take more, in the order in which they were asked for.
        peaks: minimum bytes for each of the shapes.
    """

    def __init__(self, runner: Callable[[], Runner]) -> None:
        self._runner = runner if isinstance(runner, Opener) else None
        self._allowed: list[Shapes] = []
        self.bound = min(_MOST_MEMORY, budget() // _SHARE)
        self.refused: list[Shapes] = []
        self.peaks: list[int] = []

    def allows(self, candidate: Shapes) -> bool:
        """Return True unless a sample of these shapes is predicted to need more memory than `bound`."""
        if self._runner is None or any(_is_below(candidate, allowed) for allowed in self._allowed):
            return True
        peak = self._runner.peak(candidate)
        if peak > self.bound:
            self.refused.append(candidate)
            self.peaks.append(peak)
            return False
        self._allowed.append(candidate)
        return True


def _is_below(candidate: Shapes, limits: Shapes) -> bool:
    """Return True if no length in `candidate` is larger than in `limits`. Then no inner tensor is larger."""
    return all(
        mine <= theirs
        for name, shape in candidate.items()
        for mine, theirs in zip(shape, limits[name], strict=True)
    )


def _free(inputs: tuple[TensorInfo, ...]) -> tuple[str, ...]:
    """Return the symbols of dynamic dimensions, except the batch."""
    dims = [
        (dim, place) for info in inputs for place, dim in enumerate(info.shape or ()) if isinstance(dim, str)
    ]
    batches = {info.shape[batch_place(info.shape)] for info in inputs if info.shape}
    return tuple(dict.fromkeys(dim for dim, place in dims if place and dim not in batches))


def _lengths(free: tuple[str, ...], leading: tuple[str, ...]) -> Iterator[Mapping[str, int]]:
    """Yield lengths of dynamic dimensions to try.

    The order is: usual lengths, other lengths for all dynamic dimensions together, several lengths for the leading
    dimension, then other lengths for one dimension at a time.
    """
    yield {}
    yield from (dict.fromkeys(free, length) for length in _LENGTHS)
    for count in _MANY if leading else ():
        yield dict.fromkeys(leading, count)
        yield dict.fromkeys((*leading, *free), count)
    if len(free) > 1:
        yield from ({dim: length} for length in _LENGTHS for dim in free)


def _runs(runner: Runner, candidate: Shapes, bound: int) -> bool:
    try:
        (sample,) = open_samples(f"random:1,{shapes.format_shapes(candidate)}", runner.inputs)
        with bounded_memory(_SLACK * bound):
            runner.run(sample.feeds)
    except (QdqError, MemoryError):
        return False
    return True
