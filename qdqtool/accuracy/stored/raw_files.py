"""Raw tensors of trtexec --dumpRawBindingsToFile: `name.dims.Type.raw`, newer `name.output.dims.type.raw`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.dtypes import DType
from qdqtool.errors import InputFileError

_NAME = re.compile(
    r"(?P<name>.+?)(?:\.(?P<side>input|output))?\.(?P<dims>\d+(?:\.\d+)*)\.(?P<type>[A-Za-z]\w*)\.raw"
)
_NUMPY: dict[DType, type[np.generic]] = {
    DType.FLOAT64: np.float64,
    DType.FLOAT32: np.float32,
    DType.FLOAT16: np.float16,
    DType.INT64: np.int64,
    DType.INT32: np.int32,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.BOOL: np.bool_,
}


def from_raw(path: Path) -> dict[str, NDArray[Any]]:
    """The tensor of one file under its name; nothing for a file that says it is an input.

    Raises:
        InputFileError: the name does not tell shape and type, or the size does not fit them.
    """
    match = _NAME.fullmatch(path.name)
    dtype = DType.parse(match["type"]) if match else DType.UNKNOWN
    if match is None or (dtype not in _NUMPY and dtype is not DType.BFLOAT16):
        raise InputFileError(
            "the name does not say name, dimensions and type",
            fix="keep the names that trtexec gives: output.1.1000.Float.raw",
            where=str(path),
        )
    if match["side"] == "input":
        return {}
    shape = [int(dim) for dim in match["dims"].split(".")]
    try:
        values = np.fromfile(path, dtype=np.uint16 if dtype is DType.BFLOAT16 else _NUMPY[dtype])
        if dtype is DType.BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return {match["name"]: values.reshape(shape)}
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"does not hold {'x'.join(match['dims'].split('.'))} values of {dtype}: {error}",
            fix="dump it again; vectorized formats (CHW32) cannot be read",
            where=str(path),
        ) from error
