"""Half-written files: gone when the writing fails, and swept when the writer was killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_file, read_at_most, replacing, sweep, write_text
from qdqtool.pipeline.request import RunFolder

POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows has no locks of this kind")


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


def test_a_draft_that_cannot_be_removed_does_not_turn_a_finished_write_into_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rmdir", refuse)
    write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    with pytest.raises(ValueError, match="half"):
        fail(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "new"


WRITE = """
import sys, time
from pathlib import Path
from qdqtool.io.files import replacing
with replacing(Path(sys.argv[1])) as draft:
    draft.write_bytes(b"half of an eng")
    print("ready", flush=True)
    time.sleep(600)
"""


@contextmanager
def a_process_that_writes(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def drafts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".qdqtool-draft-" in path.name)


@POSIX
def test_only_drafts_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".qdqtool-draft-left").mkdir()
    others = [tmp_path / ".lock", tmp_path / ".my.settings", tmp_path / "report.html"]
    for path in others:
        path.touch()
        os.utime(path, (0, 0))
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


@POSIX
def test_what_a_killed_process_left_goes_with_the_next_write_and_not_before(tmp_path: Path) -> None:
    with a_process_that_writes(tmp_path / "a [1]*.json") as child:
        write_text(tmp_path / "a [1]*.json", "mine")
        sweep(tmp_path)
        assert len(drafts(tmp_path)) == 1, "what another process is writing is left alone"
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert len(drafts(tmp_path)) == 1
        write_text(tmp_path / "a [1]*.json", "again")
        assert drafts(tmp_path) == []
    assert (tmp_path / "a [1]*.json").read_text() == "again"


@POSIX
def test_a_link_that_bears_the_name_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/mine").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.qdqtool-draft-abcdefgh").symlink_to(tmp_path / "secret")
    write_text(tmp_path / "out/a.json", "new")
    assert [path.name for path in (tmp_path / "secret").iterdir()] == ["mine"]


@POSIX
def test_a_pipe_and_a_link_to_a_device_are_not_replaced_by_files(tmp_path: Path) -> None:
    """`-o /dev/full` of a root user put a file in place of the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to(os.devnull)
    for name in ("pipe", "out"):
        with pytest.raises(InputFileError, match="device or a pipe"):
            write_text(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "out").is_symlink()


def test_the_next_run_in_a_folder_sweeps_it(tmp_path: Path) -> None:
    (tmp_path / ".qdqtool-draft-left").mkdir()
    with RunFolder(tmp_path).locked():
        assert not (tmp_path / ".qdqtool-draft-left").exists()


def test_a_folder_in_the_place_of_a_file_is_told_with_the_files_of_a_run(tmp_path):
    with pytest.raises(InputFileError, match="is a folder, not a file") as raised:
        digest_file(tmp_path)
    assert "layers.json" in raised.value.fix


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101])
def test_a_file_is_read_up_to_a_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    assert read_at_most(path, 100) == (b"x" * size if size <= 100 else None)


@POSIX
def test_what_has_no_end_is_not_read_to_it() -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert read_at_most(Path(f"/dev/fd/{writer.stdout.fileno()}"), 3 << 20) is None
        writer.stdout.close()


@POSIX
def test_a_pipe_is_read_though_it_has_no_size() -> None:
    with subprocess.Popen([sys.executable, "-c", "print('a' * 70000)"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert read_at_most(Path(f"/dev/fd/{writer.stdout.fileno()}"), 1 << 20) == b"a" * 70000 + b"\n"
