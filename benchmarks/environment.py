"""An environment of its own for other people's packages."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The Python of the environment in `folder`, made with these packages when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
