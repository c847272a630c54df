"""What `make test` leaves out is there, and says why."""

from __future__ import annotations

import pytest

from tests.conftest import HERE, OVER_MANY_GRAPHS, SLOW


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_file_exists_and_has_a_reason(name: str) -> None:
    assert (HERE / name).is_file()
    assert SLOW[name]


def test_every_law_of_which_a_share_is_taken_exists() -> None:
    text = "".join(path.read_text("utf-8") for path in HERE.glob("*/test_*.py"))
    assert not [name for name in OVER_MANY_GRAPHS if f"def {name}(" not in text]
