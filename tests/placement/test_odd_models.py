"""What no exporter should write: a finding or a clear error, never a crash."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.target import Target
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from tests import models
from tests.placement.qdq import GRAPHS


def _node(proto, name):
    return next(node for node in proto.graph.node if node.name == name)


def _store(proto, name, values):
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values), name))


def _cycle(proto):
    _node(proto, "c1_x/Q").input[0] = _node(proto, "relu2").output[0]


def _no_scale(proto):
    del _node(proto, "c1_x/Q").input[1:]


def _unmade_scale(proto):
    _node(proto, "c1_x/Q").input[1] = "ghost"


def _nan_scale(proto):
    _store(proto, "c1_x_s", np.float32(np.nan))


def _infinite_scale(proto):
    _store(proto, "c1_x_s", np.float32(np.inf))


def _negative_channel(proto):
    steps = np.full(16, 0.01, np.float32)
    steps[3] = -1
    _store(proto, "c1_w_s", steps)


def _empty_scale(proto):
    _store(proto, "c1_x_s", np.zeros(0, np.float32))


def _nameless(proto):
    for node in proto.graph.node:
        node.name = ""


def _one_name(proto):
    for node in proto.graph.node:
        node.name = "same"


def _recursive_function(proto):
    body = [onnx.helper.make_node("Again", ["a"], ["b"], domain="local")]
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("local", 1)]
    proto.functions.append(onnx.helper.make_function("local", "Again", ["a"], ["b"], body, imports))
    proto.opset_import.append(onnx.helper.make_opsetid("local", 1))
    _node(proto, "relu1").op_type = "Again"
    _node(proto, "relu1").domain = "local"


def _word_as_scale(proto):
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1_x_s")
    tensor.CopyFrom(onnx.helper.make_tensor("c1_x_s", onnx.TensorProto.STRING, [], [b"wide"]))


def _complex_scale(proto):
    _store(proto, "c1_x_s", np.complex64(1 + 1j))


def _four_bit_scale(proto):
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1_x_s")
    tensor.CopyFrom(onnx.helper.make_tensor("c1_x_s", onnx.TensorProto.INT4, [], [1]))


def _far_axis(proto):
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "axis":
                attribute.i = 2**62


def _sparse(name, indices=None):
    def spoil(proto):
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
        values = onnx.numpy_helper.to_array(tensor).reshape(-1)
        sparse = onnx.SparseTensorProto(dims=tensor.dims)
        sparse.values.CopyFrom(onnx.numpy_helper.from_array(values, name))
        places = np.arange(values.size) if indices is None else np.full(values.size, indices)
        sparse.indices.CopyFrom(onnx.numpy_helper.from_array(places, f"{name}_i"))
        proto.graph.initializer.remove(tensor)
        proto.graph.sparse_initializer.append(sparse)

    return spoil


def _through(op, name, stored, **attributes):
    def spoil(proto):
        _store(proto, name, stored)
        proto.graph.node.insert(0, onnx.helper.make_node(op, [name], ["passed"], **attributes))
        for node in list(proto.graph.node)[1:]:
            for index, tensor in enumerate(node.input):
                if tensor == name:
                    node.input[index] = "passed"

    return spoil


def spoilt(spoil, folder):
    proto = GRAPHS["chain_ok"]()
    spoil(proto)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_cycle, "cycle"),
        (_no_scale, "c1_x/Q"),
        (_unmade_scale, "ghost"),
        (_recursive_function, "recursive"),
        (_sparse("c1_w_s", 16), "sparse tensor 'c1_w_s'"),
        (_sparse("c1_w_s", -1), "sparse tensor 'c1_w_s'"),
    ],
    ids=["cycle", "no scale", "unmade scale", "recursion", "far index", "negative index"],
)
def test_what_cannot_be_read_is_an_error_that_names_the_place(spoil, words, tmp_path):
    with pytest.raises(QdqError, match=words):
        load(spoilt(spoil, tmp_path))


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (_infinite_scale, "scale_value"),
        (_nan_scale, "scale_value"),
        (_negative_channel, "scale_value"),
        (_empty_scale, "scale_length"),
        (_word_as_scale, "scale_value"),
        (_complex_scale, "scale_value"),
        (_four_bit_scale, "scale_value"),
        (_far_axis, "scale_length"),
    ],
    ids=["infinite", "NaN", "negative channel", "empty", "a word", "complex", "INT4", "far axis"],
)
def test_what_can_be_read_is_a_finding_and_still_predicted(spoil, rule, tmp_path):
    model = load(spoilt(spoil, tmp_path))
    assert rule in {finding.rule for finding in lint(model).findings}
    assert {finding.severity.value for finding in lint(model).findings if finding.rule == rule} == {"error"}
    for profile in ("10", "rtx"):
        assert len(predict(model, Target.parse(profile)).nodes) > 1


@pytest.mark.parametrize("spoil", [_nameless, _one_name], ids=["no names", "one name"])
@pytest.mark.parametrize("profile", ["10", "rtx"])
def test_names_do_not_matter(profile, spoil, tmp_path):
    plain = predict(load(models.save(GRAPHS["chain_ok"](), tmp_path)), Target.parse(profile))
    (tmp_path / "spoilt").mkdir()
    model = load(spoilt(spoil, tmp_path / "spoilt"))
    assert lint(model).findings == ()
    assert len(predict(model, Target.parse(profile)).layers) == len(plain.layers)
    assert [n.precision for n in predict(model, Target.parse(profile)).nodes] == [
        n.precision for n in plain.nodes
    ]


def test_a_single_scale_in_a_vector_fits_a_bias_of_one_dimension(tmp_path):
    s = models.Sketch()
    steps, zero = s.constant("steps", np.float32([0.01])), s.constant("zero", np.int32(0))
    bias = s.node(
        "DequantizeLinear", [s.constant("b_q", np.arange(8, dtype=np.int32)), steps, zero], "b", name="b/DQ"
    )
    s.output(s.node("Conv", [s.input("x", [1, 4, 6, 6]), s.weight("w", 8, 4, 1, 1), bias], "y", name="c"))
    found = lint(load(models.save(s.model(), tmp_path))).findings
    assert "scale_length" not in {finding.rule for finding in found}


FOLDED = {
    "identity before a scale": _through("Identity", "c1_x_s", np.float32(0.05)),
    "cast before a scale": _through("Cast", "c1_x_s", np.float64(0.05), to=onnx.TensorProto.FLOAT),
    "cast before a zero point": _through("Cast", "c1_x_z", np.float32(0), to=onnx.TensorProto.INT8),
    "sparse weights": _sparse("c1_w"),
    "sparse scales": _sparse("c1_w_s"),
}


@pytest.mark.parametrize("spoil", FOLDED.values(), ids=FOLDED)
def test_what_a_parser_folds_is_a_constant_for_lint(spoil, tmp_path):
    model = load(spoilt(spoil, tmp_path))
    assert lint(model).findings == ()
    assert {node.precision.value for node in predict(model, Target()).nodes if node.compute} == {"int8"}


@pytest.mark.rtx
@pytest.mark.parametrize("name", [name for name in FOLDED if "sparse" not in name])
def test_what_a_parser_folds_is_int8(name, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    proto = GRAPHS["chain_ok"]()
    FOLDED[name](proto)
    assert {precision for _, precision in build(proto).precision} == {"int8"}


@pytest.mark.rtx
def test_sparse_initializers_build_once_they_are_written_out(tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    proto = GRAPHS["chain_ok"]()
    _sparse("c1_w")(proto)
    assert build(proto).error
    assert {precision for _, precision in build(load(spoilt(_sparse("c1_w"), tmp_path)).proto).precision} == {
        "int8"
    }


@pytest.mark.parametrize("command", [("lint",), ("predict", "--all")], ids=" ".join)
def test_names_cannot_steer_the_terminal(command, tmp_path, capfd):
    def spoil(proto):
        for number, node in enumerate(proto.graph.node):
            node.name = f"[red]{number}\n\x1b[31m\x07\u202e"
        del proto.graph.node[0].input[1:]
        proto.graph.node[0].input.extend(["c1_x_s", "c1_x_z"])

    assert run([*command, str(spoilt(spoil, tmp_path))]) == 0
    printed = capfd.readouterr().out
    assert "\\n\\x1b[31m" in printed
    assert "[red]" in printed
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)


@pytest.mark.parametrize("domain", ["acme", "trt", "com.microsoft.nchwc", "com.microsoft"])
def test_a_plug_in_is_what_neither_onnxruntime_nor_the_parser_knows(domain, tmp_path):
    proto = GRAPHS["plugin_between"]()
    _node(proto, "swirl").domain = domain
    proto.opset_import.add(domain=domain, version=1)
    codes = {
        finding.code for finding in lint(load(models.save(proto, tmp_path)), Target.parse("rtx")).findings
    }
    assert ("QDQ149" in codes) == (domain == "acme")
