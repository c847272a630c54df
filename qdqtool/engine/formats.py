"""What the type and format words of layer information mean.

The words are those of TensorRT 8.0 to 11 and of TensorRT for RTX: "Half", "Row major linear FP32",
"Thirty-two wide channel vectorized row major Int8 format", "FP32 NHWC, 1:4", ...
"""

from __future__ import annotations

import re

from qdqtool.core.dtypes import DType

_WORD = re.compile(r"[A-Za-z]+[0-9]*[A-Za-z0-9_]*")


def dtype_of(words: str) -> DType:
    """The element type named anywhere in a type or format text; UNKNOWN where none or several are named.

    >>> dtype_of("Thirty-two wide channel vectorized row major Int8 format")
    <DType.INT8: 'int8'>
    """
    whole = DType.parse(words)
    if whole is not DType.UNKNOWN:
        return whole
    named = {DType.parse(word) for word in _WORD.findall(words)} - {DType.UNKNOWN}
    return named.pop() if len(named) == 1 else DType.UNKNOWN
