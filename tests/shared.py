"""Where material that is not part of the project may lie: beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def shared(relative: str) -> Path:
    """A file of the shared material; the test is skipped where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs {relative} of the shared material beside the checkout")
    return path
