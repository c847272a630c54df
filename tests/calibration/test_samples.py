"""Samples from everywhere: made to fit the model, or refused with the reason."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from qdqtool.calibration.samples import batches, open_samples, sample_objects
from qdqtool.calibration.samples.arrays import members
from qdqtool.calibration.samples.conform import shape_image
from qdqtool.calibration.samples.labels import read_labels
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError, QdqError, UsageError
from tests.calibration.material import info
from tests.shared import shared

X = (info("x", "N", 3, 4, 5),)
ROWS = np.arange(6 * 60, dtype=np.float32).reshape(6, 3, 4, 5)


def values(text: str, inputs: tuple[TensorInfo, ...] = X, **options: object) -> list[np.ndarray]:
    return [sample.feeds[inputs[0].name] for sample in open_samples(text, inputs, **options)]  # type: ignore[arg-type]


def saved(folder: Path, **arrays: np.ndarray) -> str:
    np.savez(folder / "s.npz", **arrays)
    return str(folder / "s.npz")


def test_an_npz_of_one_array_is_samples_along_its_first_dimension(tmp_path: Path) -> None:
    for name in ("x", "in:x", "data", "anything"):
        found = values(saved(tmp_path, **{name: ROWS}))
        assert [value.shape for value in found] == [(1, 3, 4, 5)] * 6
        assert np.array_equal(np.concatenate(found), ROWS)


def test_an_npy_is_read_the_same_way(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", ROWS)
    assert np.array_equal(np.concatenate(values(str(tmp_path / "s.npy"))), ROWS)


def test_arrays_stored_by_column_are_read_right(tmp_path: Path) -> None:
    assert np.array_equal(np.concatenate(values(saved(tmp_path, x=np.asfortranarray(ROWS)))), ROWS)


def test_a_single_sample_without_batch_dimension_is_one_sample(tmp_path: Path) -> None:
    assert [value.shape for value in values(saved(tmp_path, x=ROWS[0]))] == [(1, 3, 4, 5)]


def test_missing_dimensions_of_one_are_added(tmp_path: Path) -> None:
    found = values(saved(tmp_path, x=ROWS[:, 0]), (info("x", "N", 1, 4, 5),))
    assert [value.shape for value in found] == [(1, 1, 4, 5)] * 6


def test_a_fixed_batch_gets_copies_of_each_sample(tmp_path: Path) -> None:
    found = values(saved(tmp_path, x=ROWS), (info("x", 3, 3, 4, 5),))
    assert [value.shape for value in found] == [(3, 3, 4, 5)] * 6
    assert np.array_equal(found[1], np.stack([ROWS[1]] * 3))


def test_a_folder_of_files_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", x=ROWS[2:])
    np.save(tmp_path / "a.npy", ROWS[0])
    np.savez(tmp_path / "a1.npz", x=ROWS[1:2])
    assert np.array_equal(np.concatenate(values(str(tmp_path))), ROWS)


def test_several_inputs_and_scalars_go_together(tmp_path: Path) -> None:
    inputs = (info("a", "N", 2), info("b", "N", 3, dtype="int64"), info("rate", dtype="int64"))
    np.savez(
        tmp_path / "s.npz", a=np.ones((4, 2), np.float32), b=np.arange(12).reshape(4, 3), rate=np.array(16000)
    )
    found = list(open_samples(str(tmp_path / "s.npz"), inputs))
    assert [sample.feeds["b"].tolist() for sample in found] == [
        [[0, 1, 2]],
        [[3, 4, 5]],
        [[6, 7, 8]],
        [[9, 10, 11]],
    ]
    assert found[3].feeds["rate"].shape == ()


def test_a_scalar_of_each_sample_lies_along_one_dimension(tmp_path: Path) -> None:
    inputs = (info("a", "N", 2), info("rate", dtype="int64"))
    np.savez(tmp_path / "s.npz", a=np.ones((4, 2), np.float32), rate=np.arange(4))
    found = list(open_samples(str(tmp_path / "s.npz"), inputs))
    assert [(sample.feeds["rate"].shape, int(sample.feeds["rate"])) for sample in found] == [
        ((), number) for number in range(4)
    ]


def test_a_file_whose_inputs_have_no_common_batch_is_one_sample(tmp_path: Path) -> None:
    inputs = (info("audio", "batch", "samples"), info("state", 2, "batch", 4))
    np.savez(tmp_path / "s.npz", audio=np.zeros((1, 9), np.float32), state=np.zeros((2, 1, 4), np.float32))
    (sample,) = open_samples(str(tmp_path / "s.npz"), inputs)
    assert sample.feeds["state"].shape == (2, 1, 4)


def test_a_first_dimension_that_other_axes_share_is_no_batch(tmp_path: Path) -> None:
    inputs = (info("x", "n", 8), info("edges", "n", "n"))
    feeds = {"x": np.ones((5, 8), np.float32), "edges": np.ones((5, 5), np.float32)}
    for source in (saved(tmp_path, **feeds), sample_objects([feeds])):
        (sample,) = open_samples(source, inputs)
        assert {name: array.shape for name, array in sample.feeds.items()} == {"x": (5, 8), "edges": (5, 5)}
    apart = (info("x", "n", 8), info("edges", "n", "m"))
    assert len(list(open_samples(saved(tmp_path, **feeds), apart))) == 5


@pytest.mark.parametrize(
    ("suffix", "wanted"),
    [("[0:2]", [0, 1]), ("[4:]", [4, 5]), ("[::3]", [0, 3]), ("[1:6:2]", [1, 3, 5]), ("[-2:]", [4, 5])],
)
def test_a_slice_takes_a_part(suffix: str, wanted: list[int], tmp_path: Path) -> None:
    assert np.array_equal(np.concatenate(values(saved(tmp_path, x=ROWS) + suffix)), ROWS[wanted])


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 4), st.integers(1, 9))
def test_slices_over_several_files_are_slices_of_all_rows(
    start: int, stop: int, step: int, limit: int
) -> None:
    from qdqtool.calibration.samples.arrays import _within

    numbers = range(8)[start:stop:step][:limit]
    found, first = [], 0
    for count in (3, 1, 4):
        found += [first + number for number in _within(numbers, first, count)]
        first += count
    assert found == list(numbers)


def test_a_limit_comes_after_the_slice(tmp_path: Path) -> None:
    assert len(values(saved(tmp_path, x=ROWS) + "[1:]", limit=2)) == 2


def test_samples_can_be_read_again_and_in_parts(tmp_path: Path) -> None:
    source = open_samples(saved(tmp_path, x=ROWS), X)
    assert len(source) == len(list(source)) == len(list(source)) == 6
    assert [sample.name[-3:] for sample in source.rows(range(1, 6, 2))] == ["[1]", "[3]", "[5]"]


def test_the_digest_follows_values_and_preparation(tmp_path: Path) -> None:
    text = saved(tmp_path, x=ROWS)
    digest = open_samples(text, X).digest
    assert open_samples(text, X).digest == digest
    assert open_samples(f"{text}[1:]", X).digest != digest
    assert open_samples(text, X, Preprocess(scale=2.0)).digest != digest
    (tmp_path / "l.txt").write_text("1\n" * 6)
    assert open_samples(text, X, labels=str(tmp_path / "l.txt")).digest != digest
    saved(tmp_path, x=ROWS + 1)
    assert open_samples(text, X).digest != digest


def test_labels_lie_beside_the_data_or_in_a_file(tmp_path: Path) -> None:
    text = saved(tmp_path, x=ROWS, y=np.arange(6) * 2)
    assert [sample.label for sample in open_samples(f"{text}[::2]", X)] == [0, 4, 8]
    (tmp_path / "l.txt").write_text("".join(f"{number}\n" for number in range(10, 16)))
    found = [sample.label for sample in open_samples(f"{text}[1:3]", X, labels=str(tmp_path / "l.txt"))]
    assert found == [11, 12]
    (tmp_path / "few.txt").write_text("7\n8\n")
    found = [sample.label for sample in open_samples(f"{text}[1:3]", X, labels=str(tmp_path / "few.txt"))]
    assert found == [7, 8]
    with pytest.raises(UsageError, match="2 labels for 6 samples"):
        open_samples(text, X, labels=str(tmp_path / "few.txt"))


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("rows", [ROWS[0], ROWS[:1]], ids=["sample", "batch of 1"])
def test_a_file_of_one_sample_keeps_its_label(
    shape: tuple[int, ...], rows: np.ndarray, tmp_path: Path
) -> None:
    for number, label in enumerate((7, 9)):
        np.savez(tmp_path / f"{number}.npz", x=rows, y=np.full(shape, label))
    assert [sample.label for sample in open_samples(str(tmp_path), X)] == [7, 9]


def test_an_array_that_feeds_an_input_is_not_a_label(tmp_path: Path) -> None:
    text = saved(tmp_path, x=ROWS, label=np.arange(6))
    samples = [*open_samples(text, (*X, info("label", "N", dtype="int64")))]
    assert [sample.label for sample in samples] == [None] * 6
    assert [sample.feeds["label"].item() for sample in samples] == [*range(6)]


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("l.txt", "3\n\n1\n", [3, 1]),
        ("l.txt", "cat.jpg 3\ndog.jpg 1\n", {"cat.jpg": 3, "dog.jpg": 1}),
        ("l.csv", "file,label\ncat.jpg,3\n", {"cat.jpg": 3}),
        ("excel.csv", "\ufefffile,label\ncat.jpg,3\n", {"cat.jpg": 3}),
        ("l.tsv", "file\tclass_id\twnid\na b.jpg\t3\tn1\n", {"a b.jpg": 3}),
        ("l.json", "[3, 1]", [3, 1]),
        ("l.json", '{"cat.jpg": 3}', {"cat.jpg": 3}),
    ],
)
def test_label_files_are_read(name: str, content: str, wanted: object, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert read_labels(tmp_path / name) == wanted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.txt", ""),
        ("l.txt", "cat\n"),
        ("l.json", '{"a": "b"}'),
        ("l.json", "{"),
        ("l.csv", "file,label\na.jpg,x\n"),
    ],
)
def test_label_files_without_labels_are_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputFileError):
        read_labels(tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize("before", ["", "val/", "C:\\val\\"])
def test_equal_file_names_in_two_folders_have_their_own_labels(
    suffix: str, before: str, tmp_path: Path
) -> None:
    classes = {"cat/1.png": 3, "dog/1.png": 5, "dog/2.png": 7}
    for name in [*classes, "cow/1.png"]:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        painted(tmp_path / "data", name, (5, 4), (1, 2, 3))
    rows = {f"{before}{name}": label for name, label in classes.items()}
    table = "file,label\n" + "".join(f"{name},{label}\n" for name, label in rows.items())
    labels = tmp_path / f"labels{suffix}"
    labels.write_text(json.dumps(rows) if suffix == ".json" else table)
    samples = open_samples(str(tmp_path / "data"), X, labels=str(labels))
    told = {Path(sample.name).relative_to(tmp_path / "data").as_posix(): sample.label for sample in samples}
    assert told == classes | {"cow/1.png": None}


def test_labels_in_numpy_files_are_found_by_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "l.npz", y=np.array([1, 2]), other=np.array([3, 4]), words=np.array(["a"]))
    np.save(tmp_path / "l.npy", np.array([5, 6]))
    assert read_labels(tmp_path / "l.npz") == [1, 2]
    assert read_labels(Path(f"{tmp_path}/l.npz:other")) == [3, 4]
    assert read_labels(tmp_path / "l.npy") == [5, 6]
    with pytest.raises(InputFileError, match="under 'words'"):
        read_labels(Path(f"{tmp_path}/l.npz:words"))


def painted(folder: Path, name: str, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    Image.new("RGB", size, colour).save(folder / name)


def test_pictures_of_another_size_are_told_with_the_option_that_resizes_them(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((7, 9, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(InputFileError) as caught:
        values(str(tmp_path))
    option = caught.value.fix.partition("'")[2].partition("'")[0]
    assert option == "samples.preprocess.resize=[4,5]"
    assert values(str(tmp_path), preprocess=Preprocess(resize=(4, 5)))[0].shape == (1, 3, 4, 5)


def test_images_are_decoded_in_the_order_of_names_with_their_labels(tmp_path: Path) -> None:
    painted(tmp_path, "b.png", (5, 4), (10, 20, 30))
    painted(tmp_path, "a.png", (5, 4), (1, 2, 3))
    (tmp_path / "labels.tsv").write_text("file\tclass_id\na.png\t7\nb.png\t9\n")
    first, second = open_samples(str(tmp_path), X)
    assert first.feeds["x"].dtype == np.float32
    assert first.feeds["x"][0, :, 0, 0].tolist() == [1, 2, 3]
    assert (first.label, second.label) == (7, 9)


def test_colour_scale_mean_and_std_follow_the_recipe(tmp_path: Path) -> None:
    painted(tmp_path, "a.png", (5, 4), (100, 50, 0))
    recipe = Preprocess(colour="bgr", scale=0.5, mean=(0.0, 5.0, 10.0), std=(1.0, 2.0, 4.0))
    (found,) = values(str(tmp_path), preprocess=recipe)
    assert found[0, :, 0, 0].tolist() == [0, 10, 10]
    (gray,) = values(str(tmp_path), (info("x", 1, 1, 4, 5),), preprocess=Preprocess(colour="gray"))
    assert gray.shape == (1, 1, 4, 5)
    (last,) = values(str(tmp_path), (info("x", 1, 4, 5, 3),), preprocess=Preprocess(layout="nhwc"))
    assert last[0, 0, 0].tolist() == [100, 50, 0]


def test_resize_and_crop_keep_the_middle(tmp_path: Path) -> None:
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 16:64] = 200
    Image.fromarray(picture).save(tmp_path / "a.png")
    (found,) = values(str(tmp_path), (info("x", 1, 3, 20, 20),), preprocess=Preprocess(resize=20, crop=20))
    assert (found == 200).all()


def test_letterbox_pads_beside_or_below(tmp_path: Path) -> None:
    painted(tmp_path, "a.png", (20, 10), (200, 200, 200))
    for anchor, row in (("center", 5), ("top-left", 0)):
        recipe = Preprocess(letterbox=(20, 20), anchor=anchor, pad=114)
        (found,) = values(str(tmp_path), (info("x", 1, 3, 20, 20),), preprocess=recipe)
        assert (found[0, 0, row : row + 10] == 200).all()
        assert (found == 114).sum() == 3 * 10 * 20


@given(st.integers(1, 2000), st.integers(1, 2000), st.sampled_from([(640, 640), (320, 640), (224, 224)]))
def test_a_letterbox_has_the_sizes_of_ultralytics(width: int, height: int, target: tuple[int, int]) -> None:
    ratio = min(target[0] / height, target[1] / width)
    inner = max(1, round(width * ratio)), max(1, round(height * ratio))
    assert max(inner[0] / target[1], inner[1] / target[0]) == 1
    left, top = (round((side - length) / 2 - 0.1) for side, length in zip(target[::-1], inner, strict=True))
    pixels = np.full((height, width, 3), 255, np.uint8)
    shown = shape_image(Image.fromarray(pixels), Preprocess(letterbox=target, pad=0))[:, :, 0] > 0
    rows, columns = np.nonzero(shown)
    assert (columns.min(), rows.min()) == (left, top)
    assert (columns.max() + 1 - left, rows.max() + 1 - top) == inner


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
def test_pictures_feed_inputs_of_integers(kind: str, tmp_path: Path) -> None:
    painted(tmp_path, "a.png", (5, 4), (100, 50, 0))
    wanted = (info("x", "N", 3, 4, 5, dtype=kind),)
    (found,) = values(str(tmp_path), wanted)
    assert found.dtype == kind
    assert found[0, :, 0, 0].tolist() == [100, 50, 0]
    with pytest.raises(InputFileError, match="fractions") as caught:
        values(str(tmp_path), wanted, preprocess=Preprocess(scale=1 / 255))
    assert "samples.preprocess.scale=1" in caught.value.fix
    Image.fromarray(np.full((4, 5), 1000, np.uint16)).save(tmp_path / "a.png")
    (deep,) = values(str(tmp_path), wanted)
    assert (deep == 4).all()


def test_raw_arrays_are_prepared_like_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    recipe = Preprocess(arrays=True, scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5,))
    found = np.concatenate(values(saved(tmp_path, x=pixels), preprocess=recipe))
    wanted = (
        (pixels * np.float32(1 / 255) - np.array([0.1, 0.2, 0.3], np.float32)) / np.float32(0.5)
    ).transpose(0, 3, 1, 2)
    assert np.allclose(found, wanted, atol=1e-6)


def test_raw_arrays_can_be_resized_and_turned_to_bgr(tmp_path: Path) -> None:
    pixels = np.zeros((2, 8, 10, 3), np.uint8) + np.array([1, 2, 3], np.uint8)
    recipe = Preprocess(arrays=True, resize=(4, 5), colour="bgr")
    assert values(saved(tmp_path, x=pixels), preprocess=recipe)[0][0, :, 0, 0].tolist() == [3, 2, 1]


def test_features_keep_their_layout_when_asked(tmp_path: Path) -> None:
    features = np.random.default_rng(0).integers(-128, 128, (4, 4, 5), dtype=np.int8)
    recipe = Preprocess(arrays=True, layout="as-is", mean=(83.0,), std=(2.0,))
    found = values(
        saved(tmp_path, x_int8=features, y=np.arange(4)), (info("x", "N", 1, 4, 5),), preprocess=recipe
    )
    assert np.allclose(np.concatenate(found)[:, 0], (features - 83.0) / 2)
    reshaped = values(
        saved(tmp_path, x=features),
        (info("x", "N", "F"),),
        preprocess=recipe.model_copy(update={"reshape": (20,)}),
    )
    assert reshaped[0].shape == (1, 20)


def polygraphy(folder: Path, *feeds: dict[str, object]) -> str:
    (folder / "in.json").write_text(json.dumps(list(feeds)))
    return str(folder / "in.json")


def encoded(array: np.ndarray) -> dict[str, str]:
    stream = io.BytesIO()
    np.save(stream, array)
    return {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}


def test_polygraphy_inputs_are_read(tmp_path: Path) -> None:
    text = polygraphy(tmp_path, {"x": encoded(ROWS[:1])}, {"x": encoded(ROWS[1:2])})
    assert np.array_equal(np.concatenate(values(text)), ROWS[:2])


@pytest.mark.parametrize(
    "feeds",
    [[{"x": {"array": "!!"}}], [{"x": 3}], [3], [{"x": encoded(np.array([{}], dtype=object))}]],
    ids=["not base64", "a number", "not a feed", "pickled"],
)
def test_damaged_polygraphy_inputs_are_refused(feeds: list[object], tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(feeds))
    with pytest.raises(InputFileError):
        values(str(tmp_path / "in.json"))


CODE = """
import numpy as np
def feeds():
    for number in range(3):
        yield {"x": np.full((1, 3, 4, 5), number, np.float32)}
def plain():
    return [np.full((3, 4, 5), number, np.float32) for number in range(2)]
def nothing():
    return 7
def broken():
    return 1 / 0
def breaks_later():
    yield np.zeros((3, 4, 5), np.float32)
    raise KeyError("gone")
calls = []
def fewer():
    calls.append(1)
    return [np.zeros((3, 4, 5), np.float32)] * (4 - len(calls))
"""


def test_a_python_function_gives_feeds_or_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_samples.py").write_text(CODE)
    assert [value.max() for value in values(f"{tmp_path}/some_samples.py:feeds")] == [0, 1, 2]
    assert [value.max() for value in values(f"{tmp_path}/some_samples.py:feeds[1:]")] == [1, 2]
    monkeypatch.syspath_prepend(tmp_path)
    assert [value.shape for value in values("some_samples:plain")] == [(1, 3, 4, 5)] * 2
    sys.modules.pop("some_samples")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "no function"),
        ("nothing", "not iterable"),
        ("fewer", "number 2 is missing"),
        ("broken", "raises ZeroDivisionError"),
        ("breaks_later", "raises KeyError"),
    ],
)
def test_a_python_function_that_misbehaves_is_named(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad_samples.py").write_text(CODE)
    with pytest.raises(QdqError, match=words):
        values(f"{tmp_path}/bad_samples.py:{name}")


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text("nonsense")
    for text in (
        "no_such_module_anywhere:feeds",
        f"{tmp_path}/typo.py:feeds",
        f"{tmp_path}/missing.py:feeds",
    ):
        with pytest.raises(UsageError, match=r"cannot be imported|does not exist"):
            values(text)


def test_random_samples_are_marked_and_repeatable() -> None:
    inputs = (info("x", "N", 4), info("ids", 1, 3, dtype="int64"), info("flag", dtype="bool"))
    source = open_samples("random:3", inputs)
    assert (len(source), source.meaningful) == (3, False)
    first, second = (next(iter(source)).feeds for _ in range(2))
    assert np.array_equal(first["x"], second["x"])
    assert (first["ids"].dtype, first["flag"].dtype) == (np.int64, np.bool_)
    assert not np.array_equal(first["x"], next(iter(open_samples("random:3:1", inputs))).feeds["x"])
    with pytest.raises(UsageError):
        open_samples("random:many", inputs)


def test_random_samples_are_what_the_model_wants_and_never_preprocessed() -> None:
    inputs = (info("x", "N", 3, 8, 6),)
    pixels = Preprocess(arrays=True, mean=(1.0, 2.0, 3.0), scale=0.5, resize=4, layout="nchw")
    plain, prepared = (next(iter(open_samples("random:1", inputs, how))) for how in (Preprocess(), pixels))
    assert np.array_equal(plain.feeds["x"], prepared.feeds["x"])


def test_random_samples_take_the_shapes_that_the_model_leaves_open() -> None:
    inputs = (info("image", "N", 3, "H", "W"), info("mask", 1, 4))
    source = open_samples("random:2,image:1x3x8x6[1:]", inputs)
    (sample,) = source
    assert (sample.feeds["image"].shape, sample.feeds["mask"].shape) == ((1, 3, 8, 6), (1, 4))
    assert source.digest != open_samples("random:2,image:1x3x8x8[1:]", inputs).digest


def test_random_samples_of_a_decoder_with_many_caches_are_no_path() -> None:
    inputs = tuple(info(f"past_key_values.{index}.value", "batch", 4, "past", 16) for index in range(24))
    shapes = ",".join(f"{entry.name}:1x4x8x16" for entry in inputs)
    (sample,) = open_samples(f"random:2,{shapes}[1:]", inputs)
    assert {array.shape for array in sample.feeds.values()} == {(1, 4, 8, 16)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("random:2", "random:16,image:1x3x224x224"),
        ("random:2,image:1x3x0x6", "cannot read the shape"),
        ("random:2,image", "cannot read the shape"),
        ("random:2,picture:1x3x8x6", "use one of its inputs: image"),
    ],
    ids=["no shape", "nothing to see", "no dimensions", "another name"],
)
def test_random_samples_without_a_usable_shape_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_samples(text, (info("image", "N", 3, "H", "W"),))
    assert said in str(caught.value)


def test_other_samples_are_meaningful(tmp_path: Path) -> None:
    assert open_samples(saved(tmp_path, x=ROWS), X).meaningful


@pytest.mark.parametrize(
    ("arrays", "words", "fix"),
    [
        ({"z": ROWS, "w": ROWS}, "no array for input 'x'", "name the arrays like"),
        ({"x": ROWS[:, :, :3]}, "has shape 1x3x3x5, but the model needs Nx3x4x5", "resize, crop or reshape"),
        ({"x": ROWS.transpose(0, 2, 3, 1)}, "has shape 1x4x5x3", "channels come last"),
        ({"x": ROWS.transpose(0, 3, 1, 2)}, "has shape 1x5x3x4", "samples.preprocess.layout=as-is"),
        (
            {"x": ROWS.astype(np.uint8)},
            "is uint8, but the model needs float32",
            "samples.preprocess.arrays=true",
        ),
        ({"x": np.full_like(ROWS, np.nan)}, "input 'x' holds 60 NaN or Inf", "samples.nan=skip"),
        ({"x": ROWS.astype(np.float64) * 1e300}, "NaN or Inf", "samples.nan=skip"),
        ({"x": ROWS[:0]}, "holds no samples", "name a folder"),
    ],
    ids=["names", "shape", "channels last", "channels moved", "type", "NaN", "overflow", "empty"],
)
def test_samples_that_do_not_fit_are_refused_with_a_fix(
    arrays: dict[str, np.ndarray], words: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(QdqError, match=words) as caught:
        values(saved(tmp_path, **arrays))
    assert fix in caught.value.fix


def test_integers_must_keep_their_values(tmp_path: Path) -> None:
    wanted = (info("x", "N", 2, dtype="int32"),)
    assert values(saved(tmp_path, x=np.array([[1, 2]])), wanted)[0].dtype == np.int32
    with pytest.raises(InputFileError, match="int32 cannot represent"):
        values(saved(tmp_path, x=np.array([[1, 2**40]])), wanted)
    with pytest.raises(InputFileError, match="is float32, but the model needs int32"):
        values(saved(tmp_path, x=np.ones((1, 2), np.float32)), wanted)


def test_inputs_with_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    inputs = (info("a", "N", 2), info("b", "N", 2))
    np.savez(tmp_path / "s.npz", a=np.ones((4, 2), np.float32), b=np.ones((3, 3), np.float32))
    with pytest.raises(InputFileError, match="different numbers of samples"):
        open_samples(str(tmp_path / "s.npz"), inputs)


@pytest.mark.parametrize("text", ["nowhere", "nowhere.npz", "nowhere/[0:3]"])
def test_samples_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no samples found at"):
        open_samples(text, X)


def test_folders_and_files_of_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputFileError, match="neither images nor arrays"):
        open_samples(str(tmp_path), X)
    with pytest.raises(UsageError, match="not a file of samples"):
        open_samples(str(tmp_path / "notes.txt"), X)
    painted(tmp_path, "a.png", (5, 4), (1, 1, 1))
    with pytest.raises(UsageError, match="a folder of images cannot be used for a model with 2 inputs"):
        open_samples(str(tmp_path), (*X, *X))
    np.save(tmp_path / "a.npy", ROWS)
    with pytest.raises(UsageError, match="both arrays and images"):
        open_samples(str(tmp_path), X)


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x93NUMPY\x01\x00\xff\xff", b"PK\x03\x04 cut"], ids=range(4)
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damaged_arrays_are_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"s{suffix}").write_bytes(content)
    with pytest.raises(InputFileError):
        open_samples(str(tmp_path / f"s{suffix}"), X)


def test_an_array_that_claims_more_than_it_holds_is_refused_without_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", ROWS)
    content = (tmp_path / "s.npy").read_bytes().replace(b"(6, 3, 4, 5)", b"(9**9, 3, 4)")
    (tmp_path / "s.npy").write_bytes(content.replace(b"(9**9, 3, 4)", b"(99999999,3)"))
    with pytest.raises(InputFileError, match="ends early"):
        open_samples(str(tmp_path / "s.npy"), X)


def test_a_flipped_bit_in_a_compressed_file_is_noticed(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "s.npz", x=np.random.default_rng(0).random((6, 3, 4, 5)).astype(np.float32)
    )
    content = bytearray((tmp_path / "s.npz").read_bytes())
    content[600] ^= 0xFF
    (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(InputFileError):
        values(str(tmp_path / "s.npz"))


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.array([print], dtype=object))
    with pytest.raises(InputFileError, match="pickled"):
        open_samples(str(tmp_path / "s.npz"), X)


def test_other_members_of_an_archive_are_left_alone(tmp_path: Path) -> None:
    text = saved(tmp_path, x=ROWS)
    with zipfile.ZipFile(text, "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert [member.key for member in members(Path(text))] == ["x"]


@pytest.mark.parametrize("step", ["0", "-1"])
def test_a_step_that_is_not_positive_is_refused(step: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the step of"):
        open_samples(saved(tmp_path, x=ROWS) + f"[::{step}]", X)


def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not a picture")
    with pytest.raises(InputFileError, match="cannot be decoded"):
        values(str(tmp_path))


def test_a_crop_that_is_too_large_names_the_picture(tmp_path: Path) -> None:
    painted(tmp_path, "a.png", (5, 4), (1, 1, 1))
    with pytest.raises(UsageError, match="does not fit") as caught:
        values(str(tmp_path), preprocess=Preprocess(crop=10))
    assert caught.value.where is not None
    assert caught.value.where.endswith("a.png")


def test_wrong_numbers_of_channels_in_the_recipe_are_named(tmp_path: Path) -> None:
    painted(tmp_path, "a.png", (5, 4), (1, 1, 1))
    with pytest.raises(UsageError, match="mean or std has 2 values"):
        values(str(tmp_path), preprocess=Preprocess(mean=(1.0, 2.0)))
    with pytest.raises(UsageError, match="cannot be reshaped to"):
        values(str(tmp_path), preprocess=Preprocess(reshape=(7,)))


def test_finished_arrays_that_would_be_preprocessed_again_are_told_apart(tmp_path: Path) -> None:
    place = saved(tmp_path, x=np.ones((2, 3, 4, 5), np.float32))
    with pytest.raises(UsageError, match="mean or std has 3 values") as caught:
        values(place, (info("x", "N", 3, 4, 5),), preprocess=Preprocess(arrays=True, mean=(1.0, 2.0, 3.0)))
    assert "the channels come first" in caught.value.fix


def test_batches_join_samples_and_fill_the_last(tmp_path: Path) -> None:
    source = open_samples(saved(tmp_path, x=ROWS, y=np.arange(6)), X)
    plain = list(batches(source, 4))
    assert [(len(batch.names), batch.feeds["x"].shape[0], batch.padding) for batch in plain] == [
        (4, 4, 0),
        (2, 2, 0),
    ]
    filled = list(batches(source, 4, fill=True))
    assert [(len(batch.names), batch.feeds["x"].shape[0], batch.padding) for batch in filled] == [
        (4, 4, 0),
        (2, 4, 2),
    ]
    assert filled[1].labels == (4, 5)
    assert np.array_equal(filled[1].feeds["x"][3], ROWS[5])
    assert list(batches([], 4)) == []


@pytest.mark.parametrize(
    ("data", "shape", "recipe", "count"),
    [
        ("data_cifar10/lossless100_first.npz", ("N", 3, 32, 32), Preprocess(arrays=True, scale=1 / 255), 100),
        ("kws_dscnn/kws01_eval1000.npz", ("N", 1, 49, 10), Preprocess(arrays=True, layout="as-is"), 1000),
        ("imagenet500", (1, 3, 224, 224), Preprocess(resize=256, crop=224), 500),
    ],
)
def test_real_data_sets_are_read_with_their_labels(
    data: str, shape: tuple[int | str, ...], recipe: Preprocess, count: int
) -> None:
    source = open_samples(f"{shared(f'models/{data}')}", (info("input", *shape),), recipe)
    assert len(source) == count
    few = list(source.rows(range(0, count, 97)))
    assert all(sample.label is not None for sample in few)
    assert {sample.feeds["input"].shape[1:] for sample in few} == {shape[1:]}


def test_random_samples_fill_a_batch_of_fixed_size() -> None:
    samples = list(open_samples("random:3", (info("x", 4, 8),)))
    assert [sample.feeds["x"].shape for sample in samples] == [(4, 8)] * 3


def npy(shape: str, dtype: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """An .npy file with any header."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


LIES = {
    "a negative dimension": npy("(-4, 1, 8, 8)"),
    "more elements than a pointer counts": npy("(1180591620717411303424, 0)"),
    "256 TiB": npy("(281474976710656,)"),
    "elements of no bytes": npy("(4, 3, 4, 5)", "<V0"),
    "text of no letters": npy("(4, 3, 4, 5)", "<U0"),
    "a type that is none": npy("(4,)", "<q9"),
    "a shape that is none": npy("{}"),
    "a header that is code": npy("__import__('os').abort()"),
    "a header of brackets": npy("(" * 2000),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
@pytest.mark.parametrize("form", ["npy", "npz", "polygraphy", "labels"])
def test_a_header_that_lies_is_refused_in_every_form(content: bytes, form: str, tmp_path: Path) -> None:
    path = tmp_path / f"s.{'npy' if form == 'labels' else form}"
    if form == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
    elif form == "polygraphy":
        path = Path(polygraphy(tmp_path, {"x": {"array": base64.b64encode(content).decode()}}))
    else:
        path.write_bytes(content)
    with pytest.raises(InputFileError):
        read_labels(path) if form == "labels" else values(str(path))


def test_a_bomb_of_zeros_is_refused_by_its_header_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("(1, 3, 4096, 4096)", data=bytes(3 << 26)))
    tracemalloc.start()
    with pytest.raises(InputFileError, match="1x3x4096x4096, but the model needs Nx3x4x5"):
        open_samples(str(tmp_path / "s.npz"), X)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_row_that_is_too_large_for_any_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtool.io.npy.LARGEST", 100)
    with pytest.raises(InputFileError, match="at once"):
        values(saved(tmp_path, x=ROWS))


def test_an_archive_of_very_many_arrays_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        for number in range((1 << 14) + 1):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(InputFileError, match="16385 arrays"):
        open_samples(str(tmp_path / "s.npz"), X)


def test_rows_without_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no values"):
        open_samples(saved(tmp_path, x=np.zeros((1 << 40, 0), np.float32)), (info("x", "N", "F"),))


@pytest.mark.parametrize(
    ("size", "preprocess", "words"),
    [
        ((12000, 12000), Preprocess(), "12000 x 12000 pixels"),
        ((1000, 900), Preprocess(), "3x900x1000, but the model needs Nx3x4x5"),
        ((1, 9000), Preprocess(resize=224), "224 x 2016000 when prepared"),
    ],
    ids=["more pixels than any camera", "another size than the model's", "a strip that resizing makes huge"],
)
def test_a_picture_that_would_eat_memory_is_refused_before_it_is_decoded(
    size: tuple[int, int], preprocess: Preprocess, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("1", size).save(tmp_path / "a.png")
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(InputFileError, match=words):
        values(str(tmp_path), preprocess=preprocess)


def test_a_folder_whose_entries_may_not_be_read_is_walked_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    (tmp_path / "gone").mkdir()
    real = os.scandir

    def scandir(place: str) -> object:
        if str(place).endswith("gone"):
            raise FileNotFoundError(place)
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert len(values(str(tmp_path))) == 1


def test_a_pipe_in_a_folder_of_arrays_is_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, x=ROWS)
    os.mkfifo(tmp_path / "t.npz")
    assert len(values(str(tmp_path))) == 6


@pytest.mark.parametrize(
    "text", ["random:99999999999", "random:9999999999999999999999", "random:1,x:1x3x4x5x9"]
)
def test_more_random_samples_than_anybody_wants_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        open_samples(text, (info("x", "N", 3, 1 << 20, 1 << 20),) if "x" in text else X)
