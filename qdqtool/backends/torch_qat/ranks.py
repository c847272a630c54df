"""Shares data between the processes of a distributed training."""

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
    """Join the lists of all ranks in order; with one process, return `mine`."""
    if not _several():
        return mine
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, mine)
    return [entry for given in everyone for entry in given]


def from_first(make: Callable[[], T]) -> T:
    """Return the result of the first rank on all ranks.

    Its error is raised on all ranks, because they would wait forever otherwise.

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
