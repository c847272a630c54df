"""Class indices in a separate file: .npy, .npz ("file.npz:key"), .json, .txt, .csv or .tsv; boxes in a folder.

Tables with a header take the columns "file" (or name, path, image) and "class_id" (or label, class, y).
Without names the labels belong to the samples in their order.

A folder has one text file per picture, with one row per object in YOLO's format: class, centre and size as shares of
the picture. A row with more numbers is a polygon, and its box is taken.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.arrays import LABEL_KEYS, members
from qdqtool.errors import InputFileError
from qdqtool.io.files import read_at_most
from qdqtool.io.json_files import read_json


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoxLabels:
    """Labelled boxes of pictures.

    Attributes:
        rows: by name of the picture without suffix: (boxes, 5), class, left, top, right, bottom as shares of the picture.
        digest: of all files.
    """

    rows: Mapping[str, NDArray[np.float64]]
    digest: str

    def of(self, picture: str) -> NDArray[np.float64]:
        """Return the boxes of a picture; a picture without a file has none."""
        return self.rows.get(Path(picture).stem, np.zeros((0, 5)))


Labels = Mapping[str, int] | Sequence[int] | BoxLabels
_FILE = ("file", "filename", "name", "path", "image")
_LARGEST = 256 << 20
"""Largest size of a text file of labels in bytes; enough for millions of labels."""
_LARGEST_BOXES = 4 << 20
"""Largest size of the boxes of one picture in bytes."""
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
        return _from_json(place)
    return _from_text(place)


def labels_beside(folder: Path) -> Labels | None:
    """Read `labels.tsv` or `labels.csv` in a folder of samples; return None if there is neither."""
    for name in ("labels.tsv", "labels.csv"):
        if (folder / name).is_file():
            return read_labels(folder / name)
    return None


def _from_folder(folder: Path) -> BoxLabels:
    rows, sha = dict[str, NDArray[np.float64]](), hashlib.sha256()
    for file in sorted(folder.rglob("*.txt")):
        content = read_at_most(file, _LARGEST_BOXES)
        if content is None:
            raise InputFileError("is larger than 4 MiB", fix="pass files of boxes", where=str(file))
        sha.update(f"{file.stem} {len(content)} ".encode() + content)
        rows[file.stem] = _boxes(content, file)
    if not rows:
        raise InputFileError(
            "holds no .txt files with boxes",
            fix="pass the folder with one text file for each picture",
            where=str(folder),
        )
    return BoxLabels(rows=rows, digest=sha.hexdigest())


def _boxes(content: bytes, file: Path) -> NDArray[np.float64]:
    boxes = []
    for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
        try:
            kind, *values = map(float, line.split())
        except ValueError:
            kind, values = -1.0, [math.nan] if line.strip() else []
        if not values and kind == -1.0:
            continue
        is_polygon = len(values) >= 6 and len(values) % 2 == 0
        if not (is_polygon or len(values) == 4) or not all(map(math.isfinite, values)) or kind != int(kind):
            raise InputFileError(
                f"line {number} is not a labelled box: {line[:60]!r}",
                fix="write: class centre-x centre-y width height, as shares of the picture",
                where=str(file),
            )
        if is_polygon:
            points = np.reshape(values, (-1, 2))
            low, high = points.min(axis=0), points.max(axis=0)
        else:
            centre, half = np.array(values[:2]), np.array(values[2:]) / 2
            low, high = centre - half, centre + half
        boxes.append([kind, *low, *high])
    return np.array(boxes, dtype=np.float64).reshape(-1, 5)


def _with_key(path: Path) -> tuple[Path, str]:
    place, colon, key = str(path).rpartition(":")
    return (Path(place), key) if colon and place.endswith(".npz") else (path, "")


def _from_arrays(path: Path, key: str) -> list[int]:
    arrays = {member.key: member for member in members(path)}
    member = (
        arrays.get(key) if key else next((arrays[name] for name in (*LABEL_KEYS, "") if name in arrays), None)
    )
    if member is None or len(member.shape) != 1 or member.dtype.kind not in "iu":
        shown = [f"{name or 'an array'} ({item.dtype}, {list(item.shape)})" for name, item in arrays.items()]
        raise InputFileError(
            f"has no class indices under {key or 'y, label or labels'!r}; it has {', '.join(shown)}",
            fix="pass integers with one axis, one class index per sample; in an .npz file name them: file.npz:key",
            where=str(path),
        )
    return [int(value) for value in member.whole()]


def _from_json(path: Path) -> Labels:
    content = read_json(path)
    values = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise InputFileError(
            "holds neither a list of class indices nor an object from file name to class index",
            fix='write it like {"cat.jpg": 3} or [3, 1]',
            where=str(path),
        )
    return content if isinstance(content, dict) else values


def _from_text(path: Path) -> Labels:
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError(
                "is larger than 256 MiB", fix="pass a text file with one label per line", where=str(path)
            )
        lines = [line for line in content.decode("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            f"cannot be read: {error}", fix="pass a text file of labels", where=str(path)
        ) from error
    separator = (
        "\t" if any("\t" in line for line in lines) else "," if any("," in line for line in lines) else " "
    )
    try:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise InputFileError(
            f"is not a table of labels: {error}", fix="write one label per line", where=str(path)
        ) from error
    if not rows:
        raise InputFileError("holds no labels", fix="write one label per line", where=str(path))
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
    return {Path(row[file]).name: index for row, index in zip(body, listed, strict=True) if len(row) > file}


def _class_index(path: Path, number: int, row: list[str], column: int) -> int:
    try:
        return int(row[column])
    except (ValueError, IndexError) as error:
        raise InputFileError(
            f"row {number} has no class index: {' '.join(row)!r}",
            fix="write one class index per line, or a table with the columns file and class_id",
            where=str(path),
        ) from error
