"""JSON text that is the same for equal values, and JSON values out of files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.io.files import read_at_most, unreadable
from qdqtool.io.memory import budget, said

_LARGEST = 1 << 30
"""Bytes; a larger JSON file is not one of ours."""
_OBJECT, _ARRAY, _VALUE = 240, 72, 64
"""Bytes that Python takes for an object with a member, for an array, and for one more value: forty times the text of some."""
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON leaves as they are and a terminal obeys: C1 controls (U+009B begins ANSI sequences), directions."""


def canonical(value: object) -> str:
    """JSON text with sorted keys that is the same for equal values, with a newline at its end."""
    return json_text(value) + "\n"


def json_text(value: object, indent: int | None = 1) -> str:
    """The same without the newline; on one line with an `indent` of None.

    Names out of models and logs may hold half surrogate pairs, for which UTF-8 has no bytes, and characters that steer a
    terminal: both are written as escapes.
    """
    text = json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def read_json(path: Path) -> Any:
    """The JSON value in a file.

    Raises:
        InputFileError: unreadable, too large, too deeply nested, or not JSON.
    """
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError("is larger than 1 GiB", fix="pass a qdqtool artefact", where=str(path))
        return parsed(content.decode("utf-8"), str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputFileError(f"is not JSON: {error}", fix="write the file again", where=str(path)) from error


def parsed(text: str, where: str, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON text.

    Args:
        text: the JSON.
        where: names it in messages.
        pairs: makes the objects, out of their members; Python's dictionaries without.

    Raises:
        InputFileError: as of `weigh`.
        ValueError: it is not JSON.
        RecursionError: it is too deeply nested.
    """
    weigh(text, where)
    return json.loads(text, object_pairs_hook=pairs)


def weigh(text: str, where: str) -> None:
    """Refuse JSON text whose value would take more memory than the content of input files may.

    Raises:
        InputFileError: it would.
    """
    needed = _OBJECT * text.count("{") + _ARRAY * text.count("[") + _VALUE * text.count(",")
    if needed > (most := budget()):
        raise InputFileError(
            f"holds values that take up to {needed:,} bytes of memory, more than {said(most)}",
            fix="cut out what is needed, or allow more with --max-memory",
            where=where,
        )
