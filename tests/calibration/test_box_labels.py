"""Boxes as labels: what files hold, and where boxes are in the input of the model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from qdqtool.accuracy.instances import fill_outline
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.samples.conform import placed_boxes, shape_image
from qdqtool.calibration.samples.labels import BoxLabels, read_labels
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import InputFileError, UsageError

INPUT = (TensorInfo(name="images", dtype=DType.FLOAT32, shape=(1, 3, 64, 64)),)
SHAPES = st.sampled_from(
    [
        Preprocess(letterbox=(64, 64)),
        Preprocess(letterbox=(64, 96), anchor="top-left"),
        Preprocess(resize=(48, 80)),
        Preprocess(resize=100),
        Preprocess(resize=100, crop=64),
        Preprocess(resize=120, crop=(64, 96), letterbox=(80, 80)),
        Preprocess(),
    ]
)


@given(SHAPES, st.tuples(st.integers(120, 300), st.integers(120, 300)), st.integers(0, 2**16))
def test_a_box_is_where_the_object_is_in_the_prepared_picture(
    preprocess: Preprocess, size: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    low = [int(rng.integers(0, side - 60)) for side in size]
    high = [int(rng.integers(start + 40, side)) for start, side in zip(low, size, strict=True)]
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[low[1] : high[1], low[0] : high[0]] = 255
    shares = np.array([[2.0, *np.divide(low, size), *np.divide(high, size)]])
    points = (np.array([[*np.divide(low, size), 1.0], [*np.divide(high, size), 2.0]]),)
    placed, moved = placed_boxes(shares, points, size, preprocess)
    shown = shape_image(Image.fromarray(pixels), preprocess.model_copy(update={"pad": 0}))[:, :, 0] > 127
    if not shown.any():
        assert (placed[:, 3:] - placed[:, 1:3] < 2).any(axis=1).all()
        return
    rows, columns = np.nonzero(shown)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert placed[0, 0] == 2
    assert np.abs(placed[0, 1:] - found).max() <= 1.5
    assert moved is not None
    # a box ends at the border of a crop, its points do not
    if preprocess.crop is None:
        np.testing.assert_allclose(moved[0], [[*placed[0, 1:3], 1.0], [*placed[0, 3:], 2.0]])


def test_rows_of_boxes_and_of_polygons_become_corners(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 0.5 0.5 0.2 0.4\n\n0 0.1 0.1 0.3 0.2 0.2 0.6\n", "utf-8")
    (tmp_path / "b.txt").write_text("", "utf-8")
    labels = read_labels(tmp_path)
    assert isinstance(labels, BoxLabels)
    boxes, points = labels.of("pictures/a.jpg")
    assert boxes == pytest.approx(np.array([[1, 0.4, 0.3, 0.6, 0.7], [0, 0.1, 0.1, 0.3, 0.6]]))
    assert points is None  # not every object has an outline
    assert labels.of("b.png")[0].shape == labels.of("missing.png")[0].shape == (0, 5)


def test_equal_file_names_in_two_folders_have_their_own_boxes(tmp_path: Path) -> None:
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.txt").write_text(f"{number} 0.5 0.5 0.1 0.1\n", "utf-8")
    images = [
        {"id": place, "file_name": f"{name}/1.jpg", "width": 10, "height": 10}
        for place, name in enumerate("ab")
    ]
    boxes = [{"image_id": place, "category_id": place, "bbox": [1, 1, 2, 2]} for place in range(2)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 0}, {"id": 1}]}
    (tmp_path / "coco.json").write_text(json.dumps(coco), "utf-8")
    for path in (tmp_path, tmp_path / "coco.json"):
        labels = read_labels(path)
        assert isinstance(labels, BoxLabels)
        assert [labels.of(f"/data/{name}/1.jpg")[0][:, 0].tolist() for name in "abc"] == [[0], [1], []]


def test_outlines_and_keypoints_are_kept_where_all_objects_have_them(tmp_path: Path) -> None:
    for name, rows, box, points in (
        (
            "outlines",
            "0 .1 .1 .3 .2 .2 .6\n1 0 0 1 0 1 1 0 1\n",
            [0.1, 0.1, 0.3, 0.6],
            [[0.1, 0.1], [0.3, 0.2], [0.2, 0.6]],
        ),
        (
            "keypoints",
            "0 .5 .5 .2 .4 .4 .3 2 .6 .7 0\n" * 2,
            [0.4, 0.3, 0.6, 0.7],
            [[0.4, 0.3, 2], [0.6, 0.7, 0]],
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(rows, "utf-8")
        labels = read_labels(tmp_path / name)
        assert isinstance(labels, BoxLabels)
        corners, kept = labels.of("a.png")
        assert kept is not None
        assert len(kept) == 2
        np.testing.assert_allclose(corners[0, 1:], box)
        np.testing.assert_allclose(kept[0], points)
        assert labels.of("missing.png")[1] == ()


@pytest.mark.parametrize(
    "line", ["1 0.5 0.5 0.2", "cat 0.5 0.5 0.1 0.1", "0.5 0.1 0.1 0.1 0.1", "1 nan 0 0 0", "1"]
)
def test_a_damaged_row_names_file_and_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n", "utf-8")
    with pytest.raises(InputFileError, match="line 2") as error:
        read_labels(tmp_path)
    assert error.value.where is not None
    assert "a.txt" in error.value.where


def _coco(item: dict[str, Any], **changes: Any) -> str:
    content = {
        "images": [{"id": 7, "file_name": "val/a.png", "width": 200, "height": 100}],
        "categories": [{"id": 44, "name": "b"}, {"id": 3, "name": "a"}],
        "annotations": [{"image_id": 7, "category_id": 44, "bbox": [20, 10, 100, 50]} | item],
    }
    return json.dumps(content | changes)


@pytest.mark.parametrize("kind", ["boxes", "outlines", "keypoints"])
def test_annotations_of_coco_say_what_a_folder_of_text_files_says(tmp_path: Path, kind: str) -> None:
    item, row = {
        "boxes": ({"segmentation": {"counts": [1], "size": [1, 1]}}, "1 0.35 0.35 0.5 0.5"),
        "outlines": (
            {"segmentation": [[20, 10, 120, 10, 120, 60]]},
            "1 0.1 0.1 0.6 0.1 0.6 0.6 0.1 0.1 0.1 0.1",
        ),
        "keypoints": (
            {"keypoints": [40, 30, 2, 0, 0, 0], "segmentation": [[20, 10, 120, 10, 120, 60]]},
            "1 0.35 0.35 0.5 0.5 0.2 0.3 2 0 0 0",
        ),
    }[kind]
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text(row, "utf-8")
    (tmp_path / "coco.json").write_text(_coco(item), "utf-8")
    sides = [read_labels(place) for place in (tmp_path / "text", tmp_path / "coco.json")]
    for side in sides:
        assert isinstance(side, BoxLabels)
    (boxes, points), (same_boxes, same_points) = (side.of("a.png") for side in sides)  # type: ignore[union-attr]
    np.testing.assert_allclose(boxes, same_boxes)
    assert (points is None) == (same_points is None) == (kind == "boxes")
    for left, right in zip(points or (), same_points or (), strict=True):
        np.testing.assert_allclose(left, right)
    by_id = read_labels(Path(f"{tmp_path / 'coco.json'}:ids"))
    assert isinstance(by_id, BoxLabels)
    assert by_id.of("a.png")[0][:, 0] == 44
    assert by_id.digest != sides[1].digest  # type: ignore[union-attr]


@given(st.integers(0, 2**16), st.integers(1, 4))
def test_an_outline_of_several_parts_covers_each_part_and_nothing_between(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * rng.uniform(2, 9, 2) + (place % 2 * 10, place // 2 * 10)
        for place in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coco.json"
        file.write_text(_coco({"segmentation": [part.ravel().tolist() for part in parts]}), "utf-8")
        labels = read_labels(file)
    assert isinstance(labels, BoxLabels)
    points = labels.of("a.png")[1]
    assert points is not None
    every = np.zeros((20, 20), bool)
    for part in parts:
        every |= fill_outline(part, (20, 20))
    np.testing.assert_array_equal(fill_outline(points[0] * (200, 100), (20, 20)), every)


def test_crowds_are_left_out_and_damage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "coco.json"
    file.write_text(_coco({"iscrowd": 1}), "utf-8")
    labels = read_labels(file)
    assert isinstance(labels, BoxLabels)
    assert labels.of("a.png")[0].shape == (0, 5)
    for damaged in (
        _coco({"image_id": 8}),
        _coco({"category_id": 1}),
        _coco({"bbox": [1, 2]}),
        _coco({"segmentation": [[1, 2, 3]]}),
        _coco({"keypoints": "all"}),
        _coco({}, images=3),
        _coco({}, annotations=[4]),
    ):
        file.write_text(damaged, "utf-8")
        with pytest.raises(InputFileError, match="damaged annotations") as error:
            read_labels(file)
        assert error.value.where == str(file)


def test_a_folder_without_boxes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"no \.txt files"):
        read_labels(tmp_path)


def test_samples_carry_their_boxes_and_arrays_cannot(tmp_path: Path) -> None:
    pictures, labels = tmp_path / "images", tmp_path / "labels"
    pictures.mkdir()
    labels.mkdir()
    Image.new("RGB", (128, 64)).save(pictures / "a.png")
    (labels / "a.txt").write_text("3 0.5 0.5 1 1\n", "utf-8")
    preprocess = Preprocess(letterbox=(64, 64))
    samples = open_samples(str(pictures), INPUT, preprocess, labels=str(labels))
    (sample,) = samples
    assert sample.boxes == pytest.approx(np.array([[3, 0, 16, 64, 48]]))
    assert sample.points is None
    before = samples.digest
    (labels / "a.txt").write_text("3 0.5 0.5 1 0.5\n", "utf-8")
    assert open_samples(str(pictures), INPUT, preprocess, labels=str(labels)).digest != before
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 64, 64), np.float32))
    with pytest.raises(UsageError, match="labels with boxes need pictures"):
        list(open_samples(str(tmp_path / "x.npy"), INPUT, labels=str(labels)))
