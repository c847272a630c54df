"""A prefilter that filters nothing: every line is handed on as it is, for its prefix to be peeled by hand."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from qdqtool.buildlog.prefilter import FilteredBlock


class PlainPrefilter:
    """Looks over blocks as `BlockPrefilter` does, and leaves everything to the reader."""

    def __call__(self, block: bytes) -> FilteredBlock:
        """A block, which ends with a newline."""
        lines = block.split(b"\n")[:-1]
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))[:-1]
        ends = [start + len(line) for start, line in zip(starts, lines, strict=True)]
        count = len(lines)
        nothing = np.zeros(0, np.int64)
        return FilteredBlock(
            lines=count,
            blank=nothing,
            blank_number=nothing,
            number=list(range(count)),
            prefixed=[False] * count,
            skipped=[0] * count,
            start=starts,
            body=starts,
            end=ends,
            candidates=[0] * count,
            counted=0,
            announced=[0] * count,
            quiet=nothing,
            stamped=nothing,
            noted=[],
            noted_number=[],
            noted_counted=[],
            bytes=len(block),
            longest=max(map(len, lines), default=0),
        )
