"""Times ONNX models or engines alternately, and reports which of them is faster."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile

from qdqtool.backends.flags import Flag
from qdqtool.backends.plan import EnginePlan, read_plan, require_trust, spell
from qdqtool.backends.shapes import unknown_inputs
from qdqtool.backends.timing.remote import EngineRun, time_engines
from qdqtool.backends.timing.series import (
    Effort,
    OnTurn,
    Series,
    SeriesSummary,
    TimingVerdict,
    distinct_names,
    judge,
    spell_file,
    summarize,
    take_turns,
)
from qdqtool.backends.timing.trtexec_times import LayerTime, TrtexecClock, spell_times
from qdqtool.backends.trtexec.program import Program, ask, find_trtexec
from qdqtool.core.artefacts import Artefact
from qdqtool.core.protocols import Shape
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.io.files import make_folder, write_text
from qdqtool.runtime.device import provider_of
from qdqtool.runtime.runner import OrtRunner, open_runner

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- ort times -------------------------------------------------------------------------------------------------------
# Times an ONNX model on a device of onnxruntime: wall-clock time of one call, including transfers.


class OrtClock:
    """Times one model with onnxruntime on one device."""

    def __init__(self, model: Path, device: str, feeds: Mapping[str, NDArray[Any]], name: str = "") -> None:
        self._runner: OrtRunner = open_runner(
            model, description=model.name, provider=provider_of(device), faithful=False
        )
        self._feeds = feeds
        self.name = f"{name or model.name} on {device}"
        self.measures = "wall-clock time of one onnxruntime call, transfers included"

    def warm_up(self, milliseconds: float) -> None:
        """Run the model for at least `milliseconds`, and at least once."""
        end = time.perf_counter() + milliseconds / 1000
        self._runner.run(self._feeds)
        while time.perf_counter() < end:
            self._runner.run(self._feeds)

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Run the model repeatedly and return the milliseconds of each call."""
        times = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            self._runner.run(self._feeds)
            times.append((time.perf_counter_ns() - start) / 1e6)
        return tuple(times)


# --- measure ---------------------------------------------------------------------------------------------------------


Via = Literal["auto", "ort", "trtexec", "trt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeRequest:
    """Parameters of `qdqtool time`.

    Attributes:
        candidates: ONNX models, or engines; the first is the reference.
        via: the clock: onnxruntime, trtexec, or the library's Python package; auto chooses an available one.
        device: device for onnxruntime, "cpu" or "tensorrt:trt_fp16_enable=1".
        effort: how much is measured.
        shapes: shapes of dynamic inputs.
        inputs: an .npz file of inputs; random numbers without one.
        trust: whether engines may be loaded: they hold code.
        any_release: whether engines of another release may be tried.
        flags: more flags for trtexec.
        profile: whether every layer is timed too.
        save: folder for times, profiles and outputs in trtexec's formats, or None.
        timeout_s: wall-clock limit in seconds of one process.
    """

    candidates: tuple[Path, ...]
    via: Via = "auto"
    device: str = "cpu"
    effort: Effort = field(default_factory=Effort)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    inputs: Path | None = None
    trust: bool = False
    any_release: bool = False
    flags: tuple[Flag, ...] = ()
    profile: bool = False
    save: Path | None = None
    timeout_s: float = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerProfile:
    """Layer times of one of the timed engines."""

    name: str
    layers: tuple[LayerTime, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Result of `qdqtool time`: times of all models or engines.

    Attributes:
        summaries: one per candidate, in the order given.
        verdicts: each candidate but the first against the first.
        profiles: times of layers, if asked for.
    """

    summaries: tuple[SeriesSummary, ...]
    verdicts: tuple[TimingVerdict, ...]
    profiles: tuple[LayerProfile, ...] = ()


TIMING = Artefact(kind="timing", schema=1, type=Timing)


def measure(request: TimeRequest, on_turn: OnTurn | None = None) -> Timing:
    """Time several models or engines alternately, so that changes of the GPU clock affect all of them.

    Raises:
        UsageError: trust is missing, or the clock cannot time these candidates.
        InputFileError: a candidate is not a model and no engine, or of another release.
        MissingPackage: the clock, its GPU or its provider is not here.
        BuildError: an engine cannot be loaded or run.
    """
    models = [path for path in request.candidates if path.suffix.lower() == ".onnx"]
    if models and len(models) < len(request.candidates):
        raise UsageError(
            "models and engines cannot be timed together", fix="time models and engines in separate commands"
        )
    if request.save:
        make_folder(request.save)
    series, profiles = _time_models(request, on_turn) if models else _time_engines(request, on_turn)
    if request.save:
        for each in series:
            write_text(request.save / f"{spell_file(each.name)}.times.json", spell_times(each.times))
    return Timing(
        summaries=tuple(map(summarize, series)),
        verdicts=tuple(judge(series[0], each) for each in series[1:]),
        profiles=profiles,
    )


def _time_models(
    request: TimeRequest, on_turn: OnTurn | None
) -> tuple[tuple[Series, ...], tuple[LayerProfile, ...]]:
    from qdqtool.runtime.runner import open_runner

    if request.via not in {"auto", "ort"}:
        raise UsageError(
            f"{request.via} times only engines, not models",
            fix="build engines of the models first: qdqtool build",
        )
    if request.profile or request.flags:
        raise UsageError(
            "layer profiles and flags apply to engines only", fix="remove these options, or time engines"
        )
    clocks = []
    for path, name in zip(request.candidates, distinct_names(request.candidates), strict=True):
        inputs = open_runner(path, description=path.name).inputs
        clocks.append(OrtClock(path, request.device, _feeds(inputs, request), name))
    return take_turns(clocks, request.effort, on_turn), ()


def _time_engines(
    request: TimeRequest, on_turn: OnTurn | None
) -> tuple[tuple[Series, ...], tuple[LayerProfile, ...]]:
    plans = [read_plan(path) for path in request.candidates]
    require_trust(request.trust, request.candidates[0])
    program = _program(request, plans)
    if program is None:
        return _by_library(request, plans, on_turn)
    _check_release(plans, program, request)
    flags = _shape_flags(request)
    if request.any_release and not {"versionCompatible", "vc"} & {flag.name for flag in flags}:
        # Such an engine holds code for the host, which trtexec loads with this flag only.
        flags = (*flags, *filter(None, [program.first_of("versionCompatible")]))
    clocks = [
        TrtexecClock(program, plan, name, flags, request.timeout_s)
        for plan, name in zip(plans, distinct_names(request.candidates), strict=True)
    ]
    series = take_turns(clocks, request.effort, on_turn)
    if request.save:
        for clock in clocks:
            write_text(request.save / f"{spell_file(clock.name)}.log", "\n".join(clock.log) + "\n")
    if not request.profile:
        return series, ()
    return series, tuple(LayerProfile(name=clock.name, layers=clock.profile()) for clock in clocks)


def _by_library(
    request: TimeRequest, plans: Sequence[EnginePlan], on_turn: OnTurn | None
) -> tuple[tuple[Series, ...], tuple[LayerProfile, ...]]:
    if request.flags:
        raise UsageError("flags apply to trtexec only", fix="remove --flags, or use --via trtexec")
    if request.inputs:
        _load(request.inputs)  # the child process reads it again: an error there would not name the file
    run = EngineRun(
        effort=request.effort,
        shapes=request.shapes,
        inputs=request.inputs,
        profile=request.profile,
        save=request.save,
        timeout_s=request.timeout_s,
    )
    series, profiles = time_engines(plans, run, on_turn)
    layers = [
        tuple(LayerTime(name=name, average=fmean(times), median=median(times)) for name, times in profile)
        for profile in profiles
    ]
    pairs = zip(series, layers, strict=False)
    return series, tuple(LayerProfile(name=each.name, layers=times) for each, times in pairs)


def _program(request: TimeRequest, plans: Sequence[EnginePlan]) -> Program | None:
    """Return the trtexec program for timing the engines; None to time them with a Python package."""
    if request.via == "ort":
        raise UsageError("onnxruntime times models, not engines", fix="pass .onnx files, or remove --via")
    if request.via == "trt" or any(plan.maker != "TensorRT" for plan in plans):
        return None
    try:
        return ask(find_trtexec())
    except MissingPackage:
        if request.via == "trtexec":
            raise
        return None


def _check_release(plans: Sequence[EnginePlan], program: Program, request: TimeRequest) -> None:
    for plan in plans:
        if not request.any_release and program.release and plan.release[:3] != program.release:
            raise InputFileError(
                f"the engine was built by TensorRT {spell(plan.release)}; this trtexec is {spell(program.release)}",
                fix="build the engine again with this release, or pass --any-release if the engine was built version compatible",
                where=str(plan.path),
            )


def _shape_flags(request: TimeRequest) -> tuple[Flag, ...]:
    if request.inputs:
        raise UsageError(
            "trtexec reads raw inputs", fix='pass --flags "--loadInputs=name:file.raw", or use --via trt'
        )
    if not request.shapes:
        return request.flags
    spelled = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in request.shapes.items())
    return (*request.flags, Flag(name="shapes", value=spelled))


def _feeds(inputs: tuple[TensorInfo, ...], request: TimeRequest) -> dict[str, NDArray[Any]]:
    """Return the inputs for timing: the passed arrays, else random floats, and zeros for other types."""
    import numpy as np

    arrays = _load(request.inputs) if request.inputs else {}
    unknown = unknown_inputs(inputs, (request.shapes, arrays))
    if unknown:
        raise UsageError("; ".join(unknown), fix="correct the names in --shapes and --inputs")
    random = np.random.default_rng(0)
    feeds = {}
    for info in inputs:
        if info.name in arrays:
            feeds[info.name] = arrays[info.name]
            continue
        smallest = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape or ())
        shape = request.shapes.get(info.name, smallest)
        dtype = np.dtype(_NUMPY.get(info.dtype.value, "float32"))
        values = random.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
        feeds[info.name] = values.astype(dtype)
    return feeds


_NUMPY = {
    "fp16": "float16",
    "fp64": "float64",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
}
"""numpy's names of input types; float32 for all others."""


_DAMAGED = (OSError, ValueError, EOFError, TypeError, AttributeError, RuntimeError, BadZipFile, zlib.error)
"""Exceptions of numpy for files that are damaged or hold a single array."""


def _load(path: Path) -> dict[str, NDArray[Any]]:
    import numpy as np

    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _DAMAGED as error:
        raise InputFileError(
            f"the file cannot be read as .npz: {error}", fix="save it with numpy.savez", where=str(path)
        ) from error
