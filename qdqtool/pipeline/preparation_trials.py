"""Tries the usual preparations of pictures on the float model, with or without labels.

With labels, the preparation with the most hits is the right one. Without labels, a picture and its mirror image
should get equal answers, and different pictures different answers. `agreement` measures both. If a network gets
values for which it was not trained, its answers are constant, or random with high confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.task import class_scores, first_row
from qdqtool.calibration.samples import Samples
from qdqtool.calibration.samples.opening import SamplePart
from qdqtool.core.evidence import better
from qdqtool.core.protocols import Runner, Sample, SampleSource
from qdqtool.core.recipe import Preprocess, Recipe
from qdqtool.core.tensors import TensorInfo
from qdqtool.datachecks.evidence import InputStatistics, Mirrored, Predictions, SampleSet, Variant

_CONFIRMED = 2
"""Number of preparations that are confirmed on more samples: on few samples, two preparations often differ by a single hit."""
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE: Final = "0..255 minus Caffe's mean"
_CAFFE_MEAN: Final = (103.939, 116.779, 123.68)
_WHITE = 255.0
"""Largest value of an 8-bit picture."""
ROUNDS: Final = (8, 24, 96)
"""Numbers of samples after which preparations that are clearly worse than the best are given up; the last one decides."""
_PIXELS: Final = 96 * 256 * 256
"""Pixels of the pictures above which the last round is left out: on large pictures an inference takes long."""
_SURE: Final = 0.99
"""Confidence that a preparation is worse than the best, over all preparations."""
_INFORMS: Final = 0.3
"""Agreement in nats below which the best preparation shows nothing: the outputs are not classes, or the pictures
differ from the training pictures.
"""
_CHANCE: Final = 1e-3
"""Probability that every class keeps, so that one confident mistake does not outweigh all other samples."""

Floats = NDArray[np.float32]
Scores = NDArray[np.float64]
Transform = Callable[[Floats], Floats]


def predictions(runner: Runner, samples: Iterable[Sample], output: str) -> Predictions | None:
    """Return the classes that the model predicts for labelled samples; None if its output does not hold scores."""
    predicted: list[int] = []
    truth: list[int] = []
    classes = 0
    for sample in samples:
        if sample.label is None:
            continue
        outputs = runner.run(sample.feeds)
        scores = class_scores(first_row(outputs[output or runner.outputs[0]], sample))
        if scores is None or len(scores) < 2:
            return None
        classes = len(scores)
        predicted.append(int(scores.argmax()))
        truth.append(sample.label)
    return Predictions(predicted=tuple(predicted), truth=tuple(truth), classes=classes) if truth else None


def better_variant(
    runner: Runner,
    samples: tuple[SamplePart, SamplePart],
    sample_set: SampleSet,
    recipe: Recipe,
    scored: Predictions,
) -> Variant | None:
    """Return the other usual preparation that suits the model best; None without a better one, or without pictures.

    Args:
        runner: the float model.
        samples: few samples for all preparations, and more samples to confirm the best of them.
        sample_set: statistics of the samples.
        recipe: its `samples.preprocess` and `compare.output` count.
        scored: predictions for the second set of samples without any change.
    """
    infos = runner.inputs
    if len(infos) != 1 or len(sample_set.inputs) != 1 or (axis := _picture_axis(infos[0])) is None:
        return None
    name, (few, more) = infos[0].name, samples
    applied = _find_applied(more, recipe)

    def predict_with(source: SampleSource, change: Transform) -> Predictions | None:
        changed = (replace(sample, feeds={name: change(sample.feeds[name])}) for sample in source)
        return predictions(runner, changed, recipe.compare.output)

    asis = predictions(runner, few, recipe.compare.output)
    if asis is None:
        return None
    tried = [
        (result.hits, way)
        for way in _ways(sample_set.inputs[0], axis, applied)
        if (result := predict_with(few, way.change)) is not None and result.hits >= asis.hits
    ]
    confirmed = [
        Variant(
            name=way.name,
            predictions=result,
            asis=scored,
            settings=() if applied is None else _settings(way, applied, axis),
        )
        for _, way in sorted(tried, key=lambda each: -each[0])[:_CONFIRMED]
        if (result := predict_with(more, way.change)) is not None
    ]
    return max(confirmed, key=lambda variant: variant.predictions.hits, default=None)


def compare_preparations(
    runner: Runner, samples: SampleSource, sample_set: SampleSet, recipe: Recipe
) -> Mirrored | None:
    """Compare the usual preparations of pictures by `agreement`, without labels.

    Args:
        runner: the float model.
        samples: the pictures; at most `ROUNDS[-1]` pictures are used.
        sample_set: statistics of the samples.
        recipe: its `samples.preprocess` and `compare.output` count.

    Returns:
        None if the input is not a float picture of three colours, or the output does not have scores of classes. None if
        the model does not separate the pictures, however they are prepared.
    """
    infos = runner.inputs
    if len(infos) != 1 or len(sample_set.inputs) != 1 or (axis := _picture_axis(infos[0])) is None:
        return None
    applied = _find_applied(samples, recipe)
    ways: list[_Way | None] = [None, *_ways(sample_set.inputs[0], axis, applied)]
    tried = len(ways) - 1
    done, losses_of = 0, dict[int, Scores]()
    rivals = list(range(len(ways)))

    def is_worse(rival: int, leader: int, measure: int = 0) -> bool:
        losses, fewer = losses_of[rival][measure].tolist(), losses_of[leader][measure].tolist()
        return better(fewer, losses, confidence=_SURE, candidates=tried)

    pixels = int(np.prod(next(iter(samples)).feeds[infos[0].name].shape[2 if axis == 1 else 1 :][:2]))
    for most in ROUNDS if ROUNDS[-1] * pixels <= _PIXELS else ROUNDS[:-1]:
        part = from_all_over(samples, most)
        if len(part) <= done or len(rivals) == 1:
            break
        done = len(part)
        scores = {
            number: _pairs(runner, part, ways[number], axis, recipe.compare.output) for number in rivals
        }
        if any(pair is None for pair in scores.values()):
            return None
        losses_of = _losses({number: pair for number, pair in scores.items() if pair is not None})
        best = min(losses_of, key=lambda number: float(losses_of[number][0].sum()))
        rivals = [number for number in rivals if number == 0 or not is_worse(number, best)]
    if done < ROUNDS[0] or not losses_of:
        return None
    level = {number: -float(losses[0].mean()) for number, losses in losses_of.items()}
    best = max(level, key=lambda number: level[number])
    if level[best] < _INFORMS:
        return None
    way = ways[best]
    if way is None or not is_worse(0, best):
        return Mirrored(samples=done, asis=level[0])
    return Mirrored(
        samples=done,
        asis=level[0],
        name=way.name,
        best=level[best],
        few_classes=is_worse(best, 0, measure=1),
        settings=() if applied is None else _settings(way, applied, axis),
    )


def _pairs(
    runner: Runner, samples: SampleSource, way: _Way | None, axis: int, output: str
) -> tuple[Scores, Scores] | None:
    """Return the model's scores for pictures and for their mirror images (samples x classes); None if it has no scores."""
    width = 3 if axis == 1 else 2
    sides: tuple[list[Scores], list[Scores]] = ([], [])
    for sample in samples:
        name, array = next(iter(sample.feeds.items()))
        picture = array if way is None else way.change(array)
        for side, feed in zip(
            sides, (picture, np.ascontiguousarray(np.flip(picture, axis=width))), strict=True
        ):
            outputs = runner.run({name: feed})
            scores = class_scores(first_row(outputs[output or runner.outputs[0]], sample))
            if scores is None or len(scores) < 2 or (side and len(scores) != len(side[0])):
                return None
            side.append(scores)
    return np.stack(sides[0]), np.stack(sides[1])


def _losses(scores: Mapping[int, tuple[Scores, Scores]]) -> dict[int, Scores]:
    """Return the negative `agreement` of every sample under each preparation (2 x samples)."""
    arrays = [side for pair in scores.values() for side in pair]
    is_logits = any(side.min() < 0 or side.max() > 1 for side in arrays if np.isfinite(side).all())
    return {
        number: -agreement(*(map(_probabilities, pair) if is_logits else pair))
        for number, pair in scores.items()
    }


def _probabilities(logits: Scores) -> Scores:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Scores = raised / raised.sum(axis=1, keepdims=True)
    return shares


def agreement(scores: Scores, mirrored_scores: Scores) -> Scores:
    """Return how well the scores of each picture agree with the scores of its mirror image, in nats (2 x samples).

    The first row is pointwise mutual information: the logarithm of a ratio of two probabilities. The first is that
    the picture and its mirror image get one class, the second that the picture and the mirror image of any picture
    do. It is 0 if the answer does not depend on the picture, and negative if the two disagree with confidence. The
    second row is the logarithm of the first probability.
    """
    own = np.log((scores * mirrored_scores).sum(axis=1) + _CHANCE)
    pairs = scores @ mirrored_scores.T
    left, right = (np.log(pairs.mean(axis=side) + _CHANCE) for side in (0, 1))
    agreements: Scores = np.stack([own - (left + right) / 2, own])
    return agreements


def from_all_over(samples: SampleSource, most: int) -> SamplePart:
    """Return at most `most` evenly spaced samples. The first samples of a data set often have the same class."""
    return SamplePart(samples, range(0, len(samples), max(1, -(-len(samples) // most))))


def takes_pictures(inputs: tuple[TensorInfo, ...]) -> bool:
    """Return True if a model has exactly one input, and this input is a float picture of three colours."""
    return len(inputs) == 1 and _picture_axis(inputs[0]) is not None


def _picture_axis(info: TensorInfo) -> int | None:
    """Return the axis of the three colours; None if the input is not a float picture."""
    shape = info.shape or ()
    if len(shape) != 4 or not info.dtype.is_float:
        return None
    return next((axis for axis in (1, 3) if shape[axis] == 3), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """Another usual way to prepare pictures.

    Attributes:
        name: the way in words.
        change: function that prepares a sample in this way.
        is_turned: whether the colours are in reverse order.
        is_scaled: whether the values are on another scale.
    """

    name: str
    change: Transform
    is_turned: bool
    is_scaled: bool


def _find_applied(samples: SampleSource, recipe: Recipe) -> Preprocess | None:
    """Return the preparation that made these samples; None if arrays are used unchanged."""
    whole = samples.whole if isinstance(samples, SamplePart) else samples
    is_prepared = isinstance(whole, Samples) and whole.is_preprocessed
    return recipe.samples.preprocess if is_prepared else None


def _ways(values: InputStatistics, axis: int, applied: Preprocess | None) -> Iterator[_Way]:
    """Yield other usual preparations for pictures with these statistics.

    `applied` is the present preparation; None if it is unknown.
    """
    forms = _forms(axis)
    if applied is None:
        here = _form_of(values)
        into = forms[here][0]
    else:
        into = _inverse(applied, axis)
        here = next((name for name, (_, out) in forms.items() if _is_identity(into, out, axis)), "")
    is_bgr = here == _CAFFE if applied is None else applied.colour == "bgr"
    for turn in (False, True):
        for name, (_, out) in forms.items():
            if (name == here and not turn) or (name == _CAFFE and turn == is_bgr):
                continue  # Caffe's means are in the order BGR
            words = [f"values of {name}"] if name != here else []
            words += ["the colours in reverse order (BGR for RGB)"] if turn else []
            yield _Way(
                name=" and ".join(words),
                change=_write_change(into, out, axis if turn else None),
                is_turned=turn,
                is_scaled=name != here,
            )


def _inverse(applied: Preprocess, axis: int) -> Transform:
    """Return the function that turns prepared values into values from 0 to 1."""
    mean, std = (
        np.array(value, np.float32).reshape(_along(len(value), axis)) for value in (applied.mean, applied.std)
    )
    return lambda x: (x * std + mean) / np.float32(applied.scale * _WHITE)


def _is_identity(into: Transform, out: Transform, axis: int) -> bool:
    """Return True if `into(out(x))` equals x for black (0) and white (1)."""
    colours = [np.full(_along(3, axis), value, np.float32) for value in (0.0, 1.0)]
    return all(np.allclose(into(out(each)), each, atol=1e-3) for each in colours)


def _along(count: int, axis: int) -> list[int]:
    """Return the shape in which values per colour channel broadcast with pictures."""
    return [count if dim == axis else 1 for dim in range(4)]


def _settings(way: _Way, preprocess: Preprocess, axis: int) -> tuple[str, ...]:
    """Return the recipe settings for the preparation `way`; `samples.preprocess.scale` stays as it is.

    A preparation is affine per channel: `value * slope + start`, here read off black and white pictures, is
    `(value * scale - mean) / std` with `std = scale / slope` and `mean = -start * std`.
    """
    settings: list[str] = []
    if way.is_turned:
        settings.append(f"samples.preprocess.colour={'rgb' if preprocess.colour == 'bgr' else 'bgr'}")
    if way.is_scaled or (way.is_turned and max(len(preprocess.mean), len(preprocess.std)) > 1):
        shape = _along(3, axis)
        black, white = (
            way.change(
                np.broadcast_to((value * preprocess.scale - np.array(preprocess.mean)) / preprocess.std, 3)
                .astype(np.float32)
                .reshape(shape)
            ).ravel()
            for value in (0.0, _WHITE)
        )
        std = preprocess.scale * _WHITE / (white - black).astype(np.float64)
        settings += [
            f"samples.preprocess.{field}={_numbers(values)}"
            for field, values in (("mean", -black * std), ("std", std))
        ]
    return tuple(settings)


def _numbers(values: NDArray[np.float64]) -> str:
    """Write a list of numbers: `[127.5]` if they are equal, otherwise one number per channel."""
    written = [f"{value + 0.0:.6g}" for value in values.tolist()]
    return f"[{','.join(written[:1] if len(set(written)) == 1 else written)}]"


def _write_change(into: Transform, out: Transform, turned: int | None) -> Transform:
    def change(array: Floats) -> Floats:
        unit = into(array.astype(np.float32))
        if turned is not None:
            unit = np.flip(unit, axis=turned)
        changed: Floats = np.ascontiguousarray(out(unit)).astype(array.dtype)
        return changed

    return change


def _forms(axis: int) -> dict[str, tuple[Transform, Transform]]:
    """Return the usual value ranges of pictures by name, each with a function to 0..1 and its inverse."""
    mean, std, caffe = (
        np.array(value, np.float32).reshape(_along(3, axis))
        for value in (_IMAGENET_MEAN, _IMAGENET_STD, _CAFFE_MEAN)
    )
    return {
        "0..1": (lambda x: x, lambda u: u),
        "0..255": (lambda x: x / 255, lambda u: u * 255),
        "-1..1": (lambda x: (x + 1) / 2, lambda u: u * 2 - 1),
        "ImageNet's mean and standard deviation": (lambda x: x * std + mean, lambda u: (u - mean) / std),
        _CAFFE: (lambda x: (x + caffe) / 255, lambda u: u * 255 - caffe),
    }


def _form_of(values: InputStatistics) -> str:
    """Return the usual value range of pictures that fits these values."""
    if values.high > 8:
        return _CAFFE if values.low < -8 else "0..255"
    if values.low >= 0:
        return "0..1"
    return (
        "-1..1" if values.low >= -1.01 and values.high <= 1.01 else "ImageNet's mean and standard deviation"
    )
