"""Q/DQ models whose scales and zero points are not what TensorRT takes: every format, every constant, every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.placement.qdq import Quantized

_E4M3 = ml_dtypes.float8_e4m3fn
_FP4 = ml_dtypes.float4_e2m1fn
_K, _N = 64, 96


def _product(s: Quantized, x: str, weight: str, opset: int, *domains: str) -> onnx.ModelProto:
    s.node("MatMul", [x, weight], "y", name="mm")
    s.output("y", [1, 32, _N])
    return s.model(opset, domains=domains)


def _x(s: Quantized) -> str:
    return s.input("x", [1, 32, _K])


def _steps(*shape: int) -> Any:
    return np.full(shape, 0.02, np.float32)


def _pair(s: Quantized, tensor: str, name: str, dtype: Any, scale: Any, **along: int) -> str:
    given = [s.constant(f"{name}_s", scale), s.constant(f"{name}_z", np.zeros(np.shape(scale), dtype))]
    q = s.node("QuantizeLinear", [tensor, *given], f"{name}_q", name=f"{name}/Q", **along)
    return s.node("DequantizeLinear", [q, *given], f"{name}_d", name=f"{name}/DQ", **along)


def _stored(s: Quantized, name: str, value: Any, scale: Any, *, zero: bool = True, **along: int) -> str:
    given = [s.constant(f"{name}_v", value), s.constant(f"{name}_s", scale)]
    if zero:
        given.append(s.constant(f"{name}_z", np.zeros(np.shape(scale), value.dtype)))
    return s.node("DequantizeLinear", given, f"{name}_d", name=f"{name}/DQ", **along)


def _values(dtype: Any) -> Any:
    return np.random.default_rng(0).integers(-7, 8, (_K, _N)).astype(dtype)


def int8() -> onnx.ModelProto:
    s = Quantized()
    x = _pair(s, _x(s), "x", np.int8, _steps())
    return _product(s, x, _pair(s, s.weight("w", _K, _N), "w", np.int8, _steps(_N), axis=1), 21)


def int8_stored() -> onnx.ModelProto:
    s = Quantized()
    x = _pair(s, _x(s), "x", np.int8, _steps())
    return _product(s, x, _stored(s, "w", _values(np.int8), _steps(_N), axis=1), 21)


def uint8() -> onnx.ModelProto:
    s = Quantized()
    x = _pair(s, _x(s), "x", np.uint8, _steps())
    return _product(
        s,
        x,
        _pair(
            s,
            s.weight("w", _K, _N),
            "w",
            np.int8,
            _steps(),
        ),
        17,
    )


def int4() -> onnx.ModelProto:
    s = Quantized()
    w = _stored(s, "w", _values(ml_dtypes.int4), _steps(_K // 16, _N), axis=0, block_size=16)
    return _product(s, _x(s), w, 21)


def fp8() -> onnx.ModelProto:
    s = Quantized()
    x = _pair(s, _x(s), "x", _E4M3, _steps())
    return _product(s, x, _stored(s, "w", _values(np.float32).astype(_E4M3), _steps(_N), axis=1), 21)


def _trt(s: Quantized, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
    name = f"{outputs[0].split('_')[0]}/{'DQ' if 'Dequantize' in op else 'Q'}"
    s.nodes.append(helper.make_node(op, inputs, list(outputs), name=name, domain="trt", **attributes))


def nvfp4() -> onnx.ModelProto:
    s = Quantized()
    x, level = _x(s), s.constant("x_s", _steps())
    along = {"axis": -1, "block_size": 16}
    _trt(s, "TRT_FP4DynamicQuantize", [x, level], "x_q", "x_b", scale_type=17, **along)
    scales = s.node("DequantizeLinear", ["x_b", level], "x_sd", name="x_s/DQ")
    x = s.node("DequantizeLinear", ["x_q", scales], "x_d", name="x/DQ", **along)
    blocks = s.constant("w_b", np.full((_K // 16, _N), 1.5, np.float32).astype(_E4M3))
    scales = s.node("DequantizeLinear", [blocks, s.constant("w_s", _steps())], "w_sd", name="w_s/DQ")
    w = s.constant("w_v", _values(np.float32).astype(_FP4))
    w = s.node("DequantizeLinear", [w, scales], "w_d", name="w/DQ", axis=0, block_size=16)
    return _product(s, x, w, 23, "trt")


def mxfp8() -> onnx.ModelProto:
    s = Quantized()
    x, along = _x(s), {"axis": -1, "block_size": 32}
    _trt(s, "TRT_MXFP8DynamicQuantize", [x], "x_q", "x_b", output_dtype=TensorProto.FLOAT8E4M3FN, **along)
    _trt(s, "TRT_MXFP8DequantizeLinear", ["x_q", "x_b"], "x_d", output_dtype=TensorProto.FLOAT, **along)
    given = [
        s.constant("w_v", _values(np.float32).astype(_E4M3)),
        s.constant("w_s", np.full((_K // 32, _N), 120, np.uint8)),
    ]
    _trt(s, "TRT_MXFP8DequantizeLinear", given, "w_d", axis=0, block_size=32, output_dtype=TensorProto.FLOAT)
    return _product(s, "x_d", "w_d", 23, "trt")


FORMATS: dict[str, Callable[[], onnx.ModelProto]] = {
    "int8": int8,
    "int8_stored": int8_stored,
    "uint8": uint8,
    "int4": int4,
    "fp8": fp8,
    "nvfp4": nvfp4,
    "mxfp8": mxfp8,
}
PLACES = ("x_s", "x_z", "w_s", "w_z", "w_b")
"""Constants that say how a tensor is quantized: scales, zero points and block scales of either factor."""


def _replaced(value: Callable[[Any], Any]) -> Callable[[onnx.ModelProto, str], None]:
    def change(proto: onnx.ModelProto, name: str) -> None:
        tensor = next(one for one in proto.graph.initializer if one.name == name)
        tensor.CopyFrom(
            numpy_helper.from_array(np.array(value(numpy_helper.to_array(tensor)), order="C"), name)
        )

    return change


def _filled(number: float) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return np.full(value.shape, np.float32(number)).astype(value.dtype)

    return change


def _one(number: float) -> Callable[[Any], Any]:
    """The first value alone."""

    def change(value: Any) -> Any:
        with np.errstate(invalid="ignore"):
            changed = value.copy().reshape(-1)
            changed[:1] = np.asarray([number], np.float32).astype(value.dtype)
        return changed.reshape(value.shape)

    return change


def _words(proto: onnx.ModelProto, name: str) -> None:
    tensor = next(one for one in proto.graph.initializer if one.name == name)
    tensor.CopyFrom(helper.make_tensor(name, TensorProto.STRING, [], [b"wide"]))


def _as_input(shape: Callable[[Any], list[Any]]) -> Callable[[onnx.ModelProto, str], None]:
    def change(proto: onnx.ModelProto, name: str) -> None:
        tensor = next(one for one in proto.graph.initializer if one.name == name)
        value = helper.make_tensor_value_info(name, tensor.data_type, shape(tensor.dims))
        proto.graph.initializer.remove(tensor)
        proto.graph.input.append(value)

    return change


def _computed(proto: onnx.ModelProto, name: str) -> None:
    _as_input(list)(proto, name)
    proto.graph.input[-1].name = f"{name}_given"
    proto.graph.node.insert(0, helper.make_node("Abs", [f"{name}_given"], [name], name=f"{name}/Abs"))


def _left_out(proto: onnx.ModelProto, name: str) -> None:
    for node in proto.graph.node:
        for index, given in enumerate(node.input):
            if given == name:
                node.input[index] = ""


FAULTS: dict[str, Callable[[onnx.ModelProto, str], None]] = {
    "one in a row": _replaced(lambda v: v.reshape(-1)[:1]),
    "four in a row": _replaced(lambda v: np.resize(v, 4)),
    "one more dimension": _replaced(lambda v: v[None]),
    "two more dimensions": _replaced(lambda v: v[None, None]),
    "a scalar": _replaced(lambda v: v.reshape(-1)[0]),
    "one too few": _replaced(lambda v: v[..., :-1] if v.ndim else np.resize(v, 0)),
    "as many as the wrong axis": _replaced(lambda v: np.resize(v, _K)),
    "turned": _replaced(lambda v: v.T if v.ndim > 1 else np.resize(v, (_N, 2))),
    "empty": _replaced(lambda v: v.reshape(-1)[:0]),
    "float64": _replaced(lambda v: v.astype(np.float64)),
    "float16": _replaced(lambda v: v.astype(np.float32).astype(np.float16)),
    "bfloat16": _replaced(lambda v: v.astype(np.float32).astype(ml_dtypes.bfloat16)),
    "int8": _replaced(lambda v: np.ones(v.shape, np.int8)),
    "uint8": _replaced(lambda v: np.ones(v.shape, np.uint8)),
    "int16": _replaced(lambda v: np.zeros(v.shape, np.int16)),
    "int32": _replaced(lambda v: np.ones(v.shape, np.int32)),
    "bool": _replaced(lambda v: np.ones(v.shape, np.bool_)),
    "text": _words,
    "nan": _replaced(_filled(np.nan)),
    "zero": _replaced(_filled(0)),
    "one zero": _replaced(_one(0)),
    "negative": _replaced(_filled(-0.5)),
    "one negative": _replaced(_one(-1)),
    "infinite": _replaced(_filled(np.inf)),
    "seven": _replaced(_filled(7)),
    "an input": _as_input(list),
    "a free input": _as_input(lambda dims: [f"free{at}" for at, _ in enumerate(dims)]),
    "a free vector": _as_input(lambda _: ["free"]),
    "computed": _computed,
    "left out": _left_out,
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Format, constant and fault of every malformed model."""
    for format_, make in FORMATS.items():
        held = {tensor.name for tensor in make().graph.initializer}
        for place in PLACES:
            if place in held:
                yield from ((format_, place, fault) for fault in FAULTS)


def malformed(format_: str, place: str, fault: str) -> onnx.ModelProto:
    """The model of a format with one fault in one of its constants."""
    proto = FORMATS[format_]()
    FAULTS[fault](proto, place)
    return proto
