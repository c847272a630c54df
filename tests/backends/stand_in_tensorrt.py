"""A stand-in for the `tensorrt` module of a release: it has what the real bindings have, and nothing else.

Attributes and parameters come from `tensorrt_api.json`. Whatever the code under test sets, calls or reads that the
release does not have raises AttributeError or TypeError, as the real bindings would. All settings and calls are kept
in `module.said`.
"""

from __future__ import annotations

import ctypes
import enum
import inspect
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

API: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("tensorrt_api.json").read_text("utf-8"))
RELEASES = tuple(API)
PLAN = b"ftrt" + bytes(20) + bytes([8, 6, 1, 6]) + b"a plan"
LAYERS = '{"Layers": [{"Name": "conv"}], "Bindings": ["x", "y"]}'


def make(release: str, *, gpu: bool = True, fails: str = "") -> ModuleType:
    """The module of a release; without a GPU no builder can be made, `fails` is the error of a failing build."""
    module: Any = ModuleType("tensorrt")
    module.__version__ = release
    module.said = []
    module.init_libnvinfer_plugins = lambda logger, namespace: module.said.append(
        ("init_libnvinfer_plugins", namespace)
    )
    for name, facts in API[release].items():
        if name == "ILogger.Severity":
            continue
        if "members" in facts:
            setattr(module, name, enum.IntEnum(name, facts["members"]))
        else:
            setattr(module, name, _class(name, facts, module.said))
    module.ILogger.Severity = enum.IntEnum("Severity", API[release]["ILogger.Severity"]["members"])
    _behave(module, gpu=gpu, fails=fails)
    return module


def _class(name: str, facts: dict[str, Any], said: list[Any]) -> type:
    properties = frozenset(facts["properties"])

    class StandIn:
        def __init__(self, *arguments: Any) -> None:
            _bind(facts["methods"].get("__init__") or [[]], arguments, f"{name}()")

        def __setattr__(self, attribute: str, value: Any) -> None:
            # Subclasses written in Python have attributes of their own.
            if type(self).__module__ == __name__ and attribute not in properties:
                raise AttributeError(f"{name} has no {attribute}")
            if attribute in properties:
                said.append((f"{name}.{attribute}", value))
            object.__setattr__(self, attribute, value)

    for attribute in properties:
        setattr(StandIn, attribute, None)
    for method, overloads in facts["methods"].items():
        if method != "__init__":
            setattr(StandIn, method, _method(f"{name}.{method}", overloads, said))
    StandIn.__name__ = name
    return StandIn


def _method(name: str, overloads: list[list[str]], said: list[Any]) -> Any:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        _bind(overloads, arguments, name, named)
        said.append((name, *arguments, *named.values()))
        play = getattr(type(self), "plays", {}).get(name.rpartition(".")[2])
        return play(self, *arguments, **named) if play else None

    return call


def _bind(
    overloads: list[list[str]], arguments: tuple[Any, ...], name: str, named: dict[str, Any] | None = None
) -> None:
    """Raise TypeError unless some overload takes these arguments."""
    for overload in overloads:
        parameters = [
            inspect.Parameter(
                word.rstrip("?"),
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None if word.endswith("?") else inspect.Parameter.empty,
            )
            for word in overload
        ]
        try:
            inspect.Signature(parameters).bind(*arguments, **(named or {}))
        except TypeError:
            continue
        return
    raise TypeError(f"{name} takes {overloads}, not {arguments} {named}")


def _behave(module: Any, *, gpu: bool, fails: str) -> None:
    """Give the classes just enough life for one build."""
    severity = module.ILogger.Severity

    def make_builder(self: Any, logger: Any) -> None:
        if not gpu:
            logger.log(severity.ERROR, "CUDA initialization failure with error: 35.")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        object.__setattr__(self, "_logger", logger)

    def build(self: Any, network: Any, config: Any) -> Any:
        del network
        monitor = getattr(config, "progress_monitor", None)
        if monitor is not None:
            monitor.phase_start("Building engine", None, 2)
            assert monitor.step_complete("Building engine", 0)
            assert monitor.step_complete("Building engine", 1)
            monitor.phase_finish("Building engine")
        calibrator = getattr(config, "int8_calibrator", None)
        if calibrator is not None:
            module.said.append(("cache", calibrator.read_calibration_cache(), calibrator.get_batch(["x"])))
        self._logger.log(severity.VERBOSE, "Layers:\nName: conv, LayerType: CaskConvolution")
        self._logger.log(severity.WARNING, "a warning of the builder")
        if fails:
            self._logger.log(severity.ERROR, fails)
            return None
        return PLAN

    module.Builder.__init__ = make_builder
    module.Builder.plays = {
        "create_network": lambda self, flags=0: module.INetworkDefinition(),
        "create_builder_config": lambda self: module.IBuilderConfig(),
        "create_optimization_profile": lambda self: module.IOptimizationProfile(),
        "build_serialized_network": build,
    }
    _behave_around_the_build(module)


def _behave_around_the_build(module: Any) -> None:
    def parse(self: Any, path: str) -> bool:
        del self
        return Path(path).read_bytes() != b""

    def layer(self: Any, index: int) -> Any:
        del self
        made = module.ILayer()
        object.__setattr__(made, "name", f"conv{index}")
        object.__setattr__(made, "num_outputs", 1)
        return made

    def shape_input(self: Any, index: int) -> Any:
        del self
        made = module.ITensor()
        object.__setattr__(made, "name", f"input{index}")
        object.__setattr__(made, "is_shape_tensor", True)
        return made

    module.OnnxParser.plays = {
        "parse_from_file": parse,
        "get_error": lambda self, index: module.ParserError(),
    }
    module.OnnxParser.num_errors = 1
    module.ParserError.plays = {
        "code": lambda self: module.ErrorCode(1),
        "desc": lambda self: "something is wrong",
        "node": lambda self: 7,
        "node_name": lambda self: "conv1",
        "node_operator": lambda self: "Conv",
    }
    module.INetworkDefinition.num_layers = 2
    module.INetworkDefinition.num_inputs = 1
    module.INetworkDefinition.plays = {"get_layer": layer, "get_input": shape_input}
    module.IBuilderConfig.plays = {
        "create_timing_cache": lambda self, content: module.ITimingCache() if content != b"junk" else None,
        "get_timing_cache": lambda self: module.ITimingCache(),
        "get_tactic_sources": lambda self: 0b11111,
    }
    module.ITimingCache.plays = {"serialize": lambda self: b"a timing cache"}
    module.Runtime.plays = {
        "deserialize_cuda_engine": lambda self, plan: (
            # Every engine here is version compatible: it holds code for the host.
            module.ICudaEngine() if plan[:4] == b"ftrt" and self.engine_host_code_allowed else None
        )
    }
    module.ICudaEngine.num_io_tensors = 2
    module.ICudaEngine.plays = {
        "create_engine_inspector": lambda self: module.EngineInspector(),
        "create_execution_context": lambda self: module.IExecutionContext(),
        "get_tensor_name": lambda self, index: ("x", "y")[index],
        "get_tensor_mode": lambda self, name: (
            module.TensorIOMode.INPUT if name == "x" else module.TensorIOMode.OUTPUT
        ),
        "get_tensor_dtype": lambda self, name: module.DataType.FLOAT if name == "x" else module.DataType.HALF,
        "get_tensor_shape": lambda self, name: (-1, 3) if name == "x" else (-1, 5),
        "get_tensor_profile_shape": lambda self, name, index: [(1, 3), (4, 3), (8, 3)],
        "get_tensor_location": lambda self, name: module.TensorLocation.DEVICE,
        "get_tensor_format": lambda self, name: SimpleNamespace(name="LINEAR"),
        "get_tensor_vectorized_dim": lambda self, name: -1,
    }

    def execute(self: Any, stream: int) -> bool:
        del stream
        if self.profiler is not None:
            self.profiler.report_layer_time("conv", 0.75)
            self.profiler.report_layer_time("relu", 0.25)
        return True

    module.IExecutionContext.plays = {
        "set_input_shape": lambda self, name, shape: shape[0] <= 8,
        "get_tensor_shape": lambda self, name: (4, 5),
        "set_tensor_address": lambda self, name, address: True,
        "execute_async_v3": execute,
    }
    module.EngineInspector.plays = {"get_engine_information": lambda self, _: LAYERS}


class Driver:
    """libcuda with one GPU: memory is bytes here, an event is the number of launches before it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.memory: dict[int, bytearray] = {}
        self.handles = 0
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.said.append(name)
            if name == self.fails:
                return 700
            play = getattr(type(self), f"play_{name}", None)
            if play is not None:
                play(self, *arguments)
            return 0

        return call

    def play_cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        address._obj.value = 4096 * (len(self.memory) + 1)
        self.memory[address._obj.value] = bytearray(size.value)

    def play_cuMemcpyHtoD_v2(self, address: Any, source: Any, size: Any) -> None:
        self.memory[address.value][: size.value] = ctypes.string_at(source.value, size.value)

    def play_cuMemcpyDtoH_v2(self, target: Any, address: Any, size: Any) -> None:
        ctypes.memmove(target.value, bytes(self.memory[address.value]), size.value)

    def play_cuEventCreate(self, handle: Any, flags: int) -> None:
        self.handles += 1
        handle._obj.value = self.handles

    def play_cuStreamCreate(self, handle: Any, flags: int) -> None:
        self.play_cuEventCreate(handle, flags)

    def play_cuEventElapsedTime(self, time: Any, start: Any, end: Any) -> None:
        time._obj.value = 1.5

    def play_cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 1

    def play_cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 12040

    def play_cuDeviceGetName(self, name: Any, length: int, device: Any) -> None:
        name.value = b"Stand-in GPU"

    def play_cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> None:
        memory._obj.value = 8 << 30

    def play_cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> None:
        value._obj.value = {75: 8, 76: 6}[number]
