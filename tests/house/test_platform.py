"""The branches of `platform` for other systems work too; `.ci/style.py` keeps such differences in that one module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from qdqtool import platform


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **platform.own_group())


@pytest.mark.skipif(os.name != "posix", reason="POSIX process groups")
def test_a_group_ends_and_ending_it_again_is_no_error() -> None:
    process = child()
    assert platform.is_alive(process.pid)
    platform.kill_group(process)
    assert process.wait(30) == -signal.SIGKILL
    platform.kill_group(process)
    assert not platform.is_alive(process.pid)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches of Windows."""
    monkeypatch.setattr(platform, "SYSTEM", "win32")
    for name in ("_STAT", "_STATUS", "_CMDLINE"):
        monkeypatch.setattr(platform, name, Path("no such file"))
    monkeypatch.setattr(platform, "_CGROUPS", ())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)


@pytest.mark.usefixtures("windows")
def test_on_windows_the_whole_tree_of_a_child_is_ended() -> None:
    assert platform.own_group() == {"creationflags": 0x200}
    code = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1); print(child.pid); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    grandchild = psutil.Process(int(process.stdout.readline()))
    platform.kill_group(process)
    process.communicate(timeout=30)
    assert not platform.is_alive(process.pid)
    assert grandchild.wait(30) is None
    platform.kill_group(process)


@pytest.mark.usefixtures("windows")
def test_on_windows_nothing_is_limited_and_what_is_not_known_is_none() -> None:
    platform.no_core_dump()
    platform.limit_further(memory=1, seconds=1)
    platform.lift_limits()
    platform.give_back()
    assert platform.peak_mib() is None  # psutil has the peak on Windows only
    assert platform.resident_mib() > 0
    assert platform.free_memory() > 0
    assert platform.processors() == os.cpu_count()
    assert platform.cuda_driver() == "nvcuda.dll"
    assert not platform.overwrite_arguments(["qdqtool"])


@pytest.mark.skipif(os.name != "posix", reason="needs the module resource")
def test_on_macos_memory_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(platform, "SYSTEM", "darwin")
    monkeypatch.setattr(platform, "_STATUS", Path("no such file"))
    monkeypatch.setattr(resource, "getrusage", lambda _: types.SimpleNamespace(ru_maxrss=3 << 20))
    assert platform.peak_mib() == 3.0


def test_a_signal_that_a_system_lacks_has_no_number() -> None:
    assert platform.signal_number("SIGTERM") == signal.SIGTERM
    assert platform.signal_number("SIGNOSUCH") is None


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "5000\n", "memory.current": "1500\n", "memory.stat": "inactive_file 600\n"}, 4100),
        ({"memory.max": "max\n", "memory.current": "1500\n"}, None),
        ({"memory.max": "5000\n", "memory.current": "9000\n", "memory.stat": "anon 1\n"}, 0),
        ({}, None),
    ],
)
def test_free_is_what_the_container_leaves(
    files: dict[str, str], free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, "ascii")
    machine = types.SimpleNamespace(available=7 << 10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(platform, "_CGROUPS", (platform._CGROUPS[0]._replace(folder=tmp_path),))
    assert platform.free_memory() == (7 << 10 if free is None else free)
