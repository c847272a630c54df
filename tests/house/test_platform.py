"""The branches of `platform` for other systems work too; `.ci/style.py` keeps such differences in that one module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

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


class Kernel:
    """Stands in for kernel32.dll: one process runs, another has ended, all others never were."""

    def OpenProcess(self, _access: int, _inherit: bool, process: int) -> int:
        return process if process in {1, 2} else 0

    def GetExitCodeProcess(self, handle: int, code: object) -> None:
        code._obj.value = 259 if handle == 1 else 0  # type: ignore[attr-defined]

    def CloseHandle(self, handle: int) -> None:
        assert handle in {1, 2}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The branches of Windows, with its libraries and programs substituted; the commands that were run."""
    monkeypatch.setattr(platform, "SYSTEM", "win32")
    monkeypatch.setattr(platform.ctypes, "windll", types.SimpleNamespace(kernel32=Kernel()), raising=False)
    for name in ("_STAT", "_STATM", "_STATUS", "_CMDLINE", "_MEMINFO"):
        monkeypatch.setattr(platform, name, Path("no such file"))
    monkeypatch.setattr(platform, "_CGROUPS", ())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sysconf_names", raising=False)
    commands: list[list[str]] = []
    monkeypatch.setattr(platform.subprocess, "run", lambda words, **_: commands.append(words))
    return commands


def test_on_windows_a_process_is_asked_for_and_never_signalled(
    windows: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del windows
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("os.kill ends processes on Windows"))
    assert [platform.is_alive(number) for number in (1, 2, 3)] == [True, False, False]


def test_on_windows_the_whole_tree_of_a_child_is_ended(windows: list[list[str]]) -> None:
    assert platform.own_group() == {"creationflags": 0x200}
    killed: list[bool] = []
    process = types.SimpleNamespace(pid=7, kill=lambda: killed.append(True))
    platform.kill_group(process)  # type: ignore[arg-type]
    assert windows == [["taskkill", "/F", "/T", "/PID", "7"]]
    assert killed == [True]


def test_on_windows_nothing_is_limited_and_what_is_not_known_is_none(windows: list[list[str]]) -> None:
    del windows
    platform.no_core_dump()
    platform.limit_further(memory=1, seconds=1)
    platform.lift_limits()
    platform.give_back()
    assert (platform.peak_mib(), platform.resident_mib()) == (None, None)
    assert platform.free_memory() == 16 << 30
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
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n", "ascii")
    monkeypatch.setattr(platform, "_MEMINFO", meminfo)
    monkeypatch.setattr(platform, "_CGROUPS", (platform._CGROUPS[0]._replace(folder=tmp_path),))
    assert platform.free_memory() == (7 << 10 if free is None else free)
