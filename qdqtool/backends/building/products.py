"""The files that every builder leaves in a run folder."""

from __future__ import annotations

ENGINE, LOG, LAYERS = "engine.plan", "build.log", "layers.txt"
"""The layer information is kept as the builder gives it, dump or JSON."""
