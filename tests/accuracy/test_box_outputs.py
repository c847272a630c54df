"""Boxes, scores and classes in outputs of their own say what they say in one output, in whatever form they are written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.detections import NoScores, box_outputs
from qdqtool.accuracy.task import boxes_of, read_pair
from qdqtool.core.comparison import BOXES, Comparison, loss
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import CompareOptions
from qdqtool.errors import InputFileError
from qdqtool.pipeline.search.subsets import TrialRunner
from tests.accuracy.stand_ins import Given, Scripted
from tests.accuracy.test_layouts import CLASSES, COUNT, TWO, Found, grid, told, without_objectness

Outputs = dict[str, NDArray[np.float32]]
Make = Callable[[Found], Outputs]
FAINT = {40: (1, 0.2)}


def corners() -> np.ndarray:
    centres = grid()
    half = centres[:, 2:] / 2
    return np.concatenate([centres[:, :2] - half, centres[:, :2] + half], axis=1)


def probabilities(found: Found, classes: int) -> np.ndarray:
    return without_objectness(found, classes)[0, :, 4:]


def sigmoid_logits(found: Found, classes: int) -> np.ndarray:
    scores = probabilities(found, classes)
    return np.log(scores / (1 - scores))


def with_background(found: Found, classes: int, *, first: bool, logits: bool) -> np.ndarray:
    scores = probabilities(found, classes)
    rest = 1 - scores.sum(axis=1, keepdims=True)
    whole = np.concatenate([rest, scores] if first else [scores, rest], axis=1)
    return np.log(whole) + 9 if logits else whole


def dense(form: tuple[str, str, str], classes: int = CLASSES) -> Make:
    """Two outputs: the boxes in one of their forms, and the scores in one of theirs."""
    box, score, turn = form

    def make(found: Found) -> Outputs:
        boxes = {
            "corners": corners(),
            "centres": grid(),
            "corners of a share": corners() / 64,
            "centres of a share": grid() / 64,
        }[box]
        scores = {
            "probabilities": probabilities(found, classes),
            "sigmoid logits": sigmoid_logits(found, classes),
            "softmax": with_background(found, classes, first=False, logits=False),
            "softmax logits": with_background(found, classes, first=False, logits=True),
            "softmax, background first": with_background(found, classes, first=True, logits=False),
            "softmax logits, background first": with_background(found, classes, first=True, logits=True),
        }[score]
        given = {"where": boxes[None], "what": scores.T[None] if "across" in turn else scores[None]}
        if "bare" in turn:
            given = {name: values[0] for name, values in given.items()}
        names = sorted(given, reverse="backwards" in turn)
        return {name: given[name].astype(np.float32) for name in names}

    return make


def listed(form: tuple[str, str]) -> Make:
    """Three outputs, as torchvision returns them or filled up to a fixed length, as TensorFlow's detectors do."""
    turn, length = form

    def make(found: Found) -> Outputs:
        order = sorted(found, key=lambda box: -found[box][1])
        more = 20 - len(order) if length == "filled up" else 0
        boxes = np.concatenate([corners()[order], np.zeros((more, 4))])
        classes = np.array([found[box][0] for box in order] + [0] * more)
        scores = np.array([found[box][1] for box in order] + [0.0] * more)
        given: dict[str, np.ndarray] = {
            "boxes": boxes.astype(np.float32),
            "labels": classes.astype(np.float32 if "float" in turn else np.int64),
            "scores": scores.astype(np.float32),
        }
        if "batch" in turn:
            given = {name: values[None] for name, values in given.items()}
        made = {name: given[name] for name in sorted(given, reverse="backwards" in turn)}
        return {"count": np.array([len(order)]), **made} if "count" in turn else made

    return make


def forms() -> Iterator[tuple[str, Make]]:
    for form in itertools.product(
        ("corners", "centres", "corners of a share", "centres of a share"),
        (
            *("probabilities", "sigmoid logits", "softmax", "softmax logits"),
            *("softmax, background first", "softmax logits, background first"),
        ),
        ("rows", "across", "bare, backwards", "across, backwards"),
    ):
        yield " | ".join(form), dense(form)
    for short in itertools.product(
        ("plain", "float, batch", "batch, backwards", "count"), ("short", "filled up")
    ):
        yield " | ".join(short), listed(short)


FORMS = dict(forms())
each_form = pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)


def compared(reference: Outputs, candidate: Outputs, task: str = "agreement") -> Comparison:
    """Both compared, as one sample."""
    samples = Given([Sample(name="image", feeds={"x": np.zeros(1)})])
    left, right = (
        Scripted(lambda _, made=made: dict(made), outputs=tuple(made)) for made in (reference, candidate)
    )
    return compare(left, right, samples, CompareOptions.model_validate({"task": task}))


@each_form
@pytest.mark.parametrize(
    "candidate", [TWO, {40: TWO[40]}, {7: TWO[7]}, {40: (1, 0.2)}, {40: (2, 0.9), 7: (3, 0.6)}], ids=str
)
def test_outputs_apart_say_what_one_output_says(candidate: Found, make: Make) -> None:
    found, wanted = (
        compared(make(TWO), make(candidate)),
        told(without_objectness(TWO), without_objectness(candidate)),
    )
    assert [(entry.metric, entry.candidate) for entry in found.task] == [
        (entry.metric, pytest.approx(entry.candidate)) for entry in wanted.task
    ]


@each_form
def test_a_candidate_that_finds_nothing_agrees_on_nothing(make: Make) -> None:
    assert [entry.candidate for entry in compared(make(TWO), make({})).task] == [0.0, 0.0]


@each_form
def test_where_the_reference_shows_nothing_nothing_is_compared(make: Make) -> None:
    assert compared(make(FAINT), make(FAINT)).task == ()


@pytest.mark.parametrize("form", ["softmax, background first", "softmax logits", "sigmoid logits"])
def test_one_class_is_told_by_its_boxes_also_where_a_limit_is_looked_for(form: str) -> None:
    """A face detector: the class of the best box is always the right one."""
    make = dense(("corners", form, "rows"), classes=1)
    both, one = make({40: (0, 0.9), 7: (0, 0.6)}), make({40: (0, 0.9)})
    found = compared(both, one)
    assert [(entry.metric, entry.candidate) for entry in found.task] == [(BOXES, pytest.approx(100 * 2 / 3))]
    sample = Sample(name="image", feeds={"x": np.zeros(1)})
    trials = TrialRunner(_Fixed(both, one), CompareOptions.model_validate({"task": "agreement"}))
    outcome = trials.run({"all": frozenset({"node"})}, Given([sample]))["all"]
    assert outcome.task == found.task[0]


def test_few_moved_boxes_are_no_finding_and_many_are() -> None:
    make = dense(("corners", "probabilities", "rows"), classes=1)
    every: Found = {box: (0, 0.9) for box in range(0, COUNT, 4)}
    some, most = ({box: every[box] for box in list(every)[skipped:]} for skipped in (1, 14))
    assert loss(compared(make(every), make(some)))[0] is None
    assert loss(compared(make(every), make(most)))[0] is not None


def test_lists_of_another_length_are_told_as_such_and_their_boxes_are_counted() -> None:
    """The rows of two lists are not those of the same boxes: no distance between them says anything."""
    make = listed(("plain", "short"))
    found = compared(make(TWO), make({40: TWO[40]}))
    assert [entry.metric for entry in found.task] == ["agreement", BOXES]
    notes = {measure.note for output in found.outputs for measure in output.measures}
    assert notes == {"not measured: the candidate has a different number of values"}
    assert found.sqnr is None


def test_a_list_in_one_output_may_be_longer_too() -> None:
    """PaddleDetection: class, score and corners in each row, and how many rows there are."""

    def made(count: int) -> Outputs:
        rows = np.concatenate([np.zeros((count, 1)), np.full((count, 1), 0.9), corners()[:count]], axis=1)
        return {"found": rows.astype(np.float32), "count": np.array([count])}

    found = compared(made(6), made(4))
    assert [(entry.metric, entry.candidate) for entry in found.task] == [
        ("agreement", 100.0),
        (BOXES, pytest.approx(80.0)),
    ]
    assert found.outputs[0].measures[0].value is None


def test_an_output_of_another_shape_that_lists_nothing_is_refused() -> None:
    with pytest.raises(InputFileError, match=r"shape \(1, 3\)"):
        compared(
            {"y": np.zeros((1, 3), np.float32), "z": np.zeros((1, 4), np.float32)},
            {"y": np.zeros((1, 2), np.float32), "z": np.zeros((1, 4), np.float32)},
        )


RANDOM = np.random.default_rng(3)


def on_maps(order: tuple[str, ...]) -> Outputs:
    """Classes, objectness and boxes of three feature maps, each an output of its own, as YuNet returns them."""
    made: dict[str, np.ndarray] = {}
    for name in order:
        for rows in (64, 16, 4):
            columns = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}[name]
            values = RANDOM.random((1, rows, columns)) * (0.3 if columns == 1 else 2)
            made[f"{name}_{rows}"] = values.astype(np.float32)
    return made


OTHERS: Mapping[str, Outputs] = {
    "hidden states and tags": {
        "states": RANDOM.standard_normal((1, 24, 4)).astype(np.float32),
        "tags": RANDOM.standard_normal((1, 24, 9)).astype(np.float32),
    },
    "boxes, and scores that are unsure everywhere": {
        "where": corners()[None].astype(np.float32),
        "what": np.full((1, COUNT, 5), 0.6, np.float32),
    },
    "offsets from anchors": {
        "where": RANDOM.standard_normal((1, COUNT, 4)).astype(np.float32),
        "what": probabilities(TWO, CLASSES)[None].astype(np.float32),
    },
    "boxes alone": {"where": corners()[None].astype(np.float32), "mask": np.zeros((1, 3, 3), np.float32)},
    "two outputs that could be the scores": {
        "where": corners()[None].astype(np.float32),
        "what": probabilities(TWO, CLASSES)[None].astype(np.float32),
        "which": probabilities(TWO, CLASSES)[None].astype(np.float32),
    },
    "boxes on several feature maps": on_maps(("cls", "obj", "bbox", "kps")),
    "logits of two heads": {
        "one": RANDOM.standard_normal((1, 4)).astype(np.float32),
        "two": RANDOM.standard_normal((1, 5)).astype(np.float32),
    },
}


@pytest.mark.parametrize("outputs", OTHERS.values(), ids=OTHERS)
def test_what_is_not_beyond_doubt_is_not_read(outputs: Outputs) -> None:
    assert box_outputs(outputs) is None


@pytest.mark.parametrize("order", list(itertools.permutations(("cls", "obj", "bbox", "kps"))))
def test_places_on_a_feature_map_are_no_classes(order: tuple[str, ...]) -> None:
    made = on_maps(order)
    assert isinstance(read_pair(made, made), NoScores)
    found = compared(made, {name: values + np.float32(0.01) for name, values in made.items()})
    assert found.task == ()
    assert any(note.startswith("no task metric") for note in found.notes)


@each_form
def test_raw_boxes_beside_final_ones_change_nothing(make: Make) -> None:
    made = make(TWO)
    if "boxes" not in made:
        return
    raw = RANDOM.random((1, 300, 4)).astype(np.float32)
    beside = {**made, "raw_boxes": np.concatenate([raw[..., :2], raw[..., :2] + raw[..., 2:]], axis=-1)}
    assert box_outputs(beside) == box_outputs(made)


@pytest.mark.parametrize("shape", [(1, 10), (10,), (1, 10, 1, 1), (1, 10, 1)])
@pytest.mark.parametrize("other", [(1, 10, 49), (1, 4), (1, 64), (1, 10, 4, 4)])
def test_scores_of_a_classifier_are_read_beside_features(
    shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    made = {
        "logits": RANDOM.standard_normal(shape).astype(np.float32),
        "features": RANDOM.standard_normal(other).astype(np.float32),
    }
    found = read_pair(made, made)
    assert not isinstance(found, NoScores)
    np.testing.assert_array_equal(found.reference, made["logits"].reshape(-1))


def test_a_named_output_is_read_by_itself() -> None:
    made = dense(("corners", "probabilities", "rows"))(TWO)
    assert isinstance(read_pair({"what": made["what"]}, {"what": made["what"]}), NoScores)
    both = read_pair(made, made)
    assert not isinstance(both, NoScores)
    assert boxes_of(both) == (1.0, 1.0)


class _Fixed:
    """A runner of two subsets: none of the nodes quantized, and all."""

    nodes = ("node",)
    description = "fixed"
    inputs = ()

    def __init__(self, plain: Outputs, quantized: Outputs) -> None:
        self._made = {False: plain, True: quantized}
        self.outputs = tuple(plain)

    def together(self, _feeds: object) -> int:
        return 1

    def run(
        self, feeds: object, subsets: Mapping[str, frozenset[str]]
    ) -> Iterator[tuple[str, list[Outputs]]]:
        for name, subset in subsets.items():
            yield name, [self._made[bool(subset)]]
