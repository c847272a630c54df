"""Steps are done again where other code would do them."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

import calibrators
import qdqtool
from qdqtool._version import __version__
from qdqtool.cli.app import run
from qdqtool.pipeline import own_code as own_code_module
from qdqtool.pipeline import runner
from qdqtool.pipeline.own_code import _files as own_code_files
from qdqtool.pipeline.own_code import code_behind, own_code
from qdqtool.plugins import all_entry_points
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
    made = moved / "inside" / "__pycache__"
    made.mkdir()
    (made / "rule.cpython-312.pyc").write_text("made of the source")
    (moved / "inside" / "rule.py~").write_text("left by an editor")
    monkeypatch.setattr(qdqtool, "__path__", [str(moved)])
    assert fingerprint() == before


@pytest.mark.parametrize("name", ["messages.txt", "page.html", "steps.md", "page.css", "page.js"])
def test_templates_messages_and_pages_count_as_code(checkout: Path, name: str) -> None:
    path = checkout / "qdqtool" / "inside" / name
    path.write_text("one")
    before = fingerprint()
    path.write_text("two")
    assert fingerprint() != before


def test_every_file_of_the_package_counts() -> None:
    (folder,) = qdqtool.__path__
    counted = {path for _, path in own_code_files(folder)}
    shipped = {
        str(path) for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(path).suffix for path in counted} >= {".py", ".txt", ".md", ".html", ".css", ".js"}
    assert counted == shipped


def _installed(site: Path, name: str, content: str) -> None:
    """A distribution with one plug-in, as pip leaves it."""
    (site / name).mkdir(parents=True, exist_ok=True)
    (site / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / name / "rule.py").write_text(content)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[qdqtool.rules]\nguest = {name}.rule\n")


def test_a_changed_plug_in_is_other_code_and_is_not_imported_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen() -> str:
        all_entry_points.cache_clear()
        importlib.invalidate_caches()
        return fingerprint()

    before = seen()
    monkeypatch.syspath_prepend(str(tmp_path))
    _installed(tmp_path, "guests_of_a_test", "ENDING = 'Gemm'\n")
    installed = seen()
    _installed(tmp_path, "guests_of_a_test", "ENDING = 'Conv'\n")
    changed = seen()
    all_entry_points.cache_clear()
    assert len({before, installed, changed}) == 3
    assert "guests_of_a_test 1.0" in installed


@pytest.mark.parametrize("library", ["numpy", "onnx", "onnxruntime", "numba"])
def test_another_release_of_a_library_that_computes_is_other_code(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint()
    plain = own_code_module.version
    monkeypatch.setattr(own_code_module, "version", lambda name: "999.0" if name == library else plain(name))
    assert fingerprint() != before


def test_a_metric_of_the_user_counts_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metric_of_a_test.py").write_text("def one(a, b): return 1\n")
    before = code_behind("metric_of_a_test")
    (tmp_path / "metric_of_a_test.py").write_text("def one(a, b): return 2\n")
    assert before
    assert code_behind("metric_of_a_test") not in {"", before}
    assert code_behind("no_such_module_anywhere") == ""


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
