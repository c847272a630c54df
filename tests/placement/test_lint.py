from __future__ import annotations

import json
import time
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core import target as targets
from qdqtool.core.findings import Severity
from qdqtool.core.kinds import LINT
from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import FP8, INT4, MXFP8, NVFP4
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.matching.rule import RULES, Rule, rulebook
from qdqtool.placement.lint import codes, lint
from qdqtool.placement.repair import repair
from qdqtool.trt.ops import summed_axis
from tests import models
from tests.placement.qdq import GRAPHS, STEP, Quantized
from tests.shared import shared


def check(name, tmp_path, target="rtx", **asked):
    return lint(load(models.save(GRAPHS[name](), tmp_path)), Target.parse(target, **asked))


def rules(report):
    return {finding.rule for finding in report.findings}


def test_a_float_model_has_no_findings(tmp_path):
    report = lint(load(models.save(models.residual_cnn(), tmp_path)))
    assert (report.findings, report.pairs) == ((), 0)


@pytest.mark.parametrize("name", codes().values())
def test_every_rule_has_a_manual_and_a_code(name):
    rule = rulebook().rules[name]
    assert isinstance(rule, Rule)
    assert rule.code.startswith("QDQ1")
    assert rule.targets
    assert len(RULES.manual(name).split("\n\n")) >= 2


@pytest.mark.parametrize(("target", "expected"), [("rtx", {"scale_rank"}), ("10", {"per_tensor_weights"})])
def test_weights_of_a_convolution_that_is_float_anyway_get_no_advice(target, expected, tmp_path):
    s = Quantized()
    proto = s.done(s.qconv("c", s.image(), step=[STEP], axis=None))
    assert rules(lint(load(models.save(proto, tmp_path)), Target.parse(target))) == expected


def test_a_product_of_two_formats_is_told_as_such_and_not_as_the_first(tmp_path):
    s = Quantized()
    weight = s.weights("c", 16, 16, 3, 3, axis=None, dtype=ml_dtypes.float8_e4m3fn)
    proto = s.done(s.raw_conv("c", s.pair(s.image(), "x"), weight), opset=19)
    told = rules(lint(load(models.save(proto, tmp_path)), Target.parse("rtx", sm=("89",))))
    assert "mixed_formats" in told
    assert "per_tensor_weights" not in told


def test_codes_are_unique():
    assert len(codes()) == len(codes().values())


@pytest.mark.parametrize("name", GRAPHS)
def test_findings_say_what_is_wrong_what_follows_and_what_to_do(name, tmp_path):
    model = load(models.save(GRAPHS[name](), tmp_path))
    for target in FAMILIES:
        for finding in lint(model, Target.parse(target)).findings:
            assert finding.node
            assert finding.reason
            assert finding.effect
            assert finding.fix


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("weights_prequantized", "8.6", {"prequantized"}),
        ("weights_prequantized", "11", set()),
        ("activation_rank_one", "10", set()),
        ("weight_transposed", "10", {"weight_path"}),
        ("conv_transpose", "8.6", {"transpose_axis"}),
        ("conv_transpose", "11", {"transpose_axis"}),
        ("conv_transpose_per_tensor", "11", set()),
        ("average_pool", "11", set()),
        ("shared_pair", "8.6", {"shared_pair"}),
        ("pad_behind_pair", "8.6", {"padded"}),
        ("int4_weights", "8.6", {"four_bits"}),
        ("half_chain", "8.6", {"mixed_types"}),
        ("half_weights_rank_one", "10", {"per_tensor_weights"}),
        ("depthwise_swish", "8.6", {"depthwise_swish"}),
        ("depthwise_swish", "10", set()),
        ("weight_cast", "10", {"weight_path"}),
        ("resize_behind_pair", "10", set()),
        ("shared_pair", "10", set()),
    ],
)
def test_rules_follow_the_release(name, target, expected, tmp_path):
    assert rules(check(name, tmp_path, target)) == expected


@pytest.mark.parametrize("sm", ["", "75", "89", "120"])
@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("int4_weights", INT4),
        ("fp8_weights", FP8),
        ("fp4_weights", NVFP4),
        ("microscaled", MXFP8),
    ],
)
def test_a_release_older_than_a_format_refuses_it_on_every_gpu(name, format_, sm, tmp_path):
    model = load(models.save(GRAPHS[name](), tmp_path))
    first = format_.release
    for release in ("8.0", "8.6", "9.3", "10.0", "10.7", "10.12", "11"):
        asked = Target.parse(release, (sm,) if sm else ())
        refused = [
            finding
            for finding in lint(model, asked).findings
            if finding.severity is Severity.ERROR and "came with" in finding.effect
        ]
        assert bool(refused) == asked.is_before(*first), release


@pytest.mark.parametrize("release", ["8.0", "8.2", "8.6", "9.3", "10.0", "10.16", "11"])
def test_repair_scales_a_transposed_convolution_as_its_release_reads_it(release, tmp_path):
    target = Target.parse(release)
    model = load(models.save(GRAPHS["conv_transpose"](), tmp_path))
    assert "QDQ137" in {finding.code for finding in lint(model, target).findings}
    mended, _ = repair(model, target=target)
    assert "QDQ137" not in {finding.code for finding in lint(mended, target).findings}
    axes = {
        pair.axis if len(pair.scale) > 1 else None
        for pair in find(mended)
        if any(slot.node == "up" and slot.index == 1 for slot in pair.slots)
    }
    assert axes == {target.transposed_axis}


def test_a_transposed_convolution_sums_over_the_first_axis_of_its_weight(tmp_path):
    view = load(models.save(GRAPHS["conv_transpose"](), tmp_path)).view
    assert [summed_axis(view.by_name["up"], index, 4) for index in (0, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("name", "severity"), [("fork_moved_to_float", Severity.INFO), ("weight_bare", Severity.WARNING)]
)
def test_a_pair_that_other_nodes_need_is_no_mistake_of_a_float_node(name, severity, tmp_path):
    (finding,) = check(name, tmp_path).findings
    assert (finding.rule, finding.severity) == ("half_quantized", severity)
    assert ("remove it" in finding.fix) == (severity is Severity.WARNING)
    assert bool(repair(load(tmp_path / "model.onnx"))[1]) == (severity is Severity.WARNING)


def test_old_gpus_are_warned_of(tmp_path):
    assert rules(check("chain_ok", tmp_path, sm=("75", "86"))) == {"old_gpu"}
    assert rules(check("fp8_weights", tmp_path, sm=("89",))) == set()
    severities = {f.severity.value for f in check("fp8_weights", tmp_path, sm=("86", "89")).findings}
    assert severities == {"error"}


def test_pairs_inside_a_body_are_pointed_at(tmp_path):
    inner = onnx.helper.make_graph(
        [
            onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        ],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("d", 1, [1, 4])],
    )
    s = Quantized()
    s.input("x", [1, 4])
    s.constant("s", np.float32(STEP))
    s.constant("z", np.int8(0))
    choice = s.input("choice", [], onnx.TensorProto.BOOL)
    s.output(s.node("If", [choice], "y", name="branch", then_branch=inner, else_branch=inner), [1, 4])
    report = lint(load(models.save(s.model(), tmp_path)))
    assert [(f.rule, f.node) for f in report.findings] == [("hidden", "branch")]


def test_only_selected_codes_are_looked_for(tmp_path):
    model = load(models.save(GRAPHS["pair_inside_silu"](), tmp_path))
    assert rules(lint(model, select=("QDQ126",))) == {"inside_fusion"}


def test_waived_findings_are_kept_with_their_reason(tmp_path):
    model = load(models.save(GRAPHS["residual_both"](), tmp_path))
    report = lint(model, waivers={"QDQ127": "measured, harmless"})
    assert report.findings == ()
    assert [finding.waiver for finding in report.waived] == ["measured, harmless"]


def test_an_unknown_code_is_a_usage_error(tmp_path):
    model = load(models.save(GRAPHS["chain_ok"](), tmp_path))
    with pytest.raises(UsageError, match="QDQ999"):
        lint(model, select=("QDQ999",))


@pytest.mark.slow
def test_twenty_thousand_nodes_take_seconds(tmp_path):
    s = Quantized()
    x = s.image()
    for step in range(2_500):
        x = s.relu(f"relu{step}", s.qconv(f"c{step}", x, kernel=1))
    model = load(models.save(s.done(x), tmp_path))
    assert len(model.view.nodes) >= 14_000
    start = time.process_time()
    assert lint(model).findings == ()
    assert time.process_time() - start < 60  # processor time: a square would take many minutes


@pytest.mark.parametrize(
    ("word", "target", "name"),
    [
        ("rtx", "rtx", "rtx"),
        ("RTX", "rtx", "rtx"),
        ("rtx-1.7.1", "rtx", "rtx-1.7.1"),
        ("RTX-v1.8", "rtx", "rtx-1.8"),
        ("8", "8", "8"),
        ("8.2", "8", "8.2"),
        ("9.3", "8", "9.3"),
        ("10", "10", "10"),
        ("10.13", "10", "10.13"),
        ("v11.0.1", "11", "11.0.1"),
    ],
)
def test_builders_are_named_by_family_or_release(word, target, name):
    asked = Target.parse(word)
    assert (asked.family, asked.name) == (target, name)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "7",
        "7.2",
        "12",
        "10.",
        "ten",
        "10.1.2.3.4",
        "\u0661\u0660",
        "9" * 5000,
        "rtx-",
        "rtx-2",
        "rtx1.7",
        "rtx-8.6",
    ],
)
def test_other_builders_are_a_usage_error(word):
    with pytest.raises(UsageError, match="unknown target"):
        Target.parse(word)


@pytest.mark.parametrize(
    ("word", "transposed", "stored", "no_flags"),
    [
        ("8.0", 0, False, False),
        ("8.2", 0, False, False),
        ("8", 0, False, False),
        ("9.3", None, False, False),
        ("10.0", None, True, True),
        ("10", None, True, True),
        ("11", None, True, True),
        ("rtx", 1, True, True),
        ("rtx-1.0", 1, True, True),
    ],
)
def test_a_release_does_what_the_table_says(word, transposed, stored, no_flags):
    asked = Target.parse(word)
    assert asked.transposed_axis == transposed
    assert asked.reads_stored_weights is stored
    assert asked.builds_without_type_flags is no_flags
    assert asked.reads_half_scales is asked.builds_depthwise_swish is no_flags
    assert asked.reads_computed_scales is (no_flags and word != "10.0")
    assert asked.has_type_flags is (word.partition(".")[0] in {"8", "9", "10"})


def test_a_release_of_tensorrt_for_rtx_may_differ_from_others(monkeypatch):
    monkeypatch.setitem(targets._DOES, "reads_stored_weights", ((), (((1, 7), None),)))
    found = {
        word: Target.parse(word).reads_stored_weights for word in ("rtx", "rtx-1.6.2", "rtx-1.7", "rtx-1.8")
    }
    assert found == {"rtx": True, "rtx-1.6.2": False, "rtx-1.7": True, "rtx-1.8": True}


@pytest.mark.shared
@pytest.mark.parametrize("target", ["rtx", "10"])
@pytest.mark.parametrize(
    "name",
    ["cifar10_resnet20", "kws_dscnn", "squeezenet1_1_imagenet", "vit_cifar10_pgd_2_3_16", "yolox_nano"],
)
def test_lint_is_quiet_about_what_insert_writes_into_real_models(name, target):
    from tests.placement.building import quantized

    proto = onnx.load(shared(f"models/{name}/model.onnx"))
    assert lint(quantized(proto, target=target)[0], Target.parse(target)).findings == ()


class TestCommand:
    def test_an_fp32_part_that_a_recipe_chose_is_information_and_else_a_warning(self, tmp_path):
        sketch = models.Sketch()
        x = sketch.input("x", [1, 8, 8, 8])
        for index in range(6):
            x = sketch.relu(f"relu{index}", sketch.conv(f"conv{index}", x, (8, 8)))
        sketch.output(x, [1, 8, 8, 8])
        proto = sketch.model(17)
        source, out, bare = models.save(proto, tmp_path), tmp_path / "q.onnx", tmp_path / "bare.onnx"
        np.savez(tmp_path / "samples.npz", **models.feeds(proto, batch=4))
        line = ["quantize", str(source), "--samples", str(tmp_path / "samples.npz"), "--out", str(out)]
        assert run([*line, "--set", "place.only=[conv0]"]) == 0
        written = onnx.load(out)
        del written.metadata_props[:]
        onnx.save(written, bare)
        found = {path: lint(load(path)).findings for path in (out, bare)}
        assert [[(f.rule, f.severity) for f in found[path]] for path in (out, bare)] == [
            [("float_part", Severity.INFO)],
            [("float_part", Severity.WARNING)],
        ]

    def test_a_clean_model_passes(self, tmp_path, capfd):
        path = models.save(GRAPHS["chain_ok"](), tmp_path)
        assert run(["lint", str(path)]) == 0
        assert capfd.readouterr().out == "4 Q/DQ pairs checked for rtx: nothing wrong\n"

    def test_json_is_exactly_the_artefact(self, tmp_path, capfd):
        path = models.save(GRAPHS["weight_bare"](), tmp_path)
        assert run(["lint", str(path), "--json"]) == 0
        printed = capfd.readouterr().out
        (tmp_path / "lint.json").write_text(printed)
        finding = json.loads(printed)["data"]["findings"][0]
        assert finding["code"] == "QDQ120"
        assert {"node", "severity", "reason", "fix", "effect"} <= finding.keys()
        assert LINT.read(tmp_path / "lint.json").findings[0].node == "c1"

    @pytest.mark.parametrize(
        ("graph", "limit", "code"),
        [
            ("activation_zero_point", "error", 1),
            ("weight_bare", "error", 0),
            ("weight_bare", "warning", 1),
            ("residual_both", "warning", 0),
            ("residual_both", "info", 1),
            ("activation_zero_point", "never", 0),
        ],
    )
    def test_fail_on_decides_the_exit_code(self, graph, limit, code, tmp_path):
        path = models.save(GRAPHS[graph](), tmp_path)
        assert run(["lint", str(path), "--fail-on", limit]) == code

    def test_a_waiver_needs_a_reason(self, tmp_path, capfd):
        path = models.save(GRAPHS["chain_ok"](), tmp_path)
        assert run(["lint", str(path), "--ignore", "QDQ127"]) == 2
        assert "has no reason" in capfd.readouterr().err
        assert run(["lint", str(path), "--fail-on", "sometimes"]) == 2

    def test_a_waived_error_does_not_fail(self, tmp_path):
        path = models.save(GRAPHS["activation_zero_point"](), tmp_path)
        assert run(["lint", str(path), "--ignore", "QDQ101=for DLA"]) == 0

    def test_sarif_names_rules_nodes_and_suppressions(self, tmp_path):
        path = models.save(GRAPHS["relu_behind_pair"](), tmp_path)
        out = tmp_path / "lint.sarif"
        run(["lint", str(path), "--sarif", str(out), "--ignore", "QDQ120=known"])
        log = json.loads(out.read_text())
        assert log["version"] == "2.1.0"
        driver = log["runs"][0]["tool"]["driver"]
        for result in log["runs"][0]["results"]:
            assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        shown = {r["ruleId"]: r for r in log["runs"][0]["results"]}
        assert shown["QDQ133"]["level"] == "warning"
        assert shown["QDQ133"]["locations"][0]["logicalLocations"][0]["name"] == "relu"
        assert shown["QDQ120"]["suppressions"][0]["justification"] == "known"

    @pytest.mark.parametrize(
        ("form", "start"),
        [
            ("text", "QDQ"),
            ("json", "{"),
            ("sarif", "{"),
            ("junit", "<?xml"),
            ("markdown", "#"),
            ("github", "::"),
        ],
    )
    def test_findings_are_printed_in_the_forms_of_audit(self, form, start, tmp_path, capsys):
        path = models.save(GRAPHS["activation_zero_point"](), tmp_path)
        assert run(["lint", str(path), "--format", form]) == 1
        out = capsys.readouterr().out
        assert out.startswith(start)
        assert "QDQ101" in out
        assert run(["lint", str(path), "--format", "xml"]) == 2

    def test_several_models_are_linted_one_after_the_other(self, tmp_path, capsys):
        paths = []
        for name in ("chain_ok", "activation_zero_point"):
            (tmp_path / name).mkdir()
            paths.append(str(models.save(GRAPHS[name](), tmp_path / name)))
        assert run(["lint", *paths]) == run(["lint", *reversed(paths)]) == 1
        out = capsys.readouterr().out
        assert all(out.count(f"{path}:") == 2 for path in paths)
        assert run(["lint", *paths, "--format", "github"]) == 1
        for only in (["--json"], ["--format", "sarif"], ["--junit", str(tmp_path / "j.xml")]):
            assert run(["lint", *paths, *only]) == 2

    def test_code_scanning_finds_what_it_needs_in_sarif(self, tmp_path):
        place = tmp_path / "a folder"
        place.mkdir()
        path = models.save(GRAPHS["half_old_opset"](), place)
        out = tmp_path / "lint.sarif"
        run(["lint", str(path), "--for", "8.6", "--sarif", str(out)])
        (sarif_run,) = json.loads(out.read_text())["runs"]
        assert len({r["id"] for r in sarif_run["tool"]["driver"]["rules"]}) == len(codes())
        prints = [r["partialFingerprints"]["primaryLocationLineHash"] for r in sarif_run["results"]]
        assert len(set(prints)) == len(prints) == 8
        for result in sarif_run["results"]:
            assert result["level"] in {"error", "warning", "note"}
            (where,) = result["locations"]
            assert "a%20folder" in where["physicalLocation"]["artifactLocation"]["uri"]
            assert where["physicalLocation"]["region"]["startLine"] == 1
            assert result["message"]["text"].startswith(where["logicalLocations"][0]["name"])

    def test_junit_holds_any_name(self, tmp_path):
        proto = GRAPHS["weight_bare"]()
        proto.graph.node[-1].name = "evil\x1b[31m\x00]]>&\ufffe"
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        out = tmp_path / "lint.xml"
        run(["lint", str(path), "--junit", str(out)])
        assert "]]>&" in ET.parse(out).getroot().find("testsuite/testcase[failure]").get("name")

    def test_codes_may_be_listed_with_commas_and_in_any_case(self, tmp_path):
        path = models.save(GRAPHS["weight_bare"](), tmp_path)
        assert run(["lint", str(path), "--fail-on", "warning", "--select", "qdq120,QDQ101"]) == 1
        assert run(["lint", str(path), "--fail-on", "warning", "--select", "QDQ101"]) == 0
        assert run(["lint", str(path), "--fail-on", "warning", "--ignore", "qdq120=known"]) == 0

    @pytest.mark.parametrize("sm", ["75", "sm75", "SM_75", "7.5", "86,75"])
    def test_architectures_are_spelled_in_many_ways(self, sm, tmp_path):
        path = models.save(GRAPHS["chain_ok"](), tmp_path)
        assert run(["lint", str(path), "--sm", sm, "--fail-on", "warning"]) == 1

    @pytest.mark.parametrize(
        "wrong", [["--sm", "ampere"], ["--ignore", "=why"], ["--for", "7"]], ids=" ".join
    )
    def test_wrong_words_are_usage_errors(self, wrong, tmp_path):
        path = models.save(GRAPHS["chain_ok"](), tmp_path)
        assert run(["lint", str(path), *wrong]) == 2

    def test_an_unknown_code_is_answered_with_the_nearest(self, tmp_path, capfd):
        path = models.save(GRAPHS["chain_ok"](), tmp_path)
        assert run(["lint", str(path), "--select", "QDQ12"]) == 2
        assert "did you mean QDQ12" in capfd.readouterr().err

    def test_the_command_that_repairs_is_printed_with_the_model(self, tmp_path, capfd):
        place = tmp_path / "a folder"
        place.mkdir()
        path = models.save(GRAPHS["activation_bare"](), place)
        run(["lint", str(path)])
        said = capfd.readouterr().out.splitlines()[-1]
        assert (
            said == f"`repair` can fix 1 of them: qdqtool repair '{path}' --out repaired.onnx --samples DATA"
        )

    def test_a_float_model_is_told_what_to_do(self, tmp_path, capfd):
        assert run(["lint", str(models.save(models.conv_chain(), tmp_path))]) == 0
        assert "a float model; `qdqtool run` quantizes it" in capfd.readouterr().out

    def test_junit_fails_the_rules_that_found_something(self, tmp_path):
        path = models.save(GRAPHS["weight_bare"](), tmp_path)
        out = tmp_path / "lint.xml"
        run(["lint", str(path), "--junit", str(out)])
        suites = list(ET.parse(out).getroot())
        assert len(suites) == len(codes())
        assert [suite.get("name") for suite in suites if suite.get("failures") != "0"] == ["half_quantized"]

    def test_the_list_of_rules_needs_no_model(self, capfd):
        assert run(["lint", "--rules"]) == 0
        assert "QDQ101" in capfd.readouterr().out

    def test_without_a_model_it_says_what_to_pass(self, capfd):
        assert run(["lint"]) == 2
        assert "pass an ONNX file" in capfd.readouterr().err
