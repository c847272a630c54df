"""Sections of the report: a file in `qdqtool.report.sections` defines what a section reads and how it is shown.

    PLUGIN = Section(order=65, title="Memory", reads=("memory.json",), collect=..., page="<h2 ...>...", blocks=...)

Other distributions add sections through the entry-point group `qdqtool.report.sections`. A section that fails is
left out of the report and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from qdqtool.core.report import Report
from qdqtool.plugins import Registry

SECTIONS = Registry(package="qdqtool.report.sections")

Entry = tuple[str, str, str | None]
"""An entry of a list: what is wrong, how to fix it, and a style of the terminal."""
Row = tuple[str, str]
"""Name and text of a figure at the top of the summary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A list under a heading, in the report on the terminal."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of the report.

    Attributes:
        order: position, small numbers first; shipped sections have multiples of ten.
        title: in the page's navigation; "" for a part that is not listed there.
        shown: whether the report has anything for it.
        page: its part of the page, a Jinja template. It gets `run` (key, report, network, groups ...), `report`, the
            macros of `page/macros.html` as `m` and `words`; headings take ids as `name-{{ run.key }}`.
        rows: its lines among the figures on top of the terminal's summary.
        blocks: its lists on the terminal.
        reads: artefacts of the run folder that `collect` gets, if they exist.
        collect: returns the value of `sections[name]` in report.json, as plain JSON values; None without data.
    """

    order: int
    title: str = ""
    shown: Callable[[Report], object] = lambda _report: True
    page: str = ""
    rows: Callable[[Report], Iterable[Row]] = lambda _report: ()
    blocks: Callable[[Report], Iterable[Block]] = lambda _report: ()
    reads: tuple[str, ...] = ()
    collect: Callable[[Mapping[str, Path]], Any] | None = None


@lru_cache(maxsize=1)
def sections() -> tuple[tuple[str, Section], ...]:
    """Return all sections with their names, in page order. Broken third-party sections are left out."""
    loaded = [(name, SECTIONS.load(name)) for name in SECTIONS.usable()]
    return tuple(sorted(loaded, key=lambda pair: (pair[1].order, pair[0])))


def collect_data(folder: Path) -> dict[str, Any]:
    """Return the data that each section reads from a run folder, by the name of the section."""
    data_of: dict[str, Any] = {}
    for name, section in sections():
        if section.collect is not None:
            files = {file: folder / file for file in section.reads if (folder / file).is_file()}
            data = _guard_section(name, partial(section.collect, files))
            if data is not None:
                data_of[name] = data
    return data_of


def guarded_rows(name: str, section: Section, report: Report) -> tuple[Row, ...]:
    """Return the rows of a section; () if a third-party section fails."""
    return _guard_section(name, lambda: tuple(section.rows(report))) or ()


def guarded_blocks(name: str, section: Section, report: Report) -> tuple[Block, ...]:
    """Return the terminal blocks of a section; () if a third-party section fails."""
    return _guard_section(name, lambda: tuple(section.blocks(report))) or ()


def _guard_section(name: str, act: Callable[[], Any]) -> Any:
    result: list[Any] = []
    SECTIONS.survives(name, lambda _plugin: result.append(act()))
    return result[0] if result else None
