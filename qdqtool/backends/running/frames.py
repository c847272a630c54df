"""Frames of arrays between two processes: one line of JSON, then .npz data of the size given in that line."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]


def write(stream: IO[bytes], words: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Write a frame of words and arrays.

    Raises:
        OSError: the reader is gone.
    """
    packed = io.BytesIO()
    if arrays:
        # numpy has parameters of its own, such as "file": numbers are safe as names
        numbered: dict[str, Any] = {f"a{number}": array for number, array in enumerate(arrays.values())}
        np.savez(packed, **numbered)
    head = {**words, "names": list(arrays or ()), "bytes": packed.tell()}
    stream.write(json.dumps(head).encode() + b"\n" + packed.getvalue())
    stream.flush()


def read(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read the next words and arrays; return None at the end of the stream or of a truncated frame.

    Raises:
        ValueError: another process writes in between.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    words = json.loads(line)
    if not isinstance(words, dict) or not {"bytes", "names"} <= words.keys():
        raise ValueError("not a frame")
    size, names = words.pop("bytes"), words.pop("names")
    packed = stream.read(size)
    if len(packed) < size:
        return None
    if not names:
        return words, {}
    with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
        return words, {name: archive[f"a{number}"] for number, name in enumerate(names)}
