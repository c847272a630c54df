"""Device memory for the inputs of a network, with cuda-python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from calibrators.error import CalibrationDataError


class DeviceBuffers:
    """One block of GPU memory for each input, reused for every batch."""

    def __init__(self) -> None:
        self._pieces: dict[str, _DevicePiece] = {}

    def upload(self, name: str, array: NDArray[Any]) -> int:
        """Return the device address of the values of `array`, which must be C-contiguous.

        Raises:
            CalibrationDataError: CUDA refuses.
        """
        piece = self._pieces.get(name)
        if piece is None or piece.size < array.nbytes:
            if piece is not None:
                self._pieces.pop(name).free()
            piece = self._pieces[name] = _DevicePiece(array.nbytes)
        piece.copy(array)
        return piece.address

    def free(self) -> None:
        """Free all device memory.

        Raises:
            CalibrationDataError: CUDA refuses.
        """
        while self._pieces:
            self._pieces.popitem()[1].free()


class _DevicePiece:
    def __init__(self, size: int) -> None:
        self._cuda = _cuda()
        self.size = size
        self.address = int(_checked(self._cuda.cudaMalloc(max(size, 1)))[0])

    def copy(self, array: NDArray[Any]) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        _checked(self._cuda.cudaMemcpy(self.address, array.ctypes.data, array.nbytes, kind))

    def free(self) -> None:
        _checked(self._cuda.cudaFree(self.address))


def _cuda() -> Any:
    """Return the CUDA runtime module of cuda-python, under its new or its old name."""
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError:
        return import_module("cuda.cudart")


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = answer
    if int(status) != 0:
        raise CalibrationDataError(f"CUDA refused: {status}")
    return tuple(values)
