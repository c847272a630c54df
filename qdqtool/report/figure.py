"""A chart with its words."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.report.svg import Element


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: for file names and links.
        title: what it shows.
        caption: how to read it.
        source: measured, recorded or estimated.
        drawings: one, or many small ones side by side.
    """

    name: str
    title: str
    caption: str
    source: str
    drawings: tuple[Element, ...]
