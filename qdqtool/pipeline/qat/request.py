"""The request for quantization-aware training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class QatRequest:
    """Parameters of a training.

    Attributes:
        recipe: the method; its section `qat` names the network and its data.
        beside: the folder from which relative files of the recipe are looked up.
        out: folder for everything; `ptq` and `qat` in it are run folders like any other.
        cache: folder of finished builds by digest, or None.
    """

    recipe: Recipe
    beside: Path
    out: Path
    cache: Path | None = None
