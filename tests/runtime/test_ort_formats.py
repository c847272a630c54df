"""onnxruntime, or our emulation where it has no kernel, rounds every format as its Q/DQ nodes say."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from qdqtool.core.placement import Slot
from qdqtool.core.tensors import FP8, INT4, INT8, MXFP8, NVFP4, QuantFormat
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.encode import block_scales, decode, effective, encode
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph, lower
from qdqtool.graph.view import Model
from qdqtool.runtime.runner import open_runner
from tests import models

ROWS, DEPTH, COLUMNS = 6, 64, 32


def product(folder: Path) -> Model:
    """y = Relu(x) @ w, the Relu in front of the Q."""
    s = models.Sketch()
    s.input("x", (ROWS, DEPTH))
    s.node("Relu", ["x"], "r", name="relu")
    s.weight("w", DEPTH, COLUMNS)
    s.node("MatMul", ["r", "w"], "y", name="mm")
    s.output("y", (ROWS, COLUMNS))
    return load(models.save(s.model(opset=23), folder))


def quantized(model: Model, format_: QuantFormat) -> QuantizedGraph:
    weight = model.view.constant("w")
    assert weight is not None
    first, second = Slot(node="mm", index=0), Slot(node="mm", index=1)
    if format_.block is None:
        scale = (np.abs(weight).max(axis=0) / format_.qmax).astype(np.float32)
        return QuantizedGraph(
            model=model,
            assignment={
                first: Quantization(format=format_, scale=np.asarray(0.02, np.float32)),
                second: Quantization(format=format_, scale=scale, axis=1, stored=True),
            },
        )
    scale, level = block_scales(weight, format_, 0, 16 if format_ == INT4 else format_.block)
    block = DEPTH // scale.shape[0]
    found = {
        second: Quantization(
            format=format_, scale=scale, axis=0, block=block, global_scale=level, stored=True
        )
    }
    if format_ != INT4:
        top = 2.0**-9 if format_.two_level else None
        found = {
            first: Quantization(format=format_, scale=None, axis=1, block=block, global_scale=top)
        } | found
    return QuantizedGraph(model=model, assignment=found)


def rounded(value: np.ndarray, entry: Quantization | None) -> np.ndarray:
    """What NumPy and ml_dtypes make of a tensor."""
    if entry is None:
        return value
    if entry.scale is not None:
        scale = effective(entry.scale, entry.global_scale)
        return decode(
            encode(value, scale, entry.format, entry.axis, entry.block), scale, entry.axis, entry.block
        )
    folded = value.reshape(ROWS, -1, entry.block)
    wanted = np.abs(folded).max(axis=2, keepdims=True) / np.float32(entry.format.qmax)
    if entry.global_scale is not None:
        low = np.minimum(wanted / np.float32(entry.global_scale), 448).astype(ml_dtypes.float8_e4m3fn)
        scale = np.maximum(low.astype(np.float32), 2.0**-9) * np.float32(entry.global_scale)
        steps = (folded / scale).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn)
    else:
        scale = np.exp2(np.ceil(np.log2(np.maximum(wanted, 2.0**-100))))
        steps = (folded / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return (steps.astype(np.float32) * scale).reshape(value.shape)


@pytest.mark.parametrize("format_", [INT8, FP8, INT4, NVFP4, MXFP8], ids=str)
def test_every_format_is_rounded_as_its_definition_says(format_, tmp_path):
    graph = quantized(product(tmp_path), format_)
    runner = open_runner(serialize(lower(graph)), description="model")
    x = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float32)
    x[0] = 0
    x[1] *= 100
    left = rounded(np.maximum(x, 0), graph.assignment.get(Slot(node="mm", index=0)))
    right = rounded(graph.model.view.constant("w"), graph.assignment[Slot(node="mm", index=1)])
    (found,) = runner.run({"x": x}).values()
    np.testing.assert_allclose(found, left @ right, rtol=1e-5, atol=1e-4)
    assert ("emulated" in runner.description) is (format_ in {NVFP4, MXFP8})


def test_a_relu_before_an_eight_bit_float_stays(tmp_path):
    graph = quantized(product(tmp_path), FP8)
    x = -np.ones((ROWS, DEPTH), np.float32)
    (found,) = open_runner(serialize(lower(graph)), description="").run({"x": x}).values()
    assert not found.any()


@pytest.mark.parametrize("value", [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 7.0, 0.2, -1.3])
def test_emulated_four_bit_floats_break_ties_to_even(value, tmp_path):
    s = models.Sketch()
    s.input("x", (1, 16))
    s.constant("one", np.eye(16, dtype=np.float32))
    s.node("MatMul", ["x", "one"], "y", name="mm")
    s.output("y", (1, 16))
    model = load(models.save(s.model(opset=23), tmp_path))
    scale = np.ones((1, 1), np.float32)
    entry = Quantization(format=NVFP4, scale=scale, axis=1, block=16, global_scale=1.0)
    written = lower(QuantizedGraph(model=model, assignment={Slot(node="mm", index=0): entry}))
    (found,) = (
        open_runner(serialize(written), description="")
        .run({"x": np.full((1, 16), value, np.float32)})
        .values()
    )
    wanted = np.clip(np.float32(value), -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert set(found.reshape(-1).tolist()) == {float(wanted)}


def test_an_operator_that_is_not_emulated_is_told(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x, step = sketch.input("x", [2, 16]), sketch.constant("step", np.float32(0.1))
    blocks = {"domain": "trt", "axis": -1, "block_size": 16, "scale_type": 17}
    sketch.nodes.append(
        helper.make_node("TRT_FP4DynamicQuantize", [x, step], ["values", "scales"], name="q", **blocks)
    )
    sketch.node("DequantizeLinear", ["scales", step], "steps", name="steps_dq")
    y = sketch.node("DequantizeLinear", ["values", "steps"], "back", name="dq", axis=1, block_size=16)
    sketch.output(sketch.node("TRT_FP4QDQ", [y], "rounded", domain="trt"))
    path = models.save(sketch.model(opset=23, domains=["trt"]), tmp_path)
    with pytest.raises(InputFileError, match="TRT_FP4QDQ"):
        open_runner(path, description="model")
