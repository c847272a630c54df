"""Logs that print no layers of the engine are answered as far as they tell, and say how to learn the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.errors import InputFileError
from qdqtool.pipeline.engine_files import engine_of
from tests.shared import SHARED

BANNER = "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=a.onnx --int8\n"
OPTIONS = "[01/10/2024-21:52:52] [I] === Build Options ===\n[01/10/2024-21:52:52] [I] Precision: {}\n"
SCALE = (
    "[01/10/2024-21:52:53] [W] [TRT] Missing scale and zero-point for tensor \x1b[31mt0, expect fall back to non-int8 "
    "implementation for any layer consuming or producing given tensor\n"
)
FAILED = "[01/10/2024-21:52:54] [E] Error[2]: [builder.cpp::buildSerializedNetwork::609] Error Code 2: Internal Error (x)\n"


def log(folder: Path, *parts: str) -> Path:
    path = folder / "build.log"
    path.write_text(BANNER + "".join(parts))
    return path


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((OPTIONS.format("FP32+INT8"),), "INT8 was allowed (precision FP32+INT8)"),
        ((OPTIONS.format("FP32+FP16"),), "no layer is INT8 by calibration"),
        ((OPTIONS.format("FP32+INT8"), SCALE), "1 tensor (t0) without a scale"),
        ((OPTIONS.format("FP32"), FAILED), "the build failed"),
    ],
)
def test_audit_and_report_say_what_the_log_tells_and_how_to_learn_more(
    parts: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path, *parts)
    page = tmp_path / "page.html"
    for command in (["audit", str(path)], ["report", str(path), "--out", str(page)]):
        assert run(command) == 0
        out = capsys.readouterr().out.replace("\n  ", " ")
        assert words in " ".join(out.split())
        assert "--dumpLayerInfo" in out
        assert "0 kernels" not in out
        assert "\x1b" not in out
    assert words.split("(", maxsplit=1)[0].strip() in page.read_text()
    assert run(["parse", str(path)]) == 0
    assert "precisions are unknown" in capsys.readouterr().out


def test_what_is_not_known_does_not_pass_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, OPTIONS.format("FP32+INT8"))
    assert run(["audit", str(path), "--fail-on", "error"]) == 1
    assert "no layers found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# a page\n\nof words\n", "no layer information"),
        ("name: a\nplace:\n  opset: 17\n", "no layer information"),
        ("", "is empty"),
    ],
)
def test_a_text_that_is_no_log_is_refused(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(InputFileError, match=words):
        engine_of(path)


LOGS = [
    path
    for folder in ("verbose_log", "trtexec_log")
    if (SHARED / "corpus" / folder).is_dir()
    for path in sorted((SHARED / "corpus" / folder).iterdir())
]


@pytest.mark.parametrize("path", LOGS[::8], ids=lambda path: path.name[-40:])
def test_every_real_log_has_layers_or_an_answer_without(path: Path) -> None:
    found = engine_of(path)
    assert found.layers or any("precisions are unknown" in note for note in found.notes)
