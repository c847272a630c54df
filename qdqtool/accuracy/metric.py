"""The interface of metrics: a distance between tensors that accumulates over samples, or a hit per sample.

A distance starts one meter per model output. The meter reads the reference and the candidate of every sample and
keeps a few numbers, so memory does not grow with the samples. A hit looks at one sample's class scores and the true
class.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqtool.errors import UsageError
from qdqtool.plugins import Registry

# --- what a metric is ------------------------------------------------------------------------------------------------

METRICS = Registry(package="qdqtool.accuracy.metrics")

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The result of a metric; `value` is None if the metric is undefined, and `note` gives the reason."""

    value: float | None
    note: str = ""


class Meter(Protocol):
    """Accumulates a metric over the output pairs of samples, in any order."""

    def add(self, reference: Floats, candidate: Floats) -> None:
        """Add one sample's arrays from both models, which are finite and have equal shapes."""

    def reading(self) -> Reading:
        """Return the value of the metric over all samples so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """A metric that compares one output of two models.

    Attributes:
        start: starts a meter.
        better: whether larger or smaller values are better.
        unit: of the value.
        perfect: the value of equal tensors; None if it is undefined for equal tensors, or for tensors that the metric does not read.
    """

    start: Callable[[], Meter]
    better: Literal["higher", "lower"]
    unit: str = ""
    perfect: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A task metric in percent: True or False for each sample.

    Attributes:
        hit: scores of all classes (vector) and the true class -> 0.0 or 1.0.
        classes: fewest classes for which the metric says anything.
        truth: the class comes from labels, or is the reference's own best class.
    """

    hit: Callable[[Floats, int], float]
    classes: int = 2
    truth: Literal["label", "reference"] = "label"


def inner(left: Floats, right: Floats) -> float:
    """Return the sum of products of two arrays of equal shape, in one pass and without a temporary array."""
    return float(np.einsum("i,i->", left.ravel(), right.ravel()))


def energy(values: Floats) -> float:
    """Return the sum of squares of an array."""
    return inner(values, values)


NOTHING_SEEN = Reading(value=None, note="no samples")
SAME = "no difference"
SILENT = "the reference is zero everywhere"


# --- metrics by name -------------------------------------------------------------------------------------------------
# Metrics by name: those of the registry, and a user's own function.

Function = Callable[[Floats, Floats], float]


_functions: ContextVar[Mapping[str, Function]] = ContextVar("functions", default={})  # noqa: B039 -- never changed
"""Functions that a caller passed as metrics, by the name under which results show them."""


@contextmanager
def list_passed(metrics: Sequence[str | Function]) -> Iterator[tuple[str, ...]]:
    """Yield the names of the metrics in results; inside the block, `distance` finds passed functions by name.

    A function (reference, candidate) -> float is averaged over the samples. A name that is repeated counts once.

    Raises:
        UsageError: a function does not take two arrays.
    """
    names: list[str] = []
    functions: dict[str, Function] = {}
    for metric in metrics:
        if isinstance(metric, str) and metric in names and metric not in functions:
            continue
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        while name in names or (not isinstance(metric, str) and name in METRICS.usable()):
            name += "_"
        names.append(name)
        if not isinstance(metric, str):
            _check_arguments(metric, name)
            functions[name] = metric
    token = _functions.set(functions)
    try:
        yield tuple(names)
    finally:
        _functions.reset(token)


def _check_arguments(function: Function, name: str) -> None:
    try:
        signature(function).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"the metric {name} does not take two arrays: {error}",
            fix="write a function of the outputs of the reference and of the candidate",
            where="metrics",
        ) from error
    except ValueError:
        return  # a function of another language, such as a NumPy ufunc, has no signature to check


def distance(name: str) -> Distance:
    """Return the distance called `name`; "module:function" is a function (reference, candidate) -> float, which is averaged.

    Raises:
        UsageError: there is no metric with this name, or it is a task metric.
    """
    if name in _functions.get() or ":" in name:
        function = _functions.get().get(name) or _function(name)
        return Distance(start=lambda: Average(function), better="higher")
    plugin = METRICS.load(name)
    if not isinstance(plugin, Distance):
        raise UsageError(
            f"{name!r} is a task metric",
            fix="remove this metric from compare.metrics; set compare.task to measure it",
        )
    return plugin


class Average:
    """The mean of a user's function over all samples."""

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
            else Reading(value=None, note="the function did not return a number")
        )


def _function(name: str) -> Function:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        member = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"the metric {name!r} cannot be imported: {error}",
            fix="write module:function, importable from this folder; it takes (reference, candidate) and returns a number",
        ) from error
    if not callable(member):
        raise UsageError(f"{name!r} is not a function", fix="pass a function of two arrays")
    function: Function = member
    return function
