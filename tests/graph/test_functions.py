"""Local functions are written out; those that cannot be are refused before anything crashes or fills the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that is a chain of calls; "Relu" is the operator."""
    names = ["a", *(f"t{number}" for number in range(len(calls) - 1)), "b"]
    nodes = [
        helper.make_node(call, [first], [second], domain="" if call == "Relu" else "local")
        for call, first, second in zip(calls, names, names[1:], strict=False)
    ]
    return helper.make_function("local", name, ["a"], ["b"], nodes, IMPORTS)


def calling(name: str, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, [1, 4]) for tensor in "xy")
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"], domain="local")], "g", [x], [y])
    return helper.make_model(graph, functions=list(functions), opset_imports=IMPORTS, ir_version=9)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def nest(deep: int, calls: int) -> list[onnx.FunctionProto]:
    inner = [function(f"F{number}", *[f"F{number - 1}"] * calls) for number in range(1, deep)]
    return [function("F0", "Relu"), *inner]


def test_functions_in_functions_become_operators(tmp_path: Path) -> None:
    model = load(saved(calling("F3", *nest(4, 2)), tmp_path))
    assert [node.op for node in model.view.nodes] == ["Relu"] * 8
    assert any("4 local functions inlined" in note for note in model.notes)


@pytest.mark.parametrize("given", [None, 4.0], ids=["default", "given"])
def test_an_attribute_that_a_call_leaves_out_has_its_default(given: float | None, tmp_path: Path) -> None:
    """Also where the call stands in another function."""
    shift = helper.make_function(
        "local",
        "Shift",
        ["a"],
        ["b"],
        [helper.make_node("Constant", [], ["k"]), helper.make_node("Add", ["a", "k"], ["b"])],
        IMPORTS,
    )
    shift.node[0].attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="by")
    shift.attribute_proto.append(helper.make_attribute("by", 2.5))
    outer = function("Outer", "Shift")
    if given is not None:
        outer.node[0].attribute.append(helper.make_attribute("by", given))
    model = load(saved(calling("Outer", outer, shift), tmp_path))
    x = np.zeros((1, 4), np.float32)
    (y,) = ReferenceEvaluator(model.proto).run(None, {"x": x})
    np.testing.assert_array_equal(y, x + (2.5 if given is None else given))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (calling("A", function("A", "A")), r"local\.A is recursive"),
        (calling("A", function("A", "B"), function("B", "Relu", "A")), r"local\.[AB] is recursive"),
        (calling("F999", *nest(1000, 1)), "nested 1000 deep"),
        (calling("F99", *nest(100, 2)), r"would become 6\.34e\+29 nodes"),
    ],
    ids=["calls itself", "each other", "too deep", "doubles a hundred times"],
)
def test_functions_that_cannot_be_written_out_are_refused(
    model: onnx.ModelProto, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputFileError, match=says) as caught:
        load(saved(model, tmp_path))
    assert caught.value.where == str(tmp_path / "model.onnx")
