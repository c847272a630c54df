"""The notebooks of the guides run from top to bottom, in a folder with the files that they assume."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shared import ROOT

nbformat = pytest.importorskip("nbformat", reason="notebooks are run by the extra test")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run by the extra test")
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
DIGITS = ROOT / "recipes" / "examples" / "digits"


def test_there_is_one_for_each_of_the_first_three_guides() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cnn", "detector", "transformer"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the notebooks build engines: qdqtool[rtx]")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
def test_a_notebook_runs_and_prints_as_many_lines_as_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copy(DIGITS / "digits.onnx", tmp_path / "model.onnx")
    for name in ("calibration.npz", "evaluation.npz", "labels.npy"):
        shutil.copy(DIGITS / name, tmp_path / name)
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        fresh, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    for kept, made in zip(stored.cells, fresh.cells, strict=True):
        assert shown(kept).count("\n") == shown(made).count("\n"), kept.source
        assert "Warning" not in shown(made)


def shown(cell: object) -> str:
    outputs = getattr(cell, "outputs", ())
    return "".join(output.get("text", "") for output in outputs)
