"""What the type and format words of layer information mean.

The words are those of TensorRT 8.0 to 11 and of TensorRT for RTX: "Half", "Row major linear FP32",
"Thirty-two wide channel vectorized row major Int8 format", "Channel major FP16 format where channel % 8 == 0",
"Int8[1,64:32,800,912]", "(NHWC) Channel major format", "kCHW32".
"""

from __future__ import annotations

import re
from functools import lru_cache

from qdqtool.core.dtypes import DType

_WORD = re.compile(r"[A-Za-z]+[0-9]*[A-Za-z0-9_]*")
_ENUM = re.compile(r"^k([A-Z][A-Z0-9_]*)$")
_WIDE = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_WIDE_WORDS = re.compile(r"^([a-z-]+)[- ]wide channel vectorized", re.IGNORECASE)
_MODULO = re.compile(r"channel % (\d{1,4}) == 0")
_CODE = re.compile(r"\b(?:k|DLA_)?(?:CHW|HWC|CDHW|DHWC)(\d{1,3})\b")
_COLON = re.compile(r"-?\d+:(\d{1,4})")


@lru_cache(maxsize=4096)
def dtype_of(words: str) -> DType:
    """The element type named anywhere in a type or format text; UNKNOWN where none or several are named.

    >>> dtype_of("Thirty-two wide channel vectorized row major Int8 format")
    <DType.INT8: 'int8'>
    """
    whole = DType.parse(words)
    if whole is not DType.UNKNOWN:
        return whole
    named = {DType.parse(_ENUM.sub(r"\1", word)) for word in _WORD.findall(words)} - {DType.UNKNOWN}
    return named.pop() if len(named) == 1 else DType.UNKNOWN


def channel_multiple(words: str) -> int:
    """To which multiple a format pads the channels; 1 where it does not.

    >>> channel_multiple("Thirty-two wide channel vectorized row major Int8 format")
    32
    >>> channel_multiple("Int8[1,3:4,224,224]")
    4
    >>> channel_multiple("kCHW32")
    32
    """
    wide = _WIDE_WORDS.search(words)
    if wide:
        return _WIDE.get(wide[1].lower(), 1)
    number = _MODULO.search(words) or _COLON.search(words) or _CODE.search(words)
    return max(int(number[1]), 1) if number else 1


def short(words: str) -> str:
    """A format in a few characters for tables and drawings: "CHW32", "HWC8", "linear", or "" where unstated."""
    multiple = channel_multiple(words)
    lower = words.lower()
    if "channel major" in lower or "hwc" in lower:
        return f"HWC{multiple}" if multiple > 1 else "HWC"
    if multiple > 1:
        return f"CHW{multiple}"
    return "linear" if "linear" in lower or "row major" in lower else ""
