"""An empty path is a mistake, as `--out "$UNSET"` of a script is, and so is an output that is an input."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.app import run


@pytest.mark.parametrize(
    "words",
    [
        ("run", "m.onnx", "--samples", "random:2", "--out", ""),
        ("run", "m.onnx", "--samples", "random:2", "--out="),
        ("quantize", "m.onnx", "--samples", "random:2", "-o", ""),
        ("sweep", "m.onnx", "--samples", "random:2", "--out", ""),
        ("cache", "show", ""),
        ("lint", ""),
        ("parse", ""),
        ("run", "", "--samples", "random:2"),
        ("compare", "m.onnx", "", "--samples", "random:2"),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused_and_nothing_is_written(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(list(words)) == 2
    said = capsys.readouterr().err
    assert "the path is empty" in said
    assert "fix:" in said
    assert not list(tmp_path.iterdir())


def test_the_current_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "m.onnx", "--set", "name=", "--out", "."]) != 0
    assert "the path is empty" not in capsys.readouterr().err


OVERWRITING = [
    "place m.onnx --out m.onnx",
    "calibrate m.onnx --samples random:2 --out ./m.onnx",
    "quantize m.onnx --samples s.npz --out s.npz",
    "insert m.onnx --placement p.json --calibration c.json --out p.json",
    "sensitivity m.onnx --samples random:2 --page link.onnx",
    "compare s.npz m.onnx --samples random:2 --page m.onnx",
    "report p.json --out p.json",
    "scales m.onnx --out m.onnx",
    "lint m.onnx s.npz --junit s.npz",
    "cache from-qdq m.onnx --trt 8.6.1 --out other.cache --model m.onnx",
]


@pytest.mark.parametrize("line", OVERWRITING)
def test_an_output_that_is_an_input_is_refused_at_once(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A placement or a page was written over the user's only model."""
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "s.npz", "p.json", "c.json"):
        (tmp_path / name).write_text(name, "utf-8")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    assert run(line.split()) == 2
    assert "the output would overwrite an input" in capsys.readouterr().err
    for name in ("m.onnx", "s.npz", "p.json", "c.json"):
        assert (tmp_path / name).read_text("utf-8") == name
    assert len(list(tmp_path.iterdir())) == 5
