"""Turns the result of a data function into checked batches. A given epoch always has the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch

from qdqtool.backends.torch_qat.flat import map_tensors, tensors
from qdqtool.errors import InputFileError, UsageError

Batch = tuple[tuple[torch.Tensor, ...], Any]
"""Inputs, and targets (a tensor, or tensors in tuples, lists, dicts and dataclasses)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Shape of one sample and type of each input of a data source."""

    dims: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, inputs: tuple[torch.Tensor, ...]) -> Shape:
        """Return the shape and type of the inputs of a batch."""
        return cls(
            dims=tuple(tuple(value.shape[1:]) for value in inputs),
            dtypes=tuple(value.dtype for value in inputs),
        )


class Feed:
    """Batches of one part of the data: training, validation or test.

    The data function is called with the name of a split ("train", "validate", "test"). It returns a pair (inputs,
    targets) of arrays of equal length, a dataset of pairs with a length, or an iterable of batches (a DataLoader).
    Several inputs are a tuple. Targets may be any structure of tensors; in a pair of arrays they may be a dict.
    """

    def __init__(self, function: Callable[[str], Any], split: str, *, batch: int, seed: int) -> None:
        self.where = f'data("{split}")'
        self._source = function(split)
        self._batch = batch
        self._seed = seed
        self._shape: Shape | None = None
        self._promised: int | None = None
        self._arrays = _arrays(self._source, self.where)
        if self._arrays is None and not isinstance(self._source, Iterable) and not _is_map(self._source):
            raise UsageError(
                f"the function returns {type(self._source).__name__}, which contains no samples",
                fix="return a pair (inputs, targets), a dataset of pairs, or an iterable of batches",
                where=self.where,
            )

    def batches(self, epoch: int | None = None) -> Iterator[Batch]:
        """Yield all batches: in order, or shuffled for `epoch` if the source can be shuffled.

        Raises:
            InputFileError: a sample of another shape or type, NaN or Inf, no samples, or fewer batches than before.
        """
        count = 0
        for value in self._raw(epoch):
            yield self._check_batch(value, count)
            count += 1
        promised = self._promised
        if count == 0 or (promised is not None and count < promised):
            problem = (
                "the data source returned no samples"
                if count == 0
                else f"the data source ended after {count} of {promised} batches"
            )
            raise InputFileError(problem, fix="return the same samples in every pass", where=self.where)
        self._promised = count

    def __len__(self) -> int:
        """Return the number of batches in one pass. A stream without a length is read once to count its batches."""
        if self._promised is None:
            source = self._source
            if self._arrays is not None or _is_map(source):
                length = len(self._arrays[0][0]) if self._arrays is not None else len(source)
                self._promised = -(-length // self._batch)
            elif isinstance(source, Sized):
                self._promised = len(source)
            else:
                return sum(1 for _ in self.batches())
        return self._promised

    def first(self) -> Batch:
        """Return the first batch, without shuffling."""
        for batch in self.batches():
            return batch
        raise InputFileError(
            "the data source returned no samples", fix="return at least one batch", where=self.where
        )

    def gathered(self, limit: int | None = None) -> tuple[tuple[Any, ...], Any]:
        """Return inputs and targets of the first `limit` samples as numpy arrays; None for targets in a structure."""
        inputs, targets, count = [], [], 0
        for values, target in self.batches():
            inputs.append(values)
            targets.append(target)
            count += len(values[0])
            if limit is not None and count >= limit:
                break
        columns = tuple(torch.cat(column)[:limit].numpy() for column in zip(*inputs, strict=True))
        is_tensor = all(isinstance(target, torch.Tensor) for target in targets)
        return columns, torch.cat(targets)[:limit].numpy() if is_tensor else None

    def _raw(self, epoch: int | None) -> Iterator[Any]:
        if self._arrays is None and not _is_map(self._source):
            yield from self._source
            return
        length = len(self._arrays[0][0]) if self._arrays is not None else len(self._source)
        order = torch.arange(length)
        if epoch is not None:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(self._seed + epoch))
        for start in range(0, length, self._batch):
            rows = order[start : start + self._batch]
            yield self._rows(rows) if self._arrays is not None else self._pick_rows(rows)

    def _rows(self, rows: torch.Tensor) -> Any:
        assert self._arrays is not None
        inputs, targets = self._arrays
        return tuple(value[rows] for value in inputs), map_tensors(targets, lambda value: value[rows])

    def _pick_rows(self, rows: torch.Tensor) -> Any:
        pairs = [self._source[int(row)] for row in rows]
        try:
            columns = [_tuple(inputs) for inputs, _ in pairs]
            inputs = tuple(
                torch.stack([torch.as_tensor(v) for v in column]) for column in zip(*columns, strict=True)
            )
            return inputs, torch.utils.data.default_collate([target for _, target in pairs])
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputFileError(
                f"the samples cannot be stacked into a batch: {error}",
                fix="return samples of one shape",
                where=self.where,
            ) from error

    def _check_batch(self, value: Any, number: int) -> Batch:
        where = f"{self.where}, batch {number}"
        if not isinstance(value, Sequence) or len(value) != 2:
            raise InputFileError(
                "the batch is not a pair (inputs, targets)", fix="return pairs (inputs, targets)", where=where
            )
        inputs = tuple(torch.as_tensor(entry) for entry in _tuple(value[0]))
        targets = _as_tensors(value[1])
        if not _equally_long(inputs, targets):
            raise InputFileError(
                "the batch has inputs and targets of different length",
                fix="return pairs (inputs, targets)",
                where=where,
            )
        self._check_shape(Shape.of(inputs), where)
        if not all(bool(torch.isfinite(entry).all()) for entry in inputs if entry.is_floating_point()):
            raise InputFileError(
                "the batch holds NaN or Inf", fix="remove or correct these samples", where=where
            )
        return inputs, targets

    def _check_shape(self, shape: Shape, where: str) -> None:
        first = self._shape
        if first is None:
            self._shape = shape
        elif shape != first:
            raise InputFileError(
                f"the batch has samples of shape {shape.dims} and type {shape.dtypes}, but the first ones have {first.dims} "
                f"and {first.dtypes}",
                fix="return samples of one shape and type",
                where=where,
            )


def _arrays(source: Any, where: str) -> tuple[tuple[torch.Tensor, ...], Any] | None:
    """Return a pair (inputs, targets) of arrays as tensors; None if `source` is no such pair."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        return None
    if not hasattr(source[1], "shape") and not isinstance(source[1], Mapping):
        return None
    inputs = tuple(torch.as_tensor(value) for value in _tuple(source[0]))
    targets = _as_tensors(source[1])
    if not _equally_long(inputs, targets):
        lengths = [[len(value) if value.ndim else 1 for value in tensors(each)] for each in (inputs, targets)]
        raise InputFileError(
            f"the data has {lengths[0]} inputs for {', '.join(map(str, lengths[1]))} targets",
            fix="return one target per sample",
            where=where,
        )
    return inputs, targets


def _as_tensors(targets: Any) -> Any:
    """Convert the arrays and numbers in a structure to tensors. A list of numbers becomes one tensor."""
    if isinstance(targets, Mapping):
        return {name: _as_tensors(value) for name, value in targets.items()}
    if isinstance(targets, (tuple, list)) and any(
        hasattr(value, "shape") and value.shape for value in targets
    ):
        return tuple(map(_as_tensors, targets))
    return targets if tensors(targets) else torch.as_tensor(targets)


def _equally_long(inputs: tuple[torch.Tensor, ...], targets: Any) -> bool:
    """Return True if all inputs, and targets in a single tensor, have the same number of samples.

    Targets in a structure, such as a detector's boxes, may have any length.
    """
    counts = {len(value) if value.ndim else -1 for value in inputs}
    if isinstance(targets, torch.Tensor):
        counts.add(len(targets) if targets.ndim else -1)
    return len(counts) == 1 and -1 not in counts


def _is_map(source: Any) -> bool:
    """Return True if `source` is a dataset with one (inputs, target) pair per index. A list counts as batches."""
    return (
        hasattr(source, "__getitem__") and isinstance(source, Sized) and not isinstance(source, (list, tuple))
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
