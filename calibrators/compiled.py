"""Compiled loops: numba, loaded when a job is worth it, with the machine code kept on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])
SMALL: Final = 1 << 16
"""Elements up to which the form of a loop without numba may be taken."""
_CALL: Final = 1 << 12
"""What calling NumPy a few times costs, in elements."""
_BUDGET: Final = 1 << 25
"""Elements in all calls after which loading numba (0.4 s) is cheaper than to go on without."""


def compiled(function: F) -> F:
    """The same function as machine code that runs without holding the interpreter lock.

    The code is kept on disk, next to the source file or in numba's own cache folder, so that only the first run on
    a machine pays for compiling. Where neither folder can be written it is compiled anew in every process;
    `cache_problem()` then says why. numba is loaded with the first call.
    """
    return cast("F", _Loop(function, None))


def compiled_beyond(small: Callable[..., Any]) -> Callable[[F], F]:
    """The same, but `small` takes its place until this process has done work enough to load numba for.

    Both forms must give the same bits. The size of a call is that of its first argument; where `small` returns
    `NotImplemented` it has changed nothing, and the loop does the work.
    """

    def decorated(function: F) -> F:
        return cast("F", _Loop(function, small))

    return decorated


def interpreted(function: F) -> F:
    """The function as it was written, for a few values; loops that it calls are compiled."""
    return cast("F", vars(function)["function"])


def cache_problem() -> str | None:
    """Why machine code cannot be kept on disk, or None when it can, or where no loop was needed."""
    return _problems[0] if _problems else None


class _Loop:
    """A function that is compiled when it is first called, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any], small: Callable[..., Any] | None) -> None:
        update_wrapper(self, function)
        self.function = function
        self.small = small

    def __call__(self, *arguments: Any) -> Any:
        if self.small is not None and _is_affordable(arguments[0].size):
            found = self.small(*arguments)
            if found is not NotImplemented:
                return found
        return self.loop(*arguments)

    @cached_property
    def loop(self) -> Any:
        """The function as numba runs it."""
        import numba

        _spent[0] = _BUDGET  # it is loaded now
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


def _is_affordable(size: int) -> bool:
    if size > SMALL or _spent[0] >= _BUDGET:
        return False
    _spent[0] += _CALL + size
    return True


_spent = [0]
"""Elements that were handled without numba."""
_problems: list[str] = []
