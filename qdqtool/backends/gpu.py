"""Lists the NVIDIA GPUs of this machine by asking the driver (libcuda), without any CUDA package.

Source of the calls: the CUDA driver API (cuInit, cuDeviceGetAttribute 75 and 76 for the compute capability).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from qdqtool.platform import cuda_driver

_MAJOR, _MINOR = 75, 76
LIBRARY = cuda_driver()
"""File name of the CUDA driver library."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """An NVIDIA GPU.

    Attributes:
        name: as the driver calls it.
        sm: compute capability times ten, 86 for 8.6.
        memory_mib: total memory in MiB.
        cuda: newest CUDA release the driver supports, as (12, 4).
    """

    name: str
    sm: int
    memory_mib: int
    cuda: tuple[int, int]


def gpus(library: Any = None) -> tuple[Gpu, ...]:
    """Return all GPUs that the driver lists; an empty tuple if there is no working driver."""
    try:
        cuda = library or ctypes.CDLL(LIBRARY)
    except OSError:
        return ()
    if cuda.cuInit(0) != 0:
        return ()
    count, version = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    release = (version.value // 1000, version.value % 1000 // 10)
    return tuple(_gpu(cuda, index, release) for index in range(count.value))


def _gpu(cuda: Any, index: int, release: tuple[int, int]) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = (_attribute(cuda, number, device) for number in (_MAJOR, _MINOR))
    return Gpu(
        name=name.value.decode("utf-8", "replace"),
        sm=10 * major + minor,
        memory_mib=memory.value >> 20,
        cuda=release,
    )


def _attribute(cuda: Any, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value
