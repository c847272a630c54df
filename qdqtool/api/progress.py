"""Progress callbacks, cancellation, and errors with the names of the Python API."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from inspect import signature
from typing import ParamSpec, TypeVar

import qdqtool
from qdqtool.errors import Interrupted, QdqError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

ProgressCallback = Callable[[str, int, "int | None"], "bool | None"]
"""A function that gets the name of the step, the number of finished pieces, and their total (None: unknown).
If it returns False, the call is cancelled.
"""
ProgressInput = ProgressCallback | bool | None
"""A callback. True draws bars, None draws bars in a terminal or notebook, False draws none."""

_SET = re.compile(r"(?<![\w-])--set[ =](?:'([^']+)'|(\S+?)(?=[\s),;]|$))")
_SETS = re.compile(rf"{_SET.pattern}(?:\s{_SET.pattern})*")
# the value after an option belongs to it, but an ordinary word after an option does not
_OPTION = re.compile(
    r"(?<![\w-])--(?P<name>[a-z][a-z-]+)(?![\w-])(?:[ =](?=[\w'\"<])(?!(?:and|for|has|in|is|of|or|to|with)\b))?"
)
_COMMAND = re.compile(r"`qdqtool (?P<name>[a-z]+)`")
"""Matches a command without arguments. A command with arguments is a line to type."""
_SHAPES = re.compile(r"--min-shapes, --opt-shapes and --max-shapes")
_NAMES = {"set": "settings", "float": "to_float", "int8": "to_int8"}
"""Options whose argument in Python has another name."""


class Progress:
    """Reports progress to a callback; implements `ProgressListener` of the pipeline."""

    def __init__(self, tell: ProgressCallback | None) -> None:
        self._tell = tell
        self._step = ""

    def show(self, step: str, done: int, total: int | None) -> None:
        """Report that `done` of `total` pieces of `step` are finished.

        Raises:
            Interrupted: the callback asked to stop.
        """
        if self._tell is not None and self._tell(step, done, total) is False:
            raise Interrupted("cancelled by the progress callback", fix="call again to continue", where=step)

    def step(self, name: str) -> Callable[[int, int | None], None]:
        """Return a progress callback for the step with this name."""
        return lambda done, total: self.show(name, done, total)

    def started(self, step: str) -> None:
        """Begin the step with this name."""
        self._step = step
        self.show(step, 0, None)

    def progressed(self, done: int, total: int | None) -> None:
        """Report that `done` of `total` pieces of the current step are finished."""
        self.show(self._step, done, total)

    def reported(self, words: str) -> None:
        """Ignore a message of the pipeline, because the callback takes only counts; start the count of the step again."""
        del words
        self.show(self._step, 0, None)

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """End the current step."""
        del measured, skipped
        self.show(step, 1, 1)


@contextmanager
def showing(progress: ProgressInput) -> Iterator[Progress]:
    """Make a `Progress` from the `progress` argument of a call. Progress bars are removed when the context ends."""
    if callable(progress):
        yield Progress(progress)
        return
    if progress is not None and not isinstance(progress, bool):
        raise UsageError(
            f"the value cannot be of type {type(progress).__name__}",
            fix="pass a function (step, done, total), or True for progress bars",
            where="progress",
        )
    # in a notebook rich needs ipywidgets; without them it warns in every cell
    can_draw = "ipykernel" not in sys.modules or find_spec("ipywidgets") is not None
    is_watched = can_draw if "ipykernel" in sys.modules else sys.stderr is not None and sys.stderr.isatty()
    if progress is False or (progress is None and not is_watched):
        yield Progress(None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    tasks: dict[str, TaskID] = {}
    with Bars(
        console=Console(stderr=True, force_jupyter=None if can_draw else False), transient=True
    ) as bars:

        def draw(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield Progress(draw)


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Replace command-line options by argument names in the error messages of a call of the Python API."""
    parameters = frozenset(signature(function).parameters)

    shapes = "shapes=" if "shapes" in parameters else "settings build.min_shapes, .opt_shapes and .max_shapes"

    def argument(option: re.Match[str]) -> str:
        """Return the argument of the call that a command-line option stands for; unchanged if there is none."""
        name = _NAMES.get(option["name"], option["name"].replace("-", "_"))
        return f"{name}=" if name in parameters else option[0]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except QdqError as error:
            error.say(
                lambda text: _COMMAND.sub(
                    _call, _OPTION.sub(argument, _SHAPES.sub(shapes, _SETS.sub(_settings, text)))
                )
            )
            raise

    return call


def _settings(options: re.Match[str]) -> str:
    """Return `--set key=value` options in a message as the argument with the same meaning."""
    return f"settings={[quoted or bare for quoted, bare in _SET.findall(options[0])]!r}"


def _call(command: re.Match[str]) -> str:
    """Return a command in a message as the Python call with the same name, if there is one."""
    return f"`qdqtool.{command['name']}`" if command["name"] in qdqtool.__all__ else command[0]
