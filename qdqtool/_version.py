"""The release, below everything that writes it down."""

from __future__ import annotations

__version__ = "0.1.0"
