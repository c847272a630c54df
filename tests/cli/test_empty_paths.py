"""An empty path is a mistake, as `--out "$UNSET"` of a script is; it never means the current folder."""

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
