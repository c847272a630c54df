"""Constants are computed ahead only where onnxruntime, which runs the model, computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.core.recipe import PrepareOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.canonical import constants
from qdqtool.graph.onnx_io import passes
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from tests.graph.node_cases import Feeds, cases
from tests.graph.node_cases import run_by_onnxruntime as run

_RANDOM = np.random.default_rng(1)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _sizes(*values: int) -> Any:
    return np.array(values, np.int64)


_LSTM = [_floats(5, 2, 3), _floats(1, 16, 3), _floats(1, 16, 4), _floats(1, 32)]
_GRU = [_floats(5, 2, 3), _floats(1, 12, 3), _floats(1, 12, 4), _floats(1, 24)]
_UP = [_floats(1, 1, 5, 6), None, np.array([1, 1, 1.7, 2.3], np.float32)]

DIFFERENT = {
    "lengths": ("LSTM", [*_LSTM, np.array([2, 5], np.int32)], {"hidden_size": 4}),
    "clip": ("LSTM", [_LSTM[0] * 4, *_LSTM[1:]], {"hidden_size": 4, "clip": 0.5}),
    "activations": ("LSTM", _LSTM, {"hidden_size": 4, "activations": ["Sigmoid", "Relu", "Tanh"]}),
    "input_forget": ("LSTM", _LSTM, {"hidden_size": 4, "input_forget": 1}),
    "gates": ("GRU", _GRU, {"hidden_size": 4, "activations": ["HardSigmoid", "Relu"]}),
    "SAME_LOWER": (
        "MaxPool",
        [_floats(1, 2, 7, 8)],
        {"auto_pad": "SAME_LOWER", "strides": [2, 2], "kernel_shape": [3, 2]},
    ),
    "LRN": ("LRN", [_floats(1, 6, 2, 2)], {"size": 3, "bias": 2.0, "alpha": 0.1}),
    "LpNormalization": ("LpNormalization", [_floats(3, 4)], {"p": 1, "axis": 0}),
    "linear": ("Resize", _UP, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    "cubic": ("Resize", _UP, {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}),
    "nearest": ("Resize", _UP, {"mode": "nearest"}),
}
"""Operators that onnx's reference and onnxruntime compute differently: the node stays."""
SAME = {
    "Conv": ("Conv", [_floats(1, 2, 7, 8), _floats(3, 2, 3, 2)], {"strides": [2, 2]}),
    "Exp": ("Exp", [_floats(3, 4)], {}),
    "Softmax": ("Softmax", [_floats(3, 4)], {"axis": 1}),
    "LSTM": ("LSTM", _LSTM, {"hidden_size": 4}),
    "half": ("MatMul", [_floats(3, 64).astype(np.float16), _floats(64, 3).astype(np.float16)], {}),
    "double": ("Sqrt", [np.abs(_floats(3, 4)).astype(np.float64)], {}),
    "doubled": ("Resize", [_UP[0], None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    "integers": ("Div", [_sizes(-7, 7, -7, 7), _sizes(2, -2, -2, 2)], {}),
    "table": ("Mul", [_floats(3, 4), np.float32(0.5)], {}),
}
"""Operators on which both agree: the constant takes the place of the node."""


def _proto(op: str, values: list[Any], attributes: dict[str, Any], opset: int = 19) -> onnx.ModelProto:
    """A node that reads constants only, behind a choice that is made when the model runs."""
    names = [f"c{index}" if value is not None else "" for index, value in enumerate(values)]
    node = helper.make_node(op, names, ["made"], name="op", **attributes)
    kept = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, values, strict=True) if n]
    return _chosen([node], {"made": 0}, kept, [helper.make_opsetid("", opset)])


def _chosen(
    nodes: list[onnx.NodeProto], made: dict[str, int], constants: list[onnx.TensorProto], opsets: Any
) -> onnx.ModelProto:
    choices = [helper.make_node("Where", ["flag", name, name], [f"{name}_out"]) for name in made]
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    outputs = [
        helper.make_tensor_value_info(f"{name}_out", kind, None)
        if kind
        else helper.make_empty_tensor_value_info(f"{name}_out")
        for name, kind in made.items()
    ]
    graph = helper.make_graph([*nodes, *choices], "constants", [flag], outputs, constants)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


OPSET = [helper.make_opsetid("", 19)]
_FLAG: Feeds = {"flag": np.array(True)}


def _prepared(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    path = folder / "constants.onnx"
    onnx.save(proto, path)
    return whole(prepare(load(path), PrepareOptions()).proto)


def _same(before: list[Any] | str, after: list[Any] | str) -> bool:
    if isinstance(before, str) or isinstance(after, str):
        return isinstance(before, str)
    return all(
        one.shape == other.shape
        and one.dtype == other.dtype
        and (_near(one, other) if one.dtype.kind == "f" else np.array_equal(one, other))
        for one, other in zip(before, after, strict=True)
    )


def _near(one: Any, other: Any) -> bool:
    share = 2e-3 if one.dtype == np.float16 else 2e-5
    largest = np.abs(one[np.isfinite(one)]).max(initial=0)
    return bool(np.allclose(one, other, rtol=share, atol=share * largest + 1e-6, equal_nan=True))


@pytest.mark.parametrize("name", [*DIFFERENT, *SAME])
def test_a_constant_is_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    proto = _proto(*(DIFFERENT | SAME)[name])
    ready = _prepared(proto, tmp_path)
    assert _same(run(proto.SerializeToString(), _FLAG), run(ready.SerializeToString(), _FLAG))
    assert any(node.name == "op" for node in ready.graph.node) == (name in DIFFERENT)


def test_what_follows_a_node_that_stays_stays_too(tmp_path: Path) -> None:
    op, values, attributes = DIFFERENT["LRN"]
    proto = _proto(op, values, attributes)
    proto.graph.node[0].output[0] = "first"
    proto.graph.node.insert(1, helper.make_node("Neg", ["first"], ["made"], name="after"))
    ready = _prepared(proto, tmp_path)
    assert [node.name for node in ready.graph.node][:2] == ["op", "after"]


def test_a_node_without_a_kernel_keeps_neither_itself_nor_the_others(tmp_path: Path) -> None:
    constants = [
        numpy_helper.from_array(_floats(3), "x"),
        numpy_helper.from_array(np.array([1, 2], np.int8), "i"),
    ]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="known"),
        helper.make_node("Mod", ["i", "i"], ["m"], name="mod"),
    ]
    nodes.append(helper.make_node("Erf", ["b"], ["s"], name="unknown"))
    nodes.insert(2, helper.make_node("Cast", ["x"], ["b"], name="cast", to=TensorProto.BFLOAT16))
    ready = _prepared(_chosen(nodes, dict.fromkeys("ems", 0), constants, OPSET), tmp_path)
    assert {node.name for node in ready.graph.node if node.op_type != "Where"} == set()


def test_constants_are_confirmed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(constants, "run_pass", lambda *given: asked.append(given) or passes.run_pass(*given))
    nodes = [helper.make_node("Exp", ["x"], ["e0"], name="e0")]
    nodes += [helper.make_node("Tanh", [f"e{n}"], [f"e{n + 1}"], name=f"e{n + 1}") for n in range(3)]
    proto = _chosen(nodes, {"e3": 0}, [numpy_helper.from_array(_floats(100), "x")], OPSET)
    assert [node.op_type for node in _prepared(proto, tmp_path).graph.node] == ["Where"]
    assert len(asked) == 1
    monkeypatch.setattr(constants, "_BATCH", 1000)
    assert [node.op_type for node in _prepared(proto, tmp_path).graph.node] == ["Where"]
    assert len(asked) == 5
    monkeypatch.setattr(constants, "_LARGEST_MESSAGE", 700)
    assert len(_prepared(proto, tmp_path).graph.node) == 5


def test_a_child_that_is_ended_confirms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_given: object) -> bytes:
        raise passes.PassExceeded("took more memory")

    monkeypatch.setattr(constants, "run_pass", ended)
    ready = _prepared(_proto(*SAME["Conv"]), tmp_path)
    assert any(node.name == "op" for node in ready.graph.node)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shard",  # neighbours by name are of one operator
    [pytest.param(shard, marks=[pytest.mark.long] * (shard % 2)) for shard in range(4)],
)
def test_every_operator_on_constants_gives_what_onnxruntime_gives(shard: int, tmp_path: Path) -> None:
    wrong: dict[str, str] = {}
    tried = 0
    for case in cases()[shard::4]:
        proto = onnx.ModelProto.FromString(case.model.SerializeToString())
        finite = all(np.isfinite(value).all() for value in case.feeds.values() if value.dtype.kind == "f")
        if not finite or any(not value.type.HasField("tensor_type") for value in proto.graph.output):
            continue  # constants that are not finite are refused
        kept = [numpy_helper.from_array(value, name) for name, value in case.feeds.items()]
        domains = {entry.domain for entry in proto.opset_import}
        opsets = [*proto.opset_import, *([] if "" in domains else OPSET)]
        outputs = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
        made = _chosen(list(proto.graph.node), outputs, kept, opsets)
        before = run(made.SerializeToString(), _FLAG)
        if isinstance(before, str):
            continue
        tried += 1
        try:
            after = run(_prepared(made, tmp_path).SerializeToString(), _FLAG)
        except InputFileError as error:
            wrong[case.name] = str(error)
            continue
        if not _same(before, after):
            wrong[case.name] = f"{after} instead of {before}"[:200]
    assert tried > 200
    assert wrong == {}
