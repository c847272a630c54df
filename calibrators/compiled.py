"""Compiled loops: numba, with the machine code kept on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The same function as machine code that runs without holding the interpreter lock.

    The code is kept on disk, next to the source file or in numba's own cache folder, so that only the first run on
    a machine pays for compiling. Where neither folder can be written it is compiled anew in every process;
    `cache_problem()` then says why.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError as error:
        _problems.append(str(error))
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


def cache_problem() -> str | None:
    """Why machine code cannot be kept on disk, or None when it can."""
    return _problems[0] if _problems else None


_problems: list[str] = []
