"""Environments of their own for other people's packages."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_TORCH: Final = "torch==2.13.0"
RIVALS: Final[dict[str, tuple[str, ...]]] = {
    "onnxruntime": ("onnxruntime==1.31.1", "onnx", "sympy"),
    "modelopt": (
        # Its extra for ONNX asks for CUDA's onnxruntime and cupy.
        *(_TORCH, "nvidia-modelopt==0.47.0", "onnx", "onnxruntime==1.31.1", "onnx-graphsurgeon"),
        *(
            "onnxconverter-common",
            "onnxscript",
            "onnxslim",
            "polygraphy",
            "lief",
            "ml-dtypes",
            "cppimport",
            "sympy",
        ),
    ),
    "aimet": (_TORCH, "aimet-onnx==2.42.0"),
    "quark": (_TORCH, "amd-quark==0.13", "onnxruntime"),
    "nncf": ("nncf==3.4.0", "onnx", "onnxruntime==1.31.1"),
}
"""Other quantizers, and what each is installed with; one environment each, since they ask for different onnx releases."""


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The Python of the environment in `folder`, made with these packages when it is not there.

    Raises:
        CalledProcessError: a package cannot be installed; the next call tries again.
    """
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.touch()
    return python


def rival(folder: Path, name: str) -> Path | None:
    """The Python of a rival's environment below `folder`; None where it cannot be installed here."""
    try:
        return environment(folder / f"env-{name}", RIVALS[name])
    except subprocess.CalledProcessError:
        return None
