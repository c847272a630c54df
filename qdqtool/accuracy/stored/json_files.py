"""Stored outputs in JSON: Polygraphy's run results and trtexec's exported outputs.

Polygraphy writes {"lst": [[runner, [{"outputs": {name: {"values": {"array": base64 of .npy}}}}, ...]]]}; trtexec
writes [{"name", "dimensions": "1x1000", "values": [...]}, ...] for one inference.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.errors import InputFileError
from qdqtool.io.json_files import read_json
from qdqtool.io.npy import decode_array

_FIX = "write it with `polygraphy run --save-outputs` or trtexec --exportOutput"
Outputs = dict[str, NDArray[Any]]


def from_json(path: Path) -> list[Outputs]:
    """One entry per iteration of Polygraphy's first runner, or the one inference of trtexec.

    Raises:
        InputFileError: unreadable, or neither of the two.
    """
    content = read_json(path)
    try:
        if isinstance(content, dict):
            return _polygraphy(content)
        return [_trtexec(content)] if content else []
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        EOFError,
        SyntaxError,
        binascii.Error,
        OverflowError,
    ) as error:
        what = f"does not hold stored outputs: {type(error).__name__} {error}"
        raise InputFileError(what, fix=_FIX, where=str(path)) from error


def _polygraphy(content: Mapping[str, Any]) -> list[Outputs]:
    _, iterations = content["lst"][0]
    return [
        {
            str(name): _array(value)
            for name, value in iteration["outputs"].items()
            if name != "polygraphy_class"
        }
        for iteration in iterations
    ]


def _array(value: Any) -> NDArray[Any]:
    text = value["values"]["array"] if "values" in value else value["array"]
    return decode_array(base64.b64decode(text, validate=True))


def _trtexec(content: list[Any]) -> Outputs:
    found = {}
    for entry in content:
        shape = [int(dim) for dim in str(entry["dimensions"]).split("x") if dim]
        found[str(entry["name"])] = np.asarray(entry["values"], dtype=np.float64).reshape(shape)
    return found
