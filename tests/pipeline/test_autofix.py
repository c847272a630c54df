"""fix: real fallbacks become INT8, needless kernels vanish, and everything else is refused with a reason."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.cli.options import load_recipe
from qdqtool.core.advice import settings_in
from qdqtool.core.calibration import LOST_CHANNELS
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.kinds import AUDIT, CALIBRATION, PLACEMENT
from qdqtool.core.placement import Slot
from qdqtool.core.tensors import FP8
from qdqtool.errors import UsageError
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.unquantize import unquantize
from qdqtool.graph.view import Model
from qdqtool.matching.rule import Candidate, Goal
from tests import models
from tests.audit.graphs import GRAPHS, Quantized

TO_INT8 = {
    "float_weight": "c2",
    "float_activation": "c2",
    "scale_of_rank_one": "c1",
    "scale_per_channel": "c2",
    "unequal_concat": "c3",
    "matmul_wrong_axis": "mm",
    "matmul_float_weight": "mm",
    "matmul_float_activation": "mm",
    "one_matrix_quantized": "mm",
    "cast_between": "c1",
    "vector_float_weight": "fc",
    "turned_axis": "c1",
    "einsum_float_weight": "e",
    "attention_scores_only": "av",
    "attention_values_only": "qk",
}
"""Graphs with one fallback, and the node that runs INT8 when it is fixed."""
WIDE = "40"
"""More dB than any of these may lose."""


@pytest.fixture
def rtx():
    """Building needs TensorRT for RTX."""
    return pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")


def given(graph: str, folder: Path) -> tuple[Path, Path]:
    """The model of a small graph, and samples for it."""
    return stored(GRAPHS[graph](), folder)


def stored(proto, folder: Path) -> tuple[Path, Path]:
    (folder / "samples").mkdir()
    for seed in range(3):
        np.savez(folder / "samples" / f"{seed}.npz", **models.feeds(proto, seed=seed, batch=1))
    return models.save(proto, folder), folder / "samples"


def fixed(capsys, model: Path, samples: Path | str, *more: str) -> dict:
    capsys.readouterr()
    out = model.with_name("out")
    code = run(["fix", str(model), "--json", "--out", str(out), "--samples", str(samples), *more])
    assert code == 0
    data: dict = json.loads(capsys.readouterr().out)
    assert data["kind"] == "fixes"
    return data["data"]


def outcomes(report: dict) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trial in report["trials"]:
        found.setdefault(trial["subject"], []).append(trial["outcome"])
    return found


@pytest.mark.rtx
@pytest.mark.parametrize("graph", sorted(TO_INT8))
@pytest.mark.usefixtures("rtx")
def test_a_fallback_runs_int8_afterwards(graph: str, tmp_path: Path, capsys):
    model, samples = given(graph, tmp_path)
    report = fixed(capsys, model, samples, "--max-drop", WIDE)
    assert outcomes(report)[TO_INT8[graph]] == ["kept"]
    assert report["after"]["int8"] == report["before"]["int8"] + 1
    told = json.loads((tmp_path / "out" / "findings.json").read_text())["data"]["verdicts"]
    assert {verdict["node"]: verdict["precision"] for verdict in told}[TO_INT8[graph]] == "int8"
    assert run(["audit", str(tmp_path / "out"), "--fail-on", "warning", "--ignore", "fp16_off"]) == 0


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_useless_pairs_of_a_transposed_convolution_go(tmp_path: Path, capsys):
    report = fixed(capsys, *given("transposed_conv", tmp_path))
    assert outcomes(report) == {"up": ["kept"], "the engine": ["kept"]}
    assert report["after"]["kernels"] < report["before"]["kernels"]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(
    ("graph", "int8"),
    [("attention_float", 6), ("attention_result_float", 5), ("attention_scores_rounded", 6)],
)
def test_an_attention_in_pieces_becomes_one_kernel(graph: str, int8: int, tmp_path: Path, capsys):
    report = fixed(capsys, *given(graph, tmp_path), "--max-drop", WIDE)
    assert report["after"]["int8"] == int8
    assert report["after"]["kernels"] < report["before"]["kernels"]
    found = json.loads((tmp_path / "out" / "findings.json").read_text())["data"]["findings"]
    assert "attention_not_fused" not in {finding["check"] for finding in found}


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_clean_engine_needs_no_build(tmp_path: Path, capsys):
    report = fixed(capsys, *given("fine", tmp_path))
    assert (report["trials"], report["builds"]) == ([], 0)
    assert report["before"] == report["after"]


def broken(count: int):
    """A chain of convolutions of which every second has a float weight."""
    s = Quantized()
    x = s.input("x", [1, 8, 16, 16])
    for number in range(count):
        x = s.relu(f"relu{number}", s.qconv(f"c{number}", x, weight=bool(number % 2)))
    s.output(x, [1, 8, 16, 16])
    return s.model()


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_many_fallbacks_of_one_kind_cost_one_build(tmp_path: Path, capsys):
    report = fixed(capsys, *stored(broken(8), tmp_path), "--max-drop", WIDE)
    assert (report["before"]["int8"], report["after"]["int8"], report["builds"]) == (4, 8, 1)


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_an_edit_that_costs_too_much_accuracy_is_refused(tmp_path: Path, capsys):
    report = fixed(capsys, *given("float_activation", tmp_path), "--max-drop", "0.01")
    first = report["trials"][0]
    assert (first["subject"], first["outcome"]) == ("c2", "undone")
    assert "sqnr_db would fall" in first["why"]
    assert report["after"]["accuracy"] >= report["before"]["accuracy"] - 0.01


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_without_budget_everything_is_listed_and_nothing_tried(tmp_path: Path, capsys):
    report = fixed(capsys, *given("float_weight", tmp_path), "--budget", "0")
    assert report["builds"] == 0
    assert {trial["outcome"] for trial in report["trials"]} == {"not tried"}
    assert any("--budget" in note for note in report["notes"])


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_weight_behind_two_pairs_keeps_one(tmp_path: Path, capsys):
    report = fixed(capsys, *given("twice_rounded_weight", tmp_path))
    assert list(outcomes(report).values()) == [["kept"]]
    assert report["after"]["kernels"] == report["before"]["kernels"] - 1
    pairs = [pair for pair in find(load(tmp_path / "out" / "model.qdq.onnx")) if pair.tensor == "c1_w"]
    assert [len(pair.slots) for pair in pairs] == [1]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(("samples", "outcome"), [("random:2", "undone"), ("none", "not tried")])
def test_ranges_of_random_samples_are_tried_and_never_kept(samples, outcome, tmp_path: Path, capsys):
    model, _ = given("float_activation", tmp_path)
    report = fixed(capsys, model, samples)
    first = report["trials"][0]
    assert (first["subject"], first["outcome"]) == ("c2", outcome)
    assert "pass --samples" in first["why"]
    assert {change["after"] for change in report["slots"]} <= {"float"}
    if samples != "none":  # what a build shows does not depend on the range
        assert first["after"]["int8"] == first["before"]["int8"] + 1


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_run_folder_gets_a_placement_that_reproduces_the_result(tmp_path: Path, capsys):
    model, samples = stored(models.unet(), tmp_path)
    old, new = tmp_path / "run", tmp_path / "run-fixed"
    # A placement for classic TensorRT, which runs ConvTranspose in INT8; this builder does not.
    line = ["run", str(model), "--samples", str(samples), "--out", str(old), "--set", "place.target=10"]
    assert run(line) == 0
    before = digests(old)
    capsys.readouterr()
    assert run(["fix", str(old), "--samples", str(samples), "--json"]) == 0
    assert capsys.readouterr().out == (new / "fixes.json").read_text("utf-8")
    report = json.loads((new / "fixes.json").read_text("utf-8"))["data"]
    # `tail` is narrow: in INT8 it costs a kernel
    places = {trial["subject"]: trial["outcome"] for trial in report["trials"] if trial["edits"]}
    assert places == {"up": "kept", "tail": "undone"}
    # the type of the float part is a value of the recipe: it is kept, and written to the new recipe
    values = [trial for trial in report["trials"] if not trial["edits"]]
    assert [(trial["settings"], trial["outcome"]) for trial in values] == [(["insert.types=fp16"], "kept")]
    assert load_recipe(str(new / "recipe.yaml"), []).insert.types == "fp16"
    assert report["after"]["activation_bytes"] < report["before"]["activation_bytes"]
    assert all("int8" in (change["before"] + change["after"]) for change in report["slots"])
    assert digests(old) == before
    again = tmp_path / "again.onnx"
    parts = ["--placement", str(new / "placement.json"), "--calibration", str(new / "calibration.json")]
    parts += ["--recipe", str(new / "recipe.yaml")]
    assert run(["insert", str(new / "model.prepared.onnx"), *parts, "--out", str(again)]) == 0
    inserted, fixed = load(again), load(new / "model.qdq.onnx")
    # the metadata differ: only `fix` knows the recipe and the samples
    assert inserted.proto.graph == fixed.proto.graph
    assert (new / "report.html").is_file()


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_findings_about_the_ranges_of_quantized_nodes_stay(tmp_path: Path, capsys):
    model, samples = stored(models.conv_chain(), tmp_path)
    folder = tmp_path / "run"
    kept = ["--set", 'place.exclude=["conv2"]']
    assert run(["run", str(model), "--samples", str(samples), "--out", str(folder), *kept]) == 0
    table = CALIBRATION.read(folder / "calibration.json")
    code, check = LOST_CHANNELS
    findings = [
        Finding(code=code, check=check, severity=Severity.WARNING, subject=node, reason="", fix="")
        for node in ("conv1", "conv2")
    ]
    CALIBRATION.write(folder / "calibration.json", replace(table, findings=tuple(findings)))
    command = ["fix", str(folder), "--samples", str(samples), "--out", str(tmp_path / "new"), "--budget", "1"]
    assert run([*command, "--fail-on", "warning"]) == 1
    written = AUDIT.read(tmp_path / "new" / "findings.json").findings
    assert [finding.subject for finding in written if finding.code == code] == ["conv1"]


@pytest.mark.parametrize(("subject", "start"), [(".", "run"), ("..", "run/inner")])
def test_the_new_folder_of_a_relative_run_folder_has_its_name(
    subject: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "model.qdq.onnx").touch()
    monkeypatch.chdir(tmp_path / start)
    assert run(["fix", subject, "--on", "local", "--dry-run"]) == 0
    assert str(tmp_path / "run-fixed") in capsys.readouterr().out.replace("\n", "")


def test_a_setting_is_one_candidate_whichever_of_its_nodes_are_float() -> None:
    first, second = (
        Candidate(subject=node, goal=Goal.ALLOWED, text="--set x", edits=(), settings=("x",))
        for node in ("gate1", "gate2")
    )
    assert first.key == second.key
    assert replace(first, goal=Goal.CHEAPER).key != replace(second, goal=Goal.CHEAPER).key


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_the_float_part_of_a_model_without_a_run_folder_is_tried_in_fp16(tmp_path: Path, capsys):
    model, samples = stored(models.unet(), tmp_path)
    run_folder, new = tmp_path / "run", tmp_path / "fixed"
    assert run(["run", str(model), "--samples", str(samples), "--out", str(run_folder)]) == 0
    capsys.readouterr()
    line = ["fix", str(run_folder / "model.qdq.onnx"), "--samples", str(samples), "--out", str(new)]
    assert run([*line, "--max-drop", WIDE, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["data"]
    (trial,) = [trial for trial in report["trials"] if not trial["edits"]]
    assert (trial["outcome"], trial["edit"]) == ("kept", "`qdqtool convert --types fp16`")
    assert report["after"]["activation_bytes"] < report["before"]["activation_bytes"]
    types = {value.data_type for value in load(new / "model.qdq.onnx").proto.graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(
    ("drop", "outcome"), [(WIDE, "kept"), ("0", "undone")], ids=["accuracy may fall", "accuracy may not fall"]
)
def test_settings_that_the_audit_prints_for_float_nodes_are_built(
    drop: str, outcome: str, tmp_path: Path, capsys
):
    model, samples = stored(models.residual_cnn(), tmp_path)
    kept = ["--set", "place.first_layer=float", "--set", "place.last_layer=float"]
    line = ["run", str(model), "--samples", str(samples), "--out"]
    assert run([*line, str(tmp_path / "run"), *kept]) == 0
    assert run([*line, str(tmp_path / "all")]) == 0
    capsys.readouterr()
    assert run(["fix", str(tmp_path / "run"), "--samples", str(samples), "--max-drop", drop, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["data"]
    told = json.loads((tmp_path / "run" / "findings.json").read_text())["data"]["verdicts"]
    printed = {verdict["node"]: settings_in(verdict["fix"]) for verdict in told if verdict["fix"]}
    tried = {
        node: tuple(trial["settings"])
        for trial in report["trials"]
        if trial.get("settings", [""])[0].startswith("place.")
        for node in (trial["subject"], *trial.get("also", ()))
    }
    assert printed
    assert tried == printed
    built = [trial for trial in report["trials"] if trial["edits"]]
    assert {trial["outcome"] for trial in built if "settings" in trial} == {outcome}
    # one engine shows what a setting does: it is not built again for each of its nodes
    assert len({trial["edit"] for trial in built}) == len(built)
    quantized = PLACEMENT.read(tmp_path / "run-fixed" / "placement.json").quantized
    wanted = PLACEMENT.read(tmp_path / ("all" if outcome == "kept" else "run") / "placement.json").quantized
    assert {one.slot for one in quantized} == {one.slot for one in wanted}
    assert report["after"]["kernels"] <= report["before"]["kernels"]
    # the same table on the page and in the terminal
    assert run(["report", str(tmp_path / "run-fixed"), "--journal"]) == 0
    shown = capsys.readouterr().out
    page = (tmp_path / "run-fixed" / "report.html").read_text("utf-8")
    for (setting,) in printed.values():
        assert f"--set {setting}" in shown
        assert f"--set {setting}" in page


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("setting", ['place.exclude=["fc"]', "place.exclude_ops=[Gemm]"])
def test_nodes_that_a_recipe_keeps_float_by_name_stay_float(setting: str, tmp_path: Path, capsys):
    model, samples = stored(models.residual_cnn(), tmp_path)
    line = ["run", str(model), "--samples", str(samples), "--out", str(tmp_path / "run")]
    assert run([*line, "--set", setting]) == 0
    capsys.readouterr()
    assert run(["fix", str(tmp_path / "run"), "--samples", str(samples), "--max-drop", WIDE, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["data"]
    assert not [trial for trial in report["trials"] if "settings" in trial]


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def test_the_old_folder_or_a_used_one_is_never_written(tmp_path: Path, capsys):
    model, samples = given("fine", tmp_path)
    out = tmp_path / "used"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert run(["fix", str(model), "--samples", str(samples), "--out", str(out)]) == 2
    assert "must not exist yet" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_model_that_the_builder_refuses_is_sent_to_repair(tmp_path: Path, capsys):
    s = Quantized()
    s.output(s.qconv("c1", s.input("x", [1, 8, 16, 16]), act=-0.05), [1, 8, 16, 16])
    model, _ = stored(s.model(), tmp_path)
    for _attempt in range(2):
        assert run(["fix", str(model), "--out", str(tmp_path / "out")]) == 4
        assert "qdqtool repair" in capsys.readouterr().err


def test_a_float_model_has_nothing_to_fix(tmp_path: Path, capsys):
    model, samples = stored(models.conv_chain(), tmp_path)
    assert run(["fix", str(model), "--samples", str(samples)]) == 2
    assert "no Q/DQ" in capsys.readouterr().err


def test_a_folder_that_is_no_run_folder_is_refused(tmp_path: Path, capsys):
    assert run(["fix", str(tmp_path)]) == 5
    assert "model.qdq.onnx" in capsys.readouterr().err


def edited(graph: str, folder: Path, *edits: SlotEdit):
    return requantize(load(models.save(GRAPHS[graph](), folder)), edits)


def test_an_input_made_float_leaves_other_readers_alone(tmp_path: Path):
    model = edited("fine", tmp_path, SlotEdit(slot=Slot(node="c2", index=0)))
    assert model.view.by_name["c2"].inputs[0] == "relu_y"
    assert {pair.tensor for pair in find(model)} >= {"c2_w", "x", "relu3_y"}


def test_all_inputs_made_float_give_the_float_model(tmp_path: Path):
    original = load(models.save(GRAPHS["fine"](), tmp_path))
    slots = [Slot(node=f"c{number}", index=index) for number in (1, 2, 3) for index in (0, 1)]
    model = requantize(original, [SlotEdit(slot=slot) for slot in slots])
    assert quantized_ops(model) == ()
    assert serialize(model) == serialize(unquantize(original, ["c1", "c2", "c3"]))


def test_an_edit_applied_twice_is_the_edit_applied_once(tmp_path: Path):
    edit = SlotEdit(slot=Slot(node="c2", index=1), scales=(0.5,))
    once = edited("float_weight", tmp_path, edit)
    pairs = [pair for pair in find(requantize(once, [edit])) if pair.tensor == "c2_w"]
    assert [(pair.scale, pair.scale_shape) for pair in pairs] == [((0.5,), ())]


def test_casts_between_a_weight_and_its_reader_are_passed_over(tmp_path: Path):
    edit = SlotEdit(slot=Slot(node="c1", index=1), scales=(0.01,) * 8, axis=0)
    model = edited("cast_between", tmp_path, edit)
    assert "Cast" not in {node.op for node in model.view.nodes}


def test_an_input_that_is_not_there_cannot_be_edited(tmp_path: Path):
    with pytest.raises(UsageError, match="the model has no input nowhere"):
        edited("fine", tmp_path, SlotEdit(slot=Slot(node="nowhere", index=0)))


def float_tail():
    """A Conv that somebody left float, with nothing behind it: no finding is about it."""
    s = Quantized()
    x = s.relu("relu", s.qconv("c1", s.input("x", [1, 64, 32, 32]), channels=(64, 64)))
    y = s.qconv("c2", x, channels=(64, 64), act=None, weight=False)
    s.output(s.relu("relu2", y), [1, 64, 32, 32])
    return s.model()


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_a_node_that_was_left_float_is_tried_and_kept_where_bytes_go(tmp_path: Path, capsys, monkeypatch):
    # in FP16 the node moves fewer bytes than in INT8
    monkeypatch.setattr("qdqtool.pipeline.autofix.search._FLOAT_PART", "")
    report = fixed(capsys, *stored(float_tail(), tmp_path), "--max-drop", WIDE)
    assert outcomes(report)["c2"] == ["kept"]
    assert report["after"]["int8"] == 2
    assert report["after"]["activation_bytes"] < report["before"]["activation_bytes"]


def test_audit_with_fix_is_the_command_fix(tmp_path: Path, capsys):
    assert run(["audit", str(tmp_path), "--fix"]) == 5
    said = capsys.readouterr().err
    assert "`audit --fix` is now the command `fix`" in said
    assert "finished run folder" in said


def test_an_edit_writes_the_format_that_it_names_as_insertion_writes_it(tmp_path):
    model = raised(load(models.save(GRAPHS["fine"](), tmp_path)), FP8.opset)
    edits = [
        SlotEdit(slot=Slot(node="c1", index=0), scales=(0.5,), format=FP8),
        SlotEdit(slot=Slot(node="c1", index=1), scales=(0.01,) * 8, axis=0, format=FP8),
    ]
    graph, left = lift(requantize(model, edits))
    assert not left
    found = [graph.assignment[edit.slot] for edit in edits]
    assert [entry.format for entry in found] == [FP8, FP8]
    assert [entry.axis for entry in found] == [None, 0]
    assert found[0].scale == np.float32(0.5)


def raised(model: Model, opset: int) -> Model:
    return Model(proto=raise_opset(model.proto, opset, model.path)[0], path=model.path)
