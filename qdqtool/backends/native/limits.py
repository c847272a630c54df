"""What the operating system lets a process have, and what it took."""

from __future__ import annotations

import sys
from pathlib import Path


def no_core_dump() -> None:
    """A crash of this process shall leave no core file behind."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def peak_mib() -> float | None:
    """Peak resident memory of this process in MiB; None where the system does not tell.

    Linux counts what the parent used before exec into ru_maxrss; VmHWM is this process's own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
