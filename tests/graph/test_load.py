"""Any ONNX file that means something opens, is named, sorted and shaped, and says what was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from tests import models
from tests.graph.placing import opened


def test_a_clean_model_opens_without_a_note(tmp_path: Path) -> None:
    assert opened(models.conv_chain(), tmp_path).notes == ()


@pytest.mark.parametrize("name", models.ALL)
def test_a_loaded_model_computes_what_the_file_computes(name: str, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    feeds = models.feeds(proto)
    mine = models.run(opened(proto, tmp_path).proto, feeds)
    for output, value in models.run(proto, feeds).items():
        np.testing.assert_allclose(mine[output], value, rtol=1e-5, atol=1e-6)


def test_loading_leaves_the_file_untouched(tmp_path: Path) -> None:
    path = models.save(models.weight_transpose(), tmp_path)
    before = path.read_bytes()
    load(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_unnamed_and_repeated_nodes_get_stable_names_of_their_own(tmp_path: Path) -> None:
    proto = models.conv_chain()
    names = ["", "same", "same", ""]
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    model = opened(proto, tmp_path)
    assert [node.name for node in model.view.nodes] == [
        "node_of_conv1_y",
        "same",
        "same_2",
        "node_of_relu2_y",
    ]
    assert "3 nodes without a unique name" in " ".join(model.notes)


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    proto = models.conv_chain()
    nodes = list(reversed(proto.graph.node))
    copies = onnx.GraphProto(node=nodes).node
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    model = opened(proto, tmp_path)
    assert [node.name for node in model.view.nodes] == ["conv1", "relu1", "conv2", "relu2"]
    assert "topological" in " ".join(model.notes)


def test_constant_nodes_become_initializers(tmp_path: Path) -> None:
    model = opened(models.weight_transpose(), tmp_path)
    assert "Constant" not in {node.op for node in model.view.nodes}
    assert model.view.is_constant("w16")


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value_float", 2.5, 2.5),
        ("value_ints", [3, 4], [3, 4]),
        ("value_int", 7, 7),
        ("value_floats", [1.0], [1.0]),
    ],
)
def test_short_forms_of_constant_nodes_keep_their_value(
    attribute: str, value: object, expected: object, tmp_path: Path
) -> None:
    constant = helper.make_node("Constant", [], ["c"], **{attribute: value})
    graph = helper.make_graph(
        [constant, helper.make_node("Cast", ["c"], ["f"], to=1), helper.make_node("Add", ["x", "f"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = opened(proto, tmp_path).view.constant("c")
    np.testing.assert_array_equal(found, expected)


def test_initializers_that_are_also_inputs_become_plain_constants(tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model = opened(proto, tmp_path)
    assert [info.name for info in model.view.inputs] == ["x"]
    assert "4 initializers were also inputs" in " ".join(model.notes)
    assert model.proto.ir_version == 8


def test_the_last_of_repeated_initializers_counts(tmp_path: Path) -> None:
    proto = models.conv_chain()
    first = numpy_helper.from_array(np.zeros(8, np.float32), "conv1_b")
    proto.graph.initializer.insert(0, first)
    model = opened(proto, tmp_path)
    assert np.any(model.view.constant("conv1_b"))
    assert "repeated" in " ".join(model.notes)


def test_old_opsets_are_raised_with_a_note_and_the_same_results(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Dropout", ["x"], ["d"]),
            helper.make_node("Softmax", ["d"], ["s"], axis=3),
            helper.make_node("Unsqueeze", ["s"], ["y"], axes=[0]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    feeds = models.feeds(proto)
    model = opened(proto, tmp_path)
    assert model.view.opset == 13
    assert "opset raised from 9 to 13" in model.notes
    np.testing.assert_allclose(models.run(model.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-6)


def test_raising_the_opset_keeps_softmax_one_node(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    model = opened(proto, tmp_path)
    assert [node.op for node in model.view.nodes] == ["Softmax"]
    feeds = models.feeds(proto)
    np.testing.assert_allclose(models.run(model.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-6)


def test_softmax_over_two_long_axes_stays_flattened(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    model = opened(proto, tmp_path)
    feeds = models.feeds(proto)
    np.testing.assert_allclose(models.run(model.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-6)
    assert "Flatten" in {node.op for node in model.view.nodes}


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    body = helper.make_function(
        "own",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    graph = helper.make_graph(
        [helper.make_node("Double", ["x"], ["y"], domain="own")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=imports, functions=[body], ir_version=8)
    model = opened(proto, tmp_path)
    assert [node.op for node in model.view.nodes] == ["Add"]
    assert "1 local function inlined" in model.notes


def test_bodies_of_control_flow_are_left_alone_with_a_note(tmp_path: Path) -> None:
    model = opened(models.branching(), tmp_path)
    assert model.notes == ("1 If node: its bodies are not changed",)
    assert [use.node.name for use in model.view.uses("conv_y")] == ["choose", "choose"]


@pytest.mark.parametrize(
    ("condition", "way_out"),
    [
        (
            "Equal (sr, rate)",
            """; if 'sr' never changes, make it a constant: --set 'prepare.constants={"sr": VALUE}'""",
        ),
        ("Equal (random, rate)", ""),
    ],
    ids=["an input decides", "something else decides"],
)
def test_compute_nodes_in_bodies_are_counted_with_the_way_to_them(
    condition: str, way_out: str, tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        agraph (float[1, 4] x, float[4, 4] w, int64 sr) => (float[1, 4] y)
        <int64 rate = {{16000}}> {{
            random = own.Random ()
            both = {condition}
            y = If (both) <
                then_branch = yes () => (float[1, 4] a) {{ a = MatMul (x, w) }},
                else_branch = no () => (float[1, 4] b) {{ t = MatMul (x, w)  b = MatMul (t, w) }}
            >
        }}
    """)
    (note,) = [note for note in opened(proto, tmp_path).notes if "bodies" in note]
    assert (
        note
        == f"1 If node: its bodies are not changed, so 3 compute nodes in them are not quantized{way_out}"
    )


def test_unknown_operators_are_not_the_business_of_loading(tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.graph.node[1].op_type = "NeverHeardOf"
    assert "NeverHeardOf" in {node.op for node in opened(proto, tmp_path).view.nodes}


def test_an_infinite_mask_is_fine_and_noted(tmp_path: Path) -> None:
    proto = models.attention()
    mask = np.triu(np.full((16, 16), -np.inf, np.float32), 1)
    proto.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    softmax = next(node for node in proto.graph.node if node.name == "softmax")
    proto.graph.node.append(helper.make_node("Add", [softmax.input[0], "mask"], ["masked"], name="masking"))
    softmax.input[0] = "masked"
    assert "constant 'mask' holds 120 infinite values" in " ".join(opened(proto, tmp_path).notes)


def test_loading_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = models.save(models.attention(), tmp_path)
    assert serialize(load(path)) == serialize(load(path))


def test_a_branch_may_hold_sparse_constants(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "sparse")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 3]), ""), [4])
    result = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    branches = [
        helper.make_graph(
            [helper.make_node("Add", ["x", "sparse"], ["z"])], name, [], result, sparse_initializer=[sparse]
        )
        for name in ("then", "else")
    ]
    s = models.Sketch()
    s.input("x", [1, 4])
    s.node("If", [s.input("c", [], TensorProto.BOOL)], "y", then_branch=branches[0], else_branch=branches[1])
    s.output("y", [1, 4])
    feeds = {"x": np.ones((1, 4), np.float32), "c": np.array(True)}
    path = models.save(s.model(), tmp_path)
    np.testing.assert_array_equal(models.run(load(path).proto, feeds)["y"], [[3.0, 1.0, 1.0, 4.0]])
