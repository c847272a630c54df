"""Parts of outputs stand on the page and on the terminal, each with its own figure."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from qdqtool.core.comparison import PartComparison
from qdqtool.report.assemble import assemble
from qdqtool.report.html import render
from qdqtool.report.words import accuracy_rows
from tests.report.material import EVIL, FULL

PARTS = (
    PartComparison(output="y", tensors=("boxes",), chosen=False, sqnr_db=37.21),
    PartComparison(output="y", tensors=("scores", "more"), chosen=False, sqnr_db=11.84),
    PartComparison(output="z", tensors=(EVIL,), chosen=True, sqnr_db=None, note="no difference"),
)


def test_the_page_tells_each_part() -> None:
    comparison = assemble(FULL).comparison
    assert comparison is not None
    page = render(replace(assemble(FULL), comparison=replace(comparison, parts=PARTS)))
    table = page[page.index("Parts of outputs") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    told = [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row.split("</td>")] for row in rows[1:]]
    assert [row[0] for row in told] == ["y", "y", "z"]
    assert [row[1] for row in told[:2]] == ["37.21 dB", "11.84 dB"]
    assert [row[2] for row in told] == ["boxes", "scores, more", f"chosen from {EVIL}"]
    assert EVIL not in page
    assert "Parts of outputs" not in render(assemble(FULL))


def test_the_terminal_tells_them_behind_their_output() -> None:
    comparison = assemble(FULL).comparison
    assert comparison is not None
    first = comparison.outputs[0]
    found = replace(comparison, outputs=(replace(first, output="y"), replace(first, output="z")), parts=PARTS)
    told = [text.partition("  [")[0] for head, text in accuracy_rows(found) if head != "Accuracy"]
    assert told[1:3] == [
        "y contains boxes: SQNR 37.21 dB",
        "y contains scores and 1 more feature map: SQNR 11.84 dB",
    ]
    assert told[4] == f"z was chosen from {EVIL}: SQNR: no difference"
