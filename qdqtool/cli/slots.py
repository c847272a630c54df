"""Lines about the node inputs that an edit of a Q/DQ model changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qdqtool.core.wording import counted

if TYPE_CHECKING:
    from qdqtool.core.fixes import SlotChange

_SHOWN = 3
"""Number of inputs that are listed."""


def slot_lines(changes: Sequence[SlotChange]) -> Iterator[str]:
    """Yield the number of inputs whose quantization changed, and the first of them."""
    if not changes:
        return
    yield f"{counted(len(changes), 'input is', 'inputs are')} quantized differently than before:"
    for change in changes[:_SHOWN]:
        yield f"    {change.slot}: {change.before} -> {change.after}"
    if len(changes) > _SHOWN:
        yield f"    and {len(changes) - _SHOWN} more; --json lists them all"
