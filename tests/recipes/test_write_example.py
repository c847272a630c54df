"""`qdqtool recipe example`: the files that the documentation speaks of, from the package alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.app import run as command
from tests.shared import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits"


def test_the_example_is_what_the_pages_call_their_files(tmp_path: Path) -> None:
    for _ in range(2):  # the second time everything exists already
        assert command(["recipe", "example", "--out", str(tmp_path / "new" / "folder")]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert written["model.onnx"] == (DIGITS / "digits.onnx").read_bytes()
    assert set(written) == {"model.onnx", "calibration.npz", "evaluation.npz", "labels.npy"}


def test_a_file_of_the_user_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.npy").write_bytes(b"mine")
    assert command(["recipe", "example"]) == 2
    assert "labels.npy: the file already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["labels.npy"]
    assert Path("labels.npy").read_bytes() == b"mine"
