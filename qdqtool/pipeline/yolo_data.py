"""Reads a data file of Ultralytics (coco8.yaml), and makes samples for a run from its pictures and boxes."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from qdqtool.calibration.samples.images import SUFFIXES, pictures
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError
from qdqtool.io.files import make_folder, read_at_most, write_text
from qdqtool.io.yaml_files import parse_yaml

_LARGEST: Final = 16 << 20
"""Most bytes of a data file, and of a list of pictures."""
_MOST_ENTRIES: Final = 100_000
"""Most values of a data file; Objects365 has 365 names, ImageNet-21k 21,000."""
_FEWEST: Final = 4
"""Number of calibration pictures below which both splits are one set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class YoloData:
    """The pictures of a data file.

    Attributes:
        train: pictures of the training split, in the order of the data file.
        val: pictures of the validation split.
        classes: number of classes; 0 if the file does not say it.
    """

    train: tuple[Path, ...]
    val: tuple[Path, ...]
    classes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class YoloSamples:
    """The folders with the samples for a run.

    Attributes:
        calibration: folder of pictures for ranges.
        evaluation: folder of pictures for accuracy.
        labels: folder with the boxes of the evaluation pictures; None if no picture has any.
        notes: remarks that a reader needs.
    """

    calibration: Path
    evaluation: Path
    labels: Path | None
    notes: tuple[str, ...]


def read_data(name: str) -> YoloData:
    """Read a data file, which may be one of those that Ultralytics ships. Nothing is downloaded.

    Raises:
        InputFileError: the file or its pictures do not exist, or it is no data file.
    """
    file = _file_of(name)
    document = _document(file)
    names = document.get("names")
    count = len(names) if isinstance(names, list | dict) else document.get("nc", 0)
    splits = {split: tuple(_pictures_of(document, split, file, name)) for split in ("train", "val")}
    return YoloData(**splits, classes=count if isinstance(count, int) else 0)


def arrange(
    data: YoloData,
    folder: Path,
    *,
    calibration: int,
    evaluation: int,
    model_classes: int,
    is_flat: bool = False,
) -> YoloSamples:
    """Link pictures and labels into `folder`. The pictures are evenly spaced over each split (train, val).

    Args:
        data: the data file.
        folder: receives the folders `calibration`, `evaluation` and `labels`; older ones are replaced.
        calibration: most pictures for ranges.
        evaluation: most pictures for accuracy.
        model_classes: classes that the model states; 0 if it states none.
        is_flat: keypoints of the labels are x and y, without a visibility.
    """
    train, val = data.train, data.val
    notes = []
    if set(train) == set(val):
        is_enough = len(train) >= 2 * _FEWEST
        train, val = (train[::2], train[1::2]) if is_enough else (train, val)
        sharing = (
            "every second picture calibrates, the others evaluate"
            if is_enough
            else "ranges and accuracy use the same pictures"
        )
        notes.append(f"train and val are the same pictures: {sharing}")
    chosen = {"calibration": _spread(train, calibration), "evaluation": _spread(val, evaluation)}
    for name, files in chosen.items():
        _link_files({_number_file(place, file): file for place, file in enumerate(files)}, folder / name)
    boxes = {
        Path(_number_file(place, file)).with_suffix(".txt").name: labels
        for place, file in enumerate(chosen["evaluation"])
        if (labels := _labels_of(file)) is not None
    }
    if boxes and model_classes and data.classes and model_classes != data.classes:
        notes.append(
            f"the data has {data.classes} classes and the model {model_classes}: the boxes of the float model count as correct, not the labels"
        )
        boxes = {}
    elif not boxes:
        notes.append("no picture has labels: the boxes of the float model count as correct")
    _link_files(boxes, folder / "labels")
    for name in boxes if is_flat else ():
        _add_visibility(folder / "labels" / name)
    return YoloSamples(
        calibration=folder / "calibration",
        evaluation=folder / "evaluation",
        labels=folder / "labels" if boxes else None,
        notes=tuple(notes),
    )


def classes_of(metadata: Mapping[str, str]) -> int:
    """Return the number of classes that the metadata of an Ultralytics export states; 0 if it states none."""
    try:
        names = ast.literal_eval(metadata.get("names", "")[:_LARGEST])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return 0
    return len(names) if isinstance(names, dict | list) else 0


def extra_values(metadata: Mapping[str, str], outputs: Iterable[TensorInfo]) -> int:
    """Return how many values follow the box and the classes of a detection: mask coefficients or keypoints."""
    if metadata.get("task") == "pose":
        return math.prod(_keypoints_of(metadata) or [0])
    if metadata.get("task") == "segment":
        masks = (shape[1] for info in outputs if len(shape := info.shape or ()) == 4)
        return next((size for size in masks if isinstance(size, int)), 0)
    return 0


def are_flat(metadata: Mapping[str, str]) -> bool:
    """Return True if keypoints are x and y, without a visibility."""
    return metadata.get("task") == "pose" and _keypoints_of(metadata)[1:] == [2]


def _keypoints_of(metadata: Mapping[str, str]) -> list[int]:
    """Return the number of keypoints, and the number of values per keypoint."""
    return [int(word) for word in re.findall(r"\d{1,4}", metadata.get("kpt_shape", ""))]


def _file_of(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    spec = importlib.util.find_spec("ultralytics")
    for home in (spec.submodule_search_locations or ()) if spec else ():
        shipped = Path(home) / "cfg" / "datasets" / path.with_suffix(".yaml").name
        if shipped.is_file():
            return shipped
    raise InputFileError(
        "the data set is not a file, and not a data file that Ultralytics ships",
        fix="pass the .yaml file of your data set" + ("" if spec else ", or pip install 'qdqtool[yolo]'"),
        where=name,
    )


def _document(file: Path) -> Mapping[str, Any]:
    content = read_at_most(file, _LARGEST)
    text = (content or b"").decode("utf-8", errors="replace")
    document, _ = parse_yaml(text, str(file), most=_MOST_ENTRIES)
    if not isinstance(document, dict) or not {"train", "val"} & document.keys():
        raise InputFileError(
            "the data file names no pictures",
            fix="write the keys path, train, val and names, as in coco8.yaml",
            where=str(file),
        )
    return document


def _pictures_of(document: Mapping[str, Any], split: str, file: Path, name: str) -> Iterator[Path]:
    entries = document.get(split) or document.get("val" if split == "train" else "train")
    places = [root for root in _roots(document, file) if root.is_dir()]
    for entry in entries if isinstance(entries, list) else [entries]:
        # Roboflow writes ../train/images for train/images beside the data file, and Ultralytics reads that
        spelled = (str(entry), str(entry).removeprefix("../"))
        source = next((place for text in spelled for root in places if (place := root / text).exists()), None)
        listed = () if source is None else pictures(source) if source.is_dir() else _list_pictures(source)
        if not listed:
            raise InputFileError(
                f"the pictures of {split} ({entry}) are not on this machine",
                fix=_download(document, name),
                where=str(file),
            )
        yield from listed


def _roots(document: Mapping[str, Any], file: Path) -> Iterator[Path]:
    """Yield the folders to which paths in the data file may be relative, in the order of Ultralytics."""
    folder = Path(str(document.get("path") or "."))
    homes = [Path(), file.parent, Path("datasets")]
    settings = Path(os.environ.get("YOLO_CONFIG_DIR") or Path.home() / ".config") / "Ultralytics"
    content = (
        read_at_most(settings / "settings.json", _LARGEST) if (settings / "settings.json").is_file() else None
    )
    try:
        options = json.loads(content or b"{}")
    except ValueError:
        options = {}
    if isinstance(options, dict) and isinstance(options.get("datasets_dir"), str):
        homes.append(Path(options["datasets_dir"]))
    yield from (home / folder for home in homes)


def _list_pictures(file: Path) -> tuple[Path, ...]:
    """Return the pictures in a text file of paths. A path that begins with a dot is relative to the file's folder."""
    content = read_at_most(file, _LARGEST) or b""
    lines = (line.strip() for line in content.decode("utf-8", errors="replace").splitlines())
    paths = (file.parent / line if line.startswith(".") else Path(line) for line in lines if line)
    return tuple(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _download(document: Mapping[str, Any], name: str) -> str:
    if not document.get("download"):
        return "correct `path` in the data file"
    script = f"from ultralytics.data.utils import check_det_dataset; check_det_dataset('{name}')"
    return f'download them with Ultralytics: python -c "{script}"'


def _spread(files: tuple[Path, ...], most: int) -> list[Path]:
    numbers = np.unique(np.linspace(0, len(files) - 1, num=min(most, len(files)), dtype=np.int64))
    return [files[number] for number in numbers]


def _number_file(place: int, file: Path) -> str:
    return f"{place:05}-{file.name}"


def _labels_of(picture: Path) -> Path | None:
    """Return the file of boxes for a picture: the last folder `images` in the path becomes `labels`."""
    for path in (picture.absolute(), picture.resolve()):  # a picture or its folder may be a link
        parts = list(path.parts)
        place = max((number for number, part in enumerate(parts) if part == "images"), default=None)
        if place is not None:
            parts[place] = "labels"
            file = Path(*parts).with_suffix(".txt")
            if file.is_file():
                return file
    return None


def _link_files(files: Mapping[str, Path], folder: Path) -> None:
    """Fill a folder with links to pictures or labels."""
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    for name, file in files.items():
        _link(file.resolve(), folder / name)


def _add_visibility(place: Path) -> None:
    """Replace the link to a file of labels by a file in which each keypoint (x, y) also has a visibility of 2."""
    content = read_at_most(place, _LARGEST) or b""
    rows = [row.split() for row in content.decode("utf-8", errors="replace").splitlines()]
    place.unlink()
    write_text(
        place,
        "".join(
            " ".join([*row[:5], *(word + " 2" * (number % 2) for number, word in enumerate(row[5:]))]) + "\n"
            for row in rows
        ),
    )


def _link(file: Path, place: Path) -> None:
    try:
        place.symlink_to(file)
    except OSError:  # Windows allows links to administrators only
        shutil.copyfile(file, place)
