"""How results show themselves in a notebook: small tables, everything escaped, long lists folded and cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from typing import Any

_ROWS = 20
_WORDS = 160
_ITEMS = 8
_CELL = ' style="text-align:left"'


class Shown:
    """A result that a notebook shows as tables. It adds no field and no attribute."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of(self)


def html_of(value: Any) -> str:
    """A dataclass as HTML: plain fields in one table, lists of dataclasses folded under their number."""
    plain: list[tuple[str, str]] = []
    lists: list[str] = []
    for field in fields(value):
        found = getattr(value, field.name)
        if isinstance(found, tuple) and found and is_dataclass(found[0]):
            lists.append(_folded(field.name, found))
        elif is_dataclass(found):
            plain += [
                (f"{field.name}.{inner.name}", _cell(getattr(found, inner.name))) for inner in fields(found)
            ]
        elif found not in ((), {}, None, ""):
            plain.append((field.name, _cell(found)))
    rows = "".join(f"<tr><th{_CELL}>{escape(name)}</th><td{_CELL}>{cell}</td></tr>" for name, cell in plain)
    return f"<b>{escape(type(value).__name__)}</b><table>{rows}</table>{''.join(lists)}"


def _folded(name: str, found: tuple[Any, ...]) -> str:
    shown = found[:_ROWS]
    names = [field.name for field in fields(shown[0])]
    used = [each for each in names if any(_cell(getattr(row, each, None)) for row in shown)]
    head = "".join(f"<th{_CELL}>{escape(each)}</th>" for each in used)
    body = "".join(
        "<tr>" + "".join(f"<td{_CELL}>{_cell(getattr(row, each, None))}</td>" for each in used) + "</tr>"
        for row in shown
    )
    more = f"<p>and {len(found) - _ROWS} more</p>" if len(found) > _ROWS else ""
    title = f"<summary>{len(found)} {escape(name)}</summary>"
    return f"<details>{title}<table><tr>{head}</tr>{body}</table>{more}</details>"


def _cell(value: Any) -> str:
    """A value in a table, escaped and cut; "" for what says nothing."""
    text = _text(value)
    return escape(text if len(text) <= _WORDS else f"{text[:_WORDS]}...")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(each)}" for key, each in list(value.items())[:_ITEMS])
    if isinstance(value, tuple):
        more = f", and {len(value) - _ITEMS} more" if len(value) > _ITEMS else ""
        return ", ".join(map(_text, value[:_ITEMS])) + more
    if is_dataclass(value) and type(value).__str__ is object.__str__:
        shown = ((field.name, _text(getattr(value, field.name))) for field in fields(value))
        return ", ".join(f"{name} {text}" for name, text in shown if text)
    return str(value)
