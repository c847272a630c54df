"""All differences between Linux, macOS and Windows. No other module asks for the operating system."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import subprocess

SYSTEM: str = sys.platform
"""The system that every function asks for; tests set "win32" or "darwin"."""
_STAT, _CMDLINE = Path("/proc/self/stat"), Path("/proc/self/cmdline")
_STATUS = Path("/proc/self/status")


class _Cgroup(NamedTuple):
    """A folder of cgroups with a container's memory, and the names for its limit, use and inactive cache."""

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
_NEW_PROCESS_GROUP = 0x200
"""CREATE_NEW_PROCESS_GROUP of the Windows API."""
_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/self/stat, counted from 1 as in proc(5)."""


def overwrite_arguments(words: list[str]) -> bool:
    """Replace the argument list that `ps` shows. Return False if the system cannot do this.

    Linux reads the list from the memory of the process, where the process itself may write. macOS and Windows show it
    to the same user and to administrators only.

    Args:
        words: the arguments to show, the program first; they are cut to the length of the old ones.
    """
    try:
        # the program name is in parentheses and may contain blanks and parentheses
        fields = _STAT.read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        arguments = _CMDLINE.read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    if start <= 0 or end - start != len(arguments):
        return False
    text = b"\0".join(os.fsencode(word) for word in words)[: len(arguments) - 1]
    ctypes.memmove(start, text.ljust(len(arguments), b"\0"), len(arguments))
    return True


def is_posix() -> bool:
    """Return True on Linux and macOS."""
    return SYSTEM != "win32"


def own_group() -> dict[str, Any]:
    """Return arguments of `subprocess.Popen` for a child in its own process group, so that Ctrl-C reaches only this process."""
    return {"start_new_session": True} if is_posix() else {"creationflags": _NEW_PROCESS_GROUP}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a child that was started with `own_group`, and its children. Do nothing if they have ended."""
    if is_posix():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    with suppress(OSError):
        process.kill()


def is_alive(process: int) -> bool:
    """Return True if a process of this machine is running, also if it belongs to another user."""
    import psutil

    return bool(psutil.pid_exists(process))


def machine() -> str:
    """Return a name of the machine and its process namespace, because containers may share a host name."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()]
        names += [str(Path("/proc/self/ns/pid").readlink())]
    return "/".join(names)


def processors() -> int:
    """Return the number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def resident_mib() -> float:
    """Return the resident memory of this process, in MiB."""
    return float(_memory().rss) / (1 << 20)


def _memory() -> Any:
    """Return the memory of this process as psutil reports it."""
    import psutil

    return psutil.Process().memory_info()


def peak_mib() -> float | None:
    """Return the peak resident memory of this process in MiB; None if the system does not report it.

    Linux counts what the parent used before exec into ru_maxrss; VmHWM is this process's own.
    """
    with suppress(OSError):
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if not is_posix():
        peak = getattr(_memory(), "peak_wset", None)
        return None if peak is None else float(peak) / (1 << 20)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if SYSTEM == "darwin" else 1 << 10)


def free_memory() -> int:
    """Return the bytes that this process can use: of the machine, or of the container if that has less.

    Memory with cached files that the system can drop at once counts as free.
    """
    import psutil

    limits = [int(psutil.virtual_memory().available)]
    for group in _CGROUPS:
        with suppress(OSError):  # without a memory controller these files do not exist
            limit = (group.folder / group.limit).read_text("ascii").strip()
            if limit.isdigit():
                limits.append(max(0, int(limit) - _count_taken(group)))
    return min([*limits, *_below_limits()])


def _below_limits() -> Iterator[int]:
    """Yield how many more bytes the limits of this process (`ulimit -v`, `ulimit -d`) allow."""
    if not is_posix():
        return
    import resource

    import psutil

    own = psutil.Process().memory_info()
    for name, taken in (("RLIMIT_AS", own.vms), ("RLIMIT_DATA", getattr(own, "data", 0))):
        limit, _ = resource.getrlimit(getattr(resource, name))
        if limit != resource.RLIM_INFINITY:
            yield max(0, limit - taken)


def _count_taken(group: _Cgroup) -> int:
    """Return the bytes that the processes of a container use, without inactive file cache."""
    match = re.search(
        rf"^{group.inactive} (\d+)$", (group.folder / "memory.stat").read_text("ascii"), re.MULTILINE
    )
    taken = int((group.folder / group.taken).read_text("ascii"))
    return max(0, taken - int(match[1])) if match else taken


def give_back() -> None:
    """Return freed memory to the system if the C library supports it (glibc); otherwise do nothing.

    The allocator keeps freed blocks for later. After a large model was freed, this is most of a process's memory.
    Later allocations of other libraries in larger blocks do not fit into the holes.
    """
    if SYSTEM == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


def cuda_driver() -> str:
    """Return the file name of the CUDA driver's library."""
    return "libcuda.so.1" if is_posix() else "nvcuda.dll"


def no_core_dump() -> None:
    """Make sure that a crash of this process writes no core file."""
    if is_posix():
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_further(*, memory: int, seconds: int) -> None:
    """Limit the further bytes of address space and seconds of processor time of this process.

    Windows has no such limits.

    macOS counts shared libraries of the whole system to the address space, so that only the time is limited there.
    """
    if not is_posix():
        return
    import resource

    no_core_dump()
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
    if SYSTEM == "linux":
        _limit(resource.RLIMIT_AS, _memory().vms + memory)


@contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Limit this process to `size` more bytes of address space inside the block, if the system supports it (Linux)."""
    if SYSTEM != "linux":
        yield
        return
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = _memory().vms
    limits = [limit for limit in (taken + size, before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def lift_limits() -> None:
    """Remove the limits of `limit_further`."""
    if not is_posix():
        return
    import resource

    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
        _limit(kind, resource.RLIM_INFINITY)


def _limit(kind: int, value: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    limited = [limit for limit in (value, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(limited, default=resource.RLIM_INFINITY), hard))


def signal_number(name: str) -> int | None:
    """Return the number of a signal such as "SIGKILL"; None if the system does not have it."""
    return getattr(signal, name, None)
