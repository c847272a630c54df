"""Compares the engine of a run with an FP16 engine of the network, which is built for the comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from qdqtool.backends.gpu import gpus
from qdqtool.backends.timing.measure import TimeRequest, measure
from qdqtool.core.build import BuildRequest
from qdqtool.core.engine import Engine
from qdqtool.core.explore import Device, EngineView
from qdqtool.core.kinds import ENGINE
from qdqtool.core.protocols import Builder
from qdqtool.core.recipe import InsertOptions, Recipe
from qdqtool.core.tensors import DType
from qdqtool.core.verdict import Worth
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.engine.roofline import RATIO_ERROR, ROOF, estimate, find_device, usual_device
from qdqtool.engine.view import view
from qdqtool.engine.worth import PrecisionAdvice, advise
from qdqtool.errors import BuildError, QdqError, SystemFault, UsageError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.typed.convert import convert
from qdqtool.pipeline.building import build_engine
from qdqtool.pipeline.writing import write

_LARGE: Final = 2 << 30
"""Bytes of weights from which the FP16 engine is not built."""
_MOSTLY: Final = 0.5
"""Share of kernel starts in an estimate from which it says nothing about the work of the kernels."""
_TIMED: Final = frozenset({"trt", "trtexec"})
"""Builders whose engines `qdqtool time` can run."""


def against_fp16(
    model: Model, recipe: Recipe, builder: Builder | None, request: BuildRequest, layers: Path
) -> Worth:
    """Return the times of the engine of a run and of an FP16 engine: measured if there is a GPU, else estimated.

    If nothing is measured, published times of other networks decide, where there are any (`engine.worth`).

    Args:
        model: the prepared float model.
        recipe: the recipe of the run.
        builder: builds the FP16 engine as `request` says; None if no builder may be asked.
        request: how the engine of the run was built; its folder holds that engine.
        layers: layers.json of the engine.
    """
    device = find_device(usual_device(recipe.build.sm))
    quantized = ENGINE.read(layers)
    found = _compared(model, recipe, builder, request, quantized, device)
    advice = _advice(model, device, request)
    if advice is None:
        return found
    found = replace(found, advice=advice.line)
    int8 = advice.int8
    if found.source == "measured" or not _is_int8(view(quantized)) or int8.low is None or int8.high is None:
        return found
    if int8.verdict == "cannot say":
        return replace(found, low=None, high=None)
    # four of five networks are between these two; an engine outside them is not like the published ones
    ratios = (
        1 / int8.high,
        1 / int8.low,
        *([found.fp16_ms / found.ms] if found.ms and found.fp16_ms else []),
    )
    return replace(found, device=device.name, low=min(ratios), high=max(ratios))


def _advice(model: Model, device: Device, request: BuildRequest) -> PrecisionAdvice | None:
    """Return the advice for the batch of the engine; None for a network whose work is unknown."""
    batch = next((profile.opt[0] for profile in request.profiles if profile.opt), 1)
    try:
        return advise(model.view, device, request.model.name, batch)
    except UsageError:
        return None


def _is_int8(engine: EngineView) -> bool:
    """Return whether most of the arithmetic of an engine is INT8, as in the published pairs."""
    macs = {True: 0, False: 0}
    for layer in engine.layers:
        macs[layer.precision is DType.INT8] += layer.macs or 0
    return macs[True] > macs[False]


def _compared(
    model: Model,
    recipe: Recipe,
    builder: Builder | None,
    request: BuildRequest,
    quantized: Engine,
    device: Device,
) -> Worth:
    if builder is None or not recipe.build.fp16:
        return Worth(source="unknown", note="no engine in FP16 was built to compare with")
    if weight_bytes(model) >= _LARGE:
        return Worth(source="unknown", note="the network is too large to be built a second time in FP16")
    try:
        narrow, _ = convert(model, InsertOptions(types="fp16"))
        with TemporaryDirectory(prefix="qdqtool-fp16-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            path = folder / "fp16.onnx"
            write(narrow, path, step="build")
            built, _ = build_engine(builder, replace(request, model=path, folder=folder), most=0)
            if built.layers is None:
                raise BuildError("the builder gave no layers", fix="build with detailed verbosity")
            found = _estimated(quantized, read_layers(folder / built.layers), device)
            if recipe.build.builder in _TIMED and gpus() and (request.folder / "engine.plan").is_file():
                return _measured(found, folder / built.engine, request.folder / "engine.plan")
            return found
    except SystemFault:
        raise
    except QdqError as error:
        return Worth(source="unknown", note=f"the network could not be built in FP16: {error.what}")


def _estimated(quantized: Engine, half: Engine, device: Device) -> Worth:
    ours, theirs = estimate(view(quantized), device), estimate(view(half), device)
    counts = (len(quantized.kernels), len(half.kernels))
    ratio = theirs.ms / ours.ms if ours.ms else 1.0
    found = Worth(source="estimated", device=device.name, ms=ours.ms, fp16_ms=theirs.ms, kernels=counts)
    starts = max(ROOF.start_ms * counts[0] / (ours.ms or 1.0), ROOF.start_ms * counts[1] / (theirs.ms or 1.0))
    if starts > _MOSTLY:
        return replace(
            found, note="most of the time is kernel launches, which CUDA graphs and later fusion change"
        )
    if ours.blind or theirs.blind:
        return replace(found, note=f"shapes of {max(ours.blind, theirs.blind)} kernels are unknown")
    return replace(found, low=ratio / (1 + RATIO_ERROR[1]), high=ratio * (1 + RATIO_ERROR[1]))


def _measured(found: Worth, half: Path, quantized: Path) -> Worth:
    """Replace estimated times by times measured in turns on the GPU here.

    Both engines come from this run, so they are trusted.
    """
    timing = measure(TimeRequest(candidates=(half, quantized), trust=True))
    (verdict,) = timing.verdicts
    return replace(
        found,
        source="measured",
        device=gpus()[0].name,
        ms=timing.summaries[1].median,
        fp16_ms=timing.summaries[0].median,
        low=verdict.low,
        high=verdict.high,
        note="" if verdict.low is not None else "too few rounds for an interval",
    )
