"""Shapes of random samples where a model leaves dimensions free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.backends import shapes
from qdqtool.backends.ort import open_model
from qdqtool.backends.shapes import batch_place
from qdqtool.calibration.samples import SampleInput, open_samples
from qdqtool.core.protocols import Runner
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.backends.shapes import Shapes
    from qdqtool.graph.model import Model

_LENGTHS = (64, 256, 32, 512, 16, 1024, 8, 4096, 2, 1, 16000)
"""Lengths tried where a model fails on the usual ones: text encoders end at 64 to 77 tokens, speech models need frames of 256
to 512 values (Silero VAD 192 to 703), others a second of 16 kHz."""
_MANY = (64, 256, 512)
"""Lengths of the leading dimension where a model fails on one: frames of a recording that convolutions without padding shorten
(madmom's chords and beats from 64 frames on)."""
_MOST_TRIES = 48
"""Runs of one sample; most fail within milliseconds, at the first node whose input does not fit."""
_MOST_ELEMENTS = 1 << 24
"""Elements of one input that is tried."""


def shaped(
    samples: SampleInput,
    inputs: tuple[TensorInfo, ...],
    usual: str,
    runner: Callable[[], Runner],
) -> SampleInput:
    """Random samples get shapes that the model runs with, unless they bring their own; others stay as they are.

    `usual` are the shapes of the engine as a recipe spells them; without, `runnable_shapes` finds some, for which `runner`
    opens the model.
    """
    if not isinstance(samples, str):
        return samples
    is_shapeless = samples.startswith("random") and "," not in samples
    if not is_shapeless or Path(samples).exists():
        return samples
    known = usual or shapes.spelled(runnable_shapes(inputs, runner))
    if not known:
        return samples
    words, bracket, part = samples.partition("[")
    return f"{words},{known}{bracket}{part}"


def shapes_of(model: Model) -> Shapes:
    """Shapes for the free dimensions of a model, with which onnxruntime runs it if it finds any."""
    return runnable_shapes(model.view.inputs, opener(model))


def opener(model: Model) -> Callable[[], Runner]:
    """Opens a model in onnxruntime when it is called."""
    return partial(open_model, model, description="random samples")


def runnable_shapes(inputs: tuple[TensorInfo, ...], runner: Callable[[], Runner]) -> Shapes:
    """The usual shapes, or, where the model fails on a random sample of these, the first others on which it does not.

    A model whose only free dimension is the batch is not opened. Where nothing runs, or the model cannot be opened, the
    usual shapes are returned: the run that follows tells what is wrong.
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
    small = (found for found in tries if all(prod(shape) <= _MOST_ELEMENTS for shape in found.values()))
    return next((found for found in islice(small, _MOST_TRIES) if _runs(opened, found)), usual)


def _free(inputs: tuple[TensorInfo, ...]) -> tuple[str, ...]:
    """Symbols that stand for more than the batch."""
    dims = [
        (dim, place) for info in inputs for place, dim in enumerate(info.shape or ()) if isinstance(dim, str)
    ]
    batches = {info.shape[batch_place(info.shape)] for info in inputs if info.shape}
    return tuple(dict.fromkeys(dim for dim, place in dims if place and dim not in batches))


def _lengths(free: tuple[str, ...], leading: tuple[str, ...]) -> Iterator[Mapping[str, int]]:
    """Lengths to try: the usual ones, others for all free dimensions together, then for one at a time, then several in front."""
    yield {}
    yield from (dict.fromkeys(free, length) for length in _LENGTHS)
    for count in _MANY if leading else ():
        yield dict.fromkeys(leading, count)
        yield dict.fromkeys((*leading, *free), count)
    if len(free) > 1:
        yield from ({dim: length} for length in _LENGTHS for dim in free)


def _runs(runner: Runner, found: Shapes) -> bool:
    try:
        (sample,) = open_samples(f"random:1,{shapes.spelled(found)}", runner.inputs)
        runner.run(sample.feeds)
    except QdqError:
        return False
    return True
