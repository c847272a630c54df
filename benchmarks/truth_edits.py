"""Edits of a Q/DQ model by hand, with nothing of the tool: what fixes that cannot be typed are executed with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


def quantized(model: onnx.ModelProto, name: str) -> onnx.ModelProto | None:
    """The model with INT8 Q/DQ on every float factor of one node; None if it has none, or an unknown type."""
    made, held = _made(model), {tensor.name: tensor for tensor in model.graph.initializer}
    node = next((each for each in model.graph.node if each.name == name), None)
    if node is None:
        return None
    changed = False
    for index in range(3 if node.op_type in _RECURRENT else min(2, len(node.input))):
        tensor = node.input[index]
        if not tensor or _is_dequantized(made, tensor):
            continue
        weight = held.get(tensor)
        if weight is not None and weight.data_type not in _FLOATS:
            return None
        values = None if weight is None else numpy_helper.to_array(weight).astype(np.float64)
        amax = 3.0 + index / 7 if values is None or not values.size else float(np.abs(values).max()) or 1.0
        _insert(model, name, index, amax / 127, np.float16 if _is_half(weight) else np.float32)
        changed = True
    return model if changed else None


def bare(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto | None:
    """The model without the pairs that these Q or DQ nodes belong to; None if none of them is one."""
    made = _made(model)
    taken = {}
    for node in model.graph.node:
        source = made.get(node.input[0]) if node.op_type == _DEQUANTIZE else None
        if source is not None and source.op_type == _QUANTIZE and {node.name, source.name} & set(names):
            taken[node.output[0]] = source.input[0]
    for node in model.graph.node:
        for index, tensor in enumerate(node.input):
            node.input[index] = taken.get(tensor, tensor)
    outputs = {value.name for value in model.graph.output}
    return model if taken and not outputs & taken.keys() else None


def folded(path: Path, out: Path) -> onnx.ModelProto | None:
    """The model after onnxruntime computed what depends on constants only, but for the weights that it quantizes.

    Without their Q/DQ, nodes would run in float, and their kernels would say nothing about the constants. None if onnxruntime
    cannot open the model.
    """
    import onnxruntime

    model = onnx.load(path)
    quantized = {node.input[0] for node in model.graph.node if node.op_type.endswith("Linear")}
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in quantized}
    others = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(others)
    model.graph.input.extend(
        helper.make_tensor_value_info(name, tensor.data_type, tensor.dims) for name, tensor in weights.items()
    )
    onnx.save(model, out)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        onnxruntime.InferenceSession(
            out, options, providers=["CPUExecutionProvider"], disabled_optimizers=["MatMulAddFusion"]
        )
    except Exception:  # noqa: BLE001 -- onnxruntime raises many kinds, and all of them mean: no experiment
        return None
    made = onnx.load(out)
    inputs = [value for value in made.graph.input if value.name not in weights]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    made.graph.initializer.extend(weights.values())
    return made


def quantizers(model: onnx.ModelProto) -> int:
    """How many nodes quantize values at run time."""
    return sum(node.op_type == _QUANTIZE for node in model.graph.node)


def _made(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def _is_dequantized(made: dict[str, onnx.NodeProto], tensor: str) -> bool:
    return tensor in made and made[tensor].op_type.endswith(_DEQUANTIZE)


def _is_half(weight: onnx.TensorProto | None) -> bool:
    return weight is not None and weight.data_type == onnx.TensorProto.FLOAT16


def _insert(model: onnx.ModelProto, name: str, index: int, scale: float, kind: type[np.floating]) -> None:
    nodes = list(model.graph.node)  # an insertion copies all nodes, so that they are found by name again
    place, node = next((place, node) for place, node in enumerate(nodes) if node.name == name)
    stem = f"by_hand_{name}_{index}"
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(scale, kind), f"{stem}_scale"),
            numpy_helper.from_array(np.array(0, np.int8), f"{stem}_zero"),
        ]
    )
    pair = (f"{stem}_scale", f"{stem}_zero")
    made = [
        helper.make_node(_QUANTIZE, [node.input[index], *pair], [f"{stem}_q"], name=f"{stem}_Q"),
        helper.make_node(_DEQUANTIZE, [f"{stem}_q", *pair], [f"{stem}_dq"], name=f"{stem}_DQ"),
    ]
    node.input[index] = f"{stem}_dq"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *made, *nodes[place:]])
