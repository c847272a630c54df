"""The list of slow test files: each is there, and says why."""

from __future__ import annotations

import pytest

from tests.conftest import HERE, SLOW


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_file_exists_and_has_a_reason(name: str) -> None:
    assert (HERE / name).is_file()
    assert SLOW[name]
