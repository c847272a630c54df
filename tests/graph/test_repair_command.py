"""`qdqtool repair` writes a fixed model, tells every change, and measures the difference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.pipeline import recipes, repair
from qdqtool.pipeline.repair import RepairRequest, repair_file
from tests import models
from tests.graph.repairing import Sketch, dynamic_layer, repaired
from tests.placement.qdq import GRAPHS
from tests.shared import ROOT


@pytest.fixture
def unsigned(tmp_path: Path) -> Path:
    """A model with uint8 activations and zero points."""
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", zero=130, kind=np.uint8), s.filters()))
    return models.save(s.model(), tmp_path)


def _answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    assert run(["repair", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_lists_changes_with_reasons_and_the_measured_difference(
    unsigned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = unsigned.read_bytes()
    answer = _answer(capsys, unsigned, "-o", tmp_path / "out.onnx")
    assert answer["kind"] == "repair"
    (change,) = answer["data"]["changes"]
    assert change["rule"] == "zero_point"
    assert change["subject"] == "x"
    assert change["reason"]
    assert answer["data"]["remaining"] == []
    assert answer["data"]["comparison"]["meaningful"] is False
    metrics = {m["metric"]: m["value"] for m in answer["data"]["comparison"]["outputs"][0]["measures"]}
    assert 0.99 < metrics["cosine"] < 1
    assert unsigned.read_bytes() == before
    assert all(pair.zero_point == (0,) * len(pair.zero_point) for pair in find(load(tmp_path / "out.onnx")))


def test_the_summary_names_the_habit_and_the_count(
    unsigned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repair", str(unsigned), "-o", str(tmp_path / "out.onnx"), "--samples", "none"]) == 0
    shown = capsys.readouterr().out
    assert "zero_point, 1 time: TensorRT accepts symmetric INT8 only" in shown
    assert "1 change" in shown


def test_real_samples_give_dynamic_layers_their_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(dynamic_layer(), tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32))
    answer = _answer(capsys, path, "-o", tmp_path / "out.onnx", "--samples", tmp_path / "samples.npz")
    assert [change["rule"] for change in answer["data"]["changes"]] == ["dynamic", "half_quantized"]
    assert answer["data"]["remaining"] == []


def test_a_helper_model_that_fails_costs_the_ranges_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: object) -> None:
        raise InputFileError("for a test", fix="check the model")

    monkeypatch.setattr(repair, "watching", fails)
    path = models.save(dynamic_layer(), tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32))
    answer = _answer(capsys, path, "-o", tmp_path / "out.onnx", "--samples", tmp_path / "samples.npz")
    assert [change["rule"] for change in answer["data"]["changes"]] == ["dynamic"]
    assert answer["data"]["remaining"]
    assert any("without a range was skipped" in note for note in answer["data"]["notes"])


def test_a_model_whose_only_quantizers_are_tensorrt_s_own_is_repaired_as_lint_advises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(GRAPHS["int4_own_spelling"](), tmp_path)
    answer = _answer(capsys, path, "-o", tmp_path / "out.onnx")
    assert [change["rule"] for change in answer["data"]["changes"]] == ["own_spelling"]


def test_random_samples_give_no_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.save(dynamic_layer(), tmp_path)
    answer = _answer(capsys, path, "-o", tmp_path / "out.onnx")
    assert [left["subject"] for left in answer["data"]["remaining"]] == ["mm_MatMul"]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (models.conv_chain().SerializeToString(), 2, "has no Q/DQ to repair"),
        (b"no model at all, but text", 5, "text file"),
        (b"", 5, "empty"),
    ],
    ids=["float model", "text", "empty"],
)
def test_what_cannot_be_repaired_ends_with_a_message_and_nothing_written(
    content: bytes, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert run(["repair", str(path), "-o", str(tmp_path / "out.onnx")]) == code
    assert words in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def _infinite_activation() -> onnx.ModelProto:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", step=np.inf), s.filters()))
    return s.model()


def _infinite_weight() -> onnx.ModelProto:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 4, 4, 3, 3), "w", [0.1, np.inf, 0.1, 0.1], axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    return s.model()


def _not_a_number() -> onnx.ModelProto:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", step=np.nan), s.filters()))
    return s.model()


@pytest.mark.parametrize("broken", [_infinite_activation, _not_a_number])
def test_a_repair_is_written_although_the_model_before_it_gives_nothing_to_compare(
    broken: Callable[[], onnx.ModelProto], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(broken(), tmp_path)
    assert run(["repair", str(path), "-o", str(tmp_path / "out.onnx"), "--samples", "random:2"]) == 0
    said = capsys.readouterr()
    assert "the difference was not measured" in said.out + said.err
    assert load(tmp_path / "out.onnx").view.nodes


def test_a_repair_that_fails_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.save(_infinite_weight(), tmp_path)
    assert run(["repair", str(path), "-o", str(tmp_path / "out.onnx"), "--samples", "random:2"]) == 5
    assert "fix:" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_original_is_never_the_target(unsigned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = unsigned.read_bytes()
    assert run(["repair", str(unsigned), "-o", str(unsigned)]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert unsigned.read_bytes() == before


@pytest.mark.slow
def test_the_same_model_and_answer_come_out_under_any_hash_seed(unsigned: Path, tmp_path: Path) -> None:
    answers = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "qdqtool",
                "repair",
                str(unsigned),
                "-o",
                str(tmp_path / "out.onnx"),
                "--json",
            ],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        answers.add((done.stdout, (tmp_path / "out.onnx").read_bytes()))
    assert len(answers) == 1


def _chain(count: int) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 4])
    for number in range(count):
        x = s.relu(f"relu{number}", s.pair(x, f"p{number}", 0.02, 128, np.uint8))
    s.output(x)
    return s.model()


def _branches(count: int) -> onnx.ModelProto:
    """A pair that many nodes share, and as many with scales of their own before one Concat."""
    s = Sketch()
    x = s.pair(s.input("x", [1, 4]), "x", 0.02, 128, np.uint8)
    parts = [s.pair(s.relu(f"r{number}", x), f"p{number}", 0.01 + number / 1e4) for number in range(count)]
    s.output(s.node("Concat", parts, "cat", name="cat", axis=1))
    return s.model()


def _pairs_in_a_row(count: int) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 4])
    for number in range(count):
        x = s.pair(x, f"p{number}", 0.02 + number / 1e4)
    s.output(s.relu("r", x))
    return s.model()


def _moved_integers(count: int) -> onnx.ModelProto:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(0.02)), s.constant("z", np.int8(0))
    x = s.node("QuantizeLinear", [s.input("x", [4, 4]), scale, zero], "q", name="q")
    for number in range(count):
        x = s.node("Transpose", [x], f"t{number}", name=f"t{number}", perm=[1, 0])
    s.output(s.node("DequantizeLinear", [x, scale, zero], "d", name="d"))
    return s.model()


def _lines(proto: onnx.ModelProto, folder: Path) -> int:
    """How many lines of Python a repair executes."""
    from qdqtool.placement.repair import repair

    model, count = load(models.save(proto, folder)), 0

    def trace(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _, changes = repair(model)
    finally:
        sys.settrace(before)
    assert changes
    return count


@pytest.mark.parametrize("shape", [_chain, _branches, _pairs_in_a_row, _moved_integers])
@pytest.mark.slow
def test_the_work_of_a_repair_grows_no_faster_than_the_model(
    shape: Callable[[int], onnx.ModelProto], tmp_path: Path
) -> None:
    small, large = _lines(shape(60), tmp_path), _lines(shape(240), tmp_path)
    assert large < 4.4 * small


def test_pairs_inside_a_loop_alone_are_no_reason_to_quantize_again(tmp_path: Path) -> None:
    inner = Sketch()
    y = inner.pair(inner.node("Identity", ["x"], "inside", name="inside"), "p")
    inner.output(y)
    body = inner.model().graph
    del body.input[:]
    s = Sketch()
    s.input("x", [1, 4, 6, 6])
    branches = {"then_branch": body, "else_branch": body}
    s.nodes.append(
        onnx.helper.make_node("If", [s.constant("yes", np.array([True]))], ["y"], name="if", **branches)
    )
    s.output("y")
    file = tmp_path / "model.onnx"
    file.write_bytes(s.model().SerializeToString())
    order = RepairRequest(
        model=file, out=tmp_path / "out.onnx", samples="", labels=None, recipe=recipes.load(None, [])
    )
    with pytest.raises(UsageError, match="inside its body"):
        repair_file(order)
    assert not order.out.exists()


def test_a_range_of_unsigned_integers_is_told_by_its_own_type(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", zero=3, kind=np.uint8), s.filters()))
    _, changes = repaired(s.model(), tmp_path)
    assert next(change.what for change in changes if change.rule == "zero_point").startswith("uint8 with")


def test_weights_of_four_bits_in_an_operator_of_their_own_are_named(tmp_path: Path) -> None:
    s = Sketch()
    packed, scales = (
        s.constant("w", np.zeros((8, 1, 16), np.uint8)),
        s.constant("w_s", np.ones(8, np.float32)),
    )
    inputs = [s.input("x", [4, 32]), packed, scales]
    sizes = {"K": 32, "N": 8, "quant_type": 1, "block_size": 32}
    s.output(s.node("MatMulBnb4", inputs, "y", name="mm", domain="com.microsoft", **sizes), [4, 8])
    file = models.save(s.model(domains=["com.microsoft"]), tmp_path)
    order = RepairRequest(
        model=file, out=tmp_path / "out.onnx", samples="", labels=None, recipe=recipes.load(None, [])
    )
    with pytest.raises(UsageError, match="MatMulBnb4") as caught:
        repair_file(order)
    assert "QuantFormat.QDQ" in caught.value.fix
