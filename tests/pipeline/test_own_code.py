"""Steps are done again where other code would do them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import calibrators
import qdqtool
from qdqtool._version import __version__
from qdqtool.cli.app import run
from qdqtool.pipeline import runner
from qdqtool.pipeline.own_code import own_code
from tests.shared import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small packages in the place of the real ones."""
    for package, name in ((qdqtool, "qdqtool"), (calibrators, "calibrators")):
        place = tmp_path / name / "inside"
        place.mkdir(parents=True)
        (place / "rule.py").write_text("WORDS = 1\n")
        monkeypatch.setattr(package, "__path__", [str(tmp_path / name)])
    return tmp_path


def fingerprint() -> str:
    own_code.cache_clear()
    try:
        return own_code()
    finally:
        own_code.cache_clear()


@pytest.mark.parametrize("package", ["qdqtool", "calibrators"])
def test_a_changed_new_or_renamed_file_is_other_code(checkout: Path, package: str) -> None:
    path = checkout / package / "inside" / "rule.py"
    seen = [fingerprint()]
    path.write_text("WORDS = 2\n")
    seen.append(fingerprint())
    path.with_name("other.py").write_text("")
    seen.append(fingerprint())
    path.rename(path.with_name("renamed.py"))
    seen.append(fingerprint())
    assert len(set(seen)) == 4
    assert all(entry.startswith(__version__) for entry in seen)


def test_where_the_code_lies_and_when_it_was_written_does_not_matter(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint()
    moved = shutil.copytree(checkout / "qdqtool", tmp_path / "elsewhere" / "qdqtool")
    (moved / "inside" / "notes.txt").write_text("no code")
    monkeypatch.setattr(qdqtool, "__path__", [str(moved)])
    assert fingerprint() == before


@pytest.mark.slow
def test_a_run_that_goes_on_after_an_update_makes_its_findings_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    command = ["run", str(DIGITS / "digits.onnx"), "--samples", str(DIGITS / "calibration.npz")]
    command += ["--set", "samples.limit=8", "--out", str(tmp_path / "run")]
    assert run(command) == 0
    capsys.readouterr()
    assert run(command) == 0
    assert capsys.readouterr().err.count("up to date") >= 10
    monkeypatch.setattr(runner, "own_code", lambda: f"{__version__} updated")
    assert run(command) == 0
    assert "up to date" not in capsys.readouterr().err
