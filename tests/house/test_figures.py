"""Docstrings state no measured figure of this tool: what is stated is measured again by `make figures`, or it is not stated.

A figure is a number with a unit of what was measured: decibels, milliseconds, nanoseconds, points, or "times faster". Allowed are
bounds that the code itself holds ("more than 0.3 dB", "below 15 dB"), and what was learned of TensorRT from builds and logs, whose
evidence the same docstring names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FIGURE = re.compile(
    r"\d[\d.]*\s(?:dB|ms|ns)\b(?! and more)|\b\d[\d.]* (?:times|%) (?:faster|slower|longer|as long|quieter|noisier)"
)
_BOUND = re.compile(
    r"(?:more than|less than|at least|at most|below|above|beyond|within|behind|[Ee]very|each|to|and) $|(?:^|[`(\"'|,:] ?)$"
)
_OF_TENSORRT = re.compile(r"TensorRT|RTX|Evidence|trtexec|Orin")


def figures(source: str) -> Iterator[str]:
    """The measured figures in the docstrings of a file, each with the words before it."""
    for node in ast.walk(ast.parse(source)):
        for each in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                continue
            text = " ".join(re.sub(r"`[^`]*`", "", str(each.value.value)).split())
            if _OF_TENSORRT.search(text):
                continue
            for match in _FIGURE.finditer(text):
                before = text[max(0, match.start() - 40) : match.start()]
                if not _BOUND.search(before):
                    yield f"{before}{match[0]}"


def test_docstrings_state_no_figure_that_nothing_measures() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {figure}"
        for package in ("qdqtool", "calibrators")
        for path in sorted((ROOT / package).rglob("*.py"))
        for figure in figures(path.read_text("utf-8"))
    }
    assert found == set()


def test_a_measured_figure_is_seen() -> None:
    assert len(list(figures('def f():\n    """Costs MobileNet 1.4 dB."""'))) == 1
    assert len(list(figures('X = 1\n"""It ran 6 times faster."""'))) == 1
    assert list(figures('X = 1\n"""Kept where it gains more than 0.3 dB."""')) == []
    assert list(figures('X = 1\n"""Evidence: RTX 1.7.1: 0.3 ms."""')) == []
