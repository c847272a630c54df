"""Log text with the lines that say nothing of layers left out, so that a large log fits into memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qdqtool.io.text import LARGEST, too_large

_FULL = 1 << 26
"""Characters up to which a text is kept as it is."""
_STEP = 1 << 22
"""Characters that are thinned out at once."""
_SILENT = re.compile(
    r"^\[(?![^\n]*(?:Layer\(|Layers:|LayerType|Layer Information|Layer: |Algorithm: |Tactic Name: |Bindings:))"
    r"[^\n]*\n",
    re.MULTILINE,
)


def lean(pieces: Iterable[str], path: Path) -> str:
    """The text of all pieces; of a long one without the logger's lines that have nothing to do with layers.

    Raises:
        InputFileError: what is left is larger than 256 MiB.
    """
    kept: list[str] = []
    fresh: list[str] = []
    held, unread = 0, 0
    for piece in pieces:
        fresh.append(piece)
        unread += len(piece)
        if held + unread > _FULL and unread > _STEP:
            whole, end, cut = "".join(fresh).rpartition("\n")
            kept.append(_SILENT.sub("", f"{whole}{end}"))
            held += len(kept[-1])
            fresh, unread = [cut], len(cut)
        if held + unread > LARGEST:
            raise too_large(path)
    return "".join([*kept, *fresh])
