"""Layouts of detectors: which outputs are read as boxes, what they agree on, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.detections import BoxLayout, NoScores, candidates, layout_of
from qdqtool.accuracy.metric import METRICS
from qdqtool.accuracy.task import Task, class_scores, score_pair
from qdqtool.core.comparison import BOXES, MAP50, Comparison
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import CompareOptions
from qdqtool.errors import InputFileError
from qdqtool.report.words import noise
from tests.accuracy.stand_ins import Given, Scripted, identity

COUNT, CLASSES = 84, 5
Found = dict[int, tuple[int, float]]
"""By box its class and score."""
TWO: Found = {40: (1, 0.9), 7: (3, 0.6)}


def grid() -> np.ndarray:
    """Boxes of 6 by 8 pixels all over a picture of 64 pixels."""
    side = np.linspace(4, 60, 12)
    x, y = np.meshgrid(side, side[:7])
    return np.stack([x.ravel(), y.ravel(), np.full(COUNT, 6.0), np.full(COUNT, 8.0)], axis=1)


def without_objectness(found: Found, classes: int = CLASSES) -> np.ndarray:
    """As YOLOv8 scores: next to nothing on the background."""
    scores = np.full((COUNT, classes), 1e-4)
    for box, (kind, score) in found.items():
        scores[box, kind] = score
    return np.concatenate([grid(), scores], axis=1)[None]


def with_objectness(found: Found) -> np.ndarray:
    """As YOLOv5 scores: classes that mean nothing on the background, where the objectness is next to nothing."""
    classes = np.random.default_rng(0).uniform(0.1, 0.4, (COUNT, CLASSES))
    objectness = np.full((COUNT, 1), 1e-4)
    for box, (kind, score) in found.items():
        objectness[box], classes[box, kind] = score, 1.0
    return np.concatenate([grid(), objectness, classes], axis=1)[None]


def ones_for_objectness(found: Found) -> np.ndarray:
    """As YOLOv6 exports."""
    rows = without_objectness(found)
    return np.concatenate([rows[..., :4], np.ones((1, COUNT, 1)), rows[..., 4:]], axis=2)


def across(make: Callable[[Found], np.ndarray]) -> Callable[[Found], np.ndarray]:
    return lambda found: make(found).transpose(0, 2, 1)


def final(found: Found, pad: tuple[float, ...] = (0.0,) * 6) -> np.ndarray:
    """As YOLOv10 lists them, best first, and a list of fixed length."""
    boxes = grid()
    rows = [
        (*(boxes[box, :2] - boxes[box, 2:] / 2), *(boxes[box, :2] + boxes[box, 2:] / 2), score, float(kind))
        for box, (kind, score) in sorted(found.items(), key=lambda item: -item[1][1])
    ]
    return np.array(rows + [pad] * (20 - len(rows)))[None]


LAYOUTS: dict[str, tuple[BoxLayout, Callable[[Found], np.ndarray]]] = {
    "columns without objectness": (BoxLayout.CLASSES_COLUMNS, across(without_objectness)),
    "rows without objectness": (BoxLayout.CLASSES, without_objectness),
    "rows with objectness": (BoxLayout.OBJECTNESS, with_objectness),
    "rows with ones for an objectness": (BoxLayout.OBJECTNESS, ones_for_objectness),
    "columns with objectness": (BoxLayout.OBJECTNESS_COLUMNS, across(with_objectness)),
    "final detections": (BoxLayout.FINAL, final),
    "final detections filled up with class -1": (
        BoxLayout.FINAL,
        lambda found: final(found, (0, 0, 0, 0, 0, -1)),
    ),
    "final detections, class first": (
        BoxLayout.FINAL_CLASS_FIRST,
        lambda found: final(found)[..., [5, 4, 0, 1, 2, 3]],
    ),
}
each_layout = pytest.mark.parametrize(("layout", "make"), LAYOUTS.values(), ids=LAYOUTS)


def told(
    reference: np.ndarray, candidate: np.ndarray, task: str = "agreement", label: int | None = None
) -> Comparison:
    """Both outputs compared, as one sample."""
    samples = Given([Sample(name="image", feeds={"x": reference}, label=label)])
    options = CompareOptions.model_validate({"task": task, "metrics": ["boxes"]})
    return compare(Scripted(identity), Scripted(lambda _: {"y": candidate}), samples, options)


def agreement(found: Comparison) -> float | None:
    return found.task[0].candidate if found.task else None


def boxes(found: Comparison) -> float | None:
    return found.outputs[0].measures[0].value


@each_layout
def test_a_layout_is_told_by_its_values(layout: BoxLayout, make: Callable[[Found], np.ndarray]) -> None:
    assert layout_of(make(TWO)) is layout
    assert layout_of(make(TWO).astype(np.float32)) is layout
    assert layout_of(make({40: (0, 0.9)})) is layout


@each_layout
def test_equal_outputs_agree_wholly(layout: BoxLayout, make: Callable[[Found], np.ndarray]) -> None:
    found = told(make(TWO), make(TWO))
    assert (agreement(found), boxes(found)) == (100.0, 100.0)
    assert found.notes == ("1 sample for 5 classes: most classes do not occur",) * (not layout.is_final)


@each_layout
@pytest.mark.parametrize(("left", "agreed"), [(40, 100.0), (7, 0.0)], ids=["the best is left", "it is lost"])
def test_a_lost_detection_lowers_the_boxes_and_the_best_one_lost_is_a_disagreement(
    left: int, agreed: float, layout: BoxLayout, make: Callable[[Found], np.ndarray]
) -> None:
    found = told(make(TWO), make({left: TWO[left]}))
    assert boxes(found) == pytest.approx(100 * 2 / 3)
    assert agreement(found) == agreed


@each_layout
def test_a_candidate_that_finds_nothing_agrees_on_nothing(
    layout: BoxLayout, make: Callable[[Found], np.ndarray]
) -> None:
    found = told(make(TWO), np.zeros_like(make(TWO)))
    assert boxes(found) == 0.0
    assert agreement(found) == 0.0


@each_layout
@pytest.mark.parametrize(("score", "agreed"), [(0.2, 100.0), (0.05, 0.0)], ids=["fainter", "nothing is left"])
def test_the_best_of_boxes_that_nobody_would_see_agrees_on_nothing(
    score: float, agreed: float, layout: BoxLayout, make: Callable[[Found], np.ndarray]
) -> None:
    assert agreement(told(make(TWO), make({40: (1, score)}))) == agreed
    labelled = told(make(TWO), make({40: (1, score)}), "classify", label=1)
    assert labelled.task[0].candidate == 100.0


@each_layout
def test_labels_are_classes_of_the_best_box(layout: BoxLayout, make: Callable[[Found], np.ndarray]) -> None:
    assert agreement(told(make(TWO), make(TWO), "classify", 1)) == 100.0
    assert agreement(told(make(TWO), make(TWO), "classify", 3)) == 0.0
    assert agreement(told(make({7: (0, 0.8)}), make({7: (0, 0.8)}), "classify", 4)) == 0.0


def test_final_detections_of_the_first_class_alone_are_lost_too() -> None:
    one, none = final({7: (0, 0.8)}), final({})
    assert agreement(told(one, one)) == 100.0
    assert agreement(told(one, none)) == 0.0
    assert class_scores(one) is None


def test_the_reference_says_how_a_damaged_candidate_is_read() -> None:
    """Boxes that one scale pressed below one pixel, and scores beyond 1, are still those of the same model."""
    plain = across(without_objectness)(TWO)
    broken = plain * np.where(np.arange(4 + CLASSES) < 4, 0.001, 2.0)[:, None]
    assert isinstance(layout_of(broken), NoScores)
    found = told(plain, broken)
    assert (agreement(found), boxes(found)) == (100.0, 0.0)


def test_as_many_boxes_as_rows_of_scores_are_told_by_their_values() -> None:
    """64 by 64 pixels give 84 boxes, and 80 classes 84 rows."""
    square = without_objectness(TWO, 80)
    assert square.shape == (1, 84, 84)
    assert layout_of(square) is BoxLayout.CLASSES
    assert layout_of(square.transpose(0, 2, 1)) is BoxLayout.CLASSES_COLUMNS


@pytest.mark.parametrize(
    "turn", [lambda rows: rows, lambda rows: rows.transpose(0, 2, 1)], ids=["rows", "columns"]
)
def test_one_class_has_nothing_to_agree_on_and_the_boxes_have(
    turn: Callable[[np.ndarray], np.ndarray],
) -> None:
    both, one = (
        turn(without_objectness(found, 1)) for found in ({40: (0, 0.9), 7: (0, 0.6)}, {40: (0, 0.9)})
    )
    found = told(both, one)
    assert [entry.metric for entry in found.task] == [BOXES]
    assert found.task[0].candidate == pytest.approx(boxes(found)) == pytest.approx(100 * 2 / 3)


@each_layout
def test_boxes_are_told_beside_the_agreement(layout: BoxLayout, make: Callable[[Found], np.ndarray]) -> None:
    found = told(make(TWO), make({40: TWO[40]}))
    assert [entry.metric for entry in found.task] == ["agreement", BOXES]
    assert found.task[1].candidate == pytest.approx(100 * 2 / 3)
    assert noise(found.task[1]) == ""


def test_where_the_reference_is_sure_of_nothing_nothing_is_compared_and_the_share_is_told() -> None:
    faint = across(without_objectness)({40: (1, 0.2)})
    found = told(faint, faint)
    assert agreement(found) is None
    assert [
        note for note in found.notes if note.startswith("in 100.0 % of the samples no box of the reference")
    ]


def test_a_fifth_column_that_may_be_either_is_said_and_not_used() -> None:
    rows = without_objectness(TWO)
    rows[0, :, 5:] = 0.01
    found = told(rows, rows)
    assert found.task == ()
    assert boxes(found) is None
    assert (
        "no task metric: an output of shape (1, 84, 9) looks like boxes, but it is unclear whether the fifth "
        "column is an objectness or a class"
    ) in found.notes


def test_boxes_that_fit_in_rows_and_in_columns_are_said_and_not_used() -> None:
    square = np.full((1, 8, 8), 1e-4)
    square[0, :4, :4] = 20.0
    square[0, :4, 4:] = square[0, 4:, :4] = 1.04
    found = told(square, square)
    assert found.task == ()
    assert [note for note in found.notes if "in each row, or in each column" in note]


def test_samples_that_are_not_understood_are_counted_beside_those_that_are() -> None:
    outputs = [final(TWO), final({}), final({})]
    samples = Given([Sample(name=f"{i}", feeds={"x": output}) for i, output in enumerate(outputs)])
    found = compare(Scripted(identity), Scripted(identity), samples, CompareOptions(task="agreement"))
    assert found.task[0].samples == 1
    assert [note for note in found.notes if note.startswith("2 samples not in the task metric")]


RANDOM = np.random.default_rng(3)
NORMAL = RANDOM.normal(size=(1, 12, 40))
OTHERS = {
    "hidden states": NORMAL,
    "hidden states behind a ReLU": np.maximum(NORMAL, 0),
    "characters of a text line": 12 * NORMAL - 40,
    "independent probabilities": RANDOM.uniform(size=(1, 40, 9)),
    "a sequence of six classes": RANDOM.normal(size=(1, 40, 6)),
    "a spectrum": RANDOM.uniform(0, 80, size=(1, 84, 400)),
    "a map of classes": RANDOM.normal(size=(1, 21, 8, 8)),
    "a map of probabilities": RANDOM.uniform(size=(1, 1, 8, 8)),
    "boxes in shares of the picture": without_objectness(TWO) / np.where(np.arange(4 + CLASSES) < 4, 64, 1),
    "boxes with coefficients of masks": np.concatenate(
        [across(without_objectness)(TWO), RANDOM.normal(size=(1, 32, COUNT))], axis=1
    ),
    "final corners out of order": final(TWO)[..., [2, 3, 0, 1, 4, 5]],
    "nothing but padding": final({}),
    "no box at all": np.zeros((1, 0, 6)),
}


@pytest.mark.parametrize("output", OTHERS.values(), ids=OTHERS)
def test_what_is_no_output_of_boxes_is_not_taken_for_one(output: np.ndarray) -> None:
    assert isinstance(layout_of(output), NoScores)
    assert class_scores(output) is None
    found = told(output, output)
    assert found.task == ()
    assert boxes(found) is None
    assert len(found.notes) == 1
    assert found.notes[0].startswith(
        f"no task metric: an output of shape {output.shape} holds neither the class scores of one sample nor boxes; "
    )
    assert ("compare.task=segment" in found.notes[0]) == (output.ndim == 4)


@pytest.mark.parametrize(
    "empty", [final({}), np.zeros((1, 0, 6)), np.zeros((0, 6))], ids=lambda value: str(value.shape)
)
@pytest.mark.parametrize("second", [{}, {3: (1, 0.8)}], ids=["nothing", "a wrong box"])
def test_a_labelled_picture_without_detections_counts_as_missed(empty: np.ndarray, second: Found) -> None:
    truth = [[kind, *grid()[box, :2] - (3, 4), *grid()[box, :2] + (3, 4)] for box, (kind, _) in TWO.items()]
    outputs = ((final(TWO), final(TWO)), (empty, final(second) if second else empty))
    task = Task("classify")
    for left, right in outputs:
        sample = Sample(name="a", feeds={"x": left}, boxes=np.array(truth))
        task.add({"y": left}, {"y": right}, sample)
    (half, _) = task.results()[:2]
    assert (half.metric, half.samples) == (MAP50, 2)
    assert half.reference == pytest.approx(100 * 51 / 101)
    assert half.candidate == pytest.approx(half.reference)


@pytest.mark.parametrize("shape", [(1000,), (1, 1000), (1, 1000, 1, 1), (1, 1, 6)])
def test_the_scores_of_a_classifier_stay_what_they_are(shape: tuple[int, ...]) -> None:
    logits = RANDOM.normal(size=shape)
    pair = score_pair(logits, 2 * logits)
    assert not isinstance(pair, NoScores)
    assert pair.layout is None
    np.testing.assert_array_equal(pair.reference, logits.ravel())
    np.testing.assert_array_equal(pair.candidate, 2 * logits.ravel())


@each_layout
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 4, 5])
def test_values_that_are_not_finite_are_no_boxes(
    layout: BoxLayout, make: Callable[[Found], np.ndarray], bad: float, column: int
) -> None:
    output = make(TWO)
    rows = output[0].T if layout in {BoxLayout.CLASSES_COLUMNS, BoxLayout.OBJECTNESS_COLUMNS} else output[0]
    rows[1, column] = bad
    assert isinstance(layout_of(output), NoScores)
    assert isinstance(score_pair(output, make(TWO)), NoScores)
    if np.isnan(bad):
        with pytest.raises(InputFileError, match="NaN"):
            told(make(TWO), output)


def test_final_detections_with_classes_that_no_model_has_are_left_out() -> None:
    """A class that went through a scale is no integer any more, and may be far off."""
    plain, rounded = final(TWO), final(TWO)
    rounded[0, 0, 5], rounded[0, 1, 5] = 1.2, 1e9
    assert isinstance(layout_of(rounded), NoScores)
    assert agreement(told(plain, rounded)) == 100.0
    assert candidates(rounded, BoxLayout.FINAL).scores.shape == (1, 2)


@each_layout
def test_order_of_boxes_does_not_matter(layout: BoxLayout, make: Callable[[Found], np.ndarray]) -> None:
    axis = 2 if layout in {BoxLayout.CLASSES_COLUMNS, BoxLayout.OBJECTNESS_COLUMNS} else 1
    turned = np.flip(make(TWO), axis=axis)
    found = told(make(TWO), turned)
    assert (agreement(found), boxes(found)) == (100.0, 100.0)
    assert METRICS.load("boxes").better == "higher"


def test_scores_that_only_the_candidate_cannot_tell_apart_are_said() -> None:
    sure, tied = np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, 4.0, 4.0]])
    words = "several classes of the candidate share the best score"
    assert any(words in note for note in told(sure, tied).notes)
    for reference, candidate in ((tied, tied), (sure, sure), (tied, sure)):
        assert not any(words in note for note in told(reference, candidate).notes)
