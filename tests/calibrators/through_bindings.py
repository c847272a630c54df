"""Drives a calibrator through the real Python bindings of TensorRT, as the C++ builder does.

    python tests/calibrators/through_bindings.py BINDINGS.so FIRST_METHOD CLASS FOLDER

The bindings are loaded over empty libraries (`stubs` in the test makes them), a calibrator is made in Python, and its C++
side is called by its table of virtual functions, beginning at FIRST_METHOD: getBatchSize, getBatch,
readCalibrationCache, writeCalibrationCache, getAlgorithm (NvInfer.h; up to release 8 they come first, from 10 on behind
the two questions of IVersionedInterface and its destructors). CUDA is host memory. Printed is what came over the border.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

from tests.calibrators.test_tensorrt_classes import SAMPLES, Cuda

CACHE = b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n"


def main(bindings: str, first: int, name: str, folder: Path) -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("tensorrt", bindings)
    assert spec is not None
    assert spec.loader is not None
    tensorrt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tensorrt)
    sys.modules["tensorrt"] = tensorrt
    cuda = Cuda()
    sys.modules["cuda.bindings.runtime"] = cuda  # type: ignore[assignment]
    import calibrators.tensorrt

    with getattr(calibrators.tensorrt, name)(SAMPLES, cache=folder / "calibration.cache") as calibrator:
        # pybind11 keeps the C++ object behind the header of the Python object (reference count and type).
        this = ctypes.c_void_p.from_address(id(calibrator) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
        table = ctypes.cast(this, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents

        def method(place: int, result: object, *arguments: object) -> object:
            kind = ctypes.PYFUNCTYPE(result, ctypes.c_void_p, *arguments)  # type: ignore[arg-type]
            return lambda *values: kind(table[first + place])(this, *values)

        size = method(0, ctypes.c_int32)()  # type: ignore[operator]
        algorithm = method(4, ctypes.c_int32)()  # type: ignore[operator]
        length = ctypes.c_size_t(0)
        read = method(2, ctypes.c_void_p, ctypes.c_void_p)
        missing = read(ctypes.addressof(length))  # type: ignore[operator]
        get_batch = method(1, ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        names = (ctypes.c_char_p * 2)(b"y", b"x")
        places = (ctypes.c_void_p * 2)()
        batches = []
        while get_batch(places, names, 2):  # type: ignore[operator]
            batches.append([cuda.floats(place, 2) for place in places])  # type: ignore[arg-type]
        method(3, None, ctypes.c_char_p, ctypes.c_size_t)(CACHE, len(CACHE))  # type: ignore[operator]
        again = read(ctypes.addressof(length))  # type: ignore[operator]
        kept = ctypes.string_at(again, length.value)  # type: ignore[arg-type]
    return {
        "size": size,
        "algorithm": algorithm,
        "before": missing,
        "batches": batches,
        "after": kept.decode(),
        "memory": len(cuda.memory),
        "written": (folder / "calibration.cache").read_bytes().decode(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))))
