"""The few calls of the CUDA driver API that timing an engine takes, by ctypes: memory, a stream, events.

Source of names and signatures: the CUDA driver API reference (cuda.h); handles are pointers, device addresses 64 bits.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from qdqtool.backends.gpu import LIBRARY
from qdqtool.errors import BuildError, MissingPackage

if TYPE_CHECKING:
    from numpy.typing import NDArray


def driver() -> Any:
    """The driver's library.

    Raises:
        MissingPackage: it is not here.
    """
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        raise MissingPackage(
            "there is no NVIDIA driver here", fix="run on a machine with an NVIDIA GPU; see qdqtool doctor"
        ) from None


class Cuda:
    """The first GPU's primary context, current in this thread.

    Raises:
        MissingPackage: there is no driver, or no GPU.
        BuildError: a call failed.
    """

    def __init__(self) -> None:
        self._cuda = driver()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """The address of new device memory of so many bytes, at least one."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to device memory."""
        source = ctypes.c_void_p(array.ctypes.data)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(array.nbytes))

    def download(self, address: int, array: NDArray[Any]) -> None:
        """Copy device memory into a contiguous array."""
        target = ctypes.c_void_p(array.ctypes.data)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes))

    def stream(self) -> int:
        """A new stream."""
        return self._handle("cuStreamCreate")

    def event(self) -> int:
        """A new event that keeps the time."""
        return self._handle("cuEventCreate")

    def record(self, event: int, stream: int) -> None:
        """Let the event happen when the stream comes by."""
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        """Return when the stream is empty."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two events that happened."""
        time = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(time), ctypes.c_void_p(start), ctypes.c_void_p(end))
        return time.value

    def _handle(self, name: str) -> int:
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), 0)
        return handle.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise BuildError(
                f"the CUDA call {name} failed with code {code}",
                fix="check the driver with nvidia-smi; see qdqtool doctor",
            )
