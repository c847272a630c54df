"""The command for YOLO models: it finds pictures and boxes, and leaves the rest to `run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from qdqtool.accuracy.detections import BoxLayout, NoScores, layout_of, without_extra
from qdqtool.accuracy.task import Task
from qdqtool.calibration.samples.labels import BoxLabels, read_labels
from qdqtool.cli import app
from qdqtool.cli.app import run as cli
from qdqtool.core.protocols import Sample
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError
from qdqtool.pipeline.yolo_data import are_flat, arrange, classes_of, extra_values, read_data
from tests.docs.networks import write_detector


def write_pictures(folder: Path, count: int, *, boxes: bool = True) -> None:
    rng = np.random.default_rng(count)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (48, 80, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
            if boxes:
                (folder / "labels" / split / f"{number}.txt").write_text("1 0.5 0.5 0.4 0.4\n", "utf-8")


def write_data(folder: Path, **changes: Any) -> Path:
    keys = {"path": "set", "train": "images/train", "val": "images/val", "names": ["a", "b", "c"], **changes}
    text = json.dumps({key: value for key, value in keys.items() if value is not None})
    (folder / "mine.yaml").write_text(text, "utf-8")
    return folder / "mine.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    write_pictures(tmp_path / "set", 6)
    write_detector("yolo.onnx")
    model = onnx.load("yolo.onnx")
    for key, value in {
        "task": "detect",
        "imgsz": "[64, 64]",
        "stride": "32",
        "names": "{0: 'a', 1: 'b', 2: 'c'}",
    }.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, "yolo.onnx")
    return tmp_path


@pytest.mark.parametrize(
    "root", ["beside the file", "in the current folder", "in datasets", "in the settings"]
)
def test_pictures_are_found_where_ultralytics_looks(
    folder: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "elsewhere"
    place.mkdir()
    data = write_data(place if root != "beside the file" else folder)
    if root == "in datasets":
        (folder / "datasets").mkdir()
        (folder / "set").rename(folder / "datasets" / "set")
    if root == "in the settings":
        (folder / "set").rename(place / "kept")
        (place / "data").mkdir()
        (place / "kept").rename(place / "data" / "set")
        (folder / "config" / "Ultralytics").mkdir(parents=True)
        settings = json.dumps({"datasets_dir": str(place / "data")})
        (folder / "config" / "Ultralytics" / "settings.json").write_text(settings, "utf-8")
    if root == "beside the file":
        (folder / "other").mkdir()
        monkeypatch.chdir(folder / "other")
    found = read_data(str(data))
    assert (len(found.train), len(found.val), found.classes) == (6, 6, 3)


def test_paths_of_roboflow_are_found_beside_the_data_file(folder: Path) -> None:
    data = write_data(folder / "set", path=None, train="../images/train", val=["../images/val"])
    found = read_data(str(data))
    assert (len(found.train), len(found.val)) == (6, 6)


def test_labels_of_pictures_that_are_links_lie_beside_the_links(folder: Path) -> None:
    for picture in (folder / "set" / "images" / "val").iterdir():
        (folder / "raw").mkdir(exist_ok=True)
        picture.rename(folder / "raw" / picture.name)
        picture.symlink_to(folder / "raw" / picture.name)
    samples = arrange(
        read_data(str(write_data(folder))), folder / "out", calibration=4, evaluation=6, model_classes=3
    )
    assert samples.labels is not None
    assert len(list(samples.labels.iterdir())) == 6


def test_splits_may_be_lists_of_folders_and_files_of_paths(folder: Path) -> None:
    (folder / "set" / "val.txt").write_text("./images/val/0.png\n./images/val/1.png\n", "utf-8")
    data = write_data(folder, train=["images/train", "images/val"], val="val.txt")
    found = read_data(str(data))
    assert (len(found.train), len(found.val)) == (12, 2)


def test_boxes_lie_beside_the_evaluation_pictures_under_the_same_names(folder: Path) -> None:
    samples = arrange(
        read_data(str(write_data(folder))), folder / "out", calibration=4, evaluation=3, model_classes=3
    )
    assert len(list(samples.calibration.iterdir())) == 4
    assert samples.labels is not None
    stems = {path.stem for path in samples.evaluation.iterdir()}
    assert len(stems) == 3
    assert stems == {path.stem for path in samples.labels.iterdir()}
    assert not samples.notes


def test_one_split_for_both_is_divided_and_said(folder: Path) -> None:
    data = read_data(str(write_data(folder, train="images/train", val=["images/train", "images/val"])))
    both = read_data(
        str(write_data(folder, train=["images/train", "images/val"], val=["images/train", "images/val"]))
    )
    assert set(data.train) != set(data.val)
    samples = arrange(both, folder / "out", calibration=99, evaluation=99, model_classes=0)
    real = [
        {path.resolve() for path in place.iterdir()} for place in (samples.calibration, samples.evaluation)
    ]
    assert real[0].isdisjoint(real[1])
    assert "the same pictures" in samples.notes[0]


def test_labels_of_other_classes_are_not_used_and_that_is_said(folder: Path) -> None:
    data = read_data(str(write_data(folder)))
    samples = arrange(data, folder / "out", calibration=4, evaluation=4, model_classes=80)
    assert samples.labels is None
    assert "3 classes and the model 80" in samples.notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"val": "images/none", "download": "https://example.com/a.zip"}, "check_det_dataset('mine.yaml')"),
        ({"val": "images/none"}, "correct `path`"),
        ({"train": None, "val": None}, "coco8.yaml"),
    ],
)
def test_missing_pictures_end_with_what_to_do(folder: Path, changes: dict[str, Any], words: str) -> None:
    write_data(folder, **changes)
    with pytest.raises(InputFileError) as error:
        read_data("mine.yaml")
    assert words in error.value.fix


def test_a_data_file_that_does_not_exist_is_named(folder: Path) -> None:
    with pytest.raises(InputFileError, match="not a file"):
        read_data("missing.yaml")


@pytest.mark.parametrize(
    ("names", "count"), [("{0: 'a', 1: 'b'}", 2), ("", 0), ("(" * 9999, 0), ("open('x')", 0)]
)
def test_names_in_the_metadata_are_counted_and_never_run(names: str, count: int) -> None:
    assert classes_of({"names": names}) == count


def test_the_command_gives_run_the_samples_the_boxes_and_fp16(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder)
    seen: list[Any] = []
    load = type(app.COMMANDS).load

    def loaded(registry: Any, name: str) -> Any:
        if name != "run":
            return load(registry, name)
        return lambda *words, **options: seen.append((words, options)) or 0

    monkeypatch.setattr(type(app.COMMANDS), "usable", lambda _: ["yolo"])
    monkeypatch.setattr(type(app.COMMANDS), "load", loaded)
    assert (
        cli(["yolo", "yolo.onnx", "--data", "mine.yaml", "--target", "11", "--set", "place.last_layer=int8"])
        == 0
    )
    ((model, samples, out), options) = seen[0]
    assert (model, out) == ("yolo.onnx", Path("runs/yolo"))
    assert Path(samples) == Path("runs/yolo/pictures/calibration")
    assert Path(options["labels"]) == Path("runs/yolo/pictures/labels")
    assert options["changes"][0] == "insert.types=fp16"
    assert options["changes"][-1] == "place.last_layer=int8"
    assert options["target"] == "11"


@pytest.mark.slow
def test_a_whole_run_says_what_it_read_and_is_not_good_on_six_pictures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    write_data(folder)
    assert cli(["yolo", "yolo.onnx", "--data", "mine.yaml"]) == 0
    said = capsys.readouterr()
    assert "letterbox 64, 64" in said.out
    assert "read from the metadata of yolo.onnx" in said.out
    document = json.loads((folder / "runs" / "yolo" / "report.json").read_text("utf-8"))
    assert (
        document["data"]["summary"]["verdict"]["answer"] != "good"
    )  # weights are random, and 6 pictures are few


@pytest.mark.parametrize(
    ("metadata", "shapes", "count"),
    [
        ({"task": "segment"}, ([1, 116, 8400], [1, 32, 160, 160]), 32),
        ({"task": "pose", "kpt_shape": "[17, 3]"}, ([1, 56, 8400],), 51),
        ({"task": "pose"}, ([1, 56, 8400],), 0),
        ({"task": "detect"}, ([1, 84, 8400],), 0),
        ({}, ([1, 84, 8400],), 0),
    ],
)
def test_values_beyond_the_boxes_are_counted(
    metadata: dict[str, str], shapes: tuple[list[int], ...], count: int
) -> None:
    outputs = [TensorInfo(name=f"output{place}", shape=tuple(shape)) for place, shape in enumerate(shapes)]
    assert extra_values(metadata, outputs) == count


@pytest.mark.parametrize("is_row", [False, True])
def test_masks_and_keypoints_do_not_hide_the_boxes(is_row: bool) -> None:
    rng = np.random.default_rng(0)
    boxes = np.full((1, 64, 7), 0.001, np.float32)
    boxes[..., :4] = rng.uniform(8, 50, (1, 64, 4))
    boxes[0, 5, 4] = 0.9
    extra = rng.normal(0, 20, (1, 64, 32)).astype(np.float32)
    output = np.concatenate([boxes, extra], axis=2)
    output = output if is_row else output.transpose(0, 2, 1)
    assert isinstance(layout_of(output), NoScores)
    assert isinstance(layout_of(without_extra(output, 32)), BoxLayout)
    sample = Sample(name="a", feeds={"x": np.zeros((1, 3, 8, 8), np.float32)}, boxes=np.zeros((0, 5)))
    for extra_columns, has_metric in ((0, False), (32, True)):
        task = Task("agreement", extra_columns)
        task.add({"y": output}, {"y": output}, sample)
        assert bool(task.results()) == has_metric
        assert any("masks and keypoints" in note for note in task.notes()) == has_metric


def test_keypoints_without_a_visibility_are_not_read_as_polygons(folder: Path) -> None:
    for file in (folder / "set").rglob("*.txt"):
        file.write_text("1 0.5 0.5 0.4 0.4 0.1 0.9 0.2 0.8\n", "utf-8")
    assert are_flat({"task": "pose", "kpt_shape": "[2, 2]"})
    assert not are_flat({"task": "pose", "kpt_shape": "[2, 3]"})
    data = read_data(str(write_data(folder)))
    samples = arrange(data, folder / "out", calibration=2, evaluation=2, model_classes=3, is_flat=True)
    assert samples.labels is not None
    labels = read_labels(samples.labels)
    assert isinstance(labels, BoxLabels)
    (box,), points = labels.of(next(iter(labels.rows)))
    np.testing.assert_allclose(box, [1, 0.3, 0.3, 0.7, 0.7])
    assert points is not None
    np.testing.assert_allclose(points[0], [[0.1, 0.9, 2], [0.2, 0.8, 2]])
    assert all(" 2" not in file.read_text("utf-8") for file in (folder / "set").rglob("*.txt"))
