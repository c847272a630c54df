"""Translates flags in trtexec's spelling into calls on a native builder's network and config.

The code never checks a version: a flag is used if the library has the features that it needs, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qdqtool.backends.building.guards import Strong
from qdqtool.backends.flags import PLUGIN_LIBRARIES, PRECISIONS, Flag, bytes_of

# --- failure ---------------------------------------------------------------------------------------------------------
# Exception for a build in the child process that ends without an engine.


class BuildFailure(Exception):  # noqa: N818 -- says what happened
    """Raised if a build ends without an engine. `event` names the reason, for the parent process."""

    def __init__(self, event: str, **facts: Any) -> None:
        super().__init__(event)
        self.event = {"event": event, **facts}


def refused_flag(flag: Flag, why: str) -> BuildFailure:
    """Return the failure for a flag that the builder library does not support, or whose value is invalid."""
    return BuildFailure("refused flag", flag=str(flag), why=why)


# --- settings --------------------------------------------------------------------------------------------------------


Setter = Callable[[Any, Any, Flag], None]
"""Function that takes the library, the config and the flag."""

_ELSEWHERE = (
    "onnx saveEngine exportLayerInfo dumpLayerInfo verbose skipInference buildOnly profilingVerbosity "
    "minShapes optShapes maxShapes stronglyTyped explicitBatch calib layerPrecisions layerOutputTypes layerDeviceTypes timingCacheFile"
)
_IGNORED = frozenset(_ELSEWHERE.split())
"""Flags that other code handles. Some are always set: build only, all messages, detailed layers."""


def strong_of(trt: Any) -> Strong:
    """Return whether networks of the library are strongly typed: "always", "on request" or "never"."""
    if "INT8" not in trt.BuilderFlag.__members__:
        return "always"
    return "on request" if "STRONGLY_TYPED" in trt.NetworkDefinitionCreationFlag.__members__ else "never"


def network_flags(trt: Any, flags: tuple[Flag, ...]) -> int:
    """Return the flags that create the network: explicit batch, and strong typing if requested.

    Raises:
        NoEngine: strong typing was asked of a library that has none.
    """
    members = trt.NetworkDefinitionCreationFlag.__members__
    bits = 1 << int(members["EXPLICIT_BATCH"]) if "EXPLICIT_BATCH" in members else 0
    strong_flag = next((flag for flag in flags if flag.name == "stronglyTyped"), None)
    if strong_flag and strong_of(trt) == "never":
        raise refused_flag(strong_flag, "this release supports weakly typed networks only")
    if strong_flag and "STRONGLY_TYPED" in members:
        bits |= 1 << int(members["STRONGLY_TYPED"])
    return bits


def configure(trt: Any, config: Any, flags: tuple[Flag, ...]) -> None:
    """Apply build flags to a TensorRT builder configuration.

    Raises:
        NoEngine: a flag is not known here, or the library cannot do it.
    """
    for flag in flags:
        if flag.name in _IGNORED:
            continue
        setter = _SETTERS.get(flag.name)
        if setter is None:
            raise refused_flag(
                flag, "not a build flag that this backend can translate; use the trtexec backend"
            )
        setter(trt, config, flag)


def constrain(trt: Any, network: Any, flags: tuple[Flag, ...]) -> None:
    """Set the precisions and output types that flags name for single layers, in weakly typed networks.

    Raises:
        NoEngine: the library knows no layer precisions, or the value cannot be read.
    """
    for flag in flags:
        if flag.name not in {"layerPrecisions", "layerOutputTypes"}:
            continue
        if not hasattr(trt.ILayer, "precision"):
            raise refused_flag(flag, "this release has no layer precisions; write types into the model")
        choices = _layer_choices(flag)
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            types = [types for pattern, types in choices if _matches(pattern, layer.name)]
            if not types:
                continue
            if flag.name == "layerPrecisions":
                layer.precision = _dtype(trt, flag, types[-1][0])
            else:
                for output, word in enumerate(types[-1][: layer.num_outputs]):
                    layer.set_output_type(output, _dtype(trt, flag, word))


def place_layers(trt: Any, network: Any, config: Any, flags: tuple[Flag, ...]) -> None:
    """Set the device of single layers that `--layerDeviceTypes` names.

    Raises:
        NoEngine: the value cannot be read.
    """
    for flag in flags:
        if flag.name != "layerDeviceTypes":
            continue
        choices = _layer_choices(flag)
        devices = trt.DeviceType.__members__
        unknown = [word for _, words in choices for word in words if word not in devices]
        if unknown:
            raise refused_flag(flag, f"{unknown[0]!r} is not a device: choose {' or '.join(devices)}")
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            devices_of_layer = [words[0] for pattern, words in choices if _matches(pattern, layer.name)]
            if devices_of_layer:
                config.set_device_type(layer, devices[devices_of_layer[-1]])


def read_timing_cache(config: Any, flags: tuple[Flag, ...]) -> Path | None:
    """Attach the timing cache that the flags name; an empty cache if the file does not exist.

    Return its path, for writing after the build; None without the flag.

    Raises:
        BuildFailure: the library cannot read the file.
    """
    path = next((Path(flag.value) for flag in flags if flag.name == "timingCacheFile" and flag.value), None)
    if path is None:
        return None
    content = path.read_bytes() if path.is_file() else b""
    cache = config.create_timing_cache(content)
    if cache is None:
        flag = Flag(name="timingCacheFile", value=str(path))
        raise refused_flag(flag, "the file is not a timing cache of this release")
    config.set_timing_cache(cache, False)
    return path


def _layer_choices(flag: Flag) -> list[tuple[str, list[str]]]:
    choices = []
    for part in (flag.value or "").split(","):
        pattern, colon, types = part.rpartition(":")
        if not colon:
            raise refused_flag(flag, "write name:type,name:type")
        choices.append((pattern, types.split("+")))
    return choices


def _matches(pattern: str, name: str) -> bool:
    """Return whether a layer name matches a pattern with at most one `*`, as in trtexec."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)


def _dtype(trt: Any, flag: Flag, word: str) -> Any:
    names = {
        "fp32": "FLOAT",
        "fp16": "HALF",
        "bf16": "BF16",
        "int32": "INT32",
        "int8": "INT8",
        "int64": "INT64",
    }
    types = trt.DataType.__members__
    if names.get(word) not in types:
        raise refused_flag(flag, f"{word!r} is not a type of this release")
    return types[names[word]]


def register_plugins(trt: Any, logger: Any) -> None:
    """Register the plug-ins that the library brings along, such as EfficientNMS_TRT, if it has any."""
    register = getattr(trt, "init_libnvinfer_plugins", None)
    if register is not None:
        register(logger, "")


def load_plugins(builder: Any, flags: Sequence[Flag]) -> None:
    """Load the plug-in libraries that the flags name.

    Raises:
        BuildFailure: a library cannot be loaded, or this release loads none.
    """
    for flag in flags:
        if flag.name not in PLUGIN_LIBRARIES:
            continue
        registry = builder.get_plugin_registry()
        if not hasattr(registry, "load_library"):
            raise refused_flag(flag, "this release cannot load plug-in libraries by name: use LD_PRELOAD")
        path = Path(flag.value or "")
        if not path.is_file():
            raise refused_flag(flag, f"the library {path} does not exist")
        if registry.load_library(str(path.resolve())) is None:
            raise refused_flag(flag, f"{path} is not a library of plug-ins for this release and platform")


def _skip_flag(trt: Any, config: Any, flag: Flag) -> None:
    del trt, config, flag


def _store_plugin(trt: Any, config: Any, flag: Flag) -> None:
    """Store a plug-in library inside the engine."""
    del trt
    if not hasattr(config, "plugins_to_serialize"):
        raise refused_flag(flag, "this release has no such setting")
    config.plugins_to_serialize = [*config.plugins_to_serialize, flag.value or ""]


def _builder_flag(*names: str) -> Setter:
    def set_flags(trt: Any, config: Any, flag: Flag) -> None:
        members = trt.BuilderFlag.__members__
        existing = [name for name in names if name in members]
        if not existing and flag.name in PRECISIONS and strong_of(trt) == "always":
            raise refused_flag(
                flag,
                "this release reads types from the model: INT8 as Q/DQ (qdqtool run), FP16 and BF16 by qdqtool convert MODEL -o OUT",
            )
        if not existing:
            raise refused_flag(flag, "this release has no such builder flag")
        for name in existing:
            config.set_flag(members[name])

    return set_flags


def _clear_tf32(trt: Any, config: Any, flag: Flag) -> None:
    del flag
    config.clear_flag(trt.BuilderFlag.TF32)


def _number(attribute: str) -> Setter:
    def set_number(trt: Any, config: Any, flag: Flag) -> None:
        del trt
        if not hasattr(config, attribute):
            raise refused_flag(flag, "this release has no such setting")
        if flag.value is None or not flag.value.lstrip("-").isdigit():
            raise refused_flag(flag, "the flag needs a whole number")
        setattr(config, attribute, int(flag.value))

    return set_number


_COMPATIBLE = {"none": "NONE", "ampere+": "AMPERE_PLUS", "samecomputecapability": "SAME_COMPUTE_CAPABILITY"}
"""Names of TensorRT for the values of --hardwareCompatibilityLevel."""


def _compatibility(trt: Any, config: Any, flag: Flag) -> None:
    members = getattr(getattr(trt, "HardwareCompatibilityLevel", None), "__members__", {})
    name = _COMPATIBLE.get((flag.value or "").lower())
    if name is None:
        raise refused_flag(flag, f"choose one of {', '.join(_COMPATIBLE)}")
    if name not in members or not hasattr(config, "hardware_compatibility_level"):
        raise refused_flag(flag, "this release has no such setting")
    config.hardware_compatibility_level = members[name]


def _sparsity(trt: Any, config: Any, flag: Flag) -> None:
    if flag.value in {"enable", "force"}:  # for "force" the weights were made sparse before
        _builder_flag("SPARSE_WEIGHTS")(trt, config, flag)
    elif flag.value != "disable":
        raise refused_flag(flag, "choose disable, enable or force")


def _constraints(trt: Any, config: Any, flag: Flag) -> None:
    names = {"obey": "OBEY_PRECISION_CONSTRAINTS", "prefer": "PREFER_PRECISION_CONSTRAINTS"}
    if flag.value == "none":
        return
    if flag.value not in names:
        raise refused_flag(flag, "choose obey, prefer or none")
    _builder_flag(names[flag.value])(trt, config, flag)


_POOLS = {
    "workspace": "WORKSPACE",
    "dlaSRAM": "DLA_MANAGED_SRAM",
    "dlaLocalDRAM": "DLA_LOCAL_DRAM",
    "dlaGlobalDRAM": "DLA_GLOBAL_DRAM",
    "tacticSharedMem": "TACTIC_SHARED_MEMORY",
}


def _pools(trt: Any, config: Any, flag: Flag) -> None:
    for part in (flag.value or "").split(","):
        word, _, size = part.partition(":")
        limit = bytes_of(size)
        if word not in _POOLS or limit is None:
            raise refused_flag(flag, f"write pool:size with one of {', '.join(_POOLS)}")
        if _POOLS[word] not in trt.MemoryPoolType.__members__:
            raise refused_flag(flag, f"this release has no pool {word}")
        config.set_memory_pool_limit(trt.MemoryPoolType.__members__[_POOLS[word]], limit)


def _workspace(trt: Any, config: Any, flag: Flag) -> None:
    _pools(trt, config, Flag(name=flag.name, value=f"workspace:{flag.value}"))


def _dla(trt: Any, config: Any, flag: Flag) -> None:
    config.default_device_type = trt.DeviceType.DLA
    _number("DLA_core")(trt, config, flag)


def _tactic_sources(trt: Any, config: Any, flag: Flag) -> None:
    bits = config.get_tactic_sources()
    for part in (flag.value or "").split(","):
        sign, name = part[:1], part[1:].upper()
        if sign not in {"+", "-"} or name not in trt.TacticSource.__members__:
            raise refused_flag(flag, f"write +NAME or -NAME of {', '.join(trt.TacticSource.__members__)}")
        bit = 1 << int(trt.TacticSource.__members__[name])
        bits = bits | bit if sign == "+" else bits & ~bit
    config.set_tactic_sources(bits)


_SETTERS: dict[str, Setter] = {
    "fp16": _builder_flag("FP16"),
    "bf16": _builder_flag("BF16"),
    "int8": _builder_flag("INT8"),
    "fp8": _builder_flag("FP8"),
    "int4": _builder_flag("INT4"),
    "best": _builder_flag("FP16", "BF16", "INT8"),
    "noTF32": _clear_tf32,
    "refit": _builder_flag("REFIT"),
    "stripWeights": _builder_flag("STRIP_PLAN"),
    "versionCompatible": _builder_flag("VERSION_COMPATIBLE"),
    "excludeLeanRuntime": _builder_flag("EXCLUDE_LEAN_RUNTIME"),
    "directIO": _builder_flag("DIRECT_IO"),
    "restricted": _builder_flag("SAFETY_SCOPE"),
    "noBuilderCache": _builder_flag("DISABLE_TIMING_CACHE"),
    "noCompilationCache": _builder_flag("DISABLE_COMPILATION_CACHE"),
    "errorOnTimingCacheMiss": _builder_flag("ERROR_ON_TIMING_CACHE_MISS"),
    "monitorMemory": _builder_flag("MONITOR_MEMORY"),
    "allowWeightStreaming": _builder_flag("WEIGHT_STREAMING"),
    "allowGPUFallback": _builder_flag("GPU_FALLBACK"),
    "heuristic": _builder_flag("ENABLE_TACTIC_HEURISTIC"),
    "sparsity": _sparsity,
    "plugins": _skip_flag,
    "staticPlugins": _skip_flag,
    "dynamicPlugins": _store_plugin,
    "precisionConstraints": _constraints,
    "memPoolSize": _pools,
    "workspace": _workspace,
    "builderOptimizationLevel": _number("builder_optimization_level"),
    "maxAuxStreams": _number("max_aux_streams"),
    "maxTactics": _number("max_num_tactics"),
    "avgTiming": _number("avg_timing_iterations"),
    "minTiming": _number("min_timing_iterations"),
    "l2LimitForTiling": _number("l2_limit_for_tiling"),
    "useDLACore": _dla,
    "tacticSources": _tactic_sources,
    "hardwareCompatibilityLevel": _compatibility,
}
