"""Class indices in a separate file: .npy, .npz ("file.npz:key"), .json, .txt, .csv or .tsv; boxes in a folder.

Tables with a header take the columns "file" (or name, path, image) and "class_id" (or label, class, y).
Without names the labels belong to the samples in their order. A name may start with folders: the longest end of a sample's
path that belongs to one name only decides, so "cat/1.jpg" and "dog/1.jpg" are two names.

A folder has one text file per picture, with one row per object in YOLO's format: class, centre and size as shares of
the picture. A row with more numbers is the outline of an object, as a polygon, or has x, y and visibility (0, 1 or 2) of
keypoints. All rows of a folder must be of one kind for masks or keypoints to be compared; otherwise only their boxes are.

A .json file with COCO's annotations (`instances_val2017.json`) says the same. Classes are numbered from 0, in the order of the
categories' ids. "file.json:ids" takes the ids themselves, as DETR and torchvision number their outputs. Crowds are left out.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.arrays import LABEL_KEYS, members
from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_file, read_at_most
from qdqtool.io.json_files import read_json


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxLabels:
    """Labelled boxes of all pictures, from a folder of YOLO label files.

    Attributes:
        rows: by name of the picture without suffix, with its folders: (boxes, 5), class, left, top, right, bottom as shares of the picture.
        points: by the same name, of each box its outline (corners, 2) or its keypoints (keypoints, 3); None if there are only boxes.
        digest: of all files.
    """

    rows: Mapping[str, NDArray[np.float64]]
    points: Mapping[str, tuple[NDArray[np.float64], ...]] | None
    digest: str

    def of(self, picture: str) -> tuple[NDArray[np.float64], tuple[NDArray[np.float64], ...] | None]:
        """Return the boxes of a picture and their points. A picture without a file has no boxes."""
        name = matching_name(self._ends, picture) or ""
        boxes = self.rows.get(name, np.zeros((0, 5)))
        return boxes, None if self.points is None else self.points.get(name, ())

    @cached_property
    def _ends(self) -> dict[str, str]:
        return name_ends(self.rows)


Labels = Mapping[str, int] | Sequence[int] | BoxLabels
_FILE = ("file", "filename", "name", "path", "image")
_LARGEST = 256 << 20
"""Largest size of a text file of labels in bytes; enough for millions of labels."""
_LARGEST_BOXES = 4 << 20
"""Largest size of the boxes of one picture in bytes."""
_BOX = 5
"""Numbers of a row with a box."""
_KEYPOINT = 3
"""Numbers of a keypoint: x, y and its visibility."""
_CLASS = ("class_id", "label", "class", "class_index", "y", "target")


def read_labels(path: Path) -> Labels:
    """Read labels, by sample file name or in the order of the samples.

    Raises:
        InputFileError: unreadable, or no labels in it.
    """
    if path.is_dir():
        return _from_folder(path)
    place, key = _with_key(path)
    suffix = place.suffix.lower()
    if suffix in {".npy", ".npz"}:
        return _from_arrays(place, key)
    if suffix == ".json":
        return _from_json(place, key)
    return _from_text(place)


def labels_beside(folder: Path) -> Labels | None:
    """Read `labels.tsv` or `labels.csv` in a folder of samples; return None if both are missing."""
    for name in ("labels.tsv", "labels.csv"):
        if (folder / name).is_file():
            return read_labels(folder / name)
    return None


def name_ends(names: Iterable[str]) -> dict[str, str]:
    """Return the name for each end of its path ("cat/1.jpg", "1.jpg"), without ends that belong to several names."""
    exact, ends = {name: name for name in names}, dict[str, str]()
    several = set[str]()
    for name in exact:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        for end in ("/".join(parts[start:]) for start in range(len(parts))):
            if ends.setdefault(end, name) != name:
                several.add(end)
    return {end: name for end, name in ends.items() if end not in several} | exact


def matching_name(ends: Mapping[str, str], path: str) -> str | None:
    """Return the name with the longest end that it shares with `path`, with or without a suffix; None if there is none."""
    parts, suffix = Path(path).parts, Path(path).suffix
    for end in ("/".join(parts[start:]) for start in range(len(parts))):
        name = ends.get(end, ends.get(end.removesuffix(suffix)))
        if name is not None:
            return name
    return None


def _from_folder(folder: Path) -> BoxLabels:
    files, sha = dict[str, list[NDArray[np.float64]]](), hashlib.sha256()
    for file in sorted(folder.rglob("*.txt")):
        content = read_at_most(file, _LARGEST_BOXES)
        if content is None:
            raise InputFileError("the file is larger than 4 MiB", fix="pass files of boxes", where=str(file))
        name = file.relative_to(folder).with_suffix("").as_posix()
        sha.update(f"{name} {len(content)} ".encode() + content)
        files[name] = list(_rows(content, file))
    if not files:
        raise InputFileError(
            "the folder holds no .txt files with boxes",
            fix="pass the folder that contains one text file of boxes for each picture",
            where=str(folder),
        )
    every = [row for rows in files.values() for row in rows]
    has_keypoints = len({len(row) for row in every}) == 1 and all(map(_may_hold_keypoints, every))
    has_outlines = bool(every) and not has_keypoints and all(map(_is_outline, every))
    points: dict[str, tuple[NDArray[np.float64], ...]] | None = None
    if has_keypoints:
        points = {name: tuple(row[5:].reshape(-1, 3) for row in rows) for name, rows in files.items()}
    elif has_outlines:
        points = {name: tuple(row[1:].reshape(-1, 2) for row in rows) for name, rows in files.items()}
    boxes = {
        name: np.array([_box(row, is_outline=not has_keypoints and _is_outline(row)) for row in rows])
        for name, rows in files.items()
    }
    return BoxLabels(
        rows={name: rows.reshape(-1, 5) for name, rows in boxes.items()},
        points=points,
        digest=sha.hexdigest(),
    )


def _rows(content: bytes, file: Path) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers of each line of a YOLO label file: the class, and the values of an object."""
    for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = np.array(line.split(), np.float64)
        except ValueError:
            row = np.full(1, math.nan)
        is_object = len(row) == _BOX or _is_outline(row) or _may_hold_keypoints(row)
        if not is_object or not np.isfinite(row).all() or row[0] != int(row[0]):
            raise InputFileError(
                f"line {number} is not a labelled object: {line[:60]!r}",
                fix="write each line as: class centre-x centre-y width height, as fractions of the picture size; or class and the corners of a polygon",
                where=str(file),
            )
        yield row


def _is_outline(row: NDArray[np.float64]) -> bool:
    return len(row) > _BOX + 1 and len(row) % 2 == 1


def _may_hold_keypoints(row: NDArray[np.float64]) -> bool:
    """Return True if values after a box can be keypoints: x, y and a visibility of 0, 1 or 2."""
    return (
        len(row) > _BOX and (len(row) - _BOX) % 3 == 0 and bool(np.isin(row[_BOX + 2 :: 3], (0, 1, 2)).all())
    )


def _box(row: NDArray[np.float64], *, is_outline: bool) -> NDArray[np.float64]:
    """Return class, left, top, right and bottom of one line of a YOLO label file."""
    if is_outline:
        corners = row[1:].reshape(-1, 2)
        return np.concatenate([row[:1], corners.min(axis=0), corners.max(axis=0)])
    centre, half = row[1:3], row[3:_BOX] / 2
    return np.concatenate([row[:1], centre - half, centre + half])


def _with_key(path: Path) -> tuple[Path, str]:
    place, colon, key = str(path).rpartition(":")
    return (Path(place), key) if colon and place.endswith((".npz", ".json")) else (path, "")


def _from_arrays(path: Path, key: str) -> list[int]:
    arrays = {member.key: member for member in members(path)}
    member = (
        arrays.get(key) if key else next((arrays[name] for name in (*LABEL_KEYS, "") if name in arrays), None)
    )
    if member is None or len(member.shape) != 1 or member.dtype.kind not in "iu":
        shown = [f"{name or 'an array'} ({item.dtype}, {list(item.shape)})" for name, item in arrays.items()]
        raise InputFileError(
            f"the file has no class indices under {key or 'y, label or labels'!r}; it has {', '.join(shown)}",
            fix="pass a one-dimensional array of integers with the class index of each sample; write file.npz:key for an array in a .npz file",
            where=str(path),
        )
    return [int(value) for value in member.whole()]


def _from_json(path: Path, key: str) -> Labels:
    content = read_json(path)
    if isinstance(content, dict) and "annotations" in content:
        return _from_coco(content, path, uses_ids=key == "ids")
    values = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise InputFileError(
            "the file holds neither a list of class indices nor an object from file name to class index",
            fix='write labels such as {"cat.jpg": 3} or [3, 1]',
            where=str(path),
        )
    return content if isinstance(content, dict) else values


def _from_coco(content: Mapping[str, Any], path: Path, *, uses_ids: bool) -> BoxLabels:
    objects: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    try:
        ids = sorted(item["id"] for item in content["categories"])
        classes = {number: number if uses_ids else place for place, number in enumerate(ids)}
        images = {item["id"]: item for item in content["images"]}
        for item in content["annotations"]:
            image = images[item["image_id"]]
            size = np.array([image["width"], image["height"]], np.float64)
            corners = np.array(item["bbox"], np.float64).reshape(2, 2).cumsum(axis=0) / size
            row = np.array([classes[item["category_id"]], *corners.flat])
            if not item.get("iscrowd"):
                name = str(PurePosixPath(image["file_name"]).with_suffix(""))
                objects.setdefault(name, []).append((row, _coco_points(item, size)))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise InputFileError(
            f"the file holds damaged annotations of COCO: {type(error).__name__}: {error}",
            fix="write images, categories and annotations in the layout of COCO's instances_val2017.json",
            where=str(path),
        ) from error
    every = [points for rows in objects.values() for _, points in rows]
    kinds = {(points.shape[1], len(points) if points.shape[1] == _KEYPOINT else 0) for points in every}
    has_points = len(kinds) == 1 and (0, 0) not in kinds
    return BoxLabels(
        rows={name: np.array([row for row, _ in rows]) for name, rows in objects.items()},
        points={name: tuple(points for _, points in rows) for name, rows in objects.items()}
        if has_points
        else None,
        digest=f"{digest_file(path)} {uses_ids}",
    )


def _coco_points(item: Mapping[str, Any], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the keypoints of a COCO object (keypoints, 3), else its outline (corners, 2), else an empty array."""
    if item.get("keypoints"):
        shares: NDArray[np.float64] = np.array(item["keypoints"], np.float64).reshape(-1, _KEYPOINT) / [
            *size,
            1,
        ]
        return shares
    parts = item.get("segmentation")
    if not parts or not isinstance(parts, list):  # none, or a mask of runs
        return np.zeros((0, 0))
    polygons = [np.array(part, np.float64).reshape(-1, 2) / size for part in parts]
    # A single outline goes around every part and back to its first corner, so the lines between parts enclose no area.
    return np.concatenate([piece for part in polygons for piece in (part, part[:1], polygons[0][:1])])


def _from_text(path: Path) -> Labels:
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError(
                "the file is larger than 256 MiB",
                fix="pass a text file with one label per line",
                where=str(path),
            )
        lines = [line for line in content.decode("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            f"the file cannot be read: {error}", fix="pass a text file of labels", where=str(path)
        ) from error
    separator = (
        "\t" if any("\t" in line for line in lines) else "," if any("," in line for line in lines) else " "
    )
    try:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise InputFileError(
            f"the file is not a table of labels: {error}", fix="write one label per line", where=str(path)
        ) from error
    if not rows:
        raise InputFileError("the file holds no labels", fix="write one label per line", where=str(path))
    header = [word.strip().lower() for word in rows[0]]
    has_header = any(word in header for word in _CLASS)
    file = next((header.index(word) for word in _FILE if word in header), None) if has_header else None
    label = next((header.index(word) for word in _CLASS if word in header), -1) if has_header else -1
    body = rows[1:] if has_header else rows
    if not has_header and len(rows[0]) == 2:
        file = 0
    listed = [_class_index(path, number, row, label) for number, row in enumerate(body, start=1)]
    if file is None:
        return listed
    return {row[file]: index for row, index in zip(body, listed, strict=True) if len(row) > file}


def _class_index(path: Path, number: int, row: list[str], column: int) -> int:
    try:
        return int(row[column])
    except (ValueError, IndexError) as error:
        raise InputFileError(
            f"row {number} has no class index: {' '.join(row)!r}",
            fix="write one class index per line, or a table with the columns file and class_id",
            where=str(path),
        ) from error
