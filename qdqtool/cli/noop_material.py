"""What is-int8 looks at: layer information of two engines, or a model that is built as it is and in float."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qdqtool.auditing.noop import ExtraEvidence, really_int8
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.audit_material import build
from qdqtool.core.noop import NoOpReport
from qdqtool.engine.read import read
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.pipeline.writing import write
from qdqtool.runtime.runner import open_runner

_PLAN = "engine.plan"


def recorded(layers: Path, reference: Path | None, besides: ExtraEvidence) -> NoOpReport:
    """The verdict on layer information that is there already.

    Raises:
        InputFileError: a file cannot be read.
    """
    other = None if reference is None else read(_layers(reference))
    return really_int8(read(_layers(layers)), other, besides)


def _layers(path: Path) -> Path:
    """The layer information that `path` is, or that a run folder holds.

    Raises:
        InputFileError: the folder holds none.
    """
    if not path.is_dir():
        return path
    found = next((path / name for name in ("layers.txt", "layers.json") if (path / name).is_file()), None)
    if found is None:
        raise InputFileError(
            "holds no layers.txt or layers.json",
            fix="pass a finished run folder, layer information, or a Q/DQ model",
            where=str(path),
        )
    return found


def built(model: Path, plain: Path | None, sm: str) -> NoOpReport:
    """Build a Q/DQ model and its float form, and compare kernels, bytes, size and outputs.

    Args:
        model: the model that is called INT8.
        plain: its float model; None takes all Q/DQ out of `model`.
        sm: architecture to build for, as "86".

    Raises:
        UsageError: dimensions besides the batch are free.
        BuildError: the builder refuses one of the two.
        MissingPackage: the builder is not installed.
    """
    with TemporaryDirectory() as place:
        ours, theirs = Path(place) / "int8", Path(place) / "float"
        for folder in (ours, theirs):
            folder.mkdir()
        if plain is None:
            plain = theirs / "model.onnx"
            opened = load(model)
            write(float_graph(opened), plain, step="noop")
        layers = [build(model, ours, sm), build(plain, theirs, sm)]
        sizes = [(folder / _PLAN).stat().st_size for folder in (ours, theirs) if (folder / _PLAN).is_file()]
        besides = ExtraEvidence(
            plan_bytes=(sizes[0], sizes[1]) if len(sizes) == len(layers) else None,
            outputs_equal=_same_outputs(model, plain),
            outputs_of="model, both on onnxruntime",
        )
        return really_int8(read(layers[0]), read(layers[1]), besides)


def _same_outputs(model: Path, plain: Path) -> bool | None:
    """Whether both models give the same on one random sample, to the last bit; None where one does not run."""
    sample = next(iter(open_samples("random:1", load(model).view.inputs)))
    try:
        results = [open_runner(path, description=path.name).run(sample.feeds) for path in (model, plain)]
    except InputFileError:
        return None
    first, second = results
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f") for name in first
    )
