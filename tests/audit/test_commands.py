"""The commands audit and engine."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from tests import models
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump
from tests.report.material import AUDIT, finding


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


LOG = """\
[V] Running: ConvReluFusion on c1
[V] ConvReluFusion: Fusing c1 with relu
"""


def test_show_joins_the_log_of_the_build(files, capsys):
    (files / "build.log").write_text(LOG)
    given = ["engine", "show", str(files / "layers.txt"), "--log", str(files / "build.log")]
    assert run([*given, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    events = [[event["pass_name"] for event in layer["history"]["events"]] for layer in data["layers"]]
    assert events[1] == ["ConvReluFusion"]
    assert run([*given, "--tell", "-w", "role=compute"]) == 0
    told = capsys.readouterr().out
    assert "line 2: fused by ConvReluFusion: c1, relu" in told
    assert "MACs" in told
    assert run(given) == 0
    assert "candidates" in capsys.readouterr().out


def test_a_file_that_is_a_whole_log_is_read_as_both(files, capsys):
    (files / "whole.log").write_text(LOG + dump(QUANTIZE, CONV, EPILOGUE, bindings=("x",)))
    assert run(["engine", "show", str(files / "whole.log"), "--tell"]) == 0
    assert "fused by ConvReluFusion" in capsys.readouterr().out


def test_a_log_that_tells_nothing_is_noted(files, capsys):
    (files / "empty.log").write_text("")
    assert run(["engine", "show", str(files / "layers.txt"), "--log", str(files / "empty.log")]) == 0
    assert "the log has no information about layers" in capsys.readouterr().err


def test_diff_numbers_engines_of_one_name_and_says_which_is_faster(files, capsys):
    path, slow = str(files / "layers.txt"), files / "slow.json"
    slow.write_text((files / "profile.json").read_text().replace("0.5", "0.75"))
    assert run(["engine", "diff", path, path, "-p", str(files / "profile.json"), "-p", str(slow)]) == 0
    assert "2: layers.txt is 41.7 % slower than 1: layers.txt" in capsys.readouterr().out


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
    if ending == "png":
        pytest.importorskip("resvg_py", reason="needs the extra png")
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
    (files / "times.json").write_text(json.dumps([{"latencyMs": 1.5}]))
    assert run(["engine", "show", str(files / "times.json")]) == 5
    assert "holds no layer information" in capsys.readouterr().err


def test_audit_of_layer_information_alone_needs_no_model(files, capsys):
    assert run(["audit", str(files / "layers.txt"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["counts"]["kernels"], data["verdicts"]) == (3, [])
    assert [finding["check"] for finding in data["findings"]] == ["entry_conversion", "separate_epilogues"]


def test_audit_says_which_tool_quantized_the_model(files, capsys):
    arguments = ["audit", str(files / "model.onnx"), "--layers", str(files / "layers.txt")]
    assert run(arguments) == 0
    assert "quantized by" not in capsys.readouterr().err
    proto = models.conv_chain()
    onnx.helper.set_model_props(proto, {"qdqtool.made.version": "9.8", "qdqtool.made.recipe": "ab" * 32})
    models.save(proto, files)
    assert run(arguments) == 0
    assert "note: quantized by qdqtool 9.8 (recipe abababababab)" in capsys.readouterr().err


def test_audit_prints_what_is_true_of_many_nodes_once(files, capsys, monkeypatch):
    alike = tuple(replace(finding(Severity.INFO, f"conv{number}"), reason="runs FP32") for number in range(9))
    found = replace(AUDIT, verdicts=(), findings=(*alike, replace(alike[0], severity=Severity.WARNING)))
    monkeypatch.setattr("qdqtool.auditing.full_audit.examine", lambda *_, **__: found)
    assert run(["audit", str(files / "layers.txt")]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "QDQ201" in line]
    assert printed == [
        "info QDQ201 conv0, conv1, conv2 and 6 more (--json names all): runs FP32",
        "warning QDQ201 conv0: runs FP32",
    ]


def test_audit_prints_rows_that_differ_in_names_and_numbers_once(files, capsys, monkeypatch):
    rows = tuple(
        replace(
            finding(Severity.INFO, f"conv_myl0_{number}"),
            reason=f"writes {number} floats for block/{number}",
            fix=f"nothing to do, unless node 'block/{number}' can read quantized values",
        )
        for number in range(5)
    )
    found = replace(AUDIT, verdicts=(), findings=(*rows, replace(rows[0], reason="reads floats")))
    monkeypatch.setattr("qdqtool.auditing.full_audit.examine", lambda *_, **__: found)
    assert run(["audit", str(files / "layers.txt")]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "QDQ201" in line or "fix:" in line]
    assert printed == [
        "info QDQ201 conv_myl0_0, conv_myl0_1, conv_myl0_2 and 2 more (--json names all): writes 0 floats for block/0 (and 4 more of this kind)",
        "info QDQ201 conv_myl0_0: reads floats",
        "    fix: nothing to do, unless node 'block/0' can read quantized values (and 4 more of this kind)",
    ]


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


def test_audit_points_into_the_log(files, capsys):
    (files / "build.log").write_text(LOG)
    given = ["audit", str(files / "layers.txt"), "--log", str(files / "build.log"), "--json"]
    assert run(given) == 0
    found = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert {entry["file"] for one in found for entry in one["evidence"]} <= {"layers.txt", "build.log"}


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


def test_a_float_node_stands_once_with_the_code_of_its_finding() -> None:
    from qdqtool.cli.commands.audit import _lines

    verdicts = tuple(
        replace(
            verdict, node=f"{verdict.node}{number}", reason="too narrow", fix="nothing to do: it is small"
        )
        for verdict in AUDIT.verdicts
        if not verdict.is_quantized
        for number in range(5)
    )
    assert verdicts
    findings = tuple(
        replace(
            finding(Severity.INFO, verdict.node),
            code="QDQ202",
            reason="the model does not quantize it: too narrow",
            fix=verdict.fix,
        )
        for verdict in verdicts
    )
    asked = replace(AUDIT.verdicts[0], requested=True)
    text = list(_lines(replace(AUDIT, verdicts=(asked, *verdicts), findings=findings)))
    about = [line for line in text if "QDQ202" in line]
    assert about
    assert len(about) == len({line.rpartition(": ")[0] for line in about})
    assert all("and 2 more" in line for line in about)
    assert sum("too narrow" in line for line in text) == 1


def test_float_nodes_with_one_kind_of_fix_get_one_command() -> None:
    from qdqtool.cli.commands.audit import _lines

    (float_verdict,) = [verdict for verdict in AUDIT.verdicts if not verdict.is_quantized][:1]
    verdicts = tuple(
        replace(
            float_verdict, node=node, reason="no Q/DQ", fix=repairing(to_int8=[node], samples=True) + " does"
        )
        for node in ("a", "b", "c d")
    )
    asked = replace(AUDIT.verdicts[0], requested=True)
    text = list(_lines(replace(AUDIT, verdicts=(asked, *verdicts), findings=())))
    fixes = [line.strip() for line in text if "repair" in line]
    assert fixes == ["fix: `qdqtool repair --samples DATA --int8 a --int8 b --int8 'c d'` does"]
