"""Metrics by name: those of the registry, and a user's own function."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

from qdqtool.accuracy.metric import METRICS, NOTHING_SEEN, Distance, Floats, Reading
from qdqtool.errors import UsageError

Function = Callable[[Floats, Floats], float]


def distance(name: str) -> Distance:
    """The distance called `name`; "module:function" is a function (reference, candidate) -> float, averaged.

    Raises:
        UsageError: nothing is called so, or it is a task metric.
    """
    if ":" in name:
        function = _function(name)
        return Distance(start=lambda: Average(function), better="higher")
    plugin = METRICS.load(name)
    if not isinstance(plugin, Distance):
        raise UsageError(
            f"{name!r} is a task metric",
            fix="leave it out of compare.metrics; it is measured when compare.task asks for it",
        )
    return plugin


class Average:
    """The mean of a function's value over all samples."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._sum = 0.0
        self._samples = 0

    def add(self, reference: Floats, candidate: Floats) -> None:
        self._sum += float(self._function(reference, candidate))
        self._samples += 1

    def reading(self) -> Reading:
        if not self._samples:
            return NOTHING_SEEN
        mean = self._sum / self._samples
        return (
            Reading(value=mean)
            if math.isfinite(mean)
            else Reading(value=None, note="the function gave no number")
        )


def _function(name: str) -> Function:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"no metric at {name!r}: {error}",
            fix="write module:function, importable from here, taking (reference, candidate) and returning a number",
        ) from error
    if not callable(found):
        raise UsageError(f"{name!r} is not a function", fix="name a function of two arrays")
    function: Function = found
    return function
