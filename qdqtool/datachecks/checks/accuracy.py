"""Findings about measured accuracy: of the float model, and accuracy that the recipe loses.

# chance_level
The accuracy of the float model is no better than chance.

Then the labels do not belong to the samples, or the samples are not like the training data. Figures about quantization
mean nothing until this is corrected: "0.0 % -> 0.0 %, within noise" is not a success.

# labels_misplaced
The labels are shifted or permuted: another assignment of classes fits the float model far better.

Shifted by one: only the labels, or only the model, have a background class. Permuted: one of them sorts classes by
name, the other by number. A permutation is learned on one half of the samples and tested on the other.

# lost_accuracy
Quantization costs more accuracy than it should.

With labels, the task metric decides: a significant loss above 1 point is a warning, a loss above 5 points an error.
Without labels it is the signal-to-noise ratio of the noisiest output, and of the boxes and scores inside an output,
or before its selection: below 15 dB the noise is 18 % of the signal, below 8 dB 40 %, which is an error in the first
output. The finding names the nodes at whose outputs most is lost, and the measured gain of keeping them float.

# narrow_types
FP16 or BF16 costs more accuracy than quantization.

The float part of the Q/DQ model was given a type of 16 bits (`insert.types`), and the same model with that part in FP32
has far less noise: more than half of all noise comes from the type. The finding names the nodes at whose outputs most
is lost, and the measured gain of keeping them FP32. The causes are values beyond the range of the type, or sums of
large and small values.

# recipe_misfit
Another shipped recipe is made for networks of this kind.

Recipes differ by kind of network: bias correction for depthwise convolutions, other calibrators for transformers, float
heads for detectors. `qdqtool recipe new MODEL` writes the matching recipe with its reasons.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from qdqtool.core.advice import adding, excluding
from qdqtool.core.comparison import DECIBELS, loss, subject
from qdqtool.core.findings import Severity
from qdqtool.core.wording import Command, Setting, count_noun
from qdqtool.datachecks.evidence import (
    DataCheck,
    DataEvidence,
    FloatCure,
    NarrowLoss,
    Predictions,
    RawDataFinding,
)

_FEWEST_FOR_CHANCE = 10
"""Fewest samples for this check; with fewer, chance decides."""


def find_chance_level(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if the float model is not better than guessing."""
    predictions = evidence.predictions
    if predictions is None or len(predictions.truth) < _FEWEST_FOR_CHANCE or predictions.classes < 2:
        return
    count, chance = len(predictions.truth), 1 / predictions.classes
    limit = count * chance + 2 * (count * chance * (1 - chance)) ** 0.5
    if predictions.hits > limit:
        return
    yield RawDataFinding(
        subject="labels",
        reason=f"the float model is right on {predictions.hits} of {count_noun(count, 'sample')}, which is no better than guessing among {predictions.classes} classes",
        fix="check that labels and samples are in the same order, and that samples are prepared as in training",
    )


# --- labels misplaced --------------------------------------------------------------------------------------------------


# With fewer labelled samples, a shift of classes may be chance.
_FEWEST_FOR_LABELS = 20
_BETTER = 2.0
"""Required number of hits with other labels, as a multiple of the hits with the given labels."""


def find_labels_misplaced(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if the labels are shifted by one, or if the classes have other numbers."""
    predictions = evidence.predictions
    if predictions is None or len(predictions.truth) < _FEWEST_FOR_LABELS:
        return
    count = len(predictions.truth)
    for step, words in ((1, "one too low"), (-1, "one too high")):
        hits = sum(
            predicted == truth + step
            for predicted, truth in zip(predictions.predicted, predictions.truth, strict=True)
        )
        if hits > _BETTER * predictions.hits and 4 * hits > count:
            yield RawDataFinding(
                subject="labels",
                reason=f"the labels seem to be {words}: {hits} of {count_noun(count, 'sample fits', 'samples fit')} with a shift, {predictions.hits} without",
                fix="shift the labels by one: only the labels or only the model has a background class",
            )
            return
    right, direct = _count_renamed_hits(predictions)
    half = count - count // 2
    usual = max(Counter(predictions.truth[::2]).values())
    # If most samples belong to one class, every learned name is that class.
    if right > _BETTER * max(direct, usual) and 4 * right > half:
        yield RawDataFinding(
            subject="labels",
            reason=f"the classes seem to be numbered differently: with other numbers, {right} of {count_noun(half, 'sample fits', 'samples fit')}, "
            f"{direct} with the given numbers",
            fix="number the classes like the model",
        )


def _count_renamed_hits(predictions: Predictions) -> tuple[int, int]:
    """Return how many predictions of every second sample are correct: with renamed and original classes.

    The other samples determine the new names of the classes.
    """
    names: defaultdict[int, Counter[int]] = defaultdict(Counter)
    pairs = list(zip(predictions.predicted, predictions.truth, strict=True))
    for predicted, truth in pairs[1::2]:
        names[predicted][truth] += 1
    learned = {predicted: counts.most_common(1)[0][0] for predicted, counts in names.items()}
    judged = pairs[::2]
    return (
        sum(learned.get(predicted) == truth for predicted, truth in judged),
        sum(predicted == truth for predicted, truth in judged),
    )


# --- lost accuracy -----------------------------------------------------------------------------------------------------


def find_lost_accuracy(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if quantization costs more accuracy than allowed."""
    if evidence.comparison is None or not evidence.comparison.meaningful:
        return
    severity, reason = loss(evidence.comparison)
    if severity is None:
        return
    cure = evidence.cure
    yield RawDataFinding(
        subject=subject(evidence.comparison),
        reason=f"{reason}{_where(cure)}",
        fix=_of_type(evidence.narrow) or _lost_accuracy_fix(evidence),
        severity=severity,
    )


def _of_type(narrow: NarrowLoss | None) -> str:
    """Return the fix if the type of the float part, and not quantization, costs the accuracy; else ""."""
    if narrow is None or (narrow.wide_db is not None and narrow.wide_db < DECIBELS):
        return ""
    return f"{narrow.types.upper()} causes the loss, not quantization: DAT112 names the nodes and the fix"


def _where(cure: FloatCure | None) -> str:
    return f"; most is lost at {', '.join(cure.nodes)}" if cure and cure.nodes else ""


def _lost_accuracy_fix(evidence: DataEvidence) -> str:
    cure = evidence.cure
    # a model that already has Q/DQ needs no calibration
    alternative = (
        f"{Command('sweep')} at other calibrators"
        if evidence.calibrated
        else "the float model can be calibrated again"
    )
    if cure is None or not cure.nodes:
        return f"{Command('sensitivity')} finds the nodes that lose most; other calibrators and recipes may be better"
    excluded = excluding(cure.nodes, evidence.excluded)
    if cure.after_db is None or cure.before_db is None:
        return f"keep these nodes float: {excluded}"
    measured = (
        f"{cure.before_db:.1f} -> {cure.after_db:.1f} dB on {count_noun(cure.samples, 'sample')} (measured)"
    )
    if cure.after_db < cure.before_db + 1:
        gain = "brings little" if cure.after_db > cure.before_db else "does not help"
        return f"keeping these nodes float {gain}, {measured}: {Command('sensitivity')} measures all nodes, {alternative}"
    return f"keep these nodes float: {excluded}, {measured}"


# --- narrow types ------------------------------------------------------------------------------------------------------


def find_narrow_types(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if the type of the float part costs more than quantization."""
    loss, comparison = evidence.narrow, evidence.comparison
    if loss is None or comparison is None:
        return
    wide = "all of the signal" if loss.wide_db is None else f"{loss.wide_db:.1f} dB"
    where = f"; most is lost at {', '.join(loss.nodes)}" if loss.nodes else ""
    yield RawDataFinding(
        subject=subject(comparison),
        reason=f"{loss.types.upper()} costs more than quantization: the noisiest output keeps {wide} with the float part in "
        f"FP32, {loss.narrow_db:.1f} dB in {loss.types.upper()} ({count_noun(loss.samples, 'sample')}){where}",
        fix=_narrow_types_fix(loss, evidence.wide),
    )


def _narrow_types_fix(loss: NarrowLoss, patterns: tuple[str, ...]) -> str:
    wide = f"keep the float part FP32: {Setting('insert.types', 'fp32')}"
    if loss.kept_db is None or loss.kept_db < loss.narrow_db + 1:
        return wide
    kept = adding("insert.keep_nodes", patterns, loss.nodes)
    return (
        f"keep these nodes FP32: {kept} ({loss.narrow_db:.1f} -> {loss.kept_db:.1f} dB, measured); or {wide}"
    )


_OF_PICTURES = frozenset({"conv-int8", "conv-depthwise-int8", "unet-int8"})
"""Recipes for images. Spectra look like images to a network; only the author of the recipe knows that the input is sound."""

_OF_SOUND = frozenset({"audio-int8", "audio-to-audio-int8"})


def find_recipe_misfit(evidence: DataEvidence) -> Iterator[RawDataFinding]:
    """Yield a finding if another recipe fits the network better."""
    if evidence.fitting is None or evidence.fitting[0] == evidence.recipe:
        return
    name, why = evidence.fitting
    if evidence.recipe in _OF_SOUND and name in _OF_PICTURES:
        return
    yield RawDataFinding(
        subject="recipe",
        reason=f"{evidence.recipe} is not the best recipe for this network; {name} fits, because {why}",
        fix=f"--recipe {name}, or {Command('recipe', ('new', 'MODEL'))}",
    )


PLUGIN = {
    "chance_level": DataCheck(code="DAT105", severity=Severity.ERROR, find=find_chance_level),
    "labels_misplaced": DataCheck(code="DAT106", severity=Severity.ERROR, find=find_labels_misplaced),
    "lost_accuracy": DataCheck(code="DAT107", severity=Severity.WARNING, find=find_lost_accuracy),
    "narrow_types": DataCheck(code="DAT112", severity=Severity.WARNING, find=find_narrow_types),
    "recipe_misfit": DataCheck(code="DAT108", severity=Severity.WARNING, find=find_recipe_misfit),
}
