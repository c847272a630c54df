"""Task metrics: how often each side is right, and whether the difference is significant."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.detections import (
    CONFIDENT,
    NO_BOXES,
    BoxLayout,
    NoScores,
    RawBoxes,
    agreement,
    box_outputs,
    boxes_of_rows,
    candidates,
    layout_of,
    lists_nothing,
    without_extra,
)
from qdqtool.accuracy.instances import compare_labels, judge_instances, mask_columns
from qdqtool.accuracy.mean_precision import MeanPrecision, box_overlaps, keep_boxes
from qdqtool.accuracy.metric import METRICS, Floats, Hit
from qdqtool.accuracy.positions import TASKS, judge_positions
from qdqtool.accuracy.tokens import NEXT, SAME, Perplexity, TokenJudgement, judged_tokens
from qdqtool.core.comparison import (
    BOXES,
    CHARACTERS,
    KEYPOINT_MAPS,
    KEYPOINTS,
    MASK_MAPS,
    MASKS,
    PIXELS,
    POSITIONS,
    Measure,
    TaskAccuracy,
)
from qdqtool.core.evidence import paired_interval
from qdqtool.core.protocols import Sample
from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import InputFileError

# --- scores ----------------------------------------------------------------------------------------------------------
# Turns a model output into the scores of its classes.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScorePair:
    """One sample's scores on both sides, one per class.

    Attributes:
        reference, candidate: vectors of equal length.
        layout: of the boxes that they were taken from; None if the output is the scores themselves.
        boxes: these boxes on both sides.
    """

    reference: Floats
    candidate: Floats
    layout: BoxLayout | None = None
    boxes: tuple[RawBoxes, RawBoxes] | None = None

    @property
    def named(self) -> int | None:
        """The class that the reference model gives the best score.

        None if no box has a sufficient score, because the best class is then chance.
        """
        if self.layout is not None and self.reference.max() < CONFIDENT:
            return None
        return int(self.reference.argmax())

    @property
    def shown(self) -> Floats:
        """The candidate's scores; -1 for the reference's best class if no box of the candidate is confident.

        The best box below the threshold may have any class, and often has the right one.
        """
        if self.layout is None or self.named is None or self.candidate.max() >= CONFIDENT / 2:
            return self.candidate
        lost = self.candidate.copy()
        lost[self.named] = -1.0
        return lost


def class_rows(output: Floats) -> Floats:
    """Return an output as rows of class scores, along the last axis, or along axis 1 of N x C x 1 x 1."""
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output[:, :, 0, 0]
    return output.reshape(-1, output.shape[-1]) if output.ndim else output.reshape(1, 1)


def class_scores(output: NDArray[Any]) -> Floats | None:
    """Return the scores of one sample, one per class; None if the output does not hold the scores of one sample.

    Accepted outputs: a vector of scores with any number of axes of length 1 around it (a logit or probability per
    class), and boxes in one of the layouts of `layouts`. The score of a class is then the score of its best box,
    class score times objectness if there is one. Final detections list only the classes that were found, so they are
    not accepted.
    """
    if _is_vector(output):
        return _vector(output)
    layout = layout_of(output)
    if isinstance(layout, NoScores) or layout.is_final:
        return None
    return _best(candidates(output, layout))


def read_pair(
    reference: Mapping[str, NDArray[Any]],
    candidate: Mapping[str, NDArray[Any]],
    classes: int = 0,
    *,
    detects: bool = False,
) -> ScorePair | NoScores:
    """Return the scores of one sample on both sides, from all outputs of a network; both sides have equal output names.

    A detector's boxes may be in several outputs (`box_outputs`). Otherwise the first output is read, as `score_pair` does.
    """
    boxed = box_outputs(reference) if len(reference) > 1 else None
    if boxed is None:
        first = next(iter(reference))
        boxes = boxes_of_rows(first, reference)
        if boxes is not None:
            return NoScores(why=f"has one value per row of {boxes!r}, but their meaning is unknown")
        return score_pair(reference[first], candidate[first], classes, detects=detects)
    return _score_boxes(boxed.layout, (boxed.read(reference), boxed.read(candidate)), classes)


def score_pair(
    reference: NDArray[Any], candidate: NDArray[Any], classes: int = 0, *, detects: bool = False
) -> ScorePair | NoScores:
    """Return the class scores of one sample on both sides; a reason if the reference has no known layout.

    The layout of the reference applies to both outputs. Final detections become scores of at least `classes` classes
    and of one more class at the end, "nothing", which is best if no box is left. With `detects`, the network is known to
    be a detector: an empty list of the reference has the layout of the candidate.
    """
    if _is_vector(reference):
        return ScorePair(reference=_vector(reference), candidate=_vector(candidate))
    layout = layout_of(reference)
    if isinstance(layout, NoScores) and detects and lists_nothing(reference):
        layout = BoxLayout.FINAL if lists_nothing(candidate) else layout_of(candidate)
    if isinstance(layout, NoScores):
        return layout
    return _score_boxes(layout, (candidates(reference, layout), candidates(candidate, layout)), classes)


def _score_boxes(layout: BoxLayout, sides: tuple[RawBoxes, RawBoxes], classes: int) -> ScorePair:
    if layout.is_final:
        count = max(classes, *(side.scores.shape[1] for side in sides))
        left, right = (_best_scores(side, count) for side in sides)
    else:
        left, right = map(_best, sides)
    return ScorePair(reference=left, candidate=right, layout=layout, boxes=sides)


def _is_vector(output: NDArray[Any]) -> bool:
    return max(output.shape, default=1) == output.size


def _vector(output: NDArray[Any]) -> Floats:
    return output.reshape(-1).astype(np.float64)


def _best(boxes: RawBoxes) -> Floats:
    best: Floats = boxes.scores.max(axis=0)
    return best


def _best_scores(boxes: RawBoxes, classes: int) -> Floats:
    """Return a detector's best score of each class, and zero for "no class"; below zero for a class without a box."""
    best = np.full(classes + 1, -1.0)
    best[classes] = 0.0
    if len(boxes.scores):
        scores = boxes.scores.max(axis=0)
        best[: len(scores)] = np.where(scores > 0, scores, -1.0)
    return best


def rank(scores: Floats, truth: int) -> int:
    """Return the rank of the class `truth`, the highest score first; equal scores rank by class number."""
    own = scores[truth]
    return int((scores > own).sum() + (scores[:truth] == own).sum())


# --- task ------------------------------------------------------------------------------------------------------------


_ASK = {"classify": ("top1", "top5"), "agreement": ("agreement",)}
_WITH_LABELS = "pass --labels FILE with the true class of each sample to measure top-1"
_UNLABELLED = f"no task metric: no sample has a label; if the output contains class scores, {_WITH_LABELS}"
_LINE = 3
"""Axes of a line of text: batch, positions and characters."""
_HINTS = {
    _LINE: f"if it is a line of text, {Setting('compare.task', 'text')} compares its characters",
    4: f"if it is a map of class scores, {Setting('compare.task', 'segment')} compares its pixels",
}
"""How to measure logits, by the number of axes."""
_MAPS = "is not a map of class scores or class numbers"
_LINES = "holds no class scores at each position of a line"
_AGREEMENT = f"agreement shows how often both models choose the same class, not how often that class is correct: {_WITH_LABELS}"


Outputs = Mapping[str, NDArray[Any]]


class HitCount:
    """Correct answers of both models in one task metric, by sample."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reference = array("d")
        self._candidate = array("d")

    def record(self, reference: float, candidate: float) -> None:
        """Count whether reference and candidate classify one sample correctly."""
        self._reference.append(reference)
        self._candidate.append(candidate)

    def result(self) -> TaskAccuracy | None:
        """Return both shares of correct answers in percent, with the interval of their difference; None without samples."""
        if not self._reference:
            return None
        left, right = np.frombuffer(self._reference), np.frombuffer(self._candidate)
        interval = paired_interval(right - left)
        return TaskAccuracy(
            metric=self._name,
            unit="%",
            reference=100 * float(left.mean()),
            candidate=100 * float(right.mean()),
            samples=len(left),
            low=None if interval is None else 100 * interval.low,
            high=None if interval is None else 100 * interval.high,
        )


class Task:
    """Scores the task of a network: class scores, a detector's boxes, positions with classes, or next tokens.

    An output with a class at each position needs no labels (`positions`).

    For detectors, `agreement` also counts the boxes: the best class says little about other boxes, and nothing if
    there is only one class.
    """

    def __init__(self, kind: str, extra: int = 0) -> None:
        self._extra = extra
        self._kind = kind
        self._counts = [(METRICS.load(name), HitCount(name)) for name in _ASK.get(kind, ())]
        self._positions = {name: HitCount(name) for name in (CHARACTERS, PIXELS, POSITIONS, MASKS)}
        self._boxes = HitCount(BOXES)
        self._instances = {name: HitCount(name) for name in (MASKS, KEYPOINTS)}
        self._tokens = HitCount(NEXT)
        self._same_token = HitCount(SAME)
        self._precision = MeanPrecision()
        self._precisions = {names: MeanPrecision(names) for names in (MASK_MAPS, KEYPOINT_MAPS)}
        self._perplexity = Perplexity()
        self._reads_labels = any(metric.truth == "label" for metric, _ in self._counts)
        self._ties = 0
        self._answers: set[int] = set()
        self._count = 0
        self._classes = 0
        self._shifted = array("l", [0, 0, 0])
        self._unread: dict[str, int] = {}
        self._doubtful = 0
        self._unlabelled = 0

    def add(self, reference: Outputs, candidate: Outputs, sample: Sample) -> None:
        """Score one sample on both sides. Without a label, only metrics that need no labels count it.

        Raises:
            InputFileError: the label is not one of the output's classes.
        """
        if self._kind == "none":
            return
        first = next(iter(reference))
        whole = own_rows(reference, sample), own_rows(candidate, sample)
        reference, candidate = (own_rows(outputs, sample, self._extra) for outputs in whole)
        if self._kind in TASKS:
            self._add_positions(reference, candidate, sample, _MAPS if self._kind == "segment" else _LINES)
            return
        # labels beside the samples may belong to another task
        label = sample.label if self._reads_labels else None
        tokens = judged_tokens(reference, candidate, sample) if label is None else None
        if tokens is not None:
            self._add_tokens(tokens)
            return
        if _is_index(reference[first]) and box_outputs(reference) is None:
            self._unlabelled += int(sample.label is None)
            self._add_index(int(reference[first].item()), int(candidate[first].item()), label)
            return
        scores = read_pair(reference, candidate, least_classes(label), detects=sample.boxes is not None)
        if isinstance(scores, NoScores):
            self._add_positions(reference, candidate, sample, scores.why)
            return
        if label is not None:
            check_label(sample, len(scores.reference))
        self._count += 1
        self._unlabelled += int(sample.label is None and scores.layout is None)
        self._watch(scores)
        self._watch_shift(scores.reference, label)
        for metric, count in self._counts:
            if hits := hits_of(metric, scores, label):
                count.record(*hits)
        if not self._reads_labels and (shared := boxes_of(scores)):
            self._boxes.record(*shared)
        if self._extra and scores.boxes is not None and scores.layout is not None:
            judged = judge_instances(whole, scores.boxes, scores.layout, self._extra, sample)
            if judged is not None:
                self._instances[judged[0]].record(1.0, judged[1])
        if sample.boxes is not None and scores.boxes is not None and scores.layout is not None:
            left, right = (keep_boxes(raw, scores.layout) for raw in scores.boxes)
            truth = sample.boxes
            overlaps = box_overlaps(left, truth[:, 1:]), box_overlaps(right, truth[:, 1:])
            self._precision.record((left, right), overlaps, truth[:, 0])
            labelled = compare_labels(whole, scores.boxes, (left, right), self._extra, sample)
            if labelled is not None:
                names, overlaps, ignored = labelled
                self._precisions[names].record((left, right), overlaps, truth[:, 0], ignored)

    def results(self) -> tuple[TaskAccuracy, ...]:
        """Return one entry per task metric that has samples."""
        counts = (count for _, count in self._counts)
        further = (*self._instances.values(), *self._positions.values())
        every = (self._tokens, self._same_token, *counts, self._boxes, *further)
        shares = tuple(share for count in every if (share := count.result()) is not None)
        labelled = (self._precision, *self._precisions.values())
        return (*(entry for precision in labelled for entry in precision.results()), *shares)

    @property
    def is_one_answer(self) -> bool:
        """True if the probabilities of the reference give the same class to every one of several samples."""
        return self._count > 1 and len(self._answers) == 1

    def measures(self) -> tuple[Measure, ...]:
        """Return further figures of the scored output, such as the perplexity of a language model."""
        return self._perplexity.measures()

    def notes(self, *, meaningful: bool = True) -> tuple[str, ...]:
        """Return notes on the limits of the task metrics."""
        notes: list[str] = []
        if self._perplexity.measures():
            notes.append(self._perplexity.note())
        if meaningful and self._unlabelled and self._unlabelled == self._count:
            notes.append(_UNLABELLED if self._reads_labels else _AGREEMENT)
        if not self._count:
            notes.extend(f"no task metric: {words}" for words in self._unread)
        else:
            notes.extend(
                f"{count_noun(count, 'sample')} not in the task metric: {words}"
                for words, count in self._unread.items()
            )
        if any(precision.results() for precision in self._precisions.values()):
            pass  # with labels, they decide
        elif any(count.result() is not None for count in self._instances.values()):
            notes.append("masks and keypoints are compared with those of the float model, not with labels")
        elif self._extra and self.results():
            notes.append(
                f"the task metric compares boxes and classes; masks and keypoints, {self._extra} values of each detection, count only in the SQNR of the outputs"
            )
        if self._doubtful and self._classes != 1:
            share = 100 * self._doubtful / self._count
            notes.append(
                f"in {share:.1f} % of the samples no box of the reference reaches a score of {CONFIDENT}: these samples do not count for the agreement"
            )
        if self._ties:
            share = 100 * self._ties / self._count
            notes.append(
                f"in {share:.1f} % of the samples several classes of the candidate share the best score, and the first one counts: the range of this output may be clipped"
            )
        if self._classes > self._count > 0 and self.results():
            notes.append(
                f"{count_noun(self._count, 'sample')} for {self._classes} classes: most classes do not occur"
            )
        below, right, above = self._shifted
        if max(below, above) > 2 * right and max(below, above) > self._count // 4:
            side = "one lower" if below > above else "one higher"
            notes.append(f"the labels would match much better {side}: is there a background class?")
        return tuple(notes)

    def _add_tokens(self, judgement: TokenJudgement) -> None:
        """Score a language model on one sample: the next token, or whether both models rank the same token first."""
        self._count += 1
        if judgement.is_causal:
            self._perplexity.record(judgement)
        if self._reads_labels and judgement.is_causal:
            self._tokens.record(*judgement.hits)
        else:
            self._same_token.record(1.0, judgement.same)

    def _add_positions(self, reference: Outputs, candidate: Outputs, sample: Sample, why_not: str) -> None:
        """Score an output with a class at each position, or record why that is impossible."""
        first = next(iter(reference))
        judged = judge_positions(reference[first], candidate[first], sample, self._kind)
        if judged is None:
            hint = _hint_for(reference) if why_not == NO_BOXES.why else None
            words = f"an output of shape {reference[first].shape} {why_not}{f'; {hint}' if hint else ''}"
            self._unread[words] = self._unread.get(words, 0) + 1
            return
        self._count += 1
        self._positions[judged[0]].record(1.0, judged[1])

    def _add_index(self, reference: int, candidate: int, label: int | None) -> None:
        """Score an output that is the number of a class: count only whether it is the true class."""
        self._count += 1
        for metric, count in self._counts:
            truth = label if metric.truth == "label" else reference
            if truth is not None and metric.classes <= 2:
                count.record(float(reference == truth), float(candidate == truth))

    def _watch(self, scores: ScorePair) -> None:
        """Count doubtful samples, tied scores and different answers, for the notes on the task metrics."""
        left, right = scores.reference, scores.candidate
        if scores.layout is not None:
            self._doubtful += int(scores.named is None)
        if scores.layout is None or not scores.layout.is_final:
            # final detections do not show the number of classes
            self._classes = len(left)
        if scores.layout is None:
            # vectors that are not probabilities may be coordinates, and count as two answers
            are_shares = left.min() >= 0 and np.isclose(left.sum(), 1, atol=1e-3)
            self._answers.update({int(left.argmax())} if are_shares else {-1, -2})
        self._ties += int((right == right.max()).sum() > 1 >= (left == left.max()).sum())

    def _watch_shift(self, scores: Floats, label: int | None) -> None:
        if label is not None:
            step = int(scores.argmax()) - label
            if -1 <= step <= 1:
                self._shifted[step + 1] += 1


def hits_of(metric: Hit, scores: ScorePair, label: int | None) -> tuple[float, float] | None:
    """Return whether each model is right about one sample; None if the sample does not count."""
    is_labelled = metric.truth == "label"
    truth = label if is_labelled else scores.named
    if truth is None or len(scores.reference) < metric.classes:
        return None
    candidate = scores.candidate if is_labelled else scores.shown
    return metric.hit(scores.reference, truth), metric.hit(candidate, truth)


def boxes_of(scores: ScorePair) -> tuple[float, float] | None:
    """Return (1, F1 score of the candidate's boxes against the reference's boxes) for one image.

    The result is None if neither model has boxes.
    """
    if scores.layout is None or scores.boxes is None:
        return None
    matches = agreement(*scores.boxes, scores.layout)
    return None if matches is None or not matches[1] else (1.0, matches[0] / matches[1])


def own_rows(outputs: Outputs, sample: Sample, extra: int = 0) -> dict[str, NDArray[Any]]:
    """Return the rows of an output that belong to the sample, without copies that fill a fixed batch.

    The first output loses the last `extra` values of each detection.
    """
    rows = {name: first_row(output, sample) for name, output in outputs.items()}
    first = next(iter(rows))
    return {**rows, first: without_extra(rows[first], extra)}


def first_row(output: NDArray[Any], sample: Sample) -> NDArray[Any]:
    """Return the first row of an output if the sample has a batch of several rows; otherwise the whole output."""
    batch = next((feed.shape[0] for feed in sample.feeds.values() if feed.ndim), 1)
    return output[:1] if batch > 1 and output.ndim and output.shape[0] == batch else output


def least_classes(label: int | None) -> int:
    """Return the smallest number of classes for which this label is valid."""
    return 0 if label is None else label + 1


def _hint_for(outputs: Outputs) -> str | None:
    """Return how a network can be measured whose first output does not say what it is; None if that is unknown."""
    first, *further = outputs.values()
    extra = mask_columns(first, further)
    if extra:
        return f"{Setting('compare.extra_columns', str(extra))} separates the boxes from the mask coefficients of each detection"
    return None if further and first.ndim == _LINE else _HINTS.get(first.ndim)


def _is_index(output: NDArray[Any]) -> bool:
    return output.size == 1 and output.dtype.kind in "iu"


def check_label(sample: Sample, classes: int) -> None:
    """Raise an error if a label is not one of the classes.

    Raises:
        InputFileError: it is too large, or negative.
    """
    if sample.label is not None and not 0 <= sample.label < classes:
        raise InputFileError(
            f"the label is {sample.label}, but the model has {count_noun(classes, 'class', 'classes')}, 0 to {classes - 1}",
            fix="pass labels that match the model's classes; if the model has a background class, shift them by one",
            where=sample.name,
        )
