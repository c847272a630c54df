"""Writes down what the Python bindings of a TensorRT release have: classes, members, properties, parameter names.

    python tests/backends/record_tensorrt_api.py tensorrt_bindings/tensorrt.so

The bindings come in a wheel of 1 MB without the libraries they bind. They can be imported all the same, with the
interpreter they were made for, when empty shared libraries of the right names (libnvinfer, libnvonnxparser,
libnvinfer_plugin, for 8.6 also libnvparsers) stand in for the real ones and export the factory functions the bindings
link to (createInferBuilder_INTERNAL and so on, returning null). The answers of five releases, joined by version, are
`tensorrt_api.json`, from which the tests build their stand-ins.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from typing import Any

CLASSES = (
    "Builder BuilderFlag CalibrationAlgoType DataType DeviceType EngineInspector ErrorCode "
    "HardwareCompatibilityLevel IBuilderConfig ICudaEngine IExecutionContext IHostMemory IInt8EntropyCalibrator "
    "IInt8EntropyCalibrator2 IInt8LegacyCalibrator IInt8MinMaxCalibrator ILayer ILogger INetworkDefinition "
    "IOptimizationProfile IProfiler IProgressMonitor ITensor ITimingCache LayerInformationFormat MemoryPoolType "
    "NetworkDefinitionCreationFlag OnnxParser ParserError ProfilingVerbosity Runtime TacticSource TensorIOMode "
    "TensorLocation"
)


def parameters(doc: str, name: str) -> list[list[str]]:
    """Parameter names of every overload in a pybind11 documentation string; `?` marks those with a default."""
    overloads: list[list[str]] = []
    for line in doc.splitlines():
        if not re.match(r"(\d+\. )?" + re.escape(name) + r"\(self", line):
            continue
        depth, part, parts = 0, "", []
        for letter in line[line.index("(") + 1 : line.rindex(") ->")]:
            depth += (letter in "[(<") - (letter in "])>")
            if letter == "," and depth == 0:
                parts.append(part)
                part = ""
            else:
                part += letter
        names = [text.split(":")[0].strip() + ("?" if "=" in text else "") for text in [*parts, part]][1:]
        if names not in overloads:
            overloads.append(names)
    return overloads


def record(module: Any) -> dict[str, Any]:
    """What the classes of the module have."""
    api: dict[str, Any] = {}
    for name in CLASSES.split():
        kind = getattr(module, name, None)
        if kind is None:
            continue
        if hasattr(kind, "__members__"):
            api[name] = {"members": {key: int(value) for key, value in kind.__members__.items()}}
            continue
        methods = {"__init__": parameters(kind.__init__.__doc__ or "", "__init__")}
        properties = []
        for attribute in dir(kind):
            # Layers are made by the ONNX parser: the network's add_ and mark_ methods are of no interest.
            if (
                attribute.startswith(("_", "add_", "mark_", "unmark_"))
                and attribute != "add_optimization_profile"
            ):
                continue
            value = getattr(kind, attribute)
            if type(value).__name__ == "property":
                properties.append(attribute)
            elif callable(value) and not isinstance(value, type):
                methods[attribute] = parameters(value.__doc__ or "", attribute)
        api[name] = {"methods": methods, "properties": properties}
    severity = module.ILogger.Severity.__members__
    api["ILogger.Severity"] = {"members": {key: int(value) for key, value in severity.items()}}
    return api


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("tensorrt", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    bindings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bindings)
    sys.stdout.write(json.dumps(record(bindings), sort_keys=True) + "\n")
