"""Times an engine through the Python package that built it: GPU compute time between two CUDA events.

Inputs stay on the GPU, so transfers are not part of the time. Works for TensorRT 8.6 to 11 and TensorRT for RTX, which
share these calls (named tensors, `execute_async_v3`); no CUDA graph is used here, trtexec can (`--via trtexec`).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.backends.gpu import LIBRARY
from qdqtool.backends.native.settings import register_plugins
from qdqtool.core.protocols import Shape
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import BuildError, MissingPackage, UsageError

# --- clock -----------------------------------------------------------------------------------------------------------
# Times an engine through the Python package that built it: GPU compute time between two CUDA events.
#
# Inputs stay on the GPU, so the time contains no transfers. Works for TensorRT 8.6 to 11 and TensorRT for RTX, which
# share these calls (named tensors, `execute_async_v3`). It uses no CUDA graph; trtexec can (`--via trtexec`).

_DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
}
_BITS = {"BF16": 16, "FP8": 8, "FP4": 4, "INT4": 4, "E8M0": 8}
"""Bits of types that numpy does not have; their tensors are held as raw bytes."""


class EngineClock:
    """A loaded engine that can be timed, with its memory on the GPU."""

    def __init__(
        self,
        trt: Any,
        logger: Any,
        plan: bytes,
        shapes: Mapping[str, Shape],
        feeds: Mapping[str, NDArray[Any]],
    ) -> None:
        self.name = "engine"
        self.measures = f"GPU compute time by CUDA events, TensorRT {trt.__version__}, without transfers"
        self._trt = trt
        self._cuda = Cuda()
        register_plugins(trt, logger)
        self._runtime = trt.Runtime(logger)
        # Engines built version compatible hold code for the host; nobody gets here without trust in the engine.
        self._runtime.engine_host_code_allowed = True
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise BuildError(
                "the engine cannot be loaded",
                fix="rebuild it with this release and on this GPU",
                where=self.name,
            )
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise BuildError(
                "the engine cannot run: most likely the GPU has too little free memory",
                fix="end other programs on this GPU, or build the engine for smaller shapes",
                where=self.name,
            )
        self._stream = self._cuda.stream()
        self._buffers: dict[str, tuple[int, NDArray[Any]]] = {}
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        unknown = sorted({*shapes, *feeds} - set(inputs))
        if unknown:
            raise UsageError(
                f"the engine has no input {', '.join(unknown)}",
                fix=f"use one of its inputs: {', '.join(inputs)}",
            )
        self._inputs = tuple(inputs)
        self._outputs = tuple(name for name in names if name not in inputs)
        for name in inputs:
            self._bind_input(name, shapes.get(name), feeds.get(name))
        self._bind_outputs()

    def warm_up(self, milliseconds: float) -> None:
        """Run the engine for at least `milliseconds`, and at least once."""
        end = time.perf_counter() + milliseconds / 1000
        self._infer()
        while time.perf_counter() < end:
            self._infer()

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Measure the milliseconds of each inference on the GPU."""
        start, end = self._cuda.event(), self._cuda.event()
        times = []
        for _ in range(iterations):
            self._cuda.record(start, self._stream)
            self._enqueue()
            self._cuda.record(end, self._stream)
            self._cuda.wait(self._stream)
            times.append(self._cuda.elapsed_ms(start, end))
        return tuple(times)

    def profile(self, iterations: int) -> list[tuple[str, list[float]]]:
        """Measure the milliseconds of each layer in `iterations` inferences, in the order in which the layers run."""
        profiler = _profiler(self._trt)
        self._context.profiler = profiler
        for _ in range(iterations):
            self._infer()
        return list(profiler.times.items())

    def interface(self) -> tuple[tuple[TensorInfo, ...], tuple[str, ...]]:
        """Return the engine's inputs, and the names of its outputs."""
        return tuple(map(self._info, self._inputs)), self._outputs

    def infer(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the engine on these inputs and return its outputs; BF16 becomes float32.

        Raises:
            UsageError: the inputs do not fit, or an output has a type that numpy cannot hold.
            BuildError: the engine failed.
        """
        for name in (*self._inputs, *self._outputs):
            self._refuse_vectors(name)
        for name in self._inputs:
            self._bind_input(name, None, feeds[name])
        self._bind_outputs()
        self._infer()
        return {name: self._readable(name, array) for name, array in self.outputs().items()}

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Return the outputs of the last inference of the engine."""
        outputs = {}
        for name in self._outputs:
            address, array = self._buffers[name]
            if not self._is_on_host(name):
                self._cuda.download(address, array)
            outputs[name] = array
        return outputs

    def _info(self, name: str) -> TensorInfo:
        dims = tuple(self._engine.get_tensor_shape(name))
        return TensorInfo(
            name=name,
            dtype=DType.parse(self._engine.get_tensor_dtype(name).name),
            shape=tuple("?" if dim < 0 else int(dim) for dim in dims),
        )

    def _readable(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        word = self._engine.get_tensor_dtype(name).name
        if word in _DTYPES:
            return array
        if word != "BF16":
            raise UsageError(f"output {name!r} has {word} values", fix="build the engine with float outputs")
        wide: NDArray[Any] = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide.reshape(tuple(self._context.get_tensor_shape(name)))

    def _bind_outputs(self) -> None:
        for name in self._outputs:
            self._bind(name, self._empty(name, tuple(self._context.get_tensor_shape(name))))

    def _bind_input(self, name: str, shape: Shape | None, feed: NDArray[Any] | None) -> None:
        declared = tuple(self._engine.get_tensor_shape(name))
        dims = tuple(feed.shape) if feed is not None else shape
        if dims is None:
            dims = tuple(self._engine.get_tensor_profile_shape(name, 0)[1]) if -1 in declared else declared
        if not (self._context.set_input_shape(name, dims) if -1 in declared else dims == declared):
            raise UsageError(
                f"the engine does not accept {'x'.join(map(str, dims)) or 'a scalar'} for {name!r}",
                fix="choose shapes of the engine's profile",
            )
        array = self._empty(name, dims)
        if feed is not None:
            self._refuse_vectors(name)
            if feed.dtype != array.dtype or feed.shape != array.shape:
                raise UsageError(
                    f"input {name!r} needs type {array.dtype} and shape {array.shape}, not {feed.dtype} and {feed.shape}",
                    fix="pass arrays of this type and shape",
                )
            array[...] = feed
        elif self._is_on_host(name):
            array[...] = np.reshape(self._usual_values(name), array.shape)
        elif array.dtype.kind == "f":
            array[...] = np.random.default_rng(0).standard_normal(array.shape).astype(array.dtype)
        self._bind(name, array)
        if not self._is_on_host(name):
            self._cuda.upload(self._buffers[name][0], array)

    def _is_on_host(self, name: str) -> bool:
        """Return True if the engine reads or writes this tensor in host memory, as it does to compute shapes."""
        return bool(self._engine.get_tensor_location(name) == self._trt.TensorLocation.HOST)

    def _usual_values(self, name: str) -> list[int]:
        """Return the usual values of the profile for an input from which shapes are computed."""
        if hasattr(self._engine, "get_tensor_profile_values"):
            return list(self._engine.get_tensor_profile_values(0, name)[1])
        return list(self._engine.get_profile_shape_input(0, name)[1])

    def _empty(self, name: str, shape: Shape) -> NDArray[Any]:
        if any(dim < 0 for dim in shape):
            raise UsageError(
                f"the shape of output {name!r} depends on the data",
                fix="time the engine with trtexec (--via trtexec)",
            )
        word = self._engine.get_tensor_dtype(name).name
        if word in _DTYPES:
            return np.zeros(shape, _DTYPES[word])
        bits = _BITS.get(word)
        if bits is None:
            raise UsageError(
                f"tensor {name!r} has the unknown type {word}", fix="time the engine with trtexec"
            )
        return np.zeros(-(-int(np.prod(shape)) * bits // 8), np.uint8)

    def _bind(self, name: str, array: NDArray[Any]) -> None:
        address, held = self._buffers.get(name, (0, None))
        if self._is_on_host(name):
            address = array.ctypes.data
        elif held is None or held.shape != array.shape:
            if held is not None:
                self._cuda.free(address)
            address = self._cuda.allocate(self._size(name, array))
        self._buffers[name] = (address, array)
        self._context.set_tensor_address(name, address)

    def _size(self, name: str, array: NDArray[Any]) -> int:
        """Return the size of a tensor on the GPU in bytes. Formats such as CHW32 fill up a dimension to whole vectors."""
        place = self._engine.get_tensor_vectorized_dim(name)
        length: int = self._context.get_tensor_shape(name)[place] if place >= 0 else 0
        if not length:
            return array.nbytes
        vector: int = self._engine.get_tensor_components_per_element(name)
        return array.nbytes // length * -(-length // vector) * vector

    def _refuse_vectors(self, name: str) -> None:
        """Refuse to exchange values with a tensor whose format is not that of numpy.

        Raises:
            UsageError: its format is another one.
        """
        layout = self._engine.get_tensor_format(name).name
        if layout != "LINEAR":
            raise UsageError(
                f"{name!r} is stored as {layout}, not row by row",
                fix="build the engine without --inputIOFormats and --outputIOFormats",
            )

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream):
            raise BuildError(
                "the engine failed while running", fix="read the messages of TensorRT before this one"
            )

    def _infer(self) -> None:
        self._enqueue()
        self._cuda.wait(self._stream)


def _profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc] # the native base class has no types
        """Profiler that collects the time of each layer."""

        def __init__(self) -> None:
            super().__init__()
            self.times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.setdefault(layer_name, []).append(ms)

    return Profiler()


# --- CUDA driver API -------------------------------------------------------------------------------------------------
# The few calls of the CUDA driver API that are needed to time an engine, through ctypes: memory, a stream, events.
#
# Source of names and signatures: the CUDA driver API reference (cuda.h); handles are pointers, device addresses 64 bits.


def driver() -> Any:
    """Load the library of the CUDA driver.

    Raises:
        MissingPackage: it is not here.
    """
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        raise MissingPackage(
            "this machine has no NVIDIA driver", fix="run on a machine with an NVIDIA GPU; see qdqtool doctor"
        ) from None


class Cuda:
    """The CUDA context of the first GPU, current in this thread.

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
        """Allocate device memory of `size` bytes, at least one; return its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        """Free GPU memory at an address."""
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
        """Create a CUDA stream."""
        return self._handle("cuStreamCreate")

    def event(self) -> int:
        """Create a CUDA event that records its time."""
        return self._handle("cuEventCreate")

    def record(self, event: int, stream: int) -> None:
        """Record a CUDA event on a stream."""
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        """Wait until all work on a CUDA stream is done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two recorded events."""
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
