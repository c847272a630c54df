"""Drafts are gone when the block ends, and what a killed process left is gone with the next build."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from qdqtool.errors import InputFileError
from qdqtool.io.files import drafting, publish, withdraw

HOLD = """
import sys, time
from pathlib import Path
from qdqtool.io.files import drafting
with drafting(Path(sys.argv[1])) as drafts:
    (drafts / "engine.plan").write_bytes(b"half of an eng")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_drafts_are_gone_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), drafting(tmp_path / "out") as drafts:
        (drafts / "missing").rename(drafts / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_finished_files_come_out_and_old_ones_go(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with drafting(tmp_path) as drafts:
        (drafts / "new").write_text("new")
        publish(drafts, tmp_path, ["new"])
        withdraw(tmp_path, ["old"])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_what_a_killed_process_left_goes_with_the_next_build_and_not_before(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with drafting(tmp_path) as mine:
            assert len(list(tmp_path.glob(".qdqtool-draft-*"))) == 2, (
                "another build in the same folder is left alone"
            )
            assert mine.is_dir()
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert len(list(tmp_path.glob(".qdqtool-draft-*"))) == 1
        with drafting(tmp_path) as mine:
            assert list(tmp_path.glob(".qdqtool-draft-*")) == [mine]
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def no_locks(*_arguments: object, **_keywords: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_drafts_that_nobody_locked_go_at_once_and_without_locks_when_they_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".qdqtool-draft-killed-before-its-lock").mkdir()
    with drafting(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]
    for name in (".qdqtool-draft-young", ".qdqtool-draft-old"):
        (tmp_path / name).mkdir()
    past = time.time() - 7200
    os.utime(tmp_path / ".qdqtool-draft-old", (past, past))
    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    with drafting(tmp_path):
        assert not (tmp_path / ".qdqtool-draft-old").exists()
        assert (tmp_path / ".qdqtool-draft-young").exists()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, turns = FileLock.acquire, iter(range(99))

    def slow(lock: FileLock, *arguments: object, **keywords: object) -> object:
        if next(turns) == 0:
            shutil.rmtree(Path(lock.lock_file).parent)
        return take(lock, *arguments, **keywords)

    monkeypatch.setattr("filelock.FileLock.acquire", slow)
    with drafting(tmp_path) as drafts:
        assert drafts.is_dir()
        (drafts / "new").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(InputFileError, match="cannot be written"), drafting(tmp_path / "out"):
        pass


def test_a_link_that_looks_like_drafts_is_not_followed(tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    out.mkdir()
    with drafting(out) as drafts:
        name = drafts.name
    (out / name).symlink_to(elsewhere, target_is_directory=True)
    with drafting(out):
        pass
    assert list(elsewhere.iterdir()) == []
    assert (out / name).is_symlink()
