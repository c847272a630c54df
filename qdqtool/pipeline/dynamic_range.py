"""Runs samples to find the tensors that a narrow float type cannot represent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.preparation import DynamicRangeReport, OutOfRangeTensor
from qdqtool.core.protocols import Feeds, SampleSource
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.probe import watching, within
from qdqtool.graph.model import Model
from qdqtool.graph.typed.narrow import NARROW, Types
from qdqtool.pipeline.own_models import or_without, run_plainly
from qdqtool.runtime.runner import open_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

OnProgress = Callable[[int, "int | None"], None]
_MOST_BYTES = 256 << 20
"""Bytes of tensors that are watched in one run; more tensors take another run."""


def measure_reach(
    model: Model, samples: SampleSource, types: Types, *, limit: int, on_progress: OnProgress | None = None
) -> DynamicRangeReport:
    """Measure how large every FP32 tensor gets on the first `limit` samples, and which ones `types` cannot represent.

    What a kernel adds up inside, before it gives a result, is not seen; kernels of TensorRT add up in FP32.

    Raises:
        InputFileError: there are no samples, or they do not fit the model.
    """
    feeds = _first(samples, limit)
    largest: dict[str, float] = {}
    groups = list(_groups(model))
    total = len(groups) * len(feeds)
    for turn, names in enumerate(groups):
        runner = open_model(watching(model, names), description="probe")
        for number, feed in enumerate(feeds, start=1):
            for name, value in runner.run(feed).items():
                largest[name] = max(largest.get(name, 0.0), _magnitude(value))
            if on_progress is not None:
                on_progress(turn * len(feeds) + number, total)
    narrow = NARROW[types]
    found = [
        OutOfRangeTensor(
            tensor=name, kind="overflow" if value > narrow.largest else "subnormal", largest=value
        )
        for name, value in largest.items()
        if value > narrow.largest or 0 < value < narrow.normal
    ]
    found.sort(key=lambda each: (-each.largest, each.tensor))
    return DynamicRangeReport(
        dtype=narrow.dtype, samples=len(feeds), tensors=len(largest), strayed=tuple(found)
    )


def _first(samples: SampleSource, limit: int) -> list[Feeds]:
    found = [sample.feeds for sample in islice(iter(samples), limit)]
    if not found:
        raise InputFileError("there are no samples", fix="give at least one", where=samples.description)
    return found


def wants_samples(options: InsertOptions) -> bool:
    """Return whether samples must run before types change; BF16 has the range of FP32."""
    return options.types == "fp16" and options.overflow != "ignore"


def reach_for(
    model: Model, options: InsertOptions, samples: SampleSource, on_progress: OnProgress | None = None
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Measure the reach of the model's tensors if the options ask for it; return a note if that was not possible.

    Raises:
        InputFileError: there are no samples, or they do not fit the model.
    """
    if options.types == "fp32" or not wants_samples(options):
        return None, ()
    return reach_or_note(model, options.types, samples, options.overflow_samples, on_progress)


def reach_or_note(
    model: Model, types: Types, samples: SampleSource, limit: int, on_progress: OnProgress | None = None
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Run `measure_reach`; return None and a note if only the model with its tensors as outputs fails."""

    def plainly() -> None:
        run_plainly(model, _first(samples, limit))

    return or_without(
        f"the search for tensors that overflow {types.upper()}",
        partial(measure_reach, model, samples, types, limit=limit, on_progress=on_progress),
        plainly,
    )


def _groups(model: Model) -> Iterator[Sequence[str]]:
    """Yield the FP32 tensors of inputs and nodes, as many at a time as fit into memory."""
    view = model.view
    names = [info.name for info in view.inputs]
    names += [name for node in view.nodes for name in node.outputs if name]
    return within(model, (name for name in names if view.info(name).dtype is DType.FLOAT32), _MOST_BYTES)


def _magnitude(value: NDArray[Any]) -> float:
    """Return the largest magnitude, ignoring NaN."""
    if not value.size:
        return 0.0
    found = max(-float(np.fmin.reduce(value, axis=None)), float(np.fmax.reduce(value, axis=None)))
    return 0.0 if math.isnan(found) else found
