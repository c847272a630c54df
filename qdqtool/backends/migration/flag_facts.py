"""What became of trtexec's flags on the way to 11.

Sources: trtexec's own help of 8.6, 10.x and 11.x, and the Python bindings of 8.6.1, 10.9, 10.16, 11.0 and 11.4 (for
tactic sources and preview features).
"""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.backends.migration.advice import Action


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What becomes of a flag.

    Attributes:
        action: see Advice.
        reason: why.
        do: the step to take.
        renamed: the flag that takes its place with the same value, or empty.
    """

    action: Action
    reason: str
    do: str = ""
    renamed: str = ""


_TYPED = "networks are strongly typed in 11: types stand in the model"
_RUN = "nothing where the model has Q/DQ; else put them in: qdqtool run MODEL --samples SAMPLES --out RUN"
_HALF = "write FP16 into the model: qdqtool convert MODEL -o OUT --types fp16 (run: --set insert.types=fp16)"
_BRAIN = "write BF16 into the model: qdqtool convert MODEL -o OUT --types bf16 (run: --set insert.types=bf16)"
_CACHE = "turn the cache into Q/DQ: qdqtool cache to-qdq MODEL CACHE"
_NO_CALIBRATION = "nothing is calibrated while an engine is built in 11"
_DEFAULT = "the default in 11; the flag does nothing any more"
_OLD_PARSER = "the Caffe and UFF parsers are gone since 9"
_LAYERS = (
    "keep these nodes from INT8 (place.exclude), and from FP16 (qdqtool convert --keep); "
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
    "restricted": Fate(action="drop", reason="the safety-scope check is gone in 11"),
    "weightless": Fate(action="replace", reason="renamed", renamed="stripWeights"),
    "stronglyTyped": Fate(action="drop", reason=_DEFAULT),
    "useCudaGraph": Fate(action="drop", reason=_DEFAULT),
    "useSpinWait": Fate(action="drop", reason=_DEFAULT),
    "noDataTransfers": Fate(action="drop", reason=_DEFAULT),
    "separateProfileRun": Fate(action="drop", reason=_DEFAULT),
    "buildOnly": Fate(action="replace", reason="gone since 10", renamed="skipInference"),
    "explicitBatch": Fate(action="drop", reason="the only way since 10"),
    "explicitPrecision": Fate(action="drop", reason="gone since 10; Q/DQ in the model says it"),
    "heuristic": Fate(
        action="replace", reason="gone since 10", do="choose --builderOptimizationLevel=2 or lower instead"
    ),
    "minTiming": Fate(action="drop", reason="gone since 10", do="--avgTiming is what is left"),
    "nvtxMode": Fate(action="drop", reason="gone since 10", do="--profilingVerbosity says how much is told"),
    "workspace": Fate(action="replace", reason="gone since 10"),
    "streams": Fate(action="replace", reason="renamed", renamed="infStreams"),
    "plugins": Fate(action="replace", reason="renamed", renamed="staticPlugins"),
    "batch": Fate(action="drop", reason="implicit batch is gone since 9", do="say the batch in --shapes"),
    "maxBatch": Fate(action="drop", reason="implicit batch is gone since 9", do="say it in --maxShapes"),
    "deploy": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "model": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uff": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uffInput": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "uffNHWC": Fate(action="drop", reason=_OLD_PARSER, do="export the model to ONNX"),
    "output": Fate(action="drop", reason=_OLD_PARSER, do="outputs are those of the ONNX model"),
}
"""Flags that are gone, renamed or without effect."""

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
"""Flags that mean the same in 11."""

GONE_TACTIC_SOURCES = frozenset({"CUBLAS", "CUBLAS_LT", "CUDNN"})
GONE_PREVIEWS = frozenset(
    {
        "profileSharing0806",
        "fasterDynamicShapes0805",
        "disableExternalTacticSourcesForCore0805",
        "multideviceruntime1016",
    }
)
"""Features that are no longer in preview: they became the rule, or went."""
