"""Outputs of one inference: the JSON of trtexec --exportOutput.

[{"name": "y", "dimensions": "1x10", "values": [0.1, ...]}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.io.json_files import parsed
from qdqtool.io.text import text_of

Values = dict[str, list[object]]


def same_outputs(first: Path, second: Path) -> bool:
    """Whether two files hold the same tensors with the same values, to the last printed digit.

    Raises:
        InputFileError: a file is unreadable or holds no outputs.
    """
    return read_outputs(first) == read_outputs(second)


def read_outputs(path: Path) -> Values:
    """The values of every output, flat, by name.

    Raises:
        InputFileError: unreadable, or no list of outputs.
    """
    try:
        entries = parsed(text_of(path), str(path))
    except (ValueError, RecursionError) as error:
        raise _not_outputs(path) from error
    found = outputs_of(entries)
    if not found:
        raise _not_outputs(path)
    return found


def outputs_of(value: Any) -> Values:
    """The values of every output in parsed JSON; empty where there are none."""
    found: Values = {}
    for entry in value if isinstance(value, list) else []:
        name, values = (
            (entry.get("name"), entry.get("values")) if isinstance(entry, Mapping) else (None, None)
        )
        if isinstance(name, str) and isinstance(values, list):
            found[name] = values
    return found


def _not_outputs(path: Path) -> InputFileError:
    return InputFileError("holds no outputs", fix="pass the file of trtexec --exportOutput", where=str(path))
