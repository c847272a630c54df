"""The commands audit and engine."""

from __future__ import annotations

import json

import pytest

from qdqtool.cli.app import run
from tests import models
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump


@pytest.fixture
def files(tmp_path):
    """A layer dump, a profile of it, and a model whose node c1 it holds."""
    (tmp_path / "layers.txt").write_text(dump(QUANTIZE, CONV, EPILOGUE, bindings=("x",)), "utf-8")
    rows = [{"count": 1}, {"name": "c1_myl0_1", "averageMs": 0.5}, {"name": "other", "averageMs": 0.1}]
    (tmp_path / "profile.json").write_text(json.dumps(rows))
    models.save(models.conv_chain(), tmp_path)
    return tmp_path


def test_show_prints_the_contract_for_scripts(files, capsys):
    code = run(
        ["engine", "show", str(files / "layers.txt"), "--profile", str(files / "profile.json"), "--json"]
    )
    data = json.loads(capsys.readouterr().out)["data"]
    assert code == 0
    layer = data["layers"][1]
    assert {
        "name",
        "kind",
        "inputs",
        "outputs",
        "precision",
        "certainty",
        "ms",
        "bytes",
        "macs",
        "onnx_nodes",
    } <= set(layer)
    assert {"name", "shape", "dtype", "format"} <= set(layer["inputs"][0])
    assert (layer["precision"], layer["ms"], data["unknown_formats"]) == ("int8", 0.5, [])
    assert data["unmatched_rows"] == ["other"]


def test_show_and_top_print_tables(files, capsys):
    assert run(["engine", "show", str(files / "layers.txt")]) == 0
    assert "c1_myl0_1" in capsys.readouterr().out
    assert run(["engine", "top", str(files / "layers.txt"), "-n", "1", "--by", "bytes"]) == 0
    assert "1 of 3 layers" in capsys.readouterr().out


def test_layers_writes_csv_on_standard_output_and_into_a_file(files, capsys):
    assert run(["engine", "layers", str(files / "layers.txt"), "--columns", "name,precision"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "name,precision"
    assert (
        run(["engine", "layers", str(files / "layers.txt"), "-o", str(files / "t.csv"), "-w", "role=compute"])
        == 0
    )
    assert len((files / "t.csv").read_text().splitlines()) == 2


def test_diff_prints_two_columns_or_json(files, capsys):
    path = str(files / "layers.txt")
    assert run(["engine", "diff", path, path]) == 0
    assert "of these INT8" in capsys.readouterr().out
    assert run(["engine", "diff", path, path, path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], len(found["data"]["diffs"])) == ("engine-diff", 2)


def test_diff_wants_no_profile_or_one_per_engine(files, capsys):
    path = str(files / "layers.txt")
    assert run(["engine", "diff", path, path, "-p", str(files / "profile.json")]) == 2
    assert "once per engine" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["svg", "png", "dot", "onnx"])
def test_graph_writes_every_ending(files, ending: str):
    out = files / f"graph.{ending}"
    assert run(["engine", "graph", str(files / "layers.txt"), "--out", str(out)]) == 0
    assert out.stat().st_size > 200


def test_graph_refuses_other_endings_and_foreign_models(files, capsys):
    path = str(files / "layers.txt")
    assert run(["engine", "graph", path, "--out", str(files / "graph.gif")]) == 2
    model = str(files / "model.onnx")
    assert run(["engine", "graph", path, "--model", model, "--out", str(files / "noted.onnx")]) == 2
    assert "built from" in capsys.readouterr().err
    assert not (files / "noted.onnx").exists()


def test_about_tells_what_other_files_hold(files, capsys):
    (files / "times.json").write_text(json.dumps([{"latencyMs": 1.5}]))
    assert run(["engine", "about", str(files / "times.json")]) == 0
    assert "latency: mean 1.5" in capsys.readouterr().out
    assert run(["engine", "about", str(files / "times.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["form"] == "times"


def test_a_file_without_layers_is_refused(files, capsys):
    assert run(["engine", "show", str(files / "profile.json")]) == 5
    assert "holds no layer information" in capsys.readouterr().err


def test_audit_of_layer_information_alone_needs_no_model(files, capsys):
    assert run(["audit", str(files / "layers.txt"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["counts"]["kernels"], data["verdicts"], data["findings"]) == (3, [], [])


def test_audit_fails_from_the_wanted_severity_on_but_not_for_the_baseline(files, capsys):
    model, layers = str(files / "model.onnx"), str(files / "layers.txt")
    assert run(["audit", model, "--layers", layers]) == 0
    assert run(["audit", model, "--layers", layers, "--fail-on", "info", "--json"]) == 1
    out = capsys.readouterr().out
    (files / "baseline.json").write_text(out[out.index("{") :])
    given = [
        "audit",
        model,
        "--layers",
        layers,
        "--fail-on",
        "info",
        "--baseline",
        str(files / "baseline.json"),
    ]
    assert run(given) == 0


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "markdown", "github", "text"])
def test_audit_writes_every_format_on_standard_output(files, capsys, form: str):
    assert (
        run(["audit", str(files / "model.onnx"), "--layers", str(files / "layers.txt"), "--format", form])
        == 0
    )
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "given", [["--format", "pdf"], ["--fail-on", "often"], ["--baseline", "missing.json"]]
)
def test_audit_refuses_what_it_does_not_know(files, capsys, given: list[str]):
    assert run(["audit", str(files / "layers.txt"), *given]) in {2, 5}
    assert "fix:" in capsys.readouterr().err


def test_audit_takes_times_and_another_engine(files, capsys):
    path = str(files / "layers.txt")
    faster = [{"count": 1}, {"name": "c1_myl0_1", "averageMs": 0.2}]
    (files / "fast.json").write_text(json.dumps(faster))
    given = [
        "-p",
        str(files / "profile.json"),
        "--against",
        path,
        "--against-profile",
        str(files / "fast.json"),
    ]
    assert run(["audit", path, *given]) == 0
    assert "takes 0.5000 ms in int8 instead of 0.2000 ms" in capsys.readouterr().out
