"""Everything else: the fields of every pattern that no other part of the run keeps, as rows of a table per pattern."""

from __future__ import annotations

from qdqtool.buildlog.pattern import Fields
from qdqtool.core.buildlog import Statements

HOMES = frozenset(
    {
        # events
        *(
            "attempt",
            "attempt-unnamed",
            "fused",
            "fused-unnamed",
            "quantize-into",
            "swapped",
            "duplicate",
            "removed",
        ),
        *("layer-converted", "layer-swapped", "merged", "layers-original", "layers-after"),
        # network
        *("network-input", "node-begins", "node-inputs", "node-outputs"),
        # engine layers
        *("layer", "layer-record", "layer-name-only"),
        # tactics
        *("tactic", "tactic-named"),
        # options
        *("option", "option-tight", "option-unset"),
        # profile
        *("profile-row", "profile-row-first", "profile-record"),
    }
)
"""Patterns whose every field another part of the run keeps: there are many of each."""


class StatementsCollector:
    """Keeps the fields of messages as they were printed.

    Args:
        columns: names of a pattern's fields.
    """

    def __init__(self, columns: dict[str, tuple[str, ...]]) -> None:
        self._columns = columns
        self._rows: dict[str, list[tuple[str | int | float | None, ...]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, line: int, name: str, fields: Fields) -> None:
        """Keep a message that has fields."""
        if fields and name not in HOMES:
            self._count += 1
            self._rows.setdefault(name, []).append((line, *fields))

    def finish(self) -> dict[str, Statements]:
        """The tables, by name of their pattern."""
        return {
            name: Statements(columns=("line", *self._columns[name]), rows=tuple(rows))
            for name, rows in sorted(self._rows.items())
        }
