"""Runs Q/DQ models on the samples of the float model: caches in low-bit formats get float inputs and outputs again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from qdqtool.accuracy.side_by_side import recorded
from qdqtool.core.protocols import Runner, SampleSource
from qdqtool.core.tensors import DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.stored_caches import with_float_caches
from qdqtool.runtime.runner import OrtRunner, open_model, open_runner

LARGE: Final = 1 << 30
"""Bytes of weights from which two models are not kept in memory together."""


@contextmanager
def both_sides(
    reference: Callable[[], Runner],
    candidate: Callable[[], Runner],
    samples: SampleSource,
    limit: int | None,
    *,
    large: bool,
) -> Iterator[tuple[Runner, Runner]]:
    """Yield two runners for equal samples. If `large`, the first one has run and is closed before the second opens.

    Raises:
        InputFileError: a model cannot be opened, or fails on a sample.
    """
    if not large:
        second = candidate()  # first: folding its weights takes most while it is opened
        yield reference(), second
        return
    with tempfile.TemporaryDirectory(prefix="qdqtool-outputs-") as folder:
        yield recorded(reference, samples, limit, Path(folder)), candidate()


def open_quantized(path: Path, description: str, *, optimized: bool = True) -> OrtRunner:
    """Open the model in onnxruntime, ready for float samples.

    Raises:
        InputFileError: onnxruntime cannot load it.
    """
    runner = open_runner(path, description=description, crowded=True, optimized=optimized)
    if not {info.dtype for info in runner.inputs} & {DType.INT8, DType.FLOAT8}:
        return runner
    return open_model(with_float_caches(load(path)), description=description, crowded=True)
