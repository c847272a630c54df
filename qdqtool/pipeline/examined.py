"""Builds a model to inspect its engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import examine
from qdqtool.core.build import BuildRequest, BuildResult, OnProgress
from qdqtool.core.engine import Engine
from qdqtool.core.findings import Audit, KernelCounts
from qdqtool.core.protocols import Builder
from qdqtool.engine.costs import counts
from qdqtool.engine.layer_info import read
from qdqtool.errors import BuildError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.building import build_engine
from qdqtool.pipeline.writing import write

_MODEL = "model.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExaminedEngine:
    """Results of an engine that was built, inspected and removed.

    Attributes:
        build: what the builder said.
        engine: its layers.
        audit: verdicts and counts.
    """

    build: BuildResult
    engine: Engine
    audit: Audit


def examined(
    model: Model | Path,
    builder: Builder,
    request: BuildRequest,
    *,
    retries: int = 0,
    on_progress: OnProgress | None = None,
) -> ExaminedEngine:
    """Build a model as `request` says, in a folder that is removed afterwards, and read the engine back.

    Args:
        model: in memory, or a file.
        builder: what builds it.
        request: targets, profiles, flags and cache; model and folder of it are not used.
        retries: nodes without a kernel whose Q/DQ may be removed, at most.
        on_progress: called with the progress of the build.

    Raises:
        BuildError: the builder refuses the model, or gives no layer information.
        MissingPackage: the builder is not installed.
    """
    with _built(model, builder, request, retries, on_progress) as (build, made, engine):
        return ExaminedEngine(
            build=build, engine=engine, audit=examine(stage(engine, made, targets=build.targets))
        )


def engine_counts(model: Model, builder: Builder, request: BuildRequest) -> KernelCounts:
    """Build a model as `examined` does, and only count the kernels of its engine and the bytes that they move.

    Raises:
        BuildError, MissingPackage: as `examined`.
    """
    with _built(model, builder, request) as (_, _, engine):
        return counts(engine)


@contextmanager
def _built(
    model: Model | Path,
    builder: Builder,
    request: BuildRequest,
    retries: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[BuildResult, Model, Engine]]:
    """Return the same as `built_and_read`, of a build in a folder that exists as long as the context."""
    with (
        TemporaryDirectory(prefix="qdqtool-examined-", ignore_cleanup_errors=True) as place,
        _file(model) as path,
    ):
        asked = replace(request, model=path, folder=Path(place))
        yield built_and_read(builder, asked, retries=retries, on_progress=on_progress)


def built_and_read(
    builder: Builder, request: BuildRequest, *, retries: int, on_progress: OnProgress | None = None
) -> tuple[BuildResult, Model, Engine]:
    """Build in the folder of `request`. Return the result of the builder, the model that was built in the end, and its layers.

    Raises:
        BuildError: the builder refuses the model, or gives no layer information.
    """
    build, _ = build_engine(builder, request, on_progress, most=retries)
    if build.layers is None:
        raise BuildError(
            "the builder gave no layer information, so its kernels cannot be counted",
            fix="build with detailed profiling verbosity (build.flags=--profilingVerbosity=detailed)",
            where=str(request.model),
        )
    made = load(request.folder / build.model) if build.model else load(request.model)
    return build, made, read(request.folder / build.layers)


@contextmanager
def _file(model: Model | Path) -> Iterator[Path]:
    if isinstance(model, Path):
        yield model
        return
    with TemporaryDirectory(prefix="qdqtool-model-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / _MODEL
        write(model, path, step="build")
        yield path
