"""Child process for one build with a native library, from the ONNX file to the plan. All releases use the same calls.

The code checks features of the libraries, never their release numbers. Targets can be named if the config has compute
capabilities. Progress is reported if there is a monitor. Layers come from the engine inspector if the engine can be
loaded on this machine, otherwise from the builder's own dump.
"""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

from qdqtool.backends.building.guards import Abilities, Guard, ModelFacts, choose_typing, guards
from qdqtool.backends.flags import Flag, parse_flags
from qdqtool.backends.gpu import gpus
from qdqtool.backends.native.logger import logger_of, monitor_of
from qdqtool.backends.native.settings import (
    BuildFailure,
    configure,
    constrain,
    load_plugins,
    network_flags,
    place_layers,
    read_timing_cache,
    refused_flag,
    register_plugins,
    strong_of,
)
from qdqtool.errors import InputFileError, of_system
from qdqtool.io.child import Tell, meet
from qdqtool.io.files import write_bytes
from qdqtool.platform import peak_mib

# --- mistakes --------------------------------------------------------------------------------------------------------
# The ONNX parser's errors as plain values.


# A parser may repeat one mistake for every node; 200 errors are enough.
_MOST = 200


def mistakes_of(parser: Any) -> list[dict[str, str]]:
    """Return at most 200 errors of the ONNX parser."""
    mistakes = (parser.get_error(index) for index in range(min(parser.num_errors, _MOST)))
    return [
        {
            "code": error.code().name,
            "node": error.node_name() if hasattr(error, "node_name") else _number(error.node()),
            "op": error.node_operator() if hasattr(error, "node_operator") else "",
            "text": error.desc(),
        }
        for error in mistakes
    ]


def _number(index: int) -> str:
    return f"number {index}" if index >= 0 else ""


# --- calibrator ------------------------------------------------------------------------------------------------------
# Passes a finished calibration cache to TensorRT up to 10.x; nothing is calibrated here.


_CLASSES = {
    "EntropyCalibration2": "IInt8EntropyCalibrator2",
    "EntropyCalibration": "IInt8EntropyCalibrator",
    "MinMaxCalibration": "IInt8MinMaxCalibrator",
    "LegacyCalibration": "IInt8LegacyCalibrator",
}
"""Calibrator classes by the last word of a cache's first line ("TRT-8600-EntropyCalibration2")."""


def attach_cache(trt: Any, config: Any, flags: tuple[Flag, ...]) -> Any:
    """Set a calibrator that only reads the cache of `--calib`; keep it alive until the build ends.

    Raises:
        NoEngine: no such file, an unknown kind of cache, or a library without calibrators.
    """
    flag = next((flag for flag in flags if flag.name == "calib"), None)
    if flag is None:
        return None
    if not hasattr(config, "int8_calibrator"):
        raise refused_flag(
            flag, "this release has no calibrators; turn the cache into Q/DQ: qdqtool cache to-qdq"
        )
    path = Path(flag.value or "")
    if not path.is_file():
        raise refused_flag(flag, "the file does not exist")
    content = path.read_bytes()
    kind = content.split(b"\n", 1)[0].decode("ascii", "replace").strip().rpartition("-")[2]
    if kind not in _CLASSES:
        raise refused_flag(flag, f"its first line names no calibration algorithm: {kind[:60]!r}")
    calibrator = _reader(getattr(trt, _CLASSES[kind]), content)
    config.int8_calibrator = calibrator
    return calibrator


def _reader(parent: Any, content: bytes) -> Any:
    class CacheReader(parent):  # type: ignore[misc] # the native base class has no types
        """A calibrator that gives the builder a calibration cache, but no calibration data."""

        def __init__(self) -> None:
            # Call the native base class by name: super().__init__ crashes the library.
            parent.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            del names

        def read_calibration_cache(self) -> bytes:
            return content

        def write_calibration_cache(self, cache: Any) -> None:
            del cache

        def get_quantile(self) -> float:
            return 0.9999

        def get_regression_cutoff(self) -> float:
            return 1.0

        def read_histogram_cache(self, length: int) -> None:
            del length

        def write_histogram_cache(self, data: Any, length: int) -> None:
            del data, length

    return CacheReader()


# --- job -------------------------------------------------------------------------------------------------------------


def build(trt: Any, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Build an engine, write its files to the paths in `request`, and return facts about the result.

    Raises:
        NoEngine: there is none, and this is why.
    """
    targets = targets_of(trt, request["targets"])
    flags, warnings = _plan(trt, request, targets)
    log = logger_of(trt)
    try:
        builder = _builder(trt, log)
        register_plugins(trt, log)
        load_plugins(builder, flags)
        network = builder.create_network(network_flags(trt, flags))
        tell({"event": "progress", "phase": "parsing", "percent": 0})
        parser = _parse_model(trt, network, log, request["model"])
        constrain(trt, network, flags)
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        configure(trt, config, flags)
        place_layers(trt, network, config, flags)
        _addtargets_of(trt, config, targets)
        profiles = _profile_entries(network, request["profiles"])
        _add_profiles(builder, config, profiles)
        timing_cache = read_timing_cache(config, flags)
        # The config does not keep them alive.
        alive = (attach_cache(trt, config, flags), _attach_monitor(trt, config, tell))
        plan = builder.build_serialized_network(network, config)
        del alive, parser
    except UnicodeDecodeError as error:
        raise _unreadable(error) from error
    if log.broken:
        raise BuildFailure("unwritable", why=f"the log of the build: {log.broken}")
    if plan is None:
        raise BuildFailure("refused", mistakes=[], messages=log.errors)
    _write(Path(request["plan"]), bytes(plan))
    _write(Path(request["layers"]), _layers(trt, log, plan).encode())
    if timing_cache is not None:
        _write(timing_cache, bytes(config.get_timing_cache().serialize()))
    return {
        "warnings": [*warnings, *log.warnings],
        "targets": targets or [f"sm{gpu.sm}" for gpu in gpus()[:1]],
        "flags": [str(flag) for flag in flags],
        "values": [entry["name"] for entry in profiles if entry["is_value"]],
    }


def parse(trt: Any, request: dict[str, Any]) -> None:
    """Parse a model with TensorRT's ONNX parser, without building an engine.

    Raises:
        BuildFailure: the parser refuses the model, or a library of plug-ins cannot be loaded.
    """
    log = logger_of(trt)
    try:
        builder = _builder(trt, log)
        flags = parse_flags(request["flags"])
        register_plugins(trt, log)
        load_plugins(builder, flags)
        network = builder.create_network(network_flags(trt, flags))
        _parse_model(trt, network, log, request["model"])
    except UnicodeDecodeError as error:
        raise _unreadable(error) from error


def _parse_model(trt: Any, network: Any, log: Any, model: str) -> Any:
    """Parse the model and return the parser, which owns the weights and must stay alive."""
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(model):
        raise BuildFailure("refused", mistakes=mistakes_of(parser), messages=log.errors)
    return parser


def _unreadable(error: UnicodeDecodeError) -> BuildFailure:
    return BuildFailure("refused", mistakes=[], messages=[f"a name is not UTF-8: {error.reason}"])


def _plan(trt: Any, request: dict[str, Any], targets: list[str]) -> tuple[tuple[Flag, ...], list[str]]:
    """Return the flags of this build, and warnings about them."""
    flags = parse_flags(request["flags"])
    if request["facts"] is None:
        return flags, []
    facts = ModelFacts(**request["facts"])
    here = gpus()
    can = Abilities(
        name=f"TensorRT {trt.__version__}",
        strong=strong_of(trt),
        sm=here[0].sm if here and not targets else None,
    )
    flags, chosen = choose_typing(facts, flags, can)
    profiled = frozenset(entry["name"] for entry in request["profiles"] if not entry["is_value"])
    problems: tuple[Guard, ...] = guards(facts, flags, can, profiled=profiled)
    for guard in problems:
        if guard.fatal:
            raise BuildFailure("guard", what=guard.what, fix=guard.fix)
    return flags, [*([chosen] if chosen else []), *map(str, problems)]


def targets_of(trt: Any, targets: list[str]) -> list[str]:
    """Return the GPU architectures to build for; empty if the library builds only for the GPU of this machine."""
    if not hasattr(trt, "ComputeCapability"):
        return []
    supported = [name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    unknown = [target for target in targets if target not in supported]
    if unknown:
        supported.sort(key=lambda name: int(name[2:]))
        raise BuildFailure("unknown targets", unknown=unknown, supported=supported)
    return targets


def _builder(trt: Any, log: Any) -> Any:
    try:
        return trt.Builder(log)
    except (TypeError, RuntimeError) as error:
        messages = ["cannot create a builder on this machine: it has no usable GPU, or the driver is too old"]
        raise BuildFailure("refused", mistakes=[], messages=[*messages, *log.errors]) from error


def _addtargets_of(trt: Any, config: Any, targets: list[str]) -> None:
    if targets:
        config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        config.set_compute_capability(trt.ComputeCapability.__members__[target.upper()], index)


def _add_profiles(builder: Any, config: Any, entries: list[dict[str, Any]]) -> None:
    for number in sorted({entry["number"] for entry in entries}):
        profile = builder.create_optimization_profile()
        for entry in entries:
            if entry["number"] == number:
                setter = profile.set_shape_input if entry["is_value"] else profile.set_shape
                setter(entry["name"], entry["low"], entry["opt"], entry["high"])
        config.add_optimization_profile(profile)


def _profile_entries(network: Any, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the shapes of the optimization profiles, and values for inputs from which shapes are computed."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    shaping = {tensor.name for tensor in inputs if tensor.is_shape_tensor}
    return [entry for entry in entries if not entry["is_value"] or entry["name"] in shaping]


def _attach_monitor(trt: Any, config: Any, tell: Tell) -> Any:
    if not hasattr(trt, "IProgressMonitor"):
        return None
    monitor = monitor_of(trt, tell)
    config.progress_monitor = monitor
    return monitor


def _layers(trt: Any, log: Any, plan: Any) -> str:
    """Return the inspector's layer JSON; the builder's dump if the library is portable or loading fails."""
    if log.layers and hasattr(trt, "ComputeCapability"):
        return str(log.layers)
    runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = True  # that of an engine built version compatible
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return str(log.layers)
    inspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _write(path: Path, content: bytes) -> None:
    try:
        write_bytes(path, content)
    except InputFileError as error:
        raise BuildFailure(
            "unwritable", why=error.what.removeprefix("the file cannot be written: ")
        ) from error


# --- worker -----------------------------------------------------------------------------------------------------------
# Child process for native builds: reads one request, writes events, and logs every line to standard error.


def main() -> None:
    """Build the engine that the request on standard input describes, in the child process."""
    request, tell = meet()
    threading.stack_size(request["stack_mib"] << 20)
    builder = threading.Thread(target=_serve, args=(request, tell))
    builder.start()
    builder.join()


def _serve(request: dict[str, Any], tell: Tell) -> None:
    try:
        trt = importlib.import_module(request["module"])
    except (ImportError, OSError) as error:
        tell({"event": "no library", "why": str(error)})
        return
    try:
        if request.get("check"):
            targets = targets_of(trt, request["targets"])
            if "model" in request:
                parse(trt, request)
            tell({"event": "checked", "targets": targets})
            return
        built = build(trt, request, tell)
    except BuildFailure as reason:
        tell(reason.event)
    except OSError as error:
        fault = of_system(error)
        if fault is None:
            raise
        tell({"event": "system fault", "what": fault.what, "fix": fault.fix})
    else:
        tell({"event": "built", "peak_mib": peak_mib(), **built})


if __name__ == "__main__":
    main()
