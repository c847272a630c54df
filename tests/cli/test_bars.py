"""A long step shows that it continues, also if standard error is not a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from io import StringIO

import pytest
from rich.console import Console

from qdqtool.cli import signs
from qdqtool.cli.app import COMMANDS, run
from qdqtool.cli.progress import Bars, SpeakingProgress


class Stream(StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "FIRST", 0.01)
    monkeypatch.setattr(signs, "EVERY", 0.02)


def spoken(
    monkeypatch: pytest.MonkeyPatch, done: int | None, total: int | None, *, is_terminal: bool = False
) -> str:
    """Standard error beside the bars of a step."""
    stream = Stream(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with (
        signs.of_life("sweep"),
        SpeakingProgress(console=Console(file=StringIO(), force_terminal=is_terminal)) as bars,
    ):
        bars.add_task("search", total=total, completed=done or 0)
        until = time.monotonic() + (0.1 if is_terminal else 5)
        while "search: " not in stream.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    return stream.getvalue()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("done", "total", "told"),
    [(30, 120, "search: 30 of 120 (25 %) after 0 s, about "), (None, None, "search: 0 s so far\n")],
)
def test_without_a_terminal_a_line_says_how_far_a_step_is_and_what_is_left(
    done: int | None, total: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told in spoken(monkeypatch, done, total)


def test_what_is_left_is_estimated_from_the_count_that_runs() -> None:
    """A step may count several times; slow parts before a count say nothing of it."""
    now = [0.0]
    bars = SpeakingProgress(console=Console(file=StringIO()), get_time=lambda: now[0], auto_refresh=False)
    task = bars.add_task("calibrate", total=None)
    for seconds, completed, total in ((0, 1, 97), (180, 97, 97), (200, 5, 60), (204, 20, 60)):
        now[0] = float(seconds)
        bars.update(task, completed=completed, total=total)
        (line,) = bars.lines()
        assert ("left" in line) == (seconds == 204)
        assert "calibrate: " in line
    assert line == "calibrate: 20 of 60 (33 %) after 3 min, about 11 s left"


@pytest.mark.usefixtures("quick")
def test_a_terminal_has_its_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "search" not in spoken(monkeypatch, None, None, is_terminal=True)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", COMMANDS.usable())
def test_every_command_gives_signs_of_life_until_it_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for the command only waits, so every sign comes from the program around it."""
    stream = Stream(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("qdqtool.cli.app.application", lambda: lambda *_, **__: time.sleep(0.15))
    assert run([name]) == 0
    told = stream.getvalue()
    assert told.startswith(f"  {name}: started\n")
    assert len(told.splitlines()) >= 2
    time.sleep(0.05)
    assert stream.getvalue() == told


def test_the_first_sign_in_a_pipe_comes_within_a_second_and_answers_stay_clean() -> None:
    """With the time that Python takes to start: from the call to the first byte."""
    code = (
        "import sys, time; from qdqtool.cli import app;"
        "app.application = lambda: lambda *_, **__: time.sleep(1.2); sys.exit(app.run(['run']))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"  run: started\n", found.stderr)
    assert found.stdout == ""
    assert signs.FIRST < 1.0
    assert signs.EVERY <= 3.0


def test_a_quick_command_says_nothing_but_its_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().err == ""


def test_a_step_ends_where_the_next_one_begins() -> None:
    bars = Bars()
    bars.show("float model", 0, None)
    bars.show("Pareto points", 1, 2)
    assert [line.partition(":")[0] for line in bars.display.lines()] == ["Pareto points"]
    bars.show("float model", 0, None)
    assert [line.partition(":")[0] for line in bars.display.lines()] == ["float model"]
