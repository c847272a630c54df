"""The table for a recipe whose metric is a function: float, PTQ and QAT models measured on the test samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.kinds import BUILD
from qdqtool.core.qat import QatRow
from qdqtool.core.report import Report
from qdqtool.runtime.runner import open_runner

if TYPE_CHECKING:
    from qdqtool.backends.torch_qat.network import Network

_DRAWS = 200
"""Number of bootstrap draws. A metric such as mean average precision needs all samples, so every draw computes it again."""
# Fixed: the same scores give the same interval.
_SEED = 20250


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    value: float
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]


def rows_of_metric(
    network: Network, out: Path, ptq: Report, qat: Report
) -> tuple[str, str, int, tuple[QatRow, ...]]:
    """Return the name of the metric, its unit, the number of test samples, and the rows FP32, PTQ and QAT.

    The intervals are percentile bootstraps: all models are measured on the same samples, drawn with replacement.
    """
    models = {"FP32": out / "float.onnx", "PTQ": _built(out / "ptq"), "QAT": _built(out / "qat")}
    found = {name: _measured(network, path) for name, path in models.items()}
    samples = sum(len(inputs[0]) for inputs, _ in network.test.batches())
    reports = {"FP32": None, "PTQ": ptq, "QAT": qat}
    rows = tuple(_row(name, each, found["FP32"], reports[name]) for name, each in found.items())
    return network.options.metric.rpartition(":")[2], "", samples, rows


def _built(folder: Path) -> Path:
    return folder / (BUILD.read(folder / "build.json").model or "model.qdq.onnx")


def _measured(network: Network, model: Path) -> _Measured:
    from qdqtool.backends.torch_qat.flat import joined, picked

    runner = open_runner(model, description=model.name, crowded=True)
    outputs, wanted, counts = [], [], []
    for inputs, targets in network.test.batches():
        feeds = {name: value.numpy() for name, value in zip(network.inputs, inputs, strict=True)}
        given = runner.run(feeds)
        outputs.append(network.structured([given[name] for name in runner.outputs]))
        wanted.append(targets)
        counts.append(len(inputs[0]))
    score, total = network.score(), sum(counts)
    found, truth = joined(outputs, counts), joined(wanted, counts)
    return _Measured(value=float(score(found, truth)), draws=_draws(score, (found, truth), total, picked))


def _draws(
    score: Callable[[Any, Any], float], pair: tuple[Any, Any], total: int, picked: Callable[..., Any]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # The same seed for every model, so that all are measured on the same draws and changes are paired.
    rng = np.random.default_rng(_SEED)
    drawn = (rng.integers(0, total, total) for _ in range(_DRAWS))
    return np.array([float(score(*(picked(each, rows, total) for each in pair))) for rows in drawn])


def _row(name: str, mine: _Measured, original: _Measured, report: Report | None) -> QatRow:
    low, high = np.quantile(mine.draws, [0.025, 0.975])
    if report is None:
        return QatRow(name=name, value=mine.value, low=float(low), high=float(high))
    below, above = np.quantile(mine.draws - original.draws, [0.025, 0.975])
    return QatRow(
        name=name,
        value=mine.value,
        low=float(low),
        high=float(high),
        change=mine.value - original.value,
        change_low=float(below),
        change_high=float(above),
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )
