"""Q/DQ models fed with the samples of the float model: caches of few bits get float inputs and outputs again."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends.ort import OrtRunner, open_model, open_runner
from qdqtool.core.dtypes import DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.stored_caches import with_float_caches


def open_quantized(path: Path, description: str, *, optimized: bool = True) -> OrtRunner:
    """The model on onnxruntime, ready for float samples.

    Raises:
        InputFileError: onnxruntime cannot load it.
    """
    runner = open_runner(path, description=description, crowded=True, optimized=optimized)
    if not {info.dtype for info in runner.inputs} & {DType.INT8, DType.FLOAT8}:
        return runner
    return open_model(with_float_caches(load(path)), description=description, crowded=True)
