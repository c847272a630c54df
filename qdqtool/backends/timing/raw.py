"""Names of raw tensor files as trtexec writes them: `name.output.1.3.224.224.Float.raw`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORDS = {
    "float32": "Float",
    "float16": "Half",
    "int8": "Int8",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "bool": "Bool",
}


def raw_name(tensor: str, role: str, array: NDArray[Any]) -> str:
    """The file name of a tensor's raw bytes; characters that file systems dislike become `_`."""
    plain = re.sub(r"[^\w.-]", "_", tensor)
    dims = ".".join(map(str, array.shape))
    word = _WORDS.get(array.dtype.name, array.dtype.name)
    return ".".join(part for part in (plain, role, dims, word, "raw") if part)
