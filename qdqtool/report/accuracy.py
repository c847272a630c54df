"""Accuracy against the float model as lines of figures."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.comparison import Comparison
from qdqtool.core.wording import counted
from qdqtool.report import words

_SHOWN = 8
"""Outputs that are shown; the rest is counted."""


def accuracy_rows(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """A line per task metric and per output, with what the figures are worth."""
    caveat = words.accuracy_caveat(comparison)
    source = f"  [{caveat}]" if caveat else "  [measured]"
    for entry in comparison.task:
        verdict = "" if caveat else words.noise(entry)
        yield "Accuracy", f"{words.task(entry)}{f': {verdict}' if verdict else ''}{source}"
    for output in comparison.outputs[:_SHOWN]:
        yield "Output", f"{output.output}: {', '.join(map(words.measure, output.measures))}{source}"
        for part in (part for part in comparison.parts if part.output == output.output):
            yield "", f"{words.part(part)}{source}"
    if len(comparison.outputs) > _SHOWN:
        yield "Output", f"and {counted(len(comparison.outputs) - _SHOWN, 'more output')}"
