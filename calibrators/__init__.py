"""Calibration arithmetic: takes numbers and returns a range. Knows nothing of models, files or networks.

    from calibrators import Tally, scratch, load

    tally, lanes = Tally(), scratch()
    for activation in activations:              # float arrays of any shape
        tally.add(activation, lanes)
    chosen = load("entropy")(tally.histogram(), grid)   # chosen.amax becomes the largest number of the format

What is here:

- `histogram`: magnitudes counted in 4096 bins, so that parts add up exactly; `kernels` is its inner loop.
- `methods`: one file per way to choose a range from a histogram. A file put there is a calibrator; its constant
  `PLUGIN` is a `Calibrator`. Other distributions add theirs through the entry-point group `qdqtool.calibrators`.
- `grid`: which magnitudes a number format can store: 0 to 127 for INT8.
- `noise`: what a range costs; `weights`: ranges of constants; `rounding`: which way their values are rounded.
- `tensorrt`: calibrator classes that TensorRT up to 10 calls back; imports TensorRT when one is asked for.

Files next to `methods` are helpers, not calibrators.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrators.calibrator import CalibrationDataError, Calibrator, Grid, Range
    from calibrators.histogram import Histogram, Tally, merge, scratch

__all__ = [
    "CalibrationDataError",
    "Calibrator",
    "Grid",
    "Histogram",
    "Range",
    "Tally",
    "load",
    "merge",
    "names",
    "scratch",
]

_PLACES = {
    "CalibrationDataError": "calibrator",
    "Calibrator": "calibrator",
    "Grid": "calibrator",
    "Histogram": "histogram",
    "Range": "calibrator",
    "Tally": "histogram",
    "merge": "histogram",
    "scratch": "histogram",
}


def names() -> tuple[str, ...]:
    """Names of the shipped calibrators, in alphabetical order; imports none of them."""
    methods = importlib.import_module("calibrators.methods")
    modules = (module.name for module in pkgutil.iter_modules(methods.__path__))
    return tuple(sorted(name for name in modules if not name.startswith("_")))


def load(name: str) -> Calibrator:
    """Return the calibrator called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in names():
        raise ValueError(f"unknown calibrator {name!r}: choose one of {', '.join(names())}")
    plugin: Calibrator = importlib.import_module(f"calibrators.methods.{name}").PLUGIN
    return plugin


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, because most of them import NumPy."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"calibrators.{_PLACES[name]}"), name)
