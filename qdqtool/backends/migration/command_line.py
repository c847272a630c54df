"""Reads a trtexec command line and rewrites it for TensorRT 11."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from qdqtool.backends.flags import Flag, plain_sizes, read_flag, split_flags, workspace_pool
from qdqtool.core.artefacts import Artefact
from qdqtool.core.wording import Setting
from qdqtool.errors import UsageError

# --- advice ----------------------------------------------------------------------------------------------------------
# Advice on one flag, call or file that TensorRT 11 handles differently.


# english: these words are values of JSON, so they stay
Action = Literal["keep", "drop", "replace", "change the model", "measure anew", "look up"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Advice on one flag, call or file for TensorRT 11.

    Attributes:
        where: the flag, or "line 12".
        what: the text as written.
        action: the equivalent, or the reason to remove the flag.
        reason: why.
        do: the step to take; empty if there is none.
    """

    where: str
    what: str
    action: Action
    reason: str
    do: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """All advice on TensorRT 11 for one file or command line.

    Attributes:
        source: kind of the source ("command line", "script", "calibration cache", "build folder").
        name: the file or folder; empty for a command line.
        advice: in the order of the source.
        steps: commands that make the model for TensorRT 11, in their order.
        ours: equivalent commands of qdqtool.
        command: the command line for TensorRT 11, or empty.
    """

    source: str
    name: str
    advice: tuple[Advice, ...]
    steps: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    command: str = ""


MIGRATION = Artefact(kind="migration", schema=1, type=Migration)


# --- fates of flags --------------------------------------------------------------------------------------------------
# What replaced trtexec's flags until release 11.
#
# Sources: trtexec's own help of 8.6, 10.x and 11.x, and the Python bindings of 8.6.1, 10.9, 10.16, 11.0 and 11.4 (for
# tactic sources and preview features).


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """Change of one trtexec flag in TensorRT 11.

    Attributes:
        action: see Advice.
        reason: why.
        do: the step to take.
        renamed: the flag that replaces it with the same value, or empty.
    """

    action: Action
    reason: str
    do: str = ""
    renamed: str = ""


_TYPED = "networks are strongly typed in 11: the types are in the model"
_RUN = "nothing if the model has Q/DQ; otherwise insert them: qdqtool run MODEL --samples SAMPLES --out RUN"
_HALF = f"write FP16 into the model: qdqtool convert MODEL -o OUT --types fp16 (run: {Setting('insert.types', 'fp16')})"
_BRAIN = f"write BF16 into the model: qdqtool convert MODEL -o OUT --types bf16 (run: {Setting('insert.types', 'bf16')})"
_CACHE = "turn the cache into Q/DQ: qdqtool cache to-qdq MODEL CACHE"
_NO_CALIBRATION = "11 does not calibrate during a build"
_DEFAULT = "the default in 11; the flag has no effect"
_OLD_PARSER = "the Caffe and UFF parsers were removed in 9"
_LAYERS = (
    "exclude these nodes from INT8 (place.exclude), and from FP16 (qdqtool convert --keep); "
    "the first and last layers have place.first_layer and place.last_layer"
)

FATES: dict[str, Fate] = {
    "int8": Fate(action="change the model", reason=_TYPED, do=_RUN),
    "best": Fate(action="change the model", reason=_TYPED, do=f"{_RUN}; {_HALF}"),
    "fp16": Fate(action="change the model", reason=_TYPED, do=_HALF),
    "bf16": Fate(action="change the model", reason=_TYPED, do=_BRAIN),
    "fp8": Fate(
        action="change the model", reason=_TYPED, do="write FP8 Q/DQ into the model (sm89 and newer)"
    ),
    "fp4": Fate(
        action="change the model", reason=_TYPED, do="write NVFP4 Q/DQ into the model (sm100 and newer)"
    ),
    "int4": Fate(action="change the model", reason=_TYPED, do="write block-wise INT4 Q/DQ into the weights"),
    "calib": Fate(action="change the model", reason=_NO_CALIBRATION, do=_CACHE),
    "calibProfile": Fate(action="drop", reason=_NO_CALIBRATION),
    "minShapesCalib": Fate(action="drop", reason=_NO_CALIBRATION),
    "optShapesCalib": Fate(action="drop", reason=_NO_CALIBRATION),
    "maxShapesCalib": Fate(action="drop", reason=_NO_CALIBRATION),
    "precisionConstraints": Fate(action="drop", reason=_TYPED),
    "layerPrecisions": Fate(action="change the model", reason=_TYPED, do=_LAYERS),
    "layerPrecision": Fate(action="change the model", reason=_TYPED, do=_LAYERS),
    "layerOutputTypes": Fate(action="change the model", reason=_TYPED, do=_LAYERS),
    "restricted": Fate(action="drop", reason="the safety-scope check was removed in 11"),
    "weightless": Fate(action="replace", reason="renamed", renamed="stripWeights"),
    "stronglyTyped": Fate(action="drop", reason=_DEFAULT),
    "useCudaGraph": Fate(action="drop", reason=_DEFAULT),
    "useSpinWait": Fate(action="drop", reason=_DEFAULT),
    "noDataTransfers": Fate(action="drop", reason=_DEFAULT),
    "separateProfileRun": Fate(action="drop", reason=_DEFAULT),
    "buildOnly": Fate(action="replace", reason="removed in 10", renamed="skipInference"),
    "explicitBatch": Fate(action="drop", reason="always used since 10"),
    "explicitPrecision": Fate(action="drop", reason="removed in 10; the Q/DQ in the model replaces it"),
    "heuristic": Fate(
        action="replace", reason="removed in 10", do="choose --builderOptimizationLevel=2 or lower instead"
    ),
    "minTiming": Fate(action="drop", reason="removed in 10", do="use --avgTiming instead"),
    "nvtxMode": Fate(
        action="drop", reason="removed in 10", do="--profilingVerbosity sets the amount of detail"
    ),
    "workspace": Fate(action="replace", reason="removed in 10"),
    "streams": Fate(action="replace", reason="renamed", renamed="infStreams"),
    "plugins": Fate(action="replace", reason="renamed", renamed="staticPlugins"),
    "batch": Fate(
        action="drop", reason="implicit batch was removed in 9", do="write the batch size into --shapes"
    ),
    "maxBatch": Fate(action="drop", reason="implicit batch was removed in 9", do="write it into --maxShapes"),
    "deploy": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "model": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uff": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uffInput": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uffNHWC": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "output": Fate(action="drop", reason=_OLD_PARSER, do="the ONNX model defines the outputs"),
}
"""Flags that were removed or renamed, or that no longer have an effect."""

_KEPT = (
    "onnx saveEngine loadEngine minShapes optShapes maxShapes shapes memPoolSize profilingVerbosity avgTiming refit "
    "stripWeights stripAllWeights versionCompatible vc pluginInstanceNorm pi uint8AsymmetricQuantizationDLA useRuntime "
    "leanDLLPath excludeLeanRuntime monitorMemory sparsity noTF32 directIO layerDeviceTypes decomposableAttentions "
    "safe dumpKernelText buildDLAStandalone allowGPUFallback consistency asyncFileReader getPlanVersionOnly "
    "noBuilderCache noCompilationCache errorOnTimingCacheMiss timingCacheFile builderOptimizationLevel maxTactics "
    "hardwareCompatibilityLevel runtimePlatform tempdir tempfileControls maxAuxStreams profile allowWeightStreaming "
    "markDebug markUnfusedTensorsAsDebugTensors tilingOptimizationLevel l2LimitForTiling remoteAutoTuningConfig "
    "refitFromOnnx device staticPlugins dynamicPlugins setPluginsToSerialize ignoreParsedPluginLibs safetyPlugins "
    "loadInputs iterations warmUp duration sleepTime idleTime infStreams exposeDMA useManagedMemory threads "
    "timeDeserialize timeRefit skipInference persistentCacheRatio useProfile allocationStrategy saveDebugTensors "
    "saveAllDebugTensors weightStreamingBudget verbose avgRuns percentile dumpRefit dumpOutput dumpRawBindingsToFile "
    "dumpProfile dumpLayerInfo dumpOptimizationProfile exportTimes exportOutput exportProfile exportLayerInfo help "
    "version includeDataTransfers noCudaGraph noSpinWait loadRefOutputs accuracyAlgorithm atol rtol accuracyThreshold refPair"
)
KEPT = frozenset(_KEPT.split())
"""Flags that have the same meaning in 11."""

GONE_TACTIC_SOURCES = frozenset({"CUBLAS", "CUBLAS_LT", "CUDNN"})
GONE_PREVIEWS = frozenset(
    {
        "profileSharing0806",
        "fasterDynamicShapes0805",
        "disableExternalTacticSourcesForCore0805",
        "multideviceruntime1016",
    }
)
"""Preview features that ended: they became the default or were removed."""


# --- commands that change the model ----------------------------------------------------------------------------------
# Commands that write into the model what trtexec's flags requested before release 11, in order.

FLOATS = frozenset({"fp32", "fp16", "bf16"})
_WIDE = frozenset({"fp32"})
_BY_LAYER = frozenset({"layerPrecisions", "layerPrecision", "layerOutputTypes"})
_FORMATS = frozenset({"inputIOFormats", "outputIOFormats"})


def model_steps(flags: Sequence[Flag]) -> tuple[tuple[str, ...], str]:
    """Return the commands that prepare the model for TensorRT 11, and the file that they write.

    If no command is needed, return no commands and "".

    INT8 comes from the calibration cache. Without a cache, the model has Q/DQ already, or trtexec invented the
    ranges. The command line does not show which, so there is no command. Types come last, around the Q/DQ.
    """
    values = {flag.name: flag.value or "" for flag in flags}
    model = values.get("onnx", "")
    if not model:
        return (), ""
    types = "bf16" if "bf16" in values and "fp16" not in values else "fp16"
    typed = bool({"fp16", "bf16", "best"} & set(values))
    steps = []
    if values.get("calib"):
        step, model = _quantize(model, values["calib"], _list_named_layers(flags, FLOATS))
        steps.append(step)
    if typed:
        target = str(PurePath(model).with_suffix(f".{types}.onnx"))
        keep = [word for name in _list_named_layers(flags, _WIDE) for word in ("--keep", name)]
        half = ["--half-io"] if _all_half(flags) else []
        steps.append(shlex.join(["qdqtool", "convert", model, "-o", target, "--types", types, *keep, *half]))
        model = target
    return tuple(steps), model if steps else ""


def named_layers(flag: Flag, types: frozenset[str] = FLOATS) -> list[str]:
    """Return the layers for which a trtexec flag requests one of `types`; a `*` in a name is a wildcard."""
    pairs = (part.rpartition(":") for part in (flag.value or "").split(","))
    return [name for name, _, word in pairs if name and set(word.split("+")) <= types]


def exclusion(nodes: Sequence[str]) -> str:
    """Return the recipe setting that excludes these nodes from INT8."""
    return f"place.exclude={json.dumps(list(nodes))}"


def _quantize(model: str, cache: str, floats: list[str]) -> tuple[str, str]:
    kept = ["--set", exclusion(floats)] if floats else []
    target = str(PurePath(model).with_suffix(".qdq.onnx"))
    return shlex.join(["qdqtool", "cache", "to-qdq", model, cache, "-o", target, *kept]), target


def _list_named_layers(flags: Sequence[Flag], types: frozenset[str]) -> list[str]:
    """Return the layers that all precision flags name, except names with the wildcard `*`."""
    layers = [name for flag in flags if flag.name in _BY_LAYER for name in named_layers(flag, types)]
    return [name for name in dict.fromkeys(layers) if name != "*"]


def _all_half(flags: Sequence[Flag]) -> bool:
    """Return True if the flags request 16 bits for all inputs and outputs."""
    precisions = {flag.name: (flag.value or "").split(",") for flag in flags if flag.name in _FORMATS}
    return set(precisions) == _FORMATS and all(
        part.partition(":")[0] in {"fp16", "bf16"} for parts in precisions.values() for part in parts
    )


# --- qdqtool's options -----------------------------------------------------------------------------------------------
# Translation to qdqtool: the option for each flag of trtexec, and whole command lines.

Stage = Literal["build", "run", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalent:
    """Counterpart of a trtexec flag in qdqtool.

    Attributes:
        stage: whether it concerns the making of an engine (`qdqtool build`), its running (`qdqtool time`), or both.
        option: the option with the same value; empty if there is none.
        always: this happens in any case; the reason why there is no equivalent.
    """

    stage: Stage
    option: str = ""
    always: str = ""


def _always(stage: Stage, why: str, flags: str) -> dict[str, Equivalent]:
    return {name: Equivalent(stage=stage, always=why) for name in flags.split()}


def _pass_on_flags(stage: Stage, flags: str) -> dict[str, Equivalent]:
    return {name: Equivalent(stage=stage, option="--flags") for name in flags.split()}


EQUIVALENTS: dict[str, Equivalent] = {
    "onnx": Equivalent(stage="build", option="MODEL"),
    "saveEngine": Equivalent(stage="build", option="--out"),
    "minShapes": Equivalent(stage="build", option="--min-shapes"),
    "optShapes": Equivalent(stage="build", option="--opt-shapes"),
    "maxShapes": Equivalent(stage="build", option="--max-shapes"),
    **_always("build", "every build does this", "verbose dumpLayerInfo exportLayerInfo profilingVerbosity"),
    **_always("build", "building and running are two commands", "skipInference buildOnly"),
    **_always("build", "always used", "explicitBatch"),
    **_always("build", "the shapes are repeated, once per profile", "profile"),
    **_always("build", "qdqtool has its own", "help version"),
    **_pass_on_flags(
        "build",
        "fp16 bf16 int8 fp8 int4 best stronglyTyped noTF32 sparsity timingCacheFile precisionConstraints "
        "layerPrecisions layerOutputTypes layerDeviceTypes allowGPUFallback builderOptimizationLevel "
        "maxAuxStreams maxTactics calib memPoolSize workspace tacticSources avgTiming minTiming heuristic refit "
        "directIO restricted excludeLeanRuntime hardwareCompatibilityLevel stripWeights stripAllWeights "
        "monitorMemory noBuilderCache noCompilationCache errorOnTimingCacheMiss l2LimitForTiling inputIOFormats "
        "outputIOFormats preview pluginInstanceNorm pi uint8AsymmetricQuantizationDLA decomposableAttentions "
        "dumpKernelText buildDLAStandalone runtimePlatform markDebug markUnfusedTensorsAsDebugTensors "
        "tilingOptimizationLevel remoteAutoTuningConfig setPluginsToSerialize",
    ),
    "loadEngine": Equivalent(stage="run", option="ENGINE"),
    "shapes": Equivalent(stage="run", option="--shapes"),
    "warmUp": Equivalent(stage="run", option="--warm-up"),
    "iterations": Equivalent(stage="run", option="--iterations"),
    "dumpProfile": Equivalent(stage="run", option="--profile"),
    "exportProfile": Equivalent(stage="run", option="--profile"),
    "exportTimes": Equivalent(stage="run", option="--save"),
    **_always("run", "--rounds and --iterations set the duration", "duration"),
    **_always("run", "it is the default of time", "useCudaGraph noDataTransfers useSpinWait"),
    **_always("run", "layers are timed in separate runs", "separateProfileRun"),
    **_always("run", "all times are summarised, by rounds", "avgRuns percentile"),
    **_pass_on_flags(
        "run",
        "batch streams infStreams threads idleTime sleepTime exposeDMA useManagedMemory useProfile "
        "timeDeserialize timeRefit persistentCacheRatio dumpOutput exportOutput dumpRawBindingsToFile loadInputs "
        "includeDataTransfers noCudaGraph noSpinWait getPlanVersionOnly useRuntime allocationStrategy "
        "saveDebugTensors saveAllDebugTensors weightStreamingBudget dumpRefit refitFromOnnx dumpOptimizationProfile "
        "loadRefOutputs accuracyAlgorithm atol rtol accuracyThreshold refPair",
    ),
    **_pass_on_flags(
        "both",
        "device useDLACore plugins staticPlugins dynamicPlugins ignoreParsedPluginLibs safetyPlugins "
        "versionCompatible vc leanDLLPath tempdir tempfileControls allowWeightStreaming safe consistency asyncFileReader",
    ),
}
"""All trtexec flags that have a counterpart in qdqtool."""

_SAID_ONCE = frozenset({"--profile", "--save"})
_LIMITS = {"minShapes": "--min-shapes", "optShapes": "--opt-shapes", "maxShapes": "--max-shapes"}
"""qdqtool's options for the flags that belong to an optimization profile."""


def our_commands(flags: Sequence[Flag]) -> tuple[str, ...]:
    """Return the qdqtool commands that replace a trtexec command line, in order.

    The result is empty if the line names no model and no engine.

    Flags without a counterpart in qdqtool are passed on to trtexec.
    """
    values = {flag.name: flag.value or "" for flag in flags}
    commands = []
    engine = values.get("loadEngine", "")
    if values.get("onnx"):
        folder = str(PurePath(values.get("saveEngine") or values["onnx"]).with_suffix(""))
        commands.append(["qdqtool", "build", values["onnx"], "--out", folder, "--builder", "trtexec"])
        commands[-1] += [*_profiles(flags), *_words(flags, "build")]
        engine = "" if {"skipInference", "buildOnly"} & set(values) else f"{folder}/engine.plan"
    if engine:
        commands.append(["qdqtool", "time", engine, "--trust", "--via", "trtexec", *_words(flags, "run")])
    return tuple(map(shlex.join, commands))


def unneeded_flags(advice: Sequence[Advice]) -> list[tuple[str, str]]:
    """Return the flags that TensorRT 11 keeps and our commands leave out, each with the reason."""
    names = ((each.what, each.where.removeprefix("--")) for each in advice if each.action == "keep")
    return [
        (text, EQUIVALENTS[name].always)
        for text, name in names
        if name in EQUIVALENTS and EQUIVALENTS[name].always
    ]


def _profiles(flags: Sequence[Flag]) -> list[str]:
    """Return the options with the shapes of every optimization profile, in the order of the profiles."""
    profiles: dict[int, dict[str, str]] = {}
    number = 0
    for flag in flags:
        if flag.name == "profile" and (flag.value or "").isdecimal():
            number = int(flag.value or "")
        elif flag.name in _LIMITS and flag.value:
            limits = profiles.setdefault(number, {})
            parts = dict.fromkeys([*limits.get(flag.name, "").split(","), *flag.value.split(",")])
            limits[flag.name] = ",".join(part for part in parts if part)
    shapes = next((flag.value for flag in flags if flag.name == "shapes"), None)
    if not profiles and shapes:
        profiles[0] = {"optShapes": shapes}
    words = []
    for limits in (limits for _, limits in sorted(profiles.items())):
        usual = limits.get("optShapes") or limits.get("minShapes") or limits["maxShapes"]
        for name, option in _LIMITS.items():
            if any(name in each for each in profiles.values()):
                words += [option, limits.get(name, usual)]
    return words


def _words(flags: Sequence[Flag], stage: Stage) -> list[str]:
    words: list[str] = []
    handed_on = []
    for flag in flags:
        equivalent = EQUIVALENTS.get(flag.name, Equivalent(stage="both", option="--flags"))
        if (
            equivalent.stage not in {stage, "both"}
            or equivalent.always
            or equivalent.option in {"MODEL", "ENGINE", "--out", *_LIMITS.values()}
        ):
            continue
        if equivalent.option == "--flags":
            handed_on.append(str(workspace_pool(flag)))
        elif equivalent.option not in _SAID_ONCE:
            words += [equivalent.option, flag.value or ""]
        elif equivalent.option not in words:
            words += [equivalent.option, "times"] if equivalent.option == "--save" else [equivalent.option]
    return [*words, f"--flags={shlex.join(handed_on)}"] if handed_on else words


# --- command lines ---------------------------------------------------------------------------------------------------

_MEASURED = (
    ("useCudaGraph", "noCudaGraph", "CUDA graphs"),
    ("useSpinWait", "noSpinWait", "spin-wait"),
    ("noDataTransfers", "includeDataTransfers", "no data transfers"),
)
"""Measurement defaults of 11: the flag that requested each before 11, the flag that disables it, and its name."""
_SKIPS_INFERENCE = frozenset({"skipInference", "buildOnly"})


def migrate_command(text: str, *, name: str = "") -> Migration:
    """Return advice for a trtexec command line, and the command for 11. The name of the program is optional.

    Raises:
        UsageError: there is no flag in it.
    """
    flags = _flags(split_flags(text.replace("\\\n", " ")))
    if not flags:
        raise UsageError(
            "the text contains no trtexec flag", fix="pass a line such as: trtexec --onnx=m.onnx --int8"
        )
    advice, kept = [], []
    for flag in flags:
        judgement, instead = _judge(flag)
        advice.append(judgement)
        if instead is not None:
            kept.append(instead)
    advice += _comparability(flags)
    steps, model = model_steps(flags)
    kept = [Flag(name="onnx", value=model) if model and flag.name == "onnx" else flag for flag in kept]
    command = shlex.join(["trtexec", *map(str, _once(kept))])
    return Migration(
        source="command line",
        name=name,
        advice=tuple(advice),
        steps=steps,
        ours=our_commands(_once(kept)),
        command=command,
    )


def gone_flag(word: str) -> Advice | None:
    """Return advice on a word of a command line, if it is a flag that TensorRT 11 removed or changed; else None."""
    flags = _flags([word])
    if not flags or flags[0].name not in FATES:
        return None
    return _judge(flags[0])[0]


def _flags(words: Sequence[str]) -> list[Flag]:
    """Return the flags of a trtexec command line, up to a pipe or `&&`."""
    flags = []
    for word in words:
        flag = read_flag(word)
        if flag is not None:
            flags.append(flag)
        elif word in {"|", "||", "&&", ";", "&"} and flags:
            break
    return flags


def _judge(flag: Flag) -> tuple[Advice, Flag | None]:
    """Return the advice on a trtexec flag, and the flag to pass to TensorRT 11; None to leave it out."""
    if flag.name == "workspace" and flag.value:
        pool = workspace_pool(flag)
        return _advice(flag, "replace", "removed in 10", f"use {pool}"), pool
    if flag.name == "memPoolSize" and plain_sizes(flag) != flag:
        pool = plain_sizes(flag)
        reason = "8 ignores the unit, and 10 and newer read only its last letter: MiB as bytes"
        return _advice(flag, "replace", reason, f"use {pool}, in MiB"), pool
    if flag.name in {"layerPrecisions", "layerOutputTypes"} and flag.value:
        return _advice(flag, "change the model", FATES[flag.name].reason, _keep_float(flag)), None
    if flag.name in FATES:
        fate = FATES[flag.name]
        if fate.renamed:
            renamed = Flag(name=fate.renamed, value=flag.value)
            return _advice(flag, fate.action, fate.reason, fate.do or f"use {renamed}"), renamed
        return _advice(flag, fate.action, fate.reason, fate.do), None
    changed = _changed_value(flag)
    if changed is not None:
        return changed
    if flag.name == "useDLACore":
        reason = (
            "11.3 and 11.4 have no DLA on DRIVE OS; 11.4.1 (not 11.4.0) is for JetPack, with DLA on AGX Orin"
        )
        do = "AGX Orin: 11.4.1 with JetPack 7.2.2; elsewhere stay on 10 for DLA"
        return _advice(flag, "look up", reason, do), flag
    if flag.name in KEPT:
        return _advice(flag, "keep", "has the same meaning in 11"), flag
    reason = "unknown flag"
    return _advice(
        flag, "look up", reason, "look for this flag in the output of `trtexec --help` of your release"
    ), flag


def _keep_float(flag: Flag) -> str:
    if not named_layers(flag):
        return "Q/DQ sets INT8: nothing if the model has Q/DQ; otherwise qdqtool run MODEL --samples SAMPLES --out RUN"
    if "*" in named_layers(flag):
        # The wildcard applies to every layer without its own entry. It gives the type of the model and excludes no
        # layer.
        return "the wildcard is the type of the whole model: qdqtool convert MODEL -o HALF, and Q/DQ for INT8"
    quantized = (
        f"exclude them from INT8: qdqtool run MODEL --set {shlex.quote(exclusion(named_layers(flag)))}"
    )
    wide = named_layers(flag, frozenset({"fp32"}))
    if not wide:
        return quantized
    return f"{quantized}; keep FP32: qdqtool convert MODEL {shlex.join(f'--keep={name}' for name in wide)}"


def _changed_value(flag: Flag) -> tuple[Advice, Flag | None] | None:
    """Return the advice on a trtexec flag that stays but needs another value; None if the value stays too."""
    value = flag.value or ""
    parts = value.split(",")
    if flag.name in {"inputIOFormats", "outputIOFormats"}:
        kept = [part.rpartition(":")[2] for part in parts]
        reason = "the types are in the model; only the memory layout remains"
    elif flag.name == "tacticSources":
        kept = [part for part in parts if part.lstrip("+-").upper() not in GONE_TACTIC_SOURCES]
        reason = "cuBLAS and cuDNN are not tactic sources in 11"
    elif flag.name == "preview":
        kept = [part for part in parts if part.lstrip("+-") not in GONE_PREVIEWS]
        reason = "this is no longer a preview feature"
    elif flag.name == "profilingVerbosity":
        kept = [{"default": "layer_names_only", "verbose": "detailed"}.get(part, part) for part in parts]
        reason = "the old values were removed"
    else:
        return None
    if kept == parts:
        return None
    if not kept:
        return _advice(flag, "drop", reason), None
    instead = Flag(name=flag.name, value=",".join(kept))
    return _advice(flag, "replace", reason, f"use {instead}"), instead


def _comparability(flags: list[Flag]) -> Iterator[Advice]:
    """Yield advice on the flags with which TensorRT 11 measures times as older releases did."""
    names = {flag.name for flag in flags}
    if names & _SKIPS_INFERENCE:
        return
    for before, now, method in _MEASURED:
        if before not in names and now not in names:
            yield Advice(
                where="times",
                what=f"without --{before}",
                action="measure anew",  # english: a value of JSON
                reason=f"11 measures with {method} by default: its times are not comparable with the old ones",
                do=f"add --{now} to compare with old figures; better, measure both again with 11's defaults",
            )


def _once(flags: list[Flag]) -> list[Flag]:
    """Remove repeated flags, but not the shapes of profiles: two profiles may have equal limits."""
    of_profiles = {"profile", *_LIMITS}
    return [flag for place, flag in enumerate(flags) if flag.name in of_profiles or flag not in flags[:place]]


def _advice(flag: Flag, action: Action, reason: str, do: str = "") -> Advice:
    return Advice(where=f"--{flag.name}", what=str(flag), action=action, reason=reason, do=do)
