"""Compiled loops: numba, loaded at the first call. The machine code is kept on disk if possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Return the function as machine code that runs without holding the interpreter lock.

    The code is kept on disk, next to the source file or in numba's own cache folder, so that only the first run on a
    machine pays for compiling. If neither folder can be written it is compiled again in every process; `cache_problem()`
    then says why. numba is loaded with the first call.
    """
    return cast("F", _Loop(function))


def cache_problem() -> str | None:
    """Return why machine code cannot be kept on disk; None if it can, or if no loop was needed."""
    return _problems[0] if _problems else None


class _Loop:
    """A function that is compiled at its first call, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.loop(*arguments)

    @cached_property
    def loop(self) -> Any:
        """Return the function that numba compiled."""
        import numba

        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **options)(self.function)
        except RuntimeError as error:
            _problems.append(str(error))
            return numba.njit(**options)(self.function)

    @property
    def _numba_type_(self) -> Any:
        """Return the type that numba uses if another loop calls this one."""
        import numba

        return numba.typeof(self.loop)


_problems: list[str] = []
