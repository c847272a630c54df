"""Names of the files that every builder writes to a run folder."""

from __future__ import annotations

ENGINE, LOG, LAYERS = "engine.plan", "build.log", "layers.txt"
"""File names of engine, log and layer information. The layer information is stored as the builder writes it,
as a dump or JSON.
"""
