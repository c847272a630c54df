"""Findings about samples: too few, useless, or prepared in different ways.

# random_samples
The samples were random numbers: ranges and accuracy mean nothing.

Random samples show whether a model can be quantized and built. Only samples similar to the real inputs give the right
ranges and the accuracy.

# few_samples
Too few calibration samples: other samples would have given other ranges.

The calibration samples are split into random halves, and each half is calibrated separately (99.99 % of the
magnitudes). If the two disagree, the ranges have not converged, and more samples would change them. No number
of samples is right for every model: 30 can be plenty and 300 too few. A single sample cannot be split, and shows nothing about others.

# shared_samples
Accuracy was measured on samples that the ranges were chosen on.

Ranges fit the calibration samples best, so the measured loss on those samples is too small; the quantized model can
even seem better than the float model. Samples are compared by the digest of their values.

# empty_samples
Useless samples: duplicates, one value everywhere, or a channel that never changes.

A repeated sample counts twice and adds no information. A constant sample is usually a failed read, a blank image or
padding. Both make a set look larger than it is. A colour channel that is the same in every image was lost in
preprocessing.

# skipped_samples
Samples hold NaN or Inf and were left out.

A few such samples may be broken files. Many mean that the preprocessing divides by zero or overflows; all other
values are then in doubt as well.

# input_mismatch
Calibration and evaluation samples were prepared differently.

Compares the ranges and spreads of every float input, and for images with three channels also their order. Ranges for
0..255 are useless for values of -1..1; in the opposite case everything is clipped.

# preprocessing
The float model does clearly better when its pictures are prepared in another usual way.

Tries the orders RGB and BGR and the usual scales: 0..255, 0..1, -1..1, ImageNet's mean and standard deviation, and
0..255 less Caffe's mean. A model that is fed other values than in its training loses accuracy before anything is
quantized. Its ranges are then chosen on wrong values.

With labels, the preparation with the most hits counts. Without labels, every image and its mirror image are
classified: the two should agree, and other pictures should get other classes. The agreement is given in nats
(pointwise mutual information). It finds a wrong scale nearly always, and a wrong order of colours only sometimes. A
model that distinguishes left from right, such as a model that reads text, shows no agreement; preparations from
metadata are then trusted. Pictures of one class look like a network with a constant answer. The finding then says so,
and stays a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import dist, sqrt
from shlex import quote

from qdqtool.core.claims import Assertion
from qdqtool.core.findings import Severity
from qdqtool.core.wording import count_noun
from qdqtool.datachecks.evidence import (
    CONVERGED,
    DataCheck,
    DataEvidence,
    InputStatistics,
    Mirrored,
    Predictions,
    RawDataFinding,
    SampleSet,
    Variant,
)


def find_random_samples(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if the samples were random."""
    if not evidence.meaningful:
        yield RawDataFinding(
            subject="calibration" if evidence.calibrated else "evaluation",
            reason=f"the samples were random: {'ranges and accuracy mean' if evidence.calibrated else 'accuracy means'} nothing",
            fix="pass samples that are similar to the engine's inputs: --samples DATA",
        )


_FEW_SAMPLES_FIX = "calibrate on more samples, similar to those that the engine will see"


def find_few_samples(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if there is one calibration sample, or if the ranges have not converged."""
    count, spread = evidence.calibration.count, evidence.spread
    if not (evidence.meaningful and evidence.calibrated):
        return
    if count == 1:
        reason = "1 calibration sample: it is unknown how much ranges vary between samples"
        yield RawDataFinding(
            subject="calibration", reason=reason, fix=_FEW_SAMPLES_FIX, severity=Severity.ERROR
        )
    elif spread is not None and spread.typical > CONVERGED:
        yield RawDataFinding(
            subject="calibration",
            reason=f"the ranges have not converged: two halves of {count_noun(spread.samples, 'calibration sample differs', 'calibration samples differ')} by "
            f"{spread.typical:.0%} for the median tensor, by {spread.worst:.0%} for {spread.tensor!r}",
            fix=_FEW_SAMPLES_FIX,
        )


_SHARE = 0.05
"""Largest tolerated share of repeated, shared or constant samples in a set; natural sets contain single duplicates."""
_SHARED_SAMPLES_FIX = (
    "use separate samples for evaluation (eval_samples), or slices such as x.npz[:200] and x.npz[200:]"
)


def find_shared_samples(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if accuracy was measured on calibration samples."""
    if evidence.comparison is None or not (evidence.meaningful and evidence.calibrated):
        return
    if evidence.evaluation is None:
        yield RawDataFinding(
            subject="evaluation",
            reason="accuracy was measured on the calibration samples",
            fix=_SHARED_SAMPLES_FIX,
        )
        return
    calibrating = set(evidence.calibration.digests)
    shared = [
        name
        for name, digest in zip(evidence.evaluation.names, evidence.evaluation.digests, strict=True)
        if digest in calibrating
    ]
    if shared:
        is_tolerated = len(shared) <= _SHARE * len(evidence.evaluation.names)
        yield RawDataFinding(
            subject="evaluation",
            reason=f"{len(shared)} of {count_noun(len(evidence.evaluation.names), 'evaluation sample is', 'evaluation samples are')} calibration samples too, "
            f"first {shared[0]!r}",
            fix=_SHARED_SAMPLES_FIX,
            severity=Severity.INFO if is_tolerated else Severity.WARNING,
        )


# --- empty samples -----------------------------------------------------------------------------------------------------


_CONSTANT = 1e-6
"""Largest deviation of a constant channel, as a share of the largest channel deviation; the rest is rounding."""


def find_empty_samples(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield findings about each set: repeated samples, constant samples, and constant channels of an input."""
    if not evidence.meaningful:
        return
    yield from _useless("calibration", evidence.calibration)
    if evidence.evaluation is not None:
        yield from _useless("evaluation", evidence.evaluation)


def _useless(name: str, samples: SampleSet) -> Iterator[RawDataFinding]:
    count = len(samples.digests)
    again = count - len(set(samples.digests))
    if again > _SHARE * count:
        most = Counter(samples.digests).most_common(1)[0][1]
        yield RawDataFinding(
            subject=name,
            reason=f"{again} of {count} {name} samples are duplicates; one occurs {count_noun(most, 'time')}",
            fix="remove duplicate samples",
        )
    if len(samples.constant) > _SHARE * count:
        yield RawDataFinding(
            subject=name,
            reason=f"{len(samples.constant)} of {count} {name} samples have the same value everywhere, first "
            f"{samples.constant[0]!r}",
            fix="remove blank samples, or correct the code that reads them",
        )
    for each in samples.inputs:
        least = _CONSTANT * max(each.deviations, default=0.0)
        dead = [number for number, deviation in enumerate(each.deviations) if deviation <= least]
        if 0 < len(dead) < len(each.deviations):
            yield RawDataFinding(
                subject=name,
                reason=f"channel {dead[0]} of {each.name!r} is {each.means[dead[0]]:g} everywhere in all {name} samples",
                fix="correct the code that reads the samples: the other channels have different values",
            )


def find_skipped_samples(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding for each set with skipped samples."""
    for name, samples in (("calibration", evidence.calibration), ("evaluation", evidence.evaluation)):
        if samples is not None and samples.skipped:
            yield RawDataFinding(
                subject=name,
                reason=f"{samples.skipped} of {samples.count} {name} samples contain NaN or Inf and were skipped",
                fix="check the first of these samples, and the preprocessing",
            )


# --- input mismatch ----------------------------------------------------------------------------------------------------


_SPREAD_FACTOR = 2.5
"""Ratio of standard deviations that natural sets of the same kind almost never reach."""
_ERRORS = 3.0
"""Standard errors by which the first and the last colour channel must differ, with opposite signs in the two sets."""

_EXPLAINED = 0.5
"""Largest distance between the means of two sets after reversal of the channels, as a share of the distance before."""


def find_input_mismatch(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding for each input whose calibration and evaluation samples differ."""
    if evidence.evaluation is None or not evidence.meaningful:
        return
    evaluated = {each.name: each for each in evidence.evaluation.inputs}
    for mine in evidence.calibration.inputs:
        theirs = evaluated.get(mine.name)
        reason = None if theirs is None else _difference(mine, theirs)
        if reason is not None:
            yield RawDataFinding(
                subject=mine.name, reason=reason, fix="prepare both in the same way, as in training"
            )


def _difference(mine: InputStatistics, theirs: InputStatistics) -> str | None:
    spread, wide = _spread(mine), _spread(theirs)
    words = f"calibration {_statistics_words(mine)}, evaluation {_statistics_words(theirs)}"
    small, large = sorted((spread, wide))
    if large > 0 and small * _SPREAD_FACTOR < large:
        return f"calibration and evaluation samples have different sizes: {words}"
    distance = abs(_mean_of(mine) - _mean_of(theirs))
    if distance > large > 0:
        return f"calibration and evaluation samples have different values: {words}"
    if _is_reversed(mine, theirs):
        return (
            "the channels of calibration and evaluation samples seem to have opposite order (RGB and BGR): their means are "
            f"{_list_statistics(mine)} and {_list_statistics(theirs)}"
        )
    return None


def _is_reversed(mine: InputStatistics, theirs: InputStatistics) -> bool:
    """Return True if the first colour channel is clearly stronger in one set, and the last colour channel in the other set.

    Sets that are sorted by class can differ in this way too (the sky around aeroplanes is blue), so the swapped order
    must explain most of the difference.
    """
    if min(abs(mine.tilt), abs(theirs.tilt)) <= _ERRORS or mine.tilt * theirs.tilt >= 0:
        return False
    return dist(mine.means, theirs.means[::-1]) < _EXPLAINED * dist(mine.means, theirs.means)


def _spread(each: InputStatistics) -> float:
    return sum(each.deviations) / len(each.deviations)


def _mean_of(each: InputStatistics) -> float:
    return sum(each.means) / len(each.means)


def _statistics_words(each: InputStatistics) -> str:
    return f"{each.low:.3g}..{each.high:.3g} (standard deviation {_spread(each):.3g})"


def _list_statistics(each: InputStatistics) -> str:
    return ", ".join(f"{mean:.3g}" for mean in each.means)


# --- preprocessing -----------------------------------------------------------------------------------------------------


_SIGMAS, _PERHAPS = 2.6, 1.64
"""Limits of McNemar's test in standard deviations. Seven preparations are tried, so 2 would be too few.
Between the two limits the finding is only an info.
"""

_MOST = 0.5
"""Share of the best agreement below which a preparation is wrong. The right preparations of seven networks had at
least 0.98 of it on pictures of all classes.
"""
_REMAINING = 0.75
"""Share of the errors that may remain with another preparation if the used one is wrong."""
_FEWEST = 0.25
"""Share of hits below which a variant explains nothing: the labels are wrong, or the samples are for another model."""


def find_preprocessing(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if another preparation of the samples suits the float model better."""
    best = evidence.variant
    if best is None and evidence.mirrored is not None and evidence.mirrored.name:
        yield _without_labels(evidence.mirrored)
    if best is None or not _explains(best.predictions) or (sigmas := _advantage(best)) <= _PERHAPS:
        return
    is_certain = sigmas > _SIGMAS
    # Samples that differ from the training data can slightly prefer another scale or mean, even if the preparation is
    # right.
    is_wrong = is_certain and _errors(best.predictions) <= _REMAINING * _errors(best.asis)
    yield RawDataFinding(
        subject="preprocessing",
        reason=f"the float model is right on {_share(best.asis)} of {count_noun(len(best.asis.truth), 'sample')} as they are, and on "
        f"{_share(best.predictions)} with {best.name}"
        + ("" if is_certain else ", which may be a result of chance"),
        fix=f"{'' if is_wrong else 'if the model was trained like that, '}prepare all samples in this way{_settings(best.settings)}",
        severity=Severity.ERROR if is_wrong else Severity.WARNING if is_certain else Severity.INFO,
    )


def _without_labels(mirrored: Mirrored) -> RawDataFinding:
    """Return the finding that another preparation of the pictures suits the model clearly better.

    It is an error if unchanged pictures reach less than half of its agreement and have many classes.
    Else it is a warning.
    """
    is_wrong = mirrored.asis < _MOST * mirrored.best and not mirrored.few_classes
    doubt = ", unless all pictures are of few classes" if mirrored.few_classes else ""
    return RawDataFinding(
        subject="preprocessing",
        reason=f"the answers of the float model to {count_noun(mirrored.samples, 'picture')} and to their mirror images agree by "
        f"{mirrored.asis:.2f} nats without changes, and by {mirrored.best:.2f} with {mirrored.name}{doubt}",
        fix=f"if the model was trained with this preparation, prepare all samples in this way{_settings(mirrored.settings)}",
        severity=Severity.ERROR if is_wrong else Severity.WARNING,
    )


def _settings(settings: tuple[str, ...]) -> str:
    """Return the --set options for the settings of a preparation, after a colon; "" if there are none."""
    options = " ".join(f"--set {quote(setting)}" for setting in settings)
    return f": {options}" if options else ""


def _explains(variant: Predictions) -> bool:
    """Return True if the predictions distinguish classes. A model that always predicts one class can be right by chance."""
    return variant.hits >= _FEWEST * len(variant.truth) and len(set(variant.predicted)) > 1


def _advantage(variant: Variant) -> float:
    """Return in standard deviations how much more often the model is right with a variant.

    Only samples that exactly one of the two preparations gets right count.
    """
    won = lost = 0
    for new, old, truth in zip(
        variant.predictions.predicted, variant.asis.predicted, variant.asis.truth, strict=True
    ):
        won += new == truth != old
        lost += old == truth != new
    return (won - lost) / sqrt(won + lost) if won != lost else 0.0


def _errors(predictions: Predictions) -> int:
    return len(predictions.truth) - predictions.hits


def _share(predictions: Predictions) -> str:
    return f"{100 * predictions.hits / len(predictions.truth):.0f} %"


PLUGIN = {
    "random_samples": DataCheck(
        code="DAT111", severity=Severity.WARNING, find=find_random_samples, says=Assertion.RANDOM
    ),
    "few_samples": DataCheck(code="DAT101", severity=Severity.WARNING, find=find_few_samples),
    "shared_samples": DataCheck(code="DAT102", severity=Severity.WARNING, find=find_shared_samples),
    "empty_samples": DataCheck(code="DAT109", severity=Severity.WARNING, find=find_empty_samples),
    "skipped_samples": DataCheck(code="DAT110", severity=Severity.WARNING, find=find_skipped_samples),
    "input_mismatch": DataCheck(code="DAT103", severity=Severity.ERROR, find=find_input_mismatch),
    "preprocessing": DataCheck(code="DAT104", severity=Severity.ERROR, find=find_preprocessing),
}
