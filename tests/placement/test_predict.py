from __future__ import annotations

import json
import time

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.events import End
from qdqtool.core.kinds import PREDICTION
from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import FP8, INT4, INT8, DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.lower import lower
from qdqtool.prediction.predict import predict
from tests import models
from tests.graph.placing import opened
from tests.graph.test_quantized_graph import quantized
from tests.placement.qdq import GRAPHS, Quantized
from tests.shared import SHARED, benchmark


def foresee(name, tmp_path, profile="10"):
    return predict(load(models.save(GRAPHS[name](), tmp_path)), Target.parse(profile))


def ends(prediction):
    return {row.node: (row.end, row.into) for row in prediction.ledger}


def layers(prediction):
    return {layer.nodes for layer in prediction.layers}


def precisions(prediction):
    return {node.node: node.precision for node in prediction.nodes if node.compute}


@pytest.mark.parametrize("profile", ["10", "rtx"])
def test_a_float_model_has_an_empty_ledger_and_float_layers(profile, tmp_path):
    prediction = predict(load(models.save(models.residual_cnn(), tmp_path)), Target.parse(profile))
    assert prediction.ledger == ()
    assert set(precisions(prediction).values()) == {DType.FLOAT32}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_is_in_one_layer_and_every_q_and_dq_has_one_fate(name, tmp_path):
    model = load(models.save(GRAPHS[name](), tmp_path))
    prediction = predict(model, Target.parse("10"))
    held = [node for layer in prediction.layers for node in layer.nodes]
    assert len(held) == len(set(held))
    told = [row.node for row in prediction.ledger]
    assert len(told) == len(set(told))
    here = {n.name for n in model.view.nodes if n.op in {"QuantizeLinear", "DequantizeLinear"}}
    assert here <= set(told)
    assert {node.node for node in prediction.nodes if node.compute} <= set(held)
    assert prediction.kernels == len(prediction.layers)


def test_a_chain_becomes_two_layers_with_the_q_of_the_second_in_the_first(tmp_path):
    prediction = foresee("chain_ok", tmp_path)
    assert ("c1_w/Q", "c1", "relu1", "c2_x/Q") in layers(prediction)
    assert ends(prediction)["c1_x/Q"] == (End.COPY, "c1_x/Q")
    assert ends(prediction)["c2_x/Q"] == (End.OUTPUT, "c1")
    assert ends(prediction)["c2_x/DQ"] == (End.INPUT, "c2")
    assert ends(prediction)["c2_w/Q"] == (End.WEIGHT, "c2")


def test_a_float_shortcut_makes_the_sum_float_so_the_next_q_is_a_kernel(tmp_path):
    bare = foresee("residual_bare", tmp_path)
    assert ("c2_w/Q", "c2", "add", "relu2") in layers(bare)
    assert ends(bare)["c3_x/Q"][0] is End.COPY
    quantized = foresee("residual_shortcut", tmp_path)
    assert ends(quantized)["c3_x/Q"] == (End.OUTPUT, "c2")
    assert ends(quantized)["add_x/DQ"] == (End.INPUT, "c2")


def test_of_two_convolutions_the_last_takes_the_add(tmp_path):
    s = Quantized()
    x = s.image()
    first, second = s.qconv("first", x), s.qconv("second", x)
    prediction = predict(
        load(models.save(s.done(s.node("Add", [first, second], "y", name="add")), tmp_path)),
        Target.parse("10"),
    )
    assert {"second", "add"} <= set(next(nodes for nodes in layers(prediction) if "add" in nodes))


def test_a_q_moves_through_a_pool_into_the_convolution(tmp_path):
    s = Quantized()
    y = s.node(
        "MaxPool", [s.relu("relu1", s.qconv("c1", s.image()))], "pool_y", name="pool", kernel_shape=[2, 2]
    )
    prediction = predict(load(models.save(s.done(s.qconv("c2", y)), tmp_path)), Target.parse("10"))
    assert ends(prediction)["c2_x/Q"] == (End.OUTPUT, "c1")
    row = next(row for row in prediction.ledger if row.node == "c2_x/Q")
    assert [step.what for step in row.steps] == ["moved through pool", "fused-output c1"]


def test_a_q_behind_a_concat_is_split_into_clones(tmp_path):
    prediction = foresee("concat_pair_behind", tmp_path)
    told = ends(prediction)
    assert told["c3_x/Q"] == (End.SPLIT, "cat")
    assert told["c3_x/Q_clone_0"] == (End.OUTPUT, "c1")
    assert told["c3_x/Q_clone_1"] == (End.OUTPUT, "c2")
    assert {row.clone_of for row in prediction.ledger if "_clone_" in row.node} == {"c3_x/Q"}


def test_twin_qs_are_merged_and_different_ones_are_not(tmp_path):
    assert ends(foresee("one_scale_for_two", tmp_path))["c2_x/Q"] == (End.MERGED, "c1_x/Q")
    apart = ends(foresee("two_scales_for_one_tensor", tmp_path))
    assert apart["c1_x/Q"][0] is End.COPY
    assert apart["c2_x/Q"][0] is End.COPY


def test_a_dq_and_a_q_of_one_scale_cancel(tmp_path):
    told = ends(foresee("pair_behind_pair_same", tmp_path))
    assert told["c1_x/Q"] == (End.CANCELLED, "first/DQ")
    assert told["first/DQ"] == (End.CANCELLED, "c1_x/Q")


def test_a_swish_fuses_with_its_convolution(tmp_path):
    assert any({"c1", "sigmoid", "mul"} <= set(nodes) for nodes in layers(foresee("silu", tmp_path)))


def test_weights_behind_a_transpose_are_float_on_classic_only(tmp_path):
    assert precisions(foresee("weight_transposed", tmp_path))["mm"] is DType.FLOAT32
    assert precisions(foresee("weight_transposed", tmp_path, "rtx"))["mm"] is DType.INT8


@pytest.mark.parametrize("profile", ["10", "rtx"])
@pytest.mark.slow
def test_many_nodes_take_seconds(profile, tmp_path):
    s = Quantized()
    x = s.image()
    for step in range(1_000):
        x = s.relu(f"relu{step}", s.qconv(f"c{step}", x, kernel=1))
    model = load(models.save(s.done(x), tmp_path))
    assert len(model.view.nodes) >= 5_600
    start = time.process_time()
    assert len(predict(model, Target.parse(profile)).nodes) == 2_000
    assert time.process_time() - start < 30  # processor time: a square would take many minutes


def test_predict_json_is_exactly_the_artefact(tmp_path, capfd):
    path = models.save(GRAPHS["weight_bare"](), tmp_path)
    assert run(["predict", str(path), "--json"]) == 0
    printed = capfd.readouterr().out
    (tmp_path / "prediction.json").write_text(printed)
    nodes = json.loads(printed)["data"]["nodes"]
    assert {"node", "precision", "layer"} <= nodes[0].keys()
    assert PREDICTION.read(tmp_path / "prediction.json").nodes[0].node == "c1"


def shown(capfd, *words):
    assert run(["predict", *map(str, words)]) == 0
    return " ".join(capfd.readouterr().out.split())


def test_predict_shows_what_is_not_int8_and_what_costs_a_kernel(tmp_path, capfd):
    bare = shown(capfd, models.save(GRAPHS["residual_bare"](), tmp_path), "--target", "10")
    assert "compute nodes: 4 of 4 in INT8" in bare
    assert "float node" not in bare
    assert "c3_x/Q Relu relu2 before it computes in float" in bare
    assert "fused-input" in bare
    assert "c4" not in bare
    half = shown(capfd, models.save(GRAPHS["weight_bare"](), tmp_path))
    assert "c1 Conv fp32 the weights have no Q/DQ" in half
    assert "1 kernel" not in half
    assert "compute nodes: 0 of 1 in INT8" in half


def test_predict_all_shows_every_node_and_every_fate(tmp_path, capfd):
    path = models.save(GRAPHS["residual_bare"](), tmp_path)
    text = shown(capfd, path, "--profile", "classic", "--all")
    for row in predict(load(path), Target.parse("10")).ledger:
        assert f"{row.node} {row.end.value}" in text


def test_a_q_behind_the_pool_of_a_stem_fuses_with_it(tmp_path):
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.input("x", [1, 3, 16, 16]), (3, 16)))
    y = s.node("MaxPool", [y], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    prediction = predict(load(models.save(s.done(s.qconv("c2", y)), tmp_path)), Target.parse("10"))
    assert ends(prediction)["c2_x/Q"] == (End.OUTPUT, "c1")


def test_a_dq_meets_the_q_that_comes_back_through_a_concat(tmp_path):
    told = ends(foresee("concat_other_scales", tmp_path))
    assert told["a/DQ"] == told["b/DQ"] == (End.CANCELLED, "c3_x/Q")
    assert told["c3_x/Q_clone_0"] == (End.CANCELLED, "a/DQ")


@pytest.mark.shared
@pytest.mark.slow
def test_recorded_classic_engines_are_predicted_as_well_as_promised():
    if not (SHARED / "corpus").is_dir():
        pytest.skip("needs corpus of the shared material beside the checkout")
    pytest.importorskip("tensorrt_rtx", reason="the benchmark imports the builder")
    precision, partition = benchmark("prediction").measure_classic(SHARED / "corpus")
    assert precision.total > 190
    assert precision.share() >= 0.97
    assert partition.total > 250
    assert partition.share() >= 0.90


@pytest.mark.parametrize(
    ("format_", "realised", "precision"),
    [(FP8, "fp8", DType.FLOAT8), (INT4, "int4-weights", DType.FLOAT32), (INT8, "int8", DType.INT8)],
    ids=str,
)
@pytest.mark.parametrize("name", ["attention", "matmuls"])
def test_every_format_is_foreseen_as_what_it_computes_in(name, format_, realised, precision, tmp_path):
    ready = prepare(opened(models.ALL[name](), tmp_path), PrepareOptions(flatten=True))
    graph = quantized(ready, format_, stored=True)
    prediction = predict(lower(graph), Target.parse("rtx"))
    asked = {slot.node for slot in graph.assignment if slot.index == 1}
    told = [node for node in prediction.nodes if node.node in asked]
    assert told
    assert {(node.realised, node.precision) for node in told} == {(realised, precision)}


def test_a_convolution_for_turing_is_foreseen_in_the_type_that_the_reason_names(tmp_path):
    model = lower(quantized(opened(models.conv_chain(), tmp_path), INT8, stored=False))
    for gpu, precision in (("75", DType.FLOAT16), ("86", DType.INT8)):
        foreseen = predict(model, target=Target.parse("rtx", (gpu,)))
        assert {node.precision for node in foreseen.nodes if node.op == "Conv"} == {precision}


@pytest.mark.parametrize("first", [False, True], ids=["behind", "in front"])
def test_a_bias_fuses_in_either_place_of_its_add(first, tmp_path):
    s = Quantized()
    bias = s.constant("bias", np.ones((1, 16, 1, 1), np.float32))
    y = s.qconv("c1", s.image())
    y = s.node("Add", [bias, y] if first else [y, bias], "sum", name="add")
    proto = s.done(s.qconv("c2", y))
    prediction = predict(load(models.save(proto, tmp_path)), Target.parse("10"))
    assert ends(prediction)["c2_x/Q"] == (End.OUTPUT, "c1")


def test_a_tensor_that_a_body_reads_is_needed_as_float(tmp_path):
    s = Quantized()
    y = s.qconv("c1", s.image())
    shape = onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("Neg", [y], ["inner"], name="neg")
    body = onnx.helper.make_graph([node], "body", [], [shape])
    condition = s.input("condition", [], onnx.TensorProto.BOOL)
    s.output(s.node("If", [condition], "z", name="if", then_branch=body, else_branch=body))
    prediction = predict(load(models.save(s.done(s.qconv("c2", y)), tmp_path)), Target.parse("10"))
    assert ends(prediction)["c2_x/Q"][0] is End.COPY


def test_a_node_that_is_called_a_clone_keeps_its_place(tmp_path):
    s = Quantized()
    y = s.node("Exp", [s.qconv("c1", s.image())], "y", name="node_clone_1")
    prediction = predict(load(models.save(s.done(y), tmp_path)), Target.parse("10"))
    assert prediction.layers[-1].nodes == ("node_clone_1",)
