"""Devices and pipes: what never ends and what nobody writes to is refused by every reader; a log may come through a pipe."""

from __future__ import annotations

import json
import lzma
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.backends.migration.folder import migrate_path
from qdqtool.calibration.caches.files import read_cache
from qdqtool.calibration.samples.labels import read_labels
from qdqtool.calibration.samples.opening import open_samples
from qdqtool.core.kinds import CALIBRATION
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.engine.profile_forms import read_profile
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.io import files, text
from qdqtool.io.files import VARIABLE
from qdqtool.io.json_files import parse_json
from qdqtool.pipeline import recipes
from qdqtool.pipeline.engine_files import engine_of
from tests.buildlog import small

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def lines_of(path: Path) -> int:
    """Lines of the log at `path`."""
    return sum(run.value().lines for run in buildlog.open_runs(buildlog.TextSource(path)))


ONCE: dict[str, Callable[[Path], object]] = {
    "log": lines_of,
    "cache": read_cache,
    "labels": read_labels,
    "artefact": CALIBRATION.read,
}
OFTEN: dict[str, Callable[[Path], object]] = {
    "model": load,
    "layers": read_layers,
    "profile": read_profile,
    "samples": lambda path: open_samples(str(path), ()),
    "recipe": lambda path: recipes.load(str(path)),
    "build": migrate_path,
    "layers or log": engine_of,
}


def pipe_with(content: bytes) -> int:
    """The reading end of a pipe into which a thread writes."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(content)

    threading.Thread(target=write, daemon=True).start()
    return reading


@pytest.mark.parametrize("kind", [*ONCE, *OFTEN])
def test_a_device_without_end_is_refused(kind: str) -> None:
    with pytest.raises(InputFileError, match="is a device"):
        (ONCE | OFTEN)[kind](Path("/dev/zero"))


@pytest.mark.parametrize("kind", [*ONCE, *OFTEN])
def test_a_pipe_that_nobody_writes_to_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_S", 0.05)
    path = tmp_path / "pipe.npy"
    os.mkfifo(path)
    with pytest.raises(InputFileError, match="is a pipe"):
        (ONCE | OFTEN)[kind](path)


def test_the_null_device_is_an_empty_file() -> None:
    assert lines_of(Path(os.devnull)) == 0
    with pytest.raises(InputFileError, match="holds no labels"):
        read_labels(Path(os.devnull))
    with pytest.raises(InputFileError, match="is empty"):
        load(os.devnull)


def test_a_log_through_a_pipe_reads_as_its_file(tmp_path: Path) -> None:
    content = small.trtexec().encode()
    path = tmp_path / "build.log"
    path.write_bytes(content)
    reading = pipe_with(content)
    assert lines_of(Path(f"/dev/fd/{reading}")) == lines_of(path) > 0


def test_a_log_that_is_read_twice_is_no_pipe() -> None:
    """Its second reading found nothing, and an audit found nothing to say."""
    with pytest.raises(InputFileError, match="is a pipe, but must be read more than once"):
        engine_of(Path(f"/dev/fd/{pipe_with(small.trtexec().encode())}"))


def test_a_named_pipe_waits_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    threading.Timer(0.1, path.write_bytes, (b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n",)).start()
    assert [entry.tensor for entry in read_cache(path).entries] == ["x"]


def test_a_pipe_that_is_deleted_before_anyone_writes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_S", 0.2)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    threading.Timer(0.05, path.unlink).start()
    with pytest.raises(InputFileError, match="no program opened"):
        lines_of(path)


def test_a_writer_may_be_silent_for_longer_than_it_may_be_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_S", 0.1)
    content = small.trtexec().encode()
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as stream:
            time.sleep(0.3)
            stream.write(content)

    threading.Thread(target=write, daemon=True).start()
    (tmp_path / "build.log").write_bytes(content)
    assert lines_of(path) == lines_of(tmp_path / "build.log") > 0


def test_a_pipe_whose_writer_says_nothing_is_empty() -> None:
    assert lines_of(Path(f"/dev/fd/{pipe_with(b'')}")) == 0


def test_a_terminal_is_read_to_its_end() -> None:
    ours, theirs = os.openpty()
    kept = os.dup(0)
    try:
        os.dup2(theirs, 0)
        os.write(ours, b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n\x04")
        assert [entry.tensor for entry in read_cache(Path("/dev/stdin")).entries] == ["x"]
    finally:
        os.dup2(kept, 0)
        for handle in (kept, ours, theirs):
            os.close(handle)


def test_a_log_that_was_repeated_packs_as_well_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_UNPACKED", 1 << 20)
    path = tmp_path / "log.xz"
    path.write_bytes(lzma.compress(b"[V] [TRT] a line\n" * 50_000))
    assert path.stat().st_size * 1000 < 50_000 * 17 < 1 << 20
    assert lines_of(path) == 50_000
    monkeypatch.setattr(text, "_UNPACKED", 1 << 19)
    with pytest.raises(InputFileError, match="unpacks to more than"):
        lines_of(path)


def test_json_whose_values_take_forty_times_its_bytes_is_weighed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = json.dumps([[]] * 1000)
    assert parse_json(content, "x") == [[]] * 1000
    monkeypatch.setenv(VARIABLE, "64KiB")
    with pytest.raises(InputFileError, match="more than the 65,536 allowed"):
        parse_json(content, "x")


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "build.log"
    with path.open("wb") as stream:
        stream.write(b"[V] one line\n")
        stream.truncate(16 << 30)
    if path.stat().st_blocks * 512 >= path.stat().st_size:
        pytest.skip("this file system has no sparse files")
    with pytest.raises(InputFileError, match=r"claims 17,179,869,184 bytes .* it is sparse"):
        next(text.TextSource(path).blocks())
    with path.open("r+b") as stream:
        stream.truncate(1 << 20)
    assert next(text.TextSource(path).blocks()).startswith(b"[V] one line\n")
