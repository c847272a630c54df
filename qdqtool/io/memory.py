"""The memory budget for the content of input files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from qdqtool.errors import UsageError
from qdqtool.platform import free_memory

VARIABLE: Final = "QDQTOOL_MAX_MEMORY"
"""Environment variable with the budget; child processes inherit it."""
# Powers of two, as `ulimit` and Docker count.
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def budget() -> int:
    """Return the bytes that the content of input files may use: the user's limit, else the free memory.

    Readers compare sizes that a file declares with it before they allocate anything.

    Raises:
        UsageError: the environment variable holds no size.
    """
    given = os.environ.get(VARIABLE)
    return parse_size(given) if given else free_memory()


def is_stated() -> bool:
    """Return True if the user set the budget, and so is responsible for it."""
    return bool(os.environ.get(VARIABLE))


def budget_words(size: int) -> str:
    """Return the words for a budget in a message, after "more than"."""
    return f"the {size:,} allowed" if is_stated() else f"the {size:,} of free memory"


@contextmanager
def allowed(size: str | None) -> Iterator[None]:
    """Set the budget to `size` inside the block, also for child processes; None changes nothing.

    Raises:
        UsageError: it is not a size.
    """
    before = os.environ.get(VARIABLE)
    if size is not None:
        parse_size(size)
        os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if size is not None and before is None:
            del os.environ[VARIABLE]
        elif before is not None:
            os.environ[VARIABLE] = before


def parse_size(text: str) -> int:
    """Parse a size such as "8GiB" or "500M" into bytes; "1e9" is invalid.

    Raises:
        UsageError: the text is not a size above zero.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0
    if size > 0:
        return size
    raise UsageError(
        f"{text!r} is not a memory size", fix="write it like 8GiB or 500MiB", where="--max-memory"
    )
