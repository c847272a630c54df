"""The commands of this room: the answer on standard output, the rest on standard error, documented exit codes."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core.kinds import BUILD
from tests.backends import graphs, stand_in_trtexec
from tests.models import save

needs_rtx = pytest.mark.skipif(
    find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX: qdqtool[rtx]"
)
posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")


@needs_rtx
@pytest.mark.rtx
def test_build_prints_the_artefact_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save(graphs.conv_relu("N"), tmp_path)
    out = tmp_path / "out"
    code = run(
        [
            "build",
            str(model),
            "--out",
            str(out),
            "--max-shapes",
            "x:4x3x8x8",
            "--min-shapes",
            "x:1x3x8x8",
            "--json",
        ]
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert printed == (out / "build.json").read_text("utf-8")
    assert BUILD.read(out / "build.json").profiles[0].high == (4, 3, 8, 8)


@needs_rtx
@pytest.mark.rtx
def test_build_says_in_one_line_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        ["build", str(save(graphs.conv_relu(), tmp_path)), "--out", str(tmp_path / "out"), "--sm", "86,89"]
    )
    captured = capsys.readouterr()
    assert code == 0
    assert len(captured.out.splitlines()) == 1
    assert "for sm86, sm89" in captured.out
    assert "the layer dump" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["--builder", "rxt"], 2, "did you mean 'rtx'", id="misspelled builder"),
        pytest.param(["--min-shapes", "x=1"], 2, "cannot read the shapes", id="misspelled shapes"),
        pytest.param(["--min-shapes", "z:1"], 2, "no input 'z'", id="an input nobody has"),
    ],
)
def test_mistakes_end_with_their_exit_code_and_a_fix(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(graphs.conv_relu("N"), tmp_path)
    assert run(["build", str(model), "--out", str(tmp_path / "out"), *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "fix:" in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


@posix
def test_flags_reach_trtexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(tmp_path, 8601)))
    monkeypatch.setenv("STAND_IN_SAID", str(tmp_path / "said"))
    model = save(graphs.conv_relu(), tmp_path)
    flags = "--fp16 --timingCacheFile='a b.cache'"
    assert (
        run(["build", str(model), "--out", str(tmp_path / "out"), "--builder", "trtexec", "--flags", flags])
        == 0
    )
    assert {"--fp16", "--timingCacheFile=a b.cache"} <= set((tmp_path / "said").read_text().splitlines())


@posix
def test_a_node_without_a_kernel_is_given_up_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(tmp_path, 8601)))
    monkeypatch.setenv("STAND_IN", "no-kernel-for-int8")
    model = save(graphs.quantized_conv(), tmp_path)
    assert run(["build", str(model), "--out", str(tmp_path / "out"), "--builder", "trtexec"]) == 0
    assert "no INT8 kernel for conv: built without its Q/DQ" in capsys.readouterr().err


def test_doctor_tells_what_is_missing_in_words_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    assert "builder rtx" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "doctor"


def test_time_compares_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [str(save(graphs.conv_relu(), tmp_path, name)) for name in ("a.onnx", "b.onnx")]
    effort = ["--rounds", "5", "--iterations", "3", "--warm-up", "0"]
    assert run(["time", *models, *effort]) == 0
    captured = capsys.readouterr()
    assert "median ms" in captured.out
    assert "b.onnx on cpu" in captured.out.splitlines()[-1]
    assert "wall-clock" in captured.err
    assert run(["time", *models, *effort, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert [each["count"] for each in data["summaries"]] == [15, 15]


def test_time_loads_no_engine_without_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.plan").write_bytes(b"ftrt" + bytes(40))
    assert run(["time", str(tmp_path / "e.plan")]) == 2
    assert "--trust" in capsys.readouterr().err


def test_migrate_reads_a_command_line_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--", "trtexec", "--onnx=m.onnx", "--int8", "--buildOnly"]) == 0
    printed = capsys.readouterr().out
    assert "change the model: --int8" in printed
    assert "for 11: trtexec --onnx=m.onnx --skipInference" in printed


def test_migrate_reads_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "build.py").write_text("import tensorrt as trt\nconfig.set_flag(trt.BuilderFlag.FP16)\n")
    assert run(["migrate", str(tmp_path / "build.py"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["advice"][0]["where"] == "line 2"


@needs_rtx
@pytest.mark.rtx
def test_precision_flags_are_answered_with_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(save(graphs.conv_relu(), tmp_path))
    assert run(["build", model, "--out", str(tmp_path / "out"), "--flags=--fp16"]) == 2
    assert "qdqtool convert MODEL" in capsys.readouterr().err.replace("\n", " ")
