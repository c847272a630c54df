"""What the processes of one distributed training have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

from qdqtool.errors import QdqError

T = TypeVar("T")


def _several() -> bool:
    return (
        distributed.is_available() and distributed.is_initialized() and int(distributed.get_world_size()) > 1
    )


def gathered(mine: list[T]) -> list[T]:
    """The lists of all ranks one after the other; mine alone where there is one process."""
    if not _several():
        return mine
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, mine)
    return [entry for given in everyone for entry in given]


def from_first(make: Callable[[], T]) -> T:
    """What the first rank makes, on all of them; its mistake is raised on all, which would wait for ever otherwise.

    Raises:
        QdqError: `make` raised it on the first rank.
    """
    if not _several():
        return make()
    box: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            box = [make()]
        except QdqError as error:
            box = [error]
    distributed.broadcast_object_list(box)
    made: Any = box[0]
    if isinstance(made, QdqError):
        raise made
    return made
