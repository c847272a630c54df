"""One file per layer-information form: each turns the text of that form into layers."""

from __future__ import annotations

from typing import Protocol

from qdqtool.core.engine import Engine


class LayerReader(Protocol):
    """What each file of this folder offers."""

    def recognizes(self, text: str) -> bool:
        """Whether `text` has this form."""

    def read(self, text: str) -> Engine:
        """The layers in `text`; records that do not fit are counted as unread, nothing raises."""
