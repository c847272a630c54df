"""A run folder that can no longer be written from some file on: what is there stays whole, and a rerun goes on."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.app import run
from tests.pipeline.test_surroundings import TIMED, content_of, inputs

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = pytest.mark.slow


def whole(folder: Path) -> dict[str, bytes]:
    """The visible files of a folder, but those that hold times."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: content_of(path, folder.parent) for path in files if path.name not in TIMED}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("usual")
    model, samples = inputs(folder)
    assert run(["run", model, "--samples", samples, "--out", str(folder / "out")]) == 0
    return whole(folder / "out")


def _refusing(make: Callable[..., Any], folder: Path, last: str) -> Callable[..., Any]:
    def refuse(*words: Any, **more: Any) -> Any:
        place = Path(
            next(iter(words[2:]), None) or more.get("dir") or tempfile.gettempdir()
        )  # suffix, prefix, dir
        if folder in (place, *place.parents) and (folder / last).exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))
        return make(*words, **more)

    return refuse


@pytest.mark.parametrize(
    "last",
    [
        *("recipe.yaml", "preparation.json", "placement.json", "histograms.npz", "calibration.json"),
        *("insertion.json", "build.json", "layers.json", "findings.json", "accuracy.json", "report.json"),
    ],
)
def test_a_folder_that_turns_read_only_ends_the_run_in_a_sentence(
    last: str,
    usual: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, samples = inputs(tmp_path)
    out = tmp_path / "out"
    words = ["run", model, "--samples", samples, "--out", str(out)]
    with monkeypatch.context() as patch:
        for name in ("mkstemp", "mkdtemp"):
            patch.setattr(tempfile, name, _refusing(getattr(tempfile, name), out, last))
        assert run(words) == 5
    assert "cannot be written: Read-only file system" in capsys.readouterr().err
    left = whole(out)
    assert last in left
    assert set(left) < set(usual)
    assert {name for name in left if left[name] != usual[name]} == set()
    assert run(words) == 0
    assert whole(out) == usual
    assert not [path.name for path in out.iterdir() if "draft" in path.name]
