"""A long step shows that it goes on, also where standard error is no terminal."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from rich.console import Console

from qdqtool.cli.bars import SpeakingProgress


def spoken(done: int | None, total: int | None, *, is_terminal: bool = False) -> str:
    stream = StringIO()
    bars = SpeakingProgress(console=Console(file=stream, force_terminal=is_terminal), transient=True)
    bars.every = 0.01
    with bars:
        bar = bars.add_task("search", total=None)
        if done is not None:
            bars.update(bar, completed=done, total=total)
        until = time.monotonic() + 5
        while "search: " not in stream.getvalue() and time.monotonic() < until and not is_terminal:
            time.sleep(0.01)
        time.sleep(0.05 if is_terminal else 0)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("done", "total", "told"),
    [(30, 120, "search: 30 of 120 (25 %) after 0 s, about "), (None, None, "search: 0 s so far\n")],
)
def test_without_a_terminal_a_line_says_how_far_a_step_is_and_what_is_left(
    done: int | None, total: int | None, told: str
) -> None:
    assert told in spoken(done, total)


def test_a_terminal_has_its_bars() -> None:
    assert "so far" not in spoken(None, None, is_terminal=True)
