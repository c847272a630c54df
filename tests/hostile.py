"""Values of any dataclass whose every text is a name that tries to be more than a name.

`filled(type, words)` goes by the annotations, so that fields and artefacts that are added later are filled, too.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import cycle
from typing import Any

import numpy as np

from qdqtool.core.buildlog import Statements
from qdqtool.core.tensors import INT8, QuantFormat
from qdqtool.core.weights import WeightChanges

WORDS = (
    '<script id="pwned">pwn()</script>',
    "\"><img src=x id='pwned' onerror='pwn()'>",
    "]]></script><b id=pwned>{{ 7 * 191 }}",
    '=HYPERLINK("http://pwned")',
    "\x1b]0;PWN\x07\x9b31m",
    "a\r\n::error::pwned",
    "::set-env name=A::b",
    "\u202egnp.exe\u2066",
    "[red]r[/red][link=http://pwned]l[/link]",
    "a|b`c`![x](http://pwned)",
    "\ud800half\ufffe\x00",
    "\u2028%0A::warning::x",
    "@SUM(A1)",
)


def filled(kind: Any, words: Sequence[str] = WORDS) -> Any:
    """A value of this type: two entries in every list, numbers that are not 0, and in every text the next of `words`."""
    turn = cycle(words)
    return _value(kind, turn, {})


def _value(kind: Any, words: Iterator[str], turns: dict[Any, Iterator[Any]]) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in {str, Any, object}:
        return next(words)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in {typing.Union, types.UnionType}:
        return _value(next(one for one in inner if one is not type(None)), words, turns)
    if origin is typing.Literal:
        return inner[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(turns.setdefault(kind, cycle(kind)))
    if origin is tuple and Ellipsis not in inner:
        return tuple(_value(one, words, turns) for one in inner)
    if origin in {tuple, frozenset, list} or origin is Sequence:
        return (list if origin is list else frozenset if origin is frozenset else tuple)(
            _value(inner[0], words, turns) for _ in range(2)
        )
    if origin in {dict, Mapping, types.MappingProxyType}:
        return {_value(inner[0], words, turns): _value(inner[1], words, turns) for _ in range(2)}
    if kind is Statements:
        return _statements(words)
    assert is_dataclass(kind), f"no value of {kind} is known: add one"
    hints = typing.get_type_hints(kind, localns={"NDArray": tuple, "np": np})
    return kind(**{one.name: _value(hints[one.name], words, turns) for one in fields(kind) if one.init})


def _statements(words: Iterator[str]) -> Statements:
    """Lines of a log are numbers whatever stands in them."""
    return Statements(columns=("line", next(words)), rows=((3, next(words)), (4, next(words))))


_PLAIN: dict[Any, Any] = {
    int: 3,
    float: 0.5,
    bool: True,
    QuantFormat: INT8,
    WeightChanges: None,  # arrays, which no JSON holds
    type(None): None,
}
