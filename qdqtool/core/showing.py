"""Common methods of all results: save, convert to a dict or data frame, and short display, also in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from qdqtool.errors import MissingPackage, UsageError
from qdqtool.io.escaping import printable
from qdqtool.io.files import path_of

# Number of rows that a notebook cell shows without scrolling.
_SHORT = 40
_ROWS = 20
_WORDS = 160
_HEADLINE = 300
_ITEMS = 8
_CELL = ' style="text-align:left"'


_charts_of: list[Callable[[Any], Mapping[str, Any]]] = []


def draw_with(charts_of: Callable[[Any], Mapping[str, Any]]) -> None:
    """Register the function that returns the charts of a result by name; `plot` uses it.

    A package that imports this module registers the function.
    """
    _charts_of[:] = [charts_of]


def lists_of(result: Any) -> list[str]:
    """Return the names of the fields that are lists and can become data frames."""
    return [field.name for field in fields(result) if isinstance(getattr(result, field.name), tuple)]


def no_list(table: str, lists: list[str]) -> UsageError:
    """Return the error for the name of a list that a result does not have."""
    return UsageError(
        f"the result has no list called {table!r}", fix=f"choose one of {', '.join(lists)}", where="table"
    )


class Displayable:
    """Base class of results that are frozen dataclasses. It adds no fields and no attributes.

    Subclasses are decorated with `repr=False`, because the default representation of dataclasses fills a screen.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        headline = self.headline()
        if headline:
            return f"{type(self).__name__}({printable(headline[:_HEADLINE])})"
        parts = (f"{field.name}={_short(getattr(self, field.name))}" for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(parts)})"

    def headline(self) -> str:
        """Summary of the result in one line, for `repr`; "" if `repr` shows the fields instead."""
        return ""

    def plot(self, name: str = "") -> Any:
        """Return a chart of the result. It appears in a notebook, and `.save(path)` writes SVG or PNG.

        Args:
            name: the chart to take; without it, the first one.

        Raises:
            UsageError: the result has no such chart.
        """
        charts = _charts_of[0](self) if _charts_of else {}
        if not charts or (name and name not in charts):
            raise UsageError(
                f"{type(self).__name__} has no chart{f' {name!r}' if name else ''}",
                fix=f"choose one of {', '.join(charts)}"
                if charts
                else "plot a report, a sensitivity, a sweep, or a comparison with inside=True",
                where="plot",
            )
        return charts[name or next(iter(charts))]

    def _repr_html_(self) -> str:
        return html_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain lists, dicts, numbers and strings, named as in the JSON artefact."""
        from pydantic import TypeAdapter

        entries: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json", by_alias=True)
        return entries

    def to_dataframe(self, table: str = "") -> Any:
        """Return one list of the result as a pandas data frame, or as a polars one if pandas is not installed.

        Fields of an entry get separate columns: `outcome.accuracy`.

        Args:
            table: the field to take; without it, the first list that is not empty.

        Raises:
            UsageError: no such list.
            MissingPackage: neither pandas nor polars is installed.
        """
        lists = lists_of(self)
        if table and table not in lists:
            raise no_list(table, lists)
        filled = [name for name in lists if getattr(self, name)]
        name = table or (filled or lists or [""])[0]
        rows = self.to_dict().get(name, [])
        return _frame([row if isinstance(row, dict) else {name: row} for row in rows])

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the JSON artefact that the command of the same name writes, and return its path.

        Raises:
            InputFileError: it cannot be written.
        """
        from qdqtool.core.artefacts import artefact_of

        place = path_of(path)
        artefact_of(type(self)).write(place, self)
        return place


def _frame(rows: list[dict[str, Any]]) -> Any:
    here = next((name for name in ("pandas", "polars") if find_spec(name)), None)
    if here is not None:
        flat = [_flat(row) for row in rows]
        columns = dict.fromkeys(name for row in flat for name in row)
        return import_module(here).DataFrame([{name: row.get(name) for name in columns} for row in flat])
    raise MissingPackage(
        "neither pandas nor polars is installed", fix="pip install pandas", where="to_dataframe"
    )


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a row with nested dicts flattened: an inner entry gets the name `outer.inner`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat


def _short(value: Any) -> str:
    """Return a short text for a value; for a list, only its length."""
    if isinstance(value, (tuple, list, Mapping)):
        return f"[{len(value)}]"
    if is_dataclass(value):
        return f"<{type(value).__name__}>"
    text = repr(value.value if isinstance(value, Enum) else value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def html_of(value: Any) -> str:
    """Render a dataclass as HTML: plain fields in one table, and collapsible lists of dataclasses."""
    plain: list[tuple[str, str]] = []
    lists: list[str] = []
    for field in fields(value):
        if not field.repr:
            continue
        content = getattr(value, field.name)
        if isinstance(content, tuple) and content and is_dataclass(content[0]):
            lists.append(_fold_rows(field.name, content))
        elif is_dataclass(content):
            plain += [
                (f"{field.name}.{inner.name}", _cell(getattr(content, inner.name)))
                for inner in fields(content)
            ]
        elif content not in ((), {}, None, ""):
            plain.append((field.name, _cell(content)))
    rows = "".join(f"<tr><th{_CELL}>{escape(name)}</th><td{_CELL}>{cell}</td></tr>" for name, cell in plain)
    return f"<b>{escape(type(value).__name__)}</b><table>{rows}</table>{''.join(lists)}"


def _fold_rows(name: str, rows: tuple[Any, ...]) -> str:
    shown = rows[:_ROWS]
    names = [field.name for field in fields(shown[0])]
    used = [each for each in names if any(_cell(getattr(row, each, None)) for row in shown)]
    head = "".join(f"<th{_CELL}>{escape(each)}</th>" for each in used)
    body = "".join(
        "<tr>" + "".join(f"<td{_CELL}>{_cell(getattr(row, each, None))}</td>" for each in used) + "</tr>"
        for row in shown
    )
    more = f"<p>and {len(rows) - _ROWS} more</p>" if len(rows) > _ROWS else ""
    title = f"<summary>{len(rows)} {escape(name)}</summary>"
    return f"<details>{title}<table><tr>{head}</tr>{body}</table>{more}</details>"


def _cell(value: Any) -> str:
    """Return the text of a value for an HTML table cell, escaped and shortened; "" for an empty value."""
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
