"""A model that is compared with one candidate after the other on the same samples, and runs each sample once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.protocols import Feeds, Runner
from qdqtool.core.tensors import TensorInfo


class Remembered:
    """A runner that keeps what it gave, by the content of what it was fed; several threads may run it.

    Args:
        open_it: opens the model.
        room: bytes of outputs to keep; what does not fit is run whenever it is asked for.
    """

    def __init__(self, open_it: Callable[[], Runner], room: int) -> None:
        self._open: Callable[[], Runner] | None = open_it
        self._room = room
        self._kept: dict[bytes, Mapping[str, NDArray[Any]]] = {}
        self._lock = Lock()
        runner = open_it()
        self._runner: Runner | None = runner
        self.description: str = runner.description
        self.inputs: tuple[TensorInfo, ...] = runner.inputs
        self.outputs: tuple[str, ...] = runner.outputs
        self.at_once: int = runner.at_once

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """One array per output.

        Raises:
            InputFileError: the model fails on these feeds.
        """
        key = self._key(feeds)
        known = self._kept.get(key)
        if known is not None:
            return dict(known)
        found = self._opened().run(feeds)
        size = sum(value.nbytes for value in found.values())
        with self._lock:
            if key not in self._kept and size <= self._room:
                self._room -= size
                self._kept[key] = {name: _lasting(value) for name, value in found.items()}
        return found

    def close(self) -> None:
        """Give back the session, and what opens it; what is kept stays."""
        self._runner = self._open = None

    def reopen(self, open_it: Callable[[], Runner]) -> None:
        """Take this from now on where something is to be run that is not kept."""
        self._open = open_it

    def _opened(self) -> Runner:
        with self._lock:
            if self._runner is None:
                assert self._open is not None, "is closed"
                self._runner = self._open()
            return self._runner

    def _key(self, feeds: Feeds) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(info.name for info in self.inputs):
            value = np.ascontiguousarray(feeds[name])
            digest.update(f"{name} {value.dtype} {value.shape} ".encode())
            # text is an array of references
            digest.update(
                repr(value.tolist()).encode() if value.dtype.hasobject else value.view(np.uint8).data
            )
        return digest.digest()


def _lasting(value: NDArray[Any]) -> NDArray[Any]:
    """A copy that nobody changes; the array itself may lie in the session's memory."""
    copy = np.array(value)
    copy.flags.writeable = False
    return copy
