"""Everything that differs between Linux, macOS and Windows; no other module asks which system this is."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

SYSTEM: str = sys.platform
"""What every function asks; tests put "win32" or "darwin" here."""
_STAT, _CMDLINE = Path("/proc/self/stat"), Path("/proc/self/cmdline")
_STATM, _STATUS = Path("/proc/self/statm"), Path("/proc/self/status")
_MEMINFO = Path("/proc/meminfo")


class _Cgroup(NamedTuple):
    """Where a release of cgroups says what a container may take and takes: a folder, and names in it."""

    folder: Path
    limit: str
    taken: str
    inactive: str


_CGROUPS = (
    _Cgroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    _Cgroup(
        Path("/sys/fs/cgroup/memory"),
        *("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ),
)
# Where no system call tells.
_ASSUMED_MEMORY = 16 << 30
_NEW_PROCESS_GROUP, _QUERY_LIMITED, _STILL_ACTIVE = 0x200, 0x1000, 259
"""CREATE_NEW_PROCESS_GROUP, PROCESS_QUERY_LIMITED_INFORMATION and STILL_ACTIVE of the Windows API."""
_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/self/stat, counted from 1 as proc(5) does."""


def overwrite_arguments(words: list[str]) -> bool:
    """Replace the argument list that `ps` shows; False where the system offers no way to do it.

    Linux reads the list from the memory of the process, where the process itself may write. macOS and Windows show it
    to the same user and to administrators only.

    Args:
        words: the arguments to show, the program first; they are cut to the length of the old ones.
    """
    try:
        # the name of the program stands in parentheses and may itself hold blanks and parentheses
        fields = _STAT.read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        known = _CMDLINE.read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    if start <= 0 or end - start != len(known):
        return False
    text = b"\0".join(os.fsencode(word) for word in words)[: len(known) - 1]
    ctypes.memmove(start, text.ljust(len(known), b"\0"), len(known))
    return True


def is_posix() -> bool:
    """Whether this is Linux or macOS."""
    return SYSTEM != "win32"


def own_group() -> dict[str, Any]:
    """Arguments of `subprocess.Popen` for a child with a process group of its own: Ctrl-C reaches only us."""
    return {"start_new_session": True} if is_posix() else {"creationflags": _NEW_PROCESS_GROUP}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a child that was started with `own_group`, and its children; nothing where none of them is left."""
    if is_posix():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    # taskkill follows parents to children, also out of a process group
    with suppress(OSError):
        subprocess.run(  # noqa: S603 -- a fixed command and a number
            ["taskkill", "/F", "/T", "/PID", str(process.pid)],  # noqa: S607 -- part of Windows
            check=False,
            capture_output=True,
        )
    with suppress(OSError):
        process.kill()


def is_alive(process: int) -> bool:
    """Whether a process of this machine is running; one of another user counts."""
    if is_posix():
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    # on Windows os.kill(n, 0) would send Ctrl-C
    kernel = _windows("kernel32")
    handle = kernel.OpenProcess(_QUERY_LIMITED, False, process)
    if not handle:
        return False
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == _STILL_ACTIVE


def machine() -> str:
    """A name under which process numbers mean something: machines and containers may share a host name."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()]
        names += [str(Path("/proc/self/ns/pid").readlink())]
    return "/".join(names)


def try_lock(handle: int) -> bool | None:
    """Take the lock of an open file, which its process holds until it closes it or ends, however it ends.

    Returns:
        False where another process holds it; None where the system, or the file system, has no such locks.
    """
    if not is_posix():
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def processors() -> int:
    """How many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def resident_mib() -> float | None:
    """Resident memory of this process now, in MiB; None where the system does not tell."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * mmap.PAGESIZE / (1 << 20)
    except OSError:
        return None


def peak_mib() -> float | None:
    """Peak resident memory of this process in MiB; None where the system does not tell.

    Linux counts what the parent used before exec into ru_maxrss; VmHWM is this process's own.
    """
    with suppress(OSError):
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if not is_posix():
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if SYSTEM == "darwin" else 1 << 10)


def free_memory() -> int:
    """Bytes that this process can take: of the machine, or of the container where that has less; 16 GiB where unknown.

    What the system keeps of files and can drop at once counts as free.
    """
    found = [_ASSUMED_MEMORY]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        told = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text("ascii"), re.MULTILINE)
        found += [int(told[1]) << 10] if told else []
    for group in _CGROUPS:
        with suppress(OSError):  # without a controller of memory the files are not there
            limit = (group.folder / group.limit).read_text("ascii").strip()
            if limit.isdigit():
                found.append(max(0, int(limit) - _taken(group)))
    return min(found)


def _taken(group: _Cgroup) -> int:
    """Bytes that the processes of a container take, less files that nobody has looked at of late."""
    told = re.search(
        rf"^{group.inactive} (\d+)$", (group.folder / "memory.stat").read_text("ascii"), re.MULTILINE
    )
    taken = int((group.folder / group.taken).read_text("ascii"))
    return max(0, taken - int(told[1])) if told else taken


def give_back() -> None:
    """Return freed memory to the system, where the C library can do that (glibc); elsewhere nothing happens.

    The allocator keeps freed blocks for later. After a large model was dropped that is most of a process's memory,
    and what is allocated next, by another library in larger blocks, does not fit into the holes.
    """
    if SYSTEM == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


def cuda_driver() -> str:
    """The file name of the CUDA driver's library."""
    return "libcuda.so.1" if is_posix() else "nvcuda.dll"


def no_core_dump() -> None:
    """A crash of this process shall leave no core file behind."""
    if is_posix():
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_further(*, memory: int, seconds: int) -> None:
    """Let this process take so many bytes of address space and seconds of processor time more; Windows has no limits.

    macOS does not tell the size of the address space, so that only the time is limited there.
    """
    if not is_posix():
        return
    import resource

    no_core_dump()
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
    with suppress(OSError):
        size = int(_STATM.read_text("ascii").split()[0]) * mmap.PAGESIZE
        _limit(resource.RLIMIT_AS, size + memory)


@contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Let this process take `size` bytes of address space more inside the block, where the system has such a limit (Linux)."""
    if not is_posix() or not _STATM.exists():
        yield
        return
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(_STATM.read_text("ascii").split()[0]) * mmap.PAGESIZE
    known = [limit for limit in (taken + size, before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def lift_limits() -> None:
    """Take the limits of `limit_further` off again."""
    if not is_posix():
        return
    import resource

    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
        _limit(kind, resource.RLIM_INFINITY)


def _limit(kind: int, wanted: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    limited = [limit for limit in (wanted, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(limited, default=resource.RLIM_INFINITY), hard))


def umask() -> int:
    """The mode bits that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def signal_number(name: str) -> int | None:
    """The number of a signal such as "SIGKILL"; None where the system has none of that name."""
    return getattr(signal, name, None)


def _windows(library: str) -> Any:
    """A library of Windows; ctypes has the attribute there only."""
    return getattr(ctypes.windll, library)  # type: ignore[attr-defined]
