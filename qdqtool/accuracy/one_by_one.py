"""Two large models over the same samples, one after the other: only one of them is in memory at a time.

A session takes as much memory as the float weights, also where the file holds few bits, since onnxruntime folds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.pairing import feeds_for
from qdqtool.accuracy.stored.player import Outputs, Player
from qdqtool.core.protocols import Runner, SampleSource
from qdqtool.platform import give_back


class _OnDisk(Sequence[Outputs]):
    """Outputs of samples by number, each in a file of its own."""

    def __init__(self, folder: Path, names: tuple[str, ...], count: int) -> None:
        self._folder, self._names, self._count = folder, names, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Outputs: ...
    @overload
    def __getitem__(self, number: slice) -> list[Outputs]: ...
    def __getitem__(self, number: int | slice) -> Outputs | list[Outputs]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(self._count))]
        if not 0 <= number < self._count:
            raise IndexError(number)
        with np.load(_file(self._folder, number)) as held:
            return dict(
                zip(self._names, (held[str(index)] for index in range(len(self._names))), strict=True)
            )


def recorded(open_it: Callable[[], Runner], samples: SampleSource, limit: int | None, folder: Path) -> Runner:
    """What a model gives for the samples, kept in `folder` and played back in their order; the model is closed by then.

    Raises:
        InputFileError: a sample lacks an input, or the model fails on it.
    """
    runner = open_it()
    count = 0
    for sample in islice(samples, limit):
        given = runner.run(feeds_for(runner, sample))
        arrays: dict[str, NDArray[Any]] = {
            str(index): given[name] for index, name in enumerate(runner.outputs)
        }
        np.savez(_file(folder, count), **arrays)  # type: ignore[arg-type]
        count += 1
    outputs, description = runner.outputs, runner.description
    if not count:
        return runner
    del runner
    give_back()
    return Player(_OnDisk(folder, outputs, count), description)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.npz"
