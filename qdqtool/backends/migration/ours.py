"""The same in qdqtool's own words: which option takes a flag of trtexec's place, and whole command lines translated."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from qdqtool.backends.flags import Flag, workspace_pool

Stage = Literal["build", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalent:
    """What stands for a flag.

    Attributes:
        stage: whether it concerns the making of an engine (`qdqtool build`) or its running (`qdqtool time`).
        option: the option with the same value; empty where there is none.
        always: it happens anyway, and why there is nothing to say.
    """

    stage: Stage
    option: str = ""
    always: str = ""


def _always(stage: Stage, why: str, flags: str) -> dict[str, Equivalent]:
    return {name: Equivalent(stage=stage, always=why) for name in flags.split()}


def _handed_on(stage: Stage, flags: str) -> dict[str, Equivalent]:
    return {name: Equivalent(stage=stage, option="--flags") for name in flags.split()}


EQUIVALENTS: dict[str, Equivalent] = {
    "onnx": Equivalent(stage="build", option="MODEL"),
    "saveEngine": Equivalent(stage="build", option="--out"),
    "minShapes": Equivalent(stage="build", option="--min-shapes"),
    "optShapes": Equivalent(stage="build", option="--opt-shapes"),
    "maxShapes": Equivalent(stage="build", option="--max-shapes"),
    **_always("build", "every build does it", "verbose dumpLayerInfo exportLayerInfo profilingVerbosity"),
    **_always("build", "building and running are two commands", "skipInference buildOnly"),
    **_always("build", "there is no other way", "explicitBatch"),
    **_handed_on(
        "build",
        "fp16 bf16 int8 fp8 int4 best stronglyTyped noTF32 sparsity timingCacheFile precisionConstraints "
        "layerPrecisions layerOutputTypes layerDeviceTypes useDLACore allowGPUFallback builderOptimizationLevel "
        "maxAuxStreams maxTactics calib memPoolSize workspace tacticSources avgTiming minTiming heuristic refit "
        "directIO restricted versionCompatible excludeLeanRuntime hardwareCompatibilityLevel stripWeights "
        "monitorMemory allowWeightStreaming noBuilderCache noCompilationCache errorOnTimingCacheMiss "
        "l2LimitForTiling inputIOFormats outputIOFormats preview tempdir tempfileControls leanDLLPath",
    ),
    "loadEngine": Equivalent(stage="run", option="ENGINE"),
    "shapes": Equivalent(stage="run", option="--shapes"),
    "warmUp": Equivalent(stage="run", option="--warm-up"),
    "iterations": Equivalent(stage="run", option="--iterations"),
    "dumpProfile": Equivalent(stage="run", option="--profile"),
    "exportProfile": Equivalent(stage="run", option="--profile"),
    "exportTimes": Equivalent(stage="run", option="--save"),
    **_always("run", "rounds and iterations say how long", "duration"),
    **_always("run", "it is the default of time", "useCudaGraph noDataTransfers useSpinWait"),
    **_always("run", "layers are timed in runs of their own", "separateProfileRun"),
    **_always("run", "all times are summarised, by rounds", "avgRuns percentile"),
    **_handed_on(
        "run",
        "batch streams infStreams threads idleTime sleepTime exposeDMA useManagedMemory device useProfile "
        "timeDeserialize timeRefit persistentCacheRatio dumpOutput exportOutput dumpRawBindingsToFile loadInputs "
        "includeDataTransfers noCudaGraph noSpinWait",
    ),
}
"""Every flag that has a place in qdqtool."""

_SAID_ONCE = frozenset({"--profile", "--save"})


def our_commands(flags: Sequence[Flag]) -> tuple[str, ...]:
    """The commands of qdqtool that do what a trtexec command line does, in their order; none for other lines.

    Flags without a place here are handed on to trtexec, which knows whether it has them.
    """
    values = {flag.name: flag.value or "" for flag in flags}
    commands = []
    engine = values.get("loadEngine", "")
    if values.get("onnx"):
        folder = str(PurePath(values.get("saveEngine") or values["onnx"]).with_suffix(""))
        commands.append(["qdqtool", "build", values["onnx"], "--out", folder, "--builder", "trtexec"])
        commands[-1] += _words(flags, "build")
        engine = "" if {"skipInference", "buildOnly"} & set(values) else f"{folder}/engine.plan"
    if engine:
        commands.append(["qdqtool", "time", engine, "--trust", "--via", "trtexec", *_words(flags, "run")])
    return tuple(map(shlex.join, commands))


def _words(flags: Sequence[Flag], stage: Stage) -> list[str]:
    words: list[str] = []
    handed_on = []
    for flag in flags:
        known = EQUIVALENTS.get(flag.name, Equivalent(stage="build", option="--flags"))
        if known.stage != stage or known.always or known.option in {"MODEL", "ENGINE", "--out"}:
            continue
        if known.option == "--flags":
            handed_on.append(str(workspace_pool(flag)))
        elif known.option not in _SAID_ONCE:
            words += [known.option, flag.value or ""]
        elif known.option not in words:
            words += [known.option, "times"] if known.option == "--save" else [known.option]
    return [*words, f"--flags={shlex.join(handed_on)}"] if handed_on else words
