"""Part of the samples that a collection covers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from qdqtool.core.wording import counted
from qdqtool.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Span:
    """Every `shards`-th sample, starting with number `shard`; the first `done` of them were run.

    Attributes:
        shard: 0 to shards - 1.
        shards: into how many parts the samples are divided.
        total: how many samples there are in all parts together.
        done: how many samples of this part were run.
    """

    shard: int = 0
    shards: int = 1
    total: int = 0
    done: int = 0

    @property
    def positions(self) -> range:
        """Positions of this part among all samples."""
        return range(self.shard, self.total, self.shards)

    @property
    def left(self) -> range:
        """Positions that were not run yet."""
        return self.positions[self.done :]

    @property
    def is_complete(self) -> bool:
        """Whether all samples of this part were run."""
        return not self.left

    def __str__(self) -> str:
        part = f"shard {self.shard + 1}/{self.shards}, " if self.shards > 1 else ""
        return f"{part}{self.done} of {counted(len(self.positions), 'sample')}"


NOTHING: Final = Span()
"""Empty span without samples."""


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard such as "2/8", the second of eight, into its number (from 0) and the count.

    Raises:
        UsageError: not of that form.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    shard, shards = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= shard <= shards:
        raise UsageError(f"{text!r} is not a shard", fix="write it like 2/8: the second of eight")
    return shard - 1, shards
