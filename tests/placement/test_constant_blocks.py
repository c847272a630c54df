"""Constant block scales of NVFP4 stand where TensorRT for RTX builds them: not in the kernel of a sum of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.api.results import Quantized
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq import insert as inserting
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import GraphView, Model
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.prediction.predict import predict
from tests import models
from tests.models import Sketch
from tests.placement.building import Built, build, table
from tests.placement.zoo import FLOAT

BLACKWELL = Target.parse("rtx", ("120",))
Front = Callable[[Sketch, str], str]


def in_fp4(sketch: Sketch, folder: Path) -> tuple[Quantized, Built]:
    """A network quantized for Blackwell with block scales that are computed, and its engine."""
    made = qdqtool.quantize(
        models.save(sketch.model(), folder),
        "random:2",
        recipe="llm-nvfp4",
        settings={"build.sm": 120, "place.sm": []},
    )
    return made, build(made.model, "sm120")


def normalized(s: Sketch, x: str, name: str = "norm") -> str:
    scale, shift = s.weight(f"{name}_g", 256), s.weight(f"{name}_b", 256)
    return s.node("LayerNormalization", [x, scale, shift], f"{name}_y", name=name, axis=-1)


def centred(s: Sketch, x: str, axis: int = -1) -> str:
    mean = s.node("ReduceMean", [x], "mean_y", name="mean", axes=[axis], keepdims=1)
    return s.node("Sub", [x, mean], "centred", name="sub")


def root_mean_square(s: Sketch, x: str) -> str:
    mean = s.node(
        "ReduceMean", [s.node("Mul", [x, x], "squares", name="square")], "mean_y", name="mean", axes=[-1]
    )
    return s.node("Div", [x, s.node("Sqrt", [mean], "root_y", name="root")], "scaled", name="div")


def beside_a_product(s: Sketch, x: str) -> str:
    y = normalized(s, x)
    return s.node(
        "Add", [s.node("MatMul", [y, s.weight("w0", 256, 256)], "y0", name="float"), y], "sum", name="add"
    )


def turned(s: Sketch, x: str) -> str:
    return s.node("Transpose", [normalized(s, x)], "turned", name="turn", perm=[1, 0, 2])


def spread(s: Sketch, x: str) -> str:
    return s.node("Add", [x, normalized(s, s.input("z", [1, 1, 256]))], "sum", name="add")


SHARED: dict[str, Front] = {
    "LayerNormalization": normalized,
    "LayerNormalization and Relu": lambda s, x: s.relu("relu", normalized(s, x)),
    "LayerNormalization and residual": lambda s, x: s.node("Add", [normalized(s, x), x], "sum", name="add"),
    "Softmax": lambda s, x: s.node("Softmax", [x], "y", name="softmax", axis=-1),
    "LogSoftmax": lambda s, x: s.node("LogSoftmax", [x], "y", name="softmax", axis=-1),
    "mean of rows": centred,
    "root mean square": root_mean_square,
}
APART: dict[str, Front] = {
    "Relu": lambda s, x: s.relu("relu", x),
    "mean of columns": lambda s, x: centred(s, x, 1),
    "Softmax of columns": lambda s, x: s.node("Softmax", [x], "y", name="softmax", axis=1),
    "LayerNormalization, rows in another order": turned,
    "LayerNormalization of one row for all": spread,
    "LayerNormalization and a product that reads it": beside_a_product,
}


def network(front: Front) -> onnx.ModelProto:
    s = Sketch()
    y = front(s, s.input("x", [2, 64, 256]))
    s.output(s.node("MatMul", [y, s.weight("w", 256, 256)], "out", name="core"))
    return s.model()


class NoSums:
    """What insertion would write if nothing spoke against constant scales."""

    def __init__(self, view: GraphView) -> None:
        del view

    def in_front(self, tensor: str) -> None:
        del tensor


def written(proto: onnx.ModelProto, folder: Path, **options: object) -> Model:
    """The model in NVFP4 with constant block scales."""
    model = prepare(load(models.save(proto, folder)), PrepareOptions())
    placement = decide(model.view, PlacementOptions(format="nvfp4", sm=("120",), exclude=("float",)))
    return insert(model, placement, table(model, placement), InsertOptions(blocks="constant", **options))


def refused(model: Model) -> list[str]:
    return [found.node for found in lint(model, BLACKWELL).findings if found.code == "QDQ196"]


def fixed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Every free dimension is 2: constant block scales need fixed shapes."""
    for dim in (dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        if dim.dim_param:
            dim.dim_value = 2
    return proto


@pytest.mark.parametrize("name", FLOAT)
def test_insertion_writes_none_that_lint_refuses_and_repair_leaves_none(name, tmp_path, monkeypatch):
    assert refused(written(fixed(FLOAT[name]()), tmp_path)) == []
    monkeypatch.setattr(inserting, "RowSums", NoSums)
    forced = written(fixed(FLOAT[name]()), tmp_path)
    repaired, _ = repair(forced, BLACKWELL)
    assert refused(repaired) == []


@pytest.mark.parametrize("front", SHARED)
def test_behind_a_sum_of_rows_scales_are_computed_and_the_model_says_so(front, tmp_path):
    model = written(network(SHARED[front]), tmp_path)
    assert any(node.op == "TRT_FP4DynamicQuantize" for node in model.view.nodes)
    assert "although insert.blocks=constant" in " ".join(model.notes)


@pytest.mark.parametrize("front", APART)
def test_elsewhere_they_stay_constant(front, tmp_path):
    model = written(network(APART[front]), tmp_path)
    assert not any(node.op == "TRT_FP4DynamicQuantize" for node in model.view.nodes)
    assert "insert.blocks" not in " ".join(model.notes)


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("front", SHARED | APART)
def test_lint_and_predict_refuse_what_is_not_built_and_repair_makes_it_build(front, tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    monkeypatch.setattr(inserting, "RowSums", NoSums)
    forced = written(network((SHARED | APART)[front]), tmp_path, types="fp16")
    error = build(forced.proto, "sm120").error
    assert bool(error) == bool(refused(forced)) == (front in SHARED), error
    foreseen = predict(forced, BLACKWELL)
    assert any("the build fails" in doubt.reason for doubt in foreseen.doubts) == (front in SHARED)
    repaired, _ = repair(forced, BLACKWELL)
    built = build(repaired.proto, "sm120")
    assert dict(built.precision)["core"] == "fp4", built.error


@pytest.mark.rtx
@pytest.mark.slow
def test_a_product_that_makes_queries_keys_and_values_in_fp4_is_not_cut(tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    s = Sketch()
    x = s.input("x", [1, 128, 64])
    y = s.node("MatMul", [x, s.weight("w", 64, 192)], "qkv_y", name="qkv")
    y = s.node("Reshape", [y, s.constant("apart", np.array([1, 128, 3, 2, 32]))], "r_y", name="apart")
    y = s.node("Transpose", [y], "t_y", name="turn", perm=[2, 0, 3, 1, 4])
    q, k, v = (
        s.node("Gather", [y, s.constant(f"i{n}", np.array(n))], f"g{n}", name=f"pick{n}", axis=0)
        for n in range(3)
    )
    k = s.node("Transpose", [k], "k_t", name="keys", perm=[0, 1, 3, 2])
    y = s.node(
        "Mul",
        [s.node("MatMul", [q, k], "s_y", name="scores"), s.constant("f", np.float32(0.2))],
        "m",
        name="scale",
    )
    y = s.node("MatMul", [s.node("Softmax", [y], "p", name="softmax", axis=-1), v], "v_y", name="values")
    y = s.node(
        "Reshape",
        [
            s.node("Transpose", [y], "b", name="back", perm=[0, 2, 1, 3]),
            s.constant("m_s", np.array([1, 128, 64])),
        ],
        "c",
        name="merge",
    )
    s.output(s.node("MatMul", [y, s.weight("w2", 64, 64)], "z", name="last"))
    _, built = in_fp4(s, tmp_path)
    assert sum("qkv" in kernel.onnx_nodes and kernel.kind == "gemm" for kernel in built.kernels) == 1
