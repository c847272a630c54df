"""One file per layer-information form: each turns the text of that form into layers."""

from __future__ import annotations

from typing import Protocol

from qdqtool.core.engine import Engine


class LayerReader(Protocol):
    """Interface of each file in this folder."""

    def recognizes(self, text: str) -> bool:
        """Return whether `text` has this form."""

    def read(self, text: str) -> Engine:
        """Return the layers in `text`. Records that do not fit are counted as unread; nothing raises."""
