"""Compiled loops: numba, loaded with the first call, with the machine code kept on disk if that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Return the function as machine code that runs without holding the interpreter lock.

    The code is kept on disk, next to the source file or in numba's own cache folder, so that only the first run on
    a machine pays for compiling. Where neither folder can be written it is compiled anew in every process;
    `cache_problem()` then says why. numba is loaded with the first call.
    """
    return cast("F", _Loop(function))


def cache_problem() -> str | None:
    """Why machine code cannot be kept on disk, or None when it can, or where no loop was needed."""
    return _problems[0] if _problems else None


class _Loop:
    """A function that is compiled when it is first called, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.loop(*arguments)

    @cached_property
    def loop(self) -> Any:
        """The function as numba runs it."""
        import numba

        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **options)(self.function)
        except RuntimeError as error:
            _problems.append(str(error))
            return numba.njit(**options)(self.function)

    @property
    def _numba_type_(self) -> Any:
        """What numba sees where another loop calls this one."""
        import numba

        return numba.typeof(self.loop)


_problems: list[str] = []
