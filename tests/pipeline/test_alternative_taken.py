"""A node that leaves INT8 computes in FP8 in the engine that is kept, where that is the fastest that keeps the limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run as cli
from qdqtool.core.kinds import ENGINE, LIMIT
from qdqtool.core.tensors import DType

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = [pytest.mark.rtx, pytest.mark.slow]
WIDTH, ROWS = 2048, 512
LIMIT_DB = 23.0


def outlying(folder: Path) -> Path:
    """Three matrix products; what the second one reads has channels of very different reach, so that INT8 loses it."""
    draw = np.random.default_rng(0)
    reach = np.exp(1.7 * draw.standard_normal(WIDTH)).astype(np.float32)
    shapes = {"a": (256, WIDTH), "b": (WIDTH, WIDTH), "c": (WIDTH, 64)}
    weights = {
        name: (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights["a"] *= reach
    weights["b"] /= (np.maximum(reach, 0.2) ** 0.6)[:, None]
    nodes = []
    tensor = "x"
    for name in shapes:
        last = name == "c"
        nodes.append(helper.make_node("MatMul", [tensor, name], ["y" if last else f"{name}/o"], name=name))
        if not last:
            nodes.append(helper.make_node("Relu", [f"{name}/o"], [f"{name}/relu"], name=f"{name}/relu"))
        tensor = f"{name}/relu"
    graph = helper.make_graph(
        nodes,
        "outlying",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10), path)
    np.savez(folder / "s.npz", x=draw.standard_normal((200, 256)).astype(np.float32))
    return path


def test_an_engine_with_a_node_in_fp8_is_taken(tmp_path: Path) -> None:
    model, samples = outlying(tmp_path), tmp_path / "s.npz"
    words = ["run", str(model), "--samples", f"{samples}[:120]", "--eval-samples", f"{samples}[120:]"]
    words += [
        "--sm",
        "89",
        "--opt-shapes",
        f"x:{ROWS}x256",
        "--out",
        str(tmp_path / "out"),
        "--min-sqnr",
        str(LIMIT_DB),
        # equalized, INT8 keeps the limit by itself and nothing is left to choose
        "--set",
        "weights.equalize=none",
    ]
    assert cli(words) == 0
    found = LIMIT.read(tmp_path / "out" / "limit.json")
    assert found.whole.sqnr_db is not None
    assert found.whole.sqnr_db < LIMIT_DB
    assert found.formats == {"b": "fp8"}
    taken = next(one for one in found.alternatives if one.formats == found.formats)
    others = [one for one in found.alternatives if one.keeps and one is not taken]
    assert others
    assert all((taken.ms or 0) < (one.ms or 0) for one in others)
    engine = ENGINE.read(tmp_path / "out" / "layers.json")
    kernels = [
        layer for layer in engine.layers if any("[ONNX Layer: b]" in text for _, text in layer.attributes)
    ]
    assert kernels
    assert {DType.FLOAT8} <= {tensor.dtype for layer in kernels for tensor in layer.inputs}
