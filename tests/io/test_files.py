"""Half-written files: gone when the writing fails, and swept when the writer was killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qdqtool.io.files import replacing, sweep, write_text
from qdqtool.pipeline.folder import RunFolder


def fail(path: Path) -> None:
    with replacing(path) as draft:
        draft.write_text("new")
        raise ValueError("half")


def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "old")
    with pytest.raises(ValueError, match="half"):
        fail(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def left_by_a_killed_process(folder: Path, age_s: float) -> Path:
    with replacing(folder / "engine.plan") as draft:
        name = draft
        draft.write_text("half")
    (folder / "engine.plan").rename(name)
    since = name.stat().st_mtime - age_s
    os.utime(name, (since, since))
    return name


def test_old_drafts_are_swept_and_nothing_else(tmp_path: Path) -> None:
    old, fresh = left_by_a_killed_process(tmp_path, 7200), left_by_a_killed_process(tmp_path, 0)
    others = [tmp_path / ".lock", tmp_path / ".my.settings", tmp_path / "report.html"]
    for path in others:
        path.touch()
        os.utime(path, (0, 0))
    sweep(tmp_path)
    assert not old.exists()
    assert all(path.exists() for path in (fresh, *others))


def test_the_next_run_in_a_folder_sweeps_it(tmp_path: Path) -> None:
    old = left_by_a_killed_process(tmp_path, 7200)
    with RunFolder(tmp_path).locked():
        assert not old.exists()
