"""Two runners over the same samples: what is measured, and what is refused."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from qdqtool.accuracy.compare import compare
from qdqtool.core.comparison import Comparison
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import CompareOptions
from qdqtool.errors import InputFileError, UsageError
from tests.accuracy.stand_ins import Given, Scripted, identity, rows

FLOAT = Scripted(identity, description="float")


def skewed(x: np.ndarray) -> dict[str, np.ndarray]:
    """Adds 10 to class 0 of samples whose class 2 is positive."""
    y = x.copy()
    y[:, 0] += 10.0 * (x[:, 2] > 0)
    return {"y": y}


def task(found: Comparison, metric: str) -> tuple[float, float]:
    entry = next(entry for entry in found.task if entry.metric == metric)
    return entry.reference, entry.candidate


def test_no_samples_is_an_error() -> None:
    with pytest.raises(InputFileError, match="no samples"):
        compare(FLOAT, FLOAT, Given([]), CompareOptions())


def test_a_runner_against_itself_has_no_noise() -> None:
    found = compare(FLOAT, FLOAT, rows(np.eye(4)), CompareOptions())
    measures = {measure.metric: measure for measure in found.outputs[0].measures}
    assert measures["cosine"].value == pytest.approx(1.0)
    assert measures["sqnr_db"].value is None
    assert "no difference" in measures["sqnr_db"].note
    assert found.worst == ()


def test_too_few_samples_for_the_classes_matter_only_where_classes_were_counted() -> None:
    labelled = compare(FLOAT, FLOAT, rows(np.eye(8)[:2], np.array([0, 1])), CompareOptions())
    assert "2 samples for 8 classes: most classes do not occur" in labelled.notes
    alone = compare(FLOAT, FLOAT, rows(np.eye(8)[:2]), CompareOptions())
    assert not any("were not seen" in note for note in alone.notes)


def test_top1_of_both_sides_is_in_percent_and_the_difference_has_an_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 8))
    found = compare(FLOAT, Scripted(skewed), rows(values, values.argmax(axis=1)), CompareOptions())
    reference, candidate = task(found, "top1")
    expected = 100 * np.mean(skewed(values)["y"].argmax(axis=1) == values.argmax(axis=1))
    assert reference == 100.0
    assert candidate == pytest.approx(expected)
    entry = found.task[0]
    assert entry.low is not None
    assert entry.high is not None
    assert entry.low < candidate - reference < entry.high < 0


def test_without_labels_there_is_no_task_metric() -> None:
    assert compare(FLOAT, FLOAT, rows(np.eye(4)), CompareOptions()).task == ()


@pytest.mark.parametrize("task", ["classify", "agreement", "none"])
@pytest.mark.parametrize("labels", [None, range(4)], ids=["no labels", "labels"])
@pytest.mark.parametrize("meaningful", [True, False], ids=["data", "random"])
def test_labels_are_asked_for_where_they_would_be_counted_and_nobody_gave_any(
    task: str, labels: range | None, meaningful: bool
) -> None:
    samples = replace(rows(np.eye(4), labels), meaningful=meaningful)
    found = compare(FLOAT, FLOAT, samples, CompareOptions(task=task))
    told = [note for note in found.notes if "--labels FILE" in note]
    assert len(told) == (task != "none" and labels is None and meaningful)
    assert [note.startswith("no task metric") for note in told] == [task == "classify" for _ in told]


def test_no_labels_are_asked_for_where_the_output_holds_no_class_scores() -> None:
    ordinary = rows(np.random.default_rng(0).normal(size=(4, 3, 8, 5)))
    notes = compare(FLOAT, FLOAT, ordinary, CompareOptions()).notes
    assert any("nor boxes" in note for note in notes)
    assert not any("--labels" in note for note in notes)


@pytest.mark.parametrize(
    ("values", "is_one"),
    [
        ([[0.8, 0.2], [0.6, 0.4]], True),
        ([[0.8, 0.2], [0.4, 0.6]], False),
        ([[0.8, 0.2]], False),
        ([[8.0, 2.0], [6.0, 4.0]], False),  # coordinates, or logits
        ([[0.8, 0.2], [6.0, 4.0]], False),
    ],
)
@pytest.mark.parametrize("kind", ["classify", "agreement"])
def test_a_classifier_that_gives_all_samples_one_class_is_noticed(
    values: list[list[float]], is_one: bool, kind: str
) -> None:
    found = compare(FLOAT, FLOAT, rows(np.array(values)), CompareOptions(task=kind))  # type: ignore[arg-type]
    assert found.one_answer is is_one


def test_agreement_needs_no_labels() -> None:
    values = np.array([[5.0, 0, -1], [5, 0, 1], [0, 5, 1], [0, 20, 1]])
    found = compare(FLOAT, Scripted(skewed), rows(values), CompareOptions(task="agreement"))
    assert task(found, "agreement") == (100.0, 75.0)


def test_fewer_than_six_classes_have_no_top5() -> None:
    found = compare(FLOAT, FLOAT, rows(np.eye(5), range(5)), CompareOptions())
    assert [entry.metric for entry in found.task] == ["top1"]


def test_an_output_that_is_the_class_index_counts_for_top1() -> None:
    index = Scripted(lambda x: {"y": x.argmax(axis=1)})
    found = compare(index, index, rows(np.eye(4), [0, 1, 2, 0]), CompareOptions())
    assert task(found, "top1") == (75.0, 75.0)


def test_boxes_agree_on_the_class_of_the_best_box() -> None:
    boxes = np.zeros((1, 3, 8))
    boxes[0, :, :4] = 20.0
    boxes[0, :, 4] = (0.9, 0.2, 0.1)
    boxes[0, :, 5:] = ((0.1, 0.8, 0.1), (0.9, 0.1, 0.0), (0.0, 0.0, 0.9))
    samples = Given([Sample(name="image", feeds={"x": boxes}, label=1)])
    found = compare(FLOAT, FLOAT, samples, CompareOptions())
    assert task(found, "top1") == (100.0, 100.0)


@pytest.mark.parametrize(
    "sequence",
    [
        np.linspace(-3, 3, 64).reshape(1, 8, 8),
        np.linspace(0, 1, 32).reshape(1, 4, 8),
    ],
    ids=["logits or hidden states", "independent probabilities"],
)
def test_a_sequence_is_not_taken_for_boxes(sequence: np.ndarray) -> None:
    samples = Given([Sample(name="sentence", feeds={"x": sequence}, label=1)])
    found = compare(FLOAT, FLOAT, samples, CompareOptions(task="agreement", metrics=("boxes",)))
    assert found.task == ()
    assert any("nor boxes" in note for note in found.notes)
    assert found.outputs[0].measures[0].note == "the output does not contain boxes"


@pytest.mark.parametrize("label", [4, -1])
def test_labels_out_of_range_are_refused_with_the_sample_and_the_classes(label: int) -> None:
    with pytest.raises(InputFileError, match=r"4 classes, 0 to 3") as caught:
        compare(FLOAT, FLOAT, rows(np.eye(4), [0, 1, 2, label]), CompareOptions())
    assert caught.value.where == "row3"


def test_labels_of_another_task_do_not_matter_where_none_are_asked_for() -> None:
    """A detector on a folder of pictures whose labels are those of a classifier."""
    found = compare(FLOAT, FLOAT, rows(np.eye(4), [0, 999, 2, -1]), CompareOptions(task="agreement"))
    assert task(found, "agreement") == (100.0, 100.0)
    assert not any("label" in note for note in found.notes)


def test_labels_shifted_by_one_are_noticed() -> None:
    found = compare(FLOAT, FLOAT, rows(np.eye(9)[:8], range(1, 9)), CompareOptions())
    assert any("background class" in note for note in found.notes)


def test_a_candidate_whose_best_score_is_shared_is_noticed() -> None:
    flat = Scripted(lambda x: {"y": np.minimum(x, 1.0)})
    values = np.array([[5.0, 4, 0], [0, 0.5, 2]])
    found = compare(FLOAT, flat, rows(values, [0, 2]), CompareOptions())
    assert any("50.0 % of the samples" in note for note in found.notes)


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_nan_outputs_are_refused_with_output_sample_and_side(side: str) -> None:
    broken = Scripted(lambda x: {"y": np.where(x > 0.5, np.nan, x)})
    pair = (broken, FLOAT) if side == "reference" else (FLOAT, broken)
    with pytest.raises(InputFileError, match=f"1 of 4 values in the output of the {side} are NaN") as caught:
        compare(*pair, rows(np.eye(4)), CompareOptions())
    assert caught.value.where == "output 'y', sample 'row0'"


def test_values_too_large_to_be_squared_are_said_to_be() -> None:
    large = Scripted(lambda x: {"y": np.where(x > 0.5, 1e300, -1e300)})
    options = CompareOptions(metrics=("sqnr_db", "psnr", "cosine", "relative", "max_abs", "mean_abs"))
    for sides in ((FLOAT, large), (large, FLOAT), (large, large)):
        found = compare(*sides, rows(np.eye(4)), options)
        assert all(m.value is None or np.isfinite(m.value) for out in found.outputs for m in out.measures)
        assert all(np.isfinite(entry.sqnr_db) for entry in found.worst)


def test_infinities_on_one_side_only_are_refused_and_shared_ones_ignored() -> None:
    masked = Scripted(lambda x: {"y": np.where(x > 0.5, -np.inf, x)})
    both = Scripted(lambda x: {"y": np.where(x > 0.5, np.inf, -np.inf)})
    assert compare(both, both, rows(np.eye(4)), CompareOptions()).samples == 4
    assert compare(masked, masked, rows(np.eye(4)), CompareOptions()).samples == 4
    with pytest.raises(InputFileError, match="infinite"):
        compare(FLOAT, masked, rows(np.eye(4)), CompareOptions())


def test_outputs_of_different_shapes_are_refused() -> None:
    wide = Scripted(lambda x: {"y": np.tile(x, 2)})
    with pytest.raises(InputFileError, match=r"\(1, 4\) and the candidate \(1, 8\)"):
        compare(FLOAT, wide, rows(np.eye(4)), CompareOptions())


def test_text_outputs_are_refused() -> None:
    text = Scripted(lambda x: {"y": np.array(["cat"])})
    with pytest.raises(InputFileError, match="cannot be compared as numbers"):
        compare(text, text, rows(np.eye(4)), CompareOptions())


def test_runners_without_a_common_output_are_refused() -> None:
    other = Scripted(lambda x: {"a": x, "b": x}, outputs=("a", "b"))
    with pytest.raises(UsageError, match="no output in common: 'y' against 'a', 'b'"):
        compare(FLOAT, other, rows(np.eye(4)), CompareOptions())


def test_single_outputs_belong_together_whatever_their_names() -> None:
    other = Scripted(lambda x: {"z": x}, outputs=("z",))
    assert compare(FLOAT, other, rows(np.eye(4)), CompareOptions()).outputs[0].output == "y"


def test_outputs_that_only_one_side_has_are_named() -> None:
    more = Scripted(lambda x: {"y": x, "extra": x}, outputs=("y", "extra"))
    found = compare(more, FLOAT, rows(np.eye(4)), CompareOptions(task="none"))
    assert found.notes == ("not compared, because the candidate lacks them: 'extra'",)


def test_a_missing_input_is_refused_with_the_sample() -> None:
    samples = Given([Sample(name="s", feeds={"other": np.zeros(1)})])
    with pytest.raises(InputFileError, match="lacks the input 'x' of float; it has 'other'"):
        compare(FLOAT, FLOAT, samples, CompareOptions())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CompareOptions(metrics=("cosinus",)), "did you mean 'cosine'"),
        (CompareOptions(metrics=("top1",)), "remove this metric"),
        (CompareOptions(output="logits"), "set compare.output to one of 'y'"),
    ],
    ids=["unknown metric", "task metric as distance", "unknown output"],
)
def test_wrong_options_are_refused_with_the_fix(options: CompareOptions, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        compare(FLOAT, FLOAT, rows(np.eye(4)), options)
    assert words in caught.value.fix


def half_the_distance(reference: np.ndarray, candidate: np.ndarray) -> float:
    return float(abs(reference - candidate).max()) / 2


def test_a_function_of_ones_own_is_a_metric_averaged_over_samples() -> None:
    shifted = Scripted(lambda x: {"y": x + 3})
    name = f"{__name__}:half_the_distance"
    found = compare(FLOAT, shifted, rows(np.eye(4)), CompareOptions(metrics=(name,)))
    assert found.outputs[0].measures[0].value == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["no_such_module:f", "math:no_such_name", "math:pi"])
def test_a_function_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        compare(FLOAT, FLOAT, rows(np.eye(4)), CompareOptions(metrics=(name,)))


def test_names_of_dumped_files_find_their_outputs() -> None:
    model = Scripted(lambda x: {"/head/Gemm:0": x, "b": x}, outputs=("/head/Gemm:0", "b"))
    dump = Scripted(lambda x: {"_head_Gemm_0": x}, outputs=("_head_Gemm_0",))
    assert [entry.output for entry in compare(model, dump, rows(np.eye(4)), CompareOptions()).outputs] == [
        "/head/Gemm:0"
    ]


def test_the_limit_stops_early_and_progress_counts_to_it() -> None:
    seen: list[tuple[int, int]] = []
    found = compare(
        FLOAT, FLOAT, rows(np.eye(4)), CompareOptions(limit=3), on_progress=lambda *now: seen.append(now)
    )
    assert found.samples == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_ten_worst_samples_come_worst_first() -> None:
    noisy = Scripted(lambda x: {"y": x + x[:, :1] / 1000})
    values = np.ones((30, 3))
    values[:, 0] = np.arange(1, 31)
    found = compare(FLOAT, noisy, rows(values), CompareOptions())
    levels = [entry.sqnr_db for entry in found.worst]
    assert len(levels) == 10
    assert levels == sorted(levels)
    assert found.worst[0].sample == "row29"


def test_little_noise_on_next_to_nothing_is_not_the_worst() -> None:
    """A picture without objects: its own SQNR is the lowest, and nothing is lost of it."""
    values = np.ones((12, 3))
    values[3] = 1e-4
    values[7] = 0.9
    lost = Scripted(lambda x: {"y": x + np.where(abs(x - 0.9) < 0.01, 0.2, np.maximum(x, 0.1) / 1000)})
    found = compare(FLOAT, lost, rows(values), CompareOptions())
    assert found.worst[0].sample == "row7"
    assert "row3" not in {entry.sample for entry in found.worst}


def test_random_samples_are_marked_as_meaningless() -> None:
    samples = Given(list(rows(np.eye(2))), meaningful=False)
    assert not compare(FLOAT, FLOAT, samples, CompareOptions()).meaningful


def test_tensors_inside_the_model_are_listed_apart_from_its_outputs() -> None:
    watched = Scripted(lambda x: {"inner": x, "y": x}, outputs=("inner", "y"))
    noisy = Scripted(lambda x: {"inner": x + 0.1, "y": x}, outputs=("inner", "y"))
    found = compare(watched, noisy, rows(np.eye(4), range(4)), CompareOptions(), inside=frozenset({"inner"}))
    assert [entry.output for entry in found.outputs] == ["y"]
    assert [entry.output for entry in found.tensors] == ["inner"]
    assert found.task[0].candidate == 100.0
    assert found.worst == ()


def test_runners_that_return_tensors_inside_alone_have_no_outputs_and_no_estimate() -> None:
    watched = Scripted(lambda x: {"inner": x}, outputs=("inner",))
    noisy = Scripted(lambda x: {"inner": x + 0.1}, outputs=("inner",))
    samples = rows(np.eye(4), range(4))
    found = compare(watched, noisy, samples, CompareOptions(), inside=frozenset({"inner"}))
    assert [entry.output for entry in found.tensors] == ["inner"]
    assert (found.outputs, found.task, found.sqnr, found.samples) == ((), (), None, 4)


@pytest.mark.parametrize("sample", [0, 3])
def test_a_tensor_inside_that_the_reference_computes_as_nan_is_told_and_left_out(sample: int) -> None:
    """Frames of padding are divided by their number, zero, and masked before anybody reads them."""

    def half(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"mean": x / x.sum(1, keepdims=True) if x.sum() else x * np.nan, "inner": x, "y": x}

    values = np.eye(4)
    values[sample] = 0
    names = ("mean", "inner", "y")
    inside = frozenset(names[:2])
    sides = (Scripted(half, outputs=names), Scripted(half, outputs=names))
    with np.errstate(invalid="ignore"):
        found = compare(*sides, rows(values), CompareOptions(), inside=inside)
        assert [entry.output for entry in found.tensors] == ["inner"]
        assert [note for note in found.notes if "'mean'" in note and "NaN" in note]
        with pytest.raises(InputFileError, match="NaN"):
            compare(*sides, rows(values), CompareOptions(), inside=inside - {"mean"})


@pytest.mark.parametrize(
    ("peaks", "words"), [((0, 1), "the reference contains"), ((None, 1), "only the candidate")]
)
def test_an_infinity_inside_on_one_side_is_told_and_left_out(
    peaks: tuple[int | None, int], words: str
) -> None:
    """Masked bins are minus infinity, and a peak next to them is another one after quantization."""

    def side(peak: int | None) -> Scripted:
        def run(x: np.ndarray) -> dict[str, np.ndarray]:
            masked = np.where(np.arange(4) == peak, -np.inf, x)
            return {"masked": masked, "y": x}

        return Scripted(run, outputs=("masked", "y"))

    sides = tuple(map(side, peaks))
    found = compare(*sides, rows(np.eye(4)), CompareOptions(), inside=frozenset({"masked"}))
    assert found.tensors == ()
    assert [note for note in found.notes if "'masked'" in note and words in note]
    with pytest.raises(InputFileError, match="infinite"):
        compare(*sides, rows(np.eye(4)), CompareOptions())


def test_several_samples_at_a_time_give_what_one_at_a_time_gives() -> None:
    values = np.random.default_rng(1).normal(size=(50, 8))
    alone = compare(FLOAT, Scripted(skewed), rows(values, values.argmax(axis=1)), CompareOptions())
    crowd = (Scripted(identity, description="float", at_once=4), Scripted(skewed, at_once=3))
    assert compare(*crowd, rows(values, values.argmax(axis=1)), CompareOptions()) == alone


def test_several_samples_at_a_time_are_no_more_than_both_runners_allow() -> None:
    busy, most, lock = [0], [0], threading.Lock()

    def counted(x: np.ndarray) -> dict[str, np.ndarray]:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.001)
        with lock:
            busy[0] -= 1
        return {"y": x}

    compare(Scripted(counted, at_once=5), Scripted(counted, at_once=3), rows(np.eye(40)), CompareOptions())
    assert 1 <= most[0] <= 3


def test_of_several_samples_at_a_time_the_first_bad_one_is_reported_and_no_thread_stays() -> None:
    before = threading.active_count()

    def fussy(x: np.ndarray) -> dict[str, np.ndarray]:
        number = int(x.argmax())
        if number >= 3:
            raise InputFileError(f"fails on {number}", fix="none", where=None)
        time.sleep(0.002)
        return {"y": x}

    with pytest.raises(InputFileError, match="fails on 3"):
        compare(Scripted(fussy, at_once=4), Scripted(identity, at_once=4), rows(np.eye(20)), CompareOptions())
    assert threading.active_count() == before


def test_the_scored_output_has_an_interval_of_its_signal_to_noise() -> None:
    plain = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    found = compare(
        Scripted(identity),
        Scripted(lambda x: {"y": x + np.float32(0.1) * np.sin(9 * x)}),
        rows(plain),
        CompareOptions(),
    ).sqnr
    assert found is not None
    assert found.output == "y"
    wanted = 10 * np.log10(np.square(plain).sum() / np.square(0.1 * np.sin(9 * plain)).sum())
    assert found.sqnr_db == pytest.approx(wanted, rel=1e-4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.sqnr_db < found.high


def test_equal_outputs_have_no_signal_to_noise() -> None:
    values = np.ones((3, 2), np.float32)
    assert compare(Scripted(identity), Scripted(identity), rows(values), CompareOptions()).sqnr is None


@pytest.mark.parametrize("apart", [False, True], ids=["one output", "three outputs"])
def test_a_list_of_detections_may_be_empty_in_the_first_picture_whose_lengths_differ(apart: bool) -> None:
    boxes = np.array([[10, 10, 50, 60, 0.9, 1], [70, 20, 90, 80, 0.8, 2]], np.float32)

    def listed(found: np.ndarray) -> dict[str, np.ndarray]:
        if not apart:
            return {"y": found}
        return {"boxes": found[:, :4], "scores": found[:, 4], "classes": found[:, 5].astype(np.int64)}

    names = ("boxes", "scores", "classes") if apart else ("y",)
    reference = Scripted(lambda x: listed(boxes[: int(x[0, 0])]), names)
    candidate = Scripted(lambda _: listed(boxes), names)
    found = compare(reference, candidate, rows(np.array([[2.0], [0.0], [2.0]])), CompareOptions())
    assert found.samples == 3
    assert all("number of values" in output.measures[0].note for output in found.outputs)
