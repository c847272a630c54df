"""Shapes in trtexec's spelling, and the profile made of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.backends.shapes import parse_shapes, profiles, several_profiles, usual_shapes
from qdqtool.core.protocols import InputProfile
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import UsageError

IMAGE = TensorInfo(name="image", dtype=DType.FLOAT32, shape=("N", 3, 32, 32))
DYNAMIC = TensorInfo(name="x", dtype=DType.FLOAT32, shape=("N", 3))
MASK = TensorInfo(name="mask", dtype=DType.FLOAT32, shape=(1, 8))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("x:1x3x224x224", {"x": (1, 3, 224, 224)}, id="one"),
        pytest.param("a:1x2,b:3", {"a": (1, 2), "b": (3,)}, id="two"),
        pytest.param("Input:0:1x2,b:3", {"Input:0": (1, 2), "b": (3,)}, id="a colon in the name"),
        pytest.param("f(a,b):1x2,c:3", {"f(a,b)": (1, 2), "c": (3,)}, id="a comma in the name"),
        pytest.param("'Input:0':1x2", {"Input:0": (1, 2)}, id="quoted"),
        pytest.param("a:,b:scalar,c:5", {"a": (), "b": (), "c": (5,)}, id="scalars"),
    ],
)
def test_shapes_are_read_as_trtexec_does(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["x", "x:1x", "x:axb", "x=1x2", ":1x2", "x:1,x:2", "x:-1x3", "x:1 x 2"])
def test_what_is_no_shape_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shapes(text)


names = st.text(st.sampled_from("ab:,/. _0"), min_size=1).filter(lambda name: name == name.strip())
dims = st.lists(st.integers(0, 10**6), min_size=1, max_size=5).map(tuple)


@given(st.dictionaries(st.sampled_from(["x", "Input:0", "a/b.c", "tokens"]), dims))
def test_what_is_spelled_is_read_back(shapes: dict[str, tuple[int, ...]]) -> None:
    text = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    assert parse_shapes(text) == shapes


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert all(name for name in parse_shapes(text))


def test_a_static_model_needs_no_profile() -> None:
    assert profiles((MASK,), {}, {}, {}, {"mask": (1, 8)}) == ((), ())


def test_three_shapes_make_a_profile() -> None:
    made, notes = profiles(
        (IMAGE,), {"image": (1, 3, 32, 32)}, {"image": (4, 3, 32, 32)}, {"image": (8, 3, 32, 32)}, {}
    )
    assert made == (InputProfile(name="image", low=(1, 3, 32, 32), opt=(4, 3, 32, 32), high=(8, 3, 32, 32)),)
    assert notes == ()


def test_a_dynamic_input_without_shapes_takes_that_of_the_samples_and_says_so() -> None:
    made, notes = profiles((IMAGE, MASK), {}, {}, {}, {"image": (16, 3, 32, 32)})
    shape = (16, 3, 32, 32)
    assert made == (InputProfile(name="image", low=shape, opt=shape, high=shape),)
    assert notes == ("input 'image' is dynamic and no shape was given: built for 16x3x32x32",)


def test_shapes_that_are_not_given_are_taken_from_those_that_are() -> None:
    made, _ = profiles((IMAGE,), {}, {}, {"image": (8, 3, 32, 32)}, {"image": (2, 3, 32, 32)})
    assert made[0].low == made[0].opt == made[0].high == (8, 3, 32, 32)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        profiles(
            (IMAGE, MASK, TensorInfo(name="free", shape=("A",))),
            {"image": (8, 3, 32, 32), "imag": (1,)},
            {"image": (4, 3, 32, 32)},
            {"mask": (2, 8)},
            {},
        )
    for words in ("'imag'", "'image'", "must not decrease", "'mask'", "2x8", "'free'"):
        assert words in caught.value.what


def test_samples_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(UsageError, match="does not match"):
        profiles((IMAGE,), {}, {}, {}, {"image": (1, 1, 32, 32)})


def test_each_spelling_is_a_profile_of_its_own() -> None:
    found, _ = several_profiles((DYNAMIC,), ["x:1x3", "x:5x3"], [], ["x:4x3", "x:8x3"], {})
    assert [(profile.number, profile.low, profile.high) for profile in found] == [
        (0, (1, 3), (4, 3)),
        (1, (5, 3), (8, 3)),
    ]


def test_no_spelling_is_one_profile_without_inputs() -> None:
    assert several_profiles((replace(DYNAMIC, shape=(1, 3)),), [], [], [], {}) == ((), ())


def test_profiles_that_are_not_spelled_equally_often_are_refused() -> None:
    with pytest.raises(UsageError, match="2 smallest, 0 usual and 1 largest"):
        several_profiles((DYNAMIC,), ["x:1x3", "x:5x3"], [], ["x:4x3"], {})


def test_the_mask_of_a_decoder_is_as_long_as_past_and_new_tokens_together():
    shapes = {
        "ids": (1, "sequence"),
        "past": ("batch", 4, "past_sequence", 16),
        "mask": ("batch", "past_sequence + sequence"),
        "next": ("batch", "past_sequence + 1"),
        "photo": ("batch", 4, "height", "width"),
    }
    inputs = tuple(TensorInfo(name=name, dtype=DType.FLOAT32, shape=shape) for name, shape in shapes.items())
    assert usual_shapes(inputs) == {
        "ids": (1, 128),
        "past": (1, 4, 128, 16),
        "mask": (1, 256),
        "next": (1, 129),
        "photo": (1, 4, 224, 224),
    }
