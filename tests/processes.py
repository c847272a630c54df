"""What processes do, as the system tells it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def worked_s(pid: int) -> float:
    """Processor seconds of a process and its children so far; where the system does not tell, those of the clock.

    On a busy machine a process may be silent for minutes because it does not get to work: that is no hang.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0 if Path("/proc/self/stat").exists() else time.monotonic()
    ticks = sum(int(word) for word in words[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(worked_s(int(child)) for child in children)


def is_asleep(pid: int) -> bool:
    """Whether a process, all its threads and all its children wait for something; False where the system does not tell."""
    states, children = [], []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            states.append((thread / "stat").read_text().rpartition(") ")[2][:1])
            children += (thread / "children").read_text().split()
    except OSError:
        return False
    return bool(states) and set(states) <= set("SZ") and all(is_asleep(int(child)) for child in children)
