"""A count and its noun agree: "1 finding", "2 findings"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtool.core.wording import counted

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "qdqtool").rglob("*.py"))
LOWER = ("io", "platform")
"""Packages below the one that `counted` stands in."""
COUNT = re.compile(
    r"(len|sum|abs)\(.*\)$|(.*[._])?(count|total|number|nodes|kernels|samples|lines|entries|half|more)$"
)
NOUNS = re.compile(r" ((?:[\w/-]+ )?)([A-Za-z]{3,}s)\b(?! (?:of|in) \w+ms\b)")
NO_NOUNS = {
    "has",
    "was",
    "this",
    "its",
    "does",
    "less",
    "holds",
    "reads",
    "takes",
    "needs",
    "axis",
    "bias",
    "class",
}
PREPOSITIONS = {"of", "in", "on", "to", "or", "and", "is", "are", "run", "no", "it", "that", "with"}


def unagreed(text: str) -> Iterator[str]:
    """Counts in f-strings that stand in front of a noun in the plural."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for field, words in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(field, ast.FormattedValue) and isinstance(words, ast.Constant)):
                continue
            value, found = ast.unparse(field.value), NOUNS.match(str(words.value))
            if found is None or not COUNT.match(value) or value.isupper():
                continue
            if found[2] not in NO_NOUNS and found[1].strip() not in PREPOSITIONS:
                yield f"{node.lineno}: {{{value}}}{found[0]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_counts_are_told_by_the_one_function(path: Path) -> None:
    if path.relative_to(ROOT).parts[1] in LOWER:
        pytest.skip("stands below the function")
    assert not list(unagreed(path.read_text("utf-8")))


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ('f"{len(found)} findings"', True),
        ('f"wrote {out}: {count} open nodes, {x}"', True),
        ('f"{run.lines:,} lines"', True),
        ("f\"{counted(len(found), 'finding')}\"", False),
        ('f"{path} holds nothing"', False),
        ('f"{MOST} lines at most"', False),
        ('f"{len(part)} of {whole}"', False),
    ],
)
def test_the_search_finds_counts_and_nothing_else(code: str, is_wrong: bool) -> None:
    assert bool(list(unagreed(code))) == is_wrong


@pytest.mark.parametrize("number", [0, 1, 2, 999, 1000, 12345])
def test_one_is_told_otherwise_than_all_other_numbers(number: int) -> None:
    assert counted(number, "finding") == f"{number} finding" + ("" if number == 1 else "s")
    assert counted(number, "node was", "nodes were").split()[1:] == (
        ["node", "was"] if number == 1 else ["nodes", "were"]
    )
    assert counted(number, "line", grouped=True).split()[0] == f"{number:,}"
