"""What a file holds of ranges: holes and repeated bytes do not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.io.files import held_bytes

BLOCK = 1 << 16
"""Bytes that no file system in use splits further into data and holes."""
BLOCKS = 12
_ranges = st.lists(st.tuples(*[st.integers(0, BLOCKS * BLOCK)] * 2).map(lambda ends: tuple(sorted(ends))))


def _with_holes(path: Path, blocks: frozenset[int]) -> None:
    with path.open("wb") as stream:
        stream.truncate(BLOCKS * BLOCK)
        for block in blocks:
            stream.seek(block * BLOCK)
            stream.write(b"\1" * BLOCK)
    if not blocks and path.stat().st_blocks:
        pytest.skip("this file system has no sparse files")


@settings(max_examples=30, deadline=None)
@given(blocks=st.frozensets(st.integers(0, BLOCKS - 1)), ranges=_ranges)
def test_every_byte_that_is_there_counts_once(
    blocks: frozenset[int], ranges: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = (
        tmp_path_factory.getbasetemp() / "file with holes"
    )  # a folder for each example took most of the time
    _with_holes(path, blocks)
    named = np.zeros(BLOCKS * BLOCK, bool)
    for begin, end in ranges:
        named[begin:end] = True
    there = sum(int(named[block * BLOCK :][:BLOCK].sum()) for block in blocks)
    with path.open("rb") as stream:
        assert held_bytes(stream, ranges, 1 << 60) == there
        assert min(held_bytes(stream, ranges, 100), 100) == min(there, 100)
