"""Samples from Python objects: arrays, feeds, data loaders, calibration readers, or a function that returns them.

The type of an object decides how it is read. A mapping is one feed by input name. An array or tensor feeds the only
input. A tuple or list holds the inputs in the model's order, and may end with the label. An array with the rank of
the model's input and several rows is a batch, and every row is a sample, as in batches of a `torch` DataLoader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.conform import NUMPY_TYPES, RawSample, without_batch
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.plugins import resolve

# --- objects ---------------------------------------------------------------------------------------------------------

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleObjects:
    """Samples in memory, not yet fitted to a model.

    Attributes:
        give: starts a pass over the items; every call gives equal items.
        description: description of the samples.
        generator: Polygraphy's own DataLoader, which draws random numbers for given inputs; otherwise None.
        name: name of each sample, before its number.
    """

    give: Callable[[], Iterable[Any]]
    description: str
    generator: Any = None
    name: str = "samples"

    def source(self, inputs: tuple[TensorInfo, ...]) -> ObjectSource:
        """Return the samples as a source for a model with these inputs."""
        return ObjectSource(self, inputs)


def sample_objects(value: object) -> SampleObjects:
    """Wrap a caller's samples so that they can be read repeatedly.

    A generator or another iterator can be read once only, so its items are kept in memory.

    Raises:
        UsageError: the value cannot be read as samples.
    """
    kind = type(value).__name__
    if hasattr(value, "get_next"):
        return _stored_items(_read_out(value), kind)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return SampleObjects(give=lambda: [value], description=f"array of shape {tuple(np.shape(value))}")
    if isinstance(value, Mapping):
        return SampleObjects(give=lambda: [value], description="arrays " + ", ".join(map(str, value)))
    if isinstance(value, Iterator):
        return _stored_items(value, kind)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return SampleObjects(give=lambda: value, description=kind)
    if callable(value):
        return _wrap_function(value)
    if hasattr(value, "__getitem__"):
        generator = value if type(value).__module__ == "polygraphy.comparator.data_loader" else None
        return SampleObjects(give=lambda: _by_number(value), description=kind, generator=generator)
    raise UsageError(
        f"samples cannot be read from {kind}",
        fix="pass arrays, dicts of arrays, a data loader, a calibration data reader, a function that returns one, or a path",
        where="samples",
    )


def _by_number(indexed: Any) -> Iterator[Any]:
    """Return the items of an object without an iterator, by index.

    Torch data sets have a length; Polygraphy's loaders end with an IndexError.
    """
    if hasattr(indexed, "__len__"):
        return (indexed[place] for place in range(len(indexed)))
    return iter(indexed)


def _wrap_function(function: Callable[[], Any]) -> SampleObjects:
    """Wrap a function that returns samples. The function is called again for every pass."""
    name = getattr(function, "__name__", type(function).__name__)

    def give() -> Iterable[Any]:
        return sample_objects(_call_guarded(function, name)).give()

    return SampleObjects(give=give, description=f"function {name}")


def _call_guarded(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise _report_failure(name, error) from error


def _report_failure(name: str, error: Exception) -> InputFileError:
    return InputFileError(
        f"the code raises {type(error).__name__}: {error}",
        fix="correct the code that returns the samples",
        where=name,
    )


def _stored_items(items: Iterable[Any], kind: str) -> SampleObjects:
    # Opened here and not at the call, so that nothing is opened unless it is read.
    kept: list[Any] = []
    iterator = iter(items)

    def give() -> Iterator[Any]:
        yield from kept
        for item in iterator:
            kept.append(item)
            yield item

    return SampleObjects(give=give, description=kind)


def _read_out(reader: Any) -> Iterator[Any]:
    """Yield all remaining samples of an onnxruntime CalibrationDataReader."""
    while (feed := reader.get_next()) is not None:
        yield feed


class ObjectSource:
    """Source that reads Python objects as samples, one by one."""

    def __init__(self, objects: SampleObjects, inputs: tuple[TensorInfo, ...]) -> None:
        self.description = objects.description
        self.meaningful = objects.generator is None
        self._objects = objects
        self._inputs = inputs
        self._count: int | None = None
        self._digest = ""

    def digest(self) -> str:
        """Return the digest of all values, by which a run folder recognizes these samples."""
        len(self)
        return self._digest

    def __len__(self) -> int:
        if self._count is None:
            sha, count = hashlib.sha256(), 0
            for raw in self._all():
                count += 1
                for name in sorted(raw.arrays):
                    array = np.ascontiguousarray(raw.arrays[name])
                    sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
                    sha.update(array.tobytes())
            self._count, self._digest = count, f"{count}:{sha.hexdigest()}"
        return self._count

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        positions = iter(numbers)
        number = next(positions, None)
        for position, raw in enumerate(self._all()):
            if number is None:
                return
            if position == number:
                yield raw
                number = next(positions, None)
        if number is not None:
            raise InputFileError(
                f"the data source gave fewer samples than before: number {number} is missing",
                fix="return the same samples in every pass",
                where=self.description,
            )

    def _all(self) -> Iterator[RawSample]:
        number = 0
        for item in self._items():
            feeds, labels = self._split(item, number)
            for row, arrays in enumerate(_rows(feeds, self._inputs)):
                label = None if labels is None or row >= len(labels) else int(labels[row])
                yield RawSample(name=f"{self._objects.name}[{number}]", arrays=arrays, label=label)
                number += 1

    def _items(self) -> Iterator[Any]:
        if self._objects.generator is not None:
            _set_inputs(self._objects.generator, self._inputs)
        try:
            yield from self._objects.give()
        except (InputFileError, UsageError):
            raise
        except Exception as error:
            raise _report_failure(self.description, error) from error

    def _split(self, item: Any, number: int) -> tuple[Arrays, NDArray[Any] | None]:
        """Split one item into arrays by input, and labels if it contains any."""
        names = [info.name for info in self._inputs]
        if isinstance(item, Mapping):
            feeds = {str(name): as_array(value) for name, value in item.items()}
            return feeds, _labels_in(feeds, names)
        if isinstance(item, (tuple, list)) and not _is_numbers(item):
            arrays = [as_array(value) for value in item]
            labels = None
            if len(arrays) == len(names) + 1:
                labels = _class_indices(arrays.pop())
            if len(arrays) == len(names):
                return dict(zip(names, arrays, strict=True)), labels
        elif len(names) == 1:
            return {names[0]: as_array(item)}, None
        raise UsageError(
            f"sample {number} is {_describe_item(item)}, and the model has {count_noun(len(names), 'input')}",
            fix=f"give a dict of arrays with the keys {', '.join(names)}",
            where="samples",
        )


def _set_inputs(loader: Any, inputs: tuple[TensorInfo, ...]) -> None:
    """Set the inputs of Polygraphy's DataLoader, as Polygraphy's runners do before every pass."""
    from polygraphy.common import TensorMetadata

    metadata = TensorMetadata()
    for info in inputs:
        shape = None if info.shape is None else [dim if isinstance(dim, int) else -1 for dim in info.shape]
        metadata.add(info.name, NUMPY_TYPES.get(info.dtype), shape)
    loader.input_metadata = metadata


def as_array(value: Any) -> NDArray[Any]:
    """Convert the value to a NumPy array. Tensors of any device and type are copied to the CPU."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        array = np.asarray(value)
    except (
        Exception
    ) as error:  # sparse tensors, tensors without storage, lists of unequal length, arrays of other libraries
        raise UsageError(
            f"{type(value).__name__} cannot be read as an array: {' '.join(str(error).split())[:200]}",
            fix="pass numpy arrays",
            where="samples",
        ) from error
    if array.dtype == object:
        raise UsageError(
            f"{type(value).__name__} is not an array of numbers", fix="pass numpy arrays", where="samples"
        )
    return array


def _labels_in(feeds: dict[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any] | None:
    """Remove class indices from a feed, and return them; None if the feed has no class indices."""
    for key in ("labels", "label", "y"):
        if key in feeds and key not in names:
            return _class_indices(feeds.pop(key))
    return None


def _class_indices(array: NDArray[Any]) -> NDArray[Any] | None:
    return array.reshape(-1) if array.dtype.kind in "iu" and array.ndim <= 1 else None


def _is_numbers(item: Sequence[Any]) -> bool:
    return bool(item) and all(isinstance(entry, (int, float)) for entry in item)


def _rows(feeds: Arrays, inputs: tuple[TensorInfo, ...]) -> Iterator[Arrays]:
    """Yield the samples in an item of a data source. An array with the rank of the input is a batch of samples.

    Arrays that feed no input decide nothing, and rows of a batch leave them out.
    """
    ranks = {info.name: len(info.shape or ()) for info in inputs}
    fed = {name: array for name, array in feeds.items() if name in ranks}
    batched = {name for name, array in fed.items() if array.ndim and array.ndim == ranks[name]}
    batched -= without_batch(inputs)
    counts = {fed[name].shape[0] for name in batched}
    is_batch = len(counts) == 1 and all(name in batched or not array.ndim for name, array in fed.items())
    if not is_batch:
        yield feeds
        return
    for row in range(counts.pop()):
        yield {name: array[row : row + 1] if name in batched else array for name, array in fed.items()}


def _describe_item(item: object) -> str:
    return f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")


# --- callables by name -----------------------------------------------------------------------------------------------
# Samples from a Python callable, named as "module:function" or "file.py:function".
#
# The function takes nothing and returns an iterable of items as above. It is called again for every pass, so it must
# return equal samples each time.


def code(text: str) -> SampleObjects:
    """Return the samples that the Python function named by `text` returns.

    Raises:
        UsageError: there is no such module or function.
    """
    return SampleObjects(give=resolve(text, Path(), text), description=f"Python function {text}", name=text)
