"""A stand-in for the `tensorrt` module of a release: it has what the real bindings have, and nothing else.

Attributes and parameters come from `tensorrt_api.json`. Whatever the code under test sets, calls or reads that the
release does not have raises AttributeError or TypeError, as the real bindings would. All settings and calls are kept
in `module.said`.
"""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from types import ModuleType
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
    module.INetworkDefinition.plays = {"get_layer": layer}
    module.IBuilderConfig.plays = {
        "create_timing_cache": lambda self, content: module.ITimingCache(),
        "get_timing_cache": lambda self: module.ITimingCache(),
        "get_tactic_sources": lambda self: 0b11111,
    }
    module.ITimingCache.plays = {"serialize": lambda self: b"a timing cache"}
    module.Runtime.plays = {"deserialize_cuda_engine": lambda self, plan: module.ICudaEngine()}
    module.ICudaEngine.plays = {"create_engine_inspector": lambda self: module.EngineInspector()}
    module.EngineInspector.plays = {"get_engine_information": lambda self, _: LAYERS}
