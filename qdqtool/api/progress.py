"""Progress callbacks, cancellation, and errors in the words of the Python API."""

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
"""Called with the step's name, how many pieces are done, and of how many (None: unknown). Returning False cancels."""
ProgressInput = ProgressCallback | bool | None
"""A callback; True draws bars; None draws them in a notebook only; False never."""

_SET = re.compile(r"(?<![\w-])--set[ =](?:'([^']+)'|(\S+?)(?=[\s),;]|$))")
_SETS = re.compile(rf"{_SET.pattern}(?:\s{_SET.pattern})*")
_OPTION = re.compile(r"(?<![\w-])--(?P<name>[a-z][a-z-]+)(?![\w-])(?:[ =](?=[\w'\"<]))?")
_COMMAND = re.compile(r"`qdqtool (?P<name>[a-z]+)`")
"""A command without arguments; one with some is a line to be typed."""
_SHAPES = re.compile(r"--min-shapes, --opt-shapes and --max-shapes")
_NAMES = {"set": "settings", "float": "to_float", "int8": "to_int8"}
"""Options whose argument is called otherwise."""


class Progress:
    """Tells a callback how far the work is, in the forms that the pipeline calls; implements `ProgressListener`."""

    def __init__(self, tell: ProgressCallback | None) -> None:
        self._tell = tell
        self._step = ""

    def show(self, step: str, done: int, total: int | None) -> None:
        """`done` of `total` pieces of `step` are finished.

        Raises:
            Interrupted: the callback asked to stop.
        """
        if self._tell is not None and self._tell(step, done, total) is False:
            raise Interrupted("cancelled by the progress callback", fix="call again to go on", where=step)

    def step(self, name: str) -> Callable[[int, int | None], None]:
        """A callback for one step."""
        return lambda done, total: self.show(name, done, total)

    def started(self, step: str) -> None:
        """The step begins."""
        self._step = step
        self.show(step, 0, None)

    def progressed(self, done: int, total: int | None) -> None:
        """`done` of `total` pieces of the current step are finished."""
        self.show(self._step, done, total)

    def said(self, words: str) -> None:
        """Words have no place in a callback: what is counted begins anew."""
        del words
        self.show(self._step, 0, None)

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """The step has ended."""
        del measured, skipped
        self.show(step, 1, 1)


@contextmanager
def showing(progress: ProgressInput) -> Iterator[Progress]:
    """A `Progress` for what the caller passed; bars are gone when the context ends."""
    if callable(progress):
        yield Progress(progress)
        return
    if progress is not None and not isinstance(progress, bool):
        raise UsageError(
            f"cannot be of type {type(progress).__name__}",
            fix="pass a function of step, pieces done and pieces in all, or True for bars",
            where="progress",
        )
    # rich draws in a notebook by ipywidgets, and without them warns in every cell
    can_draw = "ipykernel" not in sys.modules or find_spec("ipywidgets") is not None
    is_notebook = progress is None and "ipykernel" in sys.modules and can_draw
    if not (is_notebook or progress is True):
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
    """A call of the API: what goes wrong below is told with the names of its arguments instead of options."""
    known = frozenset(signature(function).parameters)

    shapes = "shapes=" if "shapes" in known else "settings build.min_shapes, .opt_shapes and .max_shapes"

    def argument(option: re.Match[str]) -> str:
        """An option as the argument of this call; what the call does not take stays as it is typed in a command."""
        name = _NAMES.get(option["name"], option["name"].replace("-", "_"))
        return f"{name}=" if name in known else option[0]

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
    """`--set key=value`, once or several times in a row, as the argument that says the same."""
    return f"settings={[quoted or bare for quoted, bare in _SET.findall(options[0])]!r}"


def _call(command: re.Match[str]) -> str:
    """A command as the call of the same name, where there is one."""
    return f"`qdqtool.{command['name']}`" if command["name"] in qdqtool.__all__ else command[0]
