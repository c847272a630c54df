"""What was freed goes back to the system."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from qdqtool.platform import give_back


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_freed_blocks_do_not_stay_with_the_process() -> None:
    blocks = [np.ones(10_000, np.uint8) for _ in range(6_000)]
    keep = blocks[::1000]
    before = resident_pages()
    del blocks
    give_back()
    assert resident_pages() < before - 5_000
    assert len(keep) == 6
