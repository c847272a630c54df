"""Outputs that somebody computed elsewhere, played back as if a model ran."""

from qdqtool.accuracy.stored.player import Player, Unfed, open_stored

__all__ = ["Player", "Unfed", "open_stored"]
