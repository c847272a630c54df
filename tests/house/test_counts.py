"""A count and its noun agree: "1 finding", "2 findings"."""

from __future__ import annotations

import pytest

from qdqtool.core.wording import count_noun


@pytest.mark.parametrize("number", [0, 1, 2, 999, 1000, 12345])
def test_only_one_takes_the_singular(number: int) -> None:
    assert count_noun(number, "finding") == f"{number} finding" + ("" if number == 1 else "s")
    assert count_noun(number, "node was", "nodes were").split()[1:] == (
        ["node", "was"] if number == 1 else ["nodes", "were"]
    )
    assert count_noun(number, "line", grouped=True).split()[0] == f"{number:,}"
