"""Samples in the JSON files that Polygraphy writes with `--save-inputs`.

A file is a list of feeds; each maps input names to {"array": base64 of an .npy file, "polygraphy_class": "ndarray"}.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qdqtool.calibration.samples.raw import RawSample
from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_file
from qdqtool.io.json_files import read_json
from qdqtool.io.npy import decode_array


class PolygraphyInputs:
    """Source of the feeds in one file. Its JSON text is kept in memory; arrays are decoded one feed at a time."""

    meaningful = True

    def __init__(self, path: Path) -> None:
        self.description = f"Polygraphy inputs {path.name}"
        self._path = path
        content = read_json(path)
        if not isinstance(content, list) or not all(isinstance(feed, dict) for feed in content):
            raise InputFileError(
                "is not a list of feeds", fix="write it with `polygraphy run --save-inputs`", where=str(path)
            )
        self._feeds: list[Mapping[str, Any]] = content

    def digest(self) -> str:
        return digest_file(self._path)

    def __len__(self) -> int:
        return len(self._feeds)

    def read(self, numbers: range) -> Iterator[RawSample]:
        for number in numbers:
            where = f"{self._path}[{number}]"
            arrays = {
                name: _array(value, f"{where}, input {name!r}") for name, value in self._feeds[number].items()
            }
            yield RawSample(name=where, arrays=arrays)


def _array(value: object, where: str) -> NDArray[Any]:
    text = value.get("array") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise _not_an_array("no base64 text under 'array'", where)
    try:
        return decode_array(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise _not_an_array(str(error), where) from error


def _not_an_array(what: str, where: str) -> InputFileError:
    return InputFileError(
        f"is not an array: {what}", fix="write the file with `polygraphy run --save-inputs`", where=where
    )
