"""What a sweep may choose, and which trials nothing beats."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.recipe import SweepOptions
from qdqtool.core.sweep import Outcome, Sweep, Trial
from qdqtool.errors import UsageError
from qdqtool.pipeline import recipes
from qdqtool.pipeline.sweep.front import front, pick
from qdqtool.pipeline.sweep.space import Space


def options(**values: object) -> SweepOptions:
    return SweepOptions.model_validate(values)


def trial(number: int, accuracy: float, ms: float) -> Trial:
    outcome = Outcome(settings=(), accuracy=accuracy, ms=ms, nodes_int8=1, nodes_total=1, kernels=1)
    return Trial(number=number, state="complete", outcome=outcome)


def sweep_of(*trials: Trial, reference: float | None = 80.0) -> Sweep:
    return Sweep(
        model="m", metric="top1", unit="%", reference=reference, device="d", spread=(1, 1), pareto=front(trials), trials=trials
    )  # fmt: skip


def test_the_grid_holds_every_choice_once() -> None:
    space = Space(
        options(
            space={"calibrate.method": ["max", "mse"], "insert.types": ["fp32", "fp16"]}, keep_float=[0, 1]
        ),
        ("a", "b"),
    )
    choices = list(space.grid())
    assert len(choices) == len({tuple(choice.items()) for choice in choices}) == 8


def test_the_first_choices_differ_in_the_calibrator() -> None:
    space = Space(
        options(space={"calibrate.method": ["max", "mse", "entropy"], "calibrate.weights": ["max", "mse"]}),
        ("a",),
    )
    assert [choice["calibrate.method"] for choice in list(space.grid())[:3]] == ["max", "mse", "entropy"]
    assert len({choice["calibrate.weights"] for choice in list(space.grid())[:3]}) == 1


def test_a_trial_keeps_at_least_one_node_quantized() -> None:
    space = Space(options(space={"calibrate.method": ["max", "mse"]}, keep_float=[0, 1, 2, 9]), ("a", "b"))
    assert space.values["keep_float"] == (0, 1)


def test_a_search_in_which_every_trial_is_the_float_model_is_refused() -> None:
    with pytest.raises(UsageError, match="all 2 quantized nodes float"):
        Space(options(space={"calibrate.method": ["max", "mse"]}, keep_float=[2]), ("a", "b"))


def test_the_most_sensitive_nodes_stay_float_and_so_do_the_users() -> None:
    space = Space(
        options(space={"calibrate.method": ["max"]}, keep_float=[0, 2]),
        ("b[1]", "a", "c"),
        recipes.load(None, ['place.exclude=["user*"]']),
    )
    settings = space.settings({"calibrate.method": "max", "keep_float": 2})
    recipe = recipes.load(None, settings)
    assert recipe.place.exclude == ("user*", "b[[]1]", "a")
    assert recipe.calibrate.method == "max"


def test_ranges_are_searched_one_by_one_where_the_most_sensitive_nodes_read() -> None:
    space = Space(
        options(space={}, keep_float=[0], tune=2, factors=[1.0, 0.85, 0.7]),
        ("a", "b", "weights only", "c"),
        recipes.load(None, ['calibrate.shrink={"x[[]0]": 0.9, "z*": 0.5}']),
        {"a": "x[0]", "b": "x[0]", "c": "y"},
    )
    assert space.size == len(list(space.grid())) == 9
    untouched = {"keep_float": 0, "range into a": 1.0, "range into c": 1.0}
    assert space.settings(untouched) == ()
    settings = space.settings({**untouched, "range into a": 0.7})
    assert recipes.load(None, settings).calibrate.shrink == {"x[[]0]": 0.7, "z*": 0.5}


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({}, "nothing to search"),
        ({"calibrate.method": []}, "calibrate.method"),
        ({"calibrate.methd": ["max", "mse"]}, "did you mean 'method'"),
        ({"insert.types": ["fp32", "fp8"]}, "fp8"),
    ],
    ids=["empty", "a key without values", "a wrong key", "a wrong value"],
)
def test_a_space_without_sense_is_a_clear_error(space: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Space(options(space=space, keep_float=[0]), ("a",))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=12))
def test_nothing_beats_a_point_of_the_front_and_something_beats_or_equals_the_rest(
    pairs: list[tuple[int, int]],
) -> None:
    trials = [trial(number, accuracy, ms) for number, (accuracy, ms) in enumerate(pairs)]
    best = front(trials)
    for point in best:
        assert not any(
            other.outcome.accuracy >= point.outcome.accuracy
            and other.outcome.ms <= point.outcome.ms
            and (other.outcome.accuracy, other.outcome.ms) != (point.outcome.accuracy, point.outcome.ms)
            for other in trials
        )
    for other in trials:
        assert any(
            p.outcome.accuracy >= other.outcome.accuracy and p.outcome.ms <= other.outcome.ms for p in best
        )


def test_the_front_does_not_depend_on_the_order_of_trials() -> None:
    trials = [trial(0, 5, 3), trial(1, 5, 3), trial(2, 7, 4), trial(3, 1, 1)]
    assert front(trials) == front(trials[::-1])


@pytest.mark.parametrize(
    ("words", "number"),
    [("max-drop 0.5", 2), ("max-drop 5", 1), ("min-accuracy 70", 0), ("max-ms 2.5", 1)],
)
def test_pick_takes_the_best_point_within_the_limit(words: str, number: int) -> None:
    found = sweep_of(trial(0, 70, 1), trial(1, 76, 2), trial(2, 80, 3))
    assert pick(found, words).number == number


@pytest.mark.parametrize("words", ["max-drop", "drop 1", "max-drop nan", "max-drop -1", "max-ms 0.1"])
def test_a_limit_that_nothing_meets_is_a_clear_error(words: str) -> None:
    with pytest.raises(UsageError):
        pick(sweep_of(trial(0, 70, 1), trial(1, 76, 2)), words)


def test_a_limit_of_noise_takes_the_fastest_trial_that_keeps_it_whatever_the_metric_is() -> None:
    def quiet(number: int, accuracy: float, ms: float, sqnr: float | None) -> Trial:
        made = trial(number, accuracy, ms)
        assert made.outcome is not None
        return replace(made, outcome=replace(made.outcome, sqnr_db=sqnr))

    found = sweep_of(quiet(0, 70, 1, 20), quiet(1, 60, 2, 31), quiet(2, 65, 2, 33), quiet(3, 80, 3, None))
    assert pick(found, "min-sqnr 20").number == 0
    assert pick(found, "min-sqnr 30").number == 2, "of equally fast ones the quietest; no Pareto point"
    with pytest.raises(UsageError, match="no trial meets 'min-sqnr 40'"):
        pick(found, "min-sqnr 40")
    with pytest.raises(UsageError, match="no trial of this sweep has an SQNR"):
        pick(sweep_of(quiet(0, 70, 1, None)), "min-sqnr 20")
    noise = replace(sweep_of(trial(0, 25, 1), trial(1, 31, 2), reference=None), metric="sqnr_db")
    assert pick(noise, "min-sqnr 30") == pick(noise, "min-accuracy 30")
    with pytest.raises(UsageError, match="write 'min-sqnr 30' instead"):
        pick(noise, "max-drop 1")


def test_a_drop_needs_a_metric_that_the_float_model_has() -> None:
    with pytest.raises(UsageError, match="float model"):
        pick(sweep_of(trial(0, 30, 1), reference=None), "max-drop 1")


def test_formats_are_searched_per_group_of_nodes_before_those_of_the_recipe() -> None:
    base = recipes.load(None, ['place.formats={"*head*": "float", "*mlp*": "int8"}'])
    space = Space(
        options(
            space={"place.formats.*mlp*": ["int8", "fp8"], "place.formats.*attn*": ["fp8", "float"]},
            keep_float=[0],
        ),
        (),
        base,
    )
    written = [recipes.load(None, space.settings(choice)).place.formats for choice in space.grid()]
    assert {(formats["*mlp*"], formats["*attn*"]) for formats in written} == {
        ("int8", "fp8"), ("int8", "float"), ("fp8", "fp8"), ("fp8", "float"),
    }  # fmt: skip
    assert all(tuple(formats)[-1] == "*head*" and formats["*head*"] == "float" for formats in written)


def test_a_format_that_there_is_not_is_a_mistake_of_the_space() -> None:
    with pytest.raises(UsageError, match="fp9"):
        Space(options(space={"place.formats.*": ["int8", "fp9"]}), ())
