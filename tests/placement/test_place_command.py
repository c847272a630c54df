from __future__ import annotations

import json

import onnx

from qdqtool.cli.app import run
from qdqtool.core.kinds import PLACEMENT
from tests import models


def test_place_prints_one_line_per_node_with_its_reason(tmp_path, capfd):
    path = models.save(models.residual_cnn(), tmp_path)
    assert run(["place", str(path)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "residual_add:" in shown
    assert "7 of 7 compute nodes and 1 other with Q/DQ: 8 pairs on activations, 7 on weights" in shown


def test_place_names_nodes_that_the_builder_refuses(tmp_path, capfd):
    proto = models.conv_chain()
    proto.graph.node.append(onnx.helper.make_node("NonZero", [proto.graph.output[0].name], ["at"], name="nz"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("at", onnx.TensorProto.INT64, [None, None]))
    path = models.save(proto, tmp_path)
    assert run(["place", str(path)]) == 0
    assert "node 'nz': TensorRT for RTX has no kernel for NonZero" in capfd.readouterr().err
    assert run(["place", str(path), "--target", "10"]) == 0
    assert "'nz'" not in capfd.readouterr().err


def test_place_json_is_exactly_the_artefact(tmp_path, capfd):
    path = models.save(models.concat_cnn(), tmp_path)
    out = tmp_path / "placement.json"
    assert run(["place", str(path), "--json", "-o", str(out)]) == 0
    printed = capfd.readouterr().out
    assert printed == out.read_text("utf-8")
    assert json.loads(printed)["kind"] == "placement"
    assert PLACEMENT.read(out).quantized


def test_place_leaves_the_model_as_it_was(tmp_path):
    path = models.save(models.attention(), tmp_path)
    before = path.read_bytes()
    assert run(["place", str(path), "-r", "transformer-int8"]) == 0
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_place_takes_changes_of_the_recipe(tmp_path, capfd):
    path = models.save(models.conv_chain(), tmp_path)
    words = ["place", str(path), "--recipe", "conv-int8", "--set", "place.exclude=[conv1, nobody]", "--json"]
    assert run([*words, "--set", "optional=[nobody]"]) == 0
    captured = capfd.readouterr()
    assert "no node matches the pattern 'nobody' of place.exclude" in captured.err
    decisions = json.loads(captured.out)["data"]["decisions"]
    assert {d["slot"]["node"] for d in decisions if d["quantize"]} == {"conv2"}


def test_an_old_gpu_keeps_convolutions_float_by_option_and_by_setting(tmp_path, capfd):
    path, said = models.save(models.conv_chain(), tmp_path), []
    for more in (["--sm", "75"], ["--set", "place.sm=[75]"], ["--sm", "86"], []):
        assert run(["place", str(path), "--json", *more]) == 0
        decisions = json.loads(capfd.readouterr().out)["data"]["decisions"]
        said.append({d["slot"]["node"] for d in decisions if d["quantize"]})
    assert said == [set(), set(), {"conv1", "conv2"}, {"conv1", "conv2"}]


def test_a_wrong_change_is_not_blamed_on_the_shipped_recipe(tmp_path, capfd):
    path = models.save(models.conv_chain(), tmp_path)
    assert run(["place", str(path), "--recipe", "conv-int8", "--set", "place.nothing=1"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "--set: the recipe has 1 mistake" in said
    assert "conv-int8.yaml" not in said


def test_a_file_that_is_not_a_model_is_an_input_error(tmp_path, capfd):
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    assert run(["place", str(path)]) == 5
    assert "fix:" in capfd.readouterr().err
