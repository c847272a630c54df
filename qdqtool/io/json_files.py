"""Canonical JSON text (equal for equal values), and JSON values from files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.io.files import budget, budget_words, read_at_most, unreadable

_LARGEST = 1 << 30
"""Bytes from which a JSON file is refused; no file of this tool is so large."""
_OBJECT, _ARRAY, _VALUE = 240, 72, 64
"""Python's bytes for an object with a member, for an array, and for one more value; this can be forty times the text."""
_NOT_FINITE = re.compile(r"[\[,:\s]-?(?:nan|inf)[\],}\s]")
"""A number that is not finite as programs in C++ print it; trtexec --exportOutput does."""
_IN_C = re.compile(r"\"[^\"\\]*(?:\\.[^\"\\]*)*(?:\"|\\?\Z)|(-?)\b(nan|inf)\b", re.DOTALL)
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON does not escape but a terminal interprets: C1 controls (U+009B begins ANSI sequences),
text directions, and others.
"""


def canonical(value: object) -> str:
    """Return JSON text with sorted keys and a final newline; equal values give equal text."""
    return json_text(value) + "\n"


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value in hexadecimal digits; equal values have equal digests."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def json_text(value: object, indent: int | None = 1) -> str:
    """Return JSON text with sorted keys without a final newline; on one line if `indent` is None.

    Names out of models and logs may hold half surrogate pairs, for which UTF-8 has no bytes, and characters that steer a
    terminal: both are written as escapes.
    """
    text = json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def read_json(path: Path) -> Any:
    """Read the JSON value in a file.

    Raises:
        InputFileError: unreadable, too large, too deeply nested, or not JSON.
    """
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError(
                "the file is larger than 1 GiB", fix="pass a qdqtool artefact", where=str(path)
            )
        return parse_json(content.decode("utf-8"), str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputFileError(
            f"the file is not JSON: {error}", fix="write the file again", where=str(path)
        ) from error


def parse_json(text: str, where: str, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON text.

    Args:
        text: the JSON.
        where: name of the text in messages.
        pairs: makes the objects, out of their members; Python's dictionaries without.

    Raises:
        InputFileError: as of `weigh`.
        ValueError: it is not JSON.
        RecursionError: it is too deeply nested.
    """
    weigh(text, where)
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except ValueError:
        if _NOT_FINITE.search(text) is None:
            raise
        return json.loads(_IN_C.sub(_in_python, text), object_pairs_hook=pairs)


def _in_python(match: re.Match[str]) -> str:
    """Return a number that is not finite as Python's JSON reader accepts it; texts stay as they are."""
    sign, word = match.groups()
    return match[0] if word is None else "NaN" if word == "nan" else f"{sign}Infinity"


def weigh(text: str, where: str) -> None:
    """Refuse JSON text whose value may take more memory than the budget for input files.

    Raises:
        InputFileError: it would.
    """
    needed = _OBJECT * text.count("{") + _ARRAY * text.count("[") + _VALUE * text.count(",")
    if needed > (most := budget()):
        raise InputFileError(
            f"the file contains values that need up to {needed:,} bytes of memory, more than {budget_words(most)}",
            fix="remove parts that are not needed, or allow more memory with --max-memory",
            where=where,
        )


def number(value: Any) -> float | None:
    """Return `value` as a finite, non-negative float, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) and converted >= 0 else None
