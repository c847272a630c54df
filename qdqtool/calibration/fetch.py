"""Reading intermediate values out of onnxruntime without copying them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.session import failures, first_line
from qdqtool.core.protocols import Feeds
from qdqtool.errors import InputFileError


class Fetcher:
    """Runs a session and shows chosen outputs; one per thread, all on the same session.

    The outputs are written into memory that is used again for the next run of the same input shapes. Values that a
    run returned are therefore gone with the next run.
    """

    def __init__(self, session: Any, tensors: tuple[str, ...]) -> None:
        self._session = session
        self._tensors = tensors
        self._inputs = tuple(entry.name for entry in session.get_inputs())
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._buffers: list[NDArray[Any]] = []
        self._is_steady = True

    def run(self, feeds: Feeds, where: str) -> Iterator[tuple[str, NDArray[Any]]]:
        """The fetched tensors and their values.

        Raises:
            InputFileError: the model cannot run on this sample.
        """
        shapes = tuple(feeds[name].shape for name in self._inputs)
        try:
            if not self._is_steady or shapes != self._shapes:
                values = self._measured(feeds, shapes)
            else:
                values = self._bound(feeds)
        except failures() as error:
            raise InputFileError(
                f"the model cannot run on this sample: {first_line(error)}",
                fix="check the sample's shapes and values, and that the float model runs in onnxruntime",
                where=where,
            ) from error
        return zip(self._tensors, values, strict=True)

    def _measured(self, feeds: Feeds, shapes: tuple[tuple[int, ...], ...]) -> list[NDArray[Any]]:
        """Run with outputs of unknown shape; remember the shapes for the next run."""
        values: list[NDArray[Any]] = self._session.run(
            list(self._tensors), {name: feeds[name] for name in self._inputs}
        )
        self._shapes = shapes
        self._buffers = [np.empty_like(value, order="C") for value in values] if self._is_steady else []
        return values

    def _bound(self, feeds: Feeds) -> list[NDArray[Any]]:
        """Run into the buffers; a tensor whose shape depends on the data ends the use of buffers."""
        binding = self._session.io_binding()
        for name in self._inputs:
            binding.bind_cpu_input(name, feeds[name])
        for name, buffer in zip(self._tensors, self._buffers, strict=True):
            binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except failures():
            self._is_steady = False
            return self._measured(feeds, self._shapes or ())
        return self._buffers
