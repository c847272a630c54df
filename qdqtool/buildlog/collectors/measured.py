"""What was measured: the performance summary and the per-layer profile."""

from __future__ import annotations

import re
from math import isfinite

from qdqtool.buildlog.diagnosis import diagnose
from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import LoggedProfileRow, Performance, Times

_VALUE = re.compile(
    r"(min|max|mean|median|percentile)(?:\((\d{1,3}(?:\.\d{1,3})?)%\))? = ([-+.\deinf]{1,24}) ms"
)
_END_TO_END = re.compile(r" \(end to end ([\d.e+-]{1,24}) ms")
_MOST, _LONGEST = 50_000, 2000
"""Rows of a profile, and characters of a name, that are kept."""
_METRICS = {
    "Latency": "latency",
    "Host Latency": "latency",
    "End-to-End Host Latency": "end_to_end",
    "Enqueue Time": "enqueue",
    "H2D Latency": "h2d",
    "H2D": "h2d",
    "GPU Compute Time": "gpu_compute",
    "GPU Compute": "gpu_compute",
    "D2H Latency": "d2h",
    "D2H": "d2h",
}


class MeasuredCollector:
    """Keeps the last performance summary, and the rows of the last profile."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._metrics: dict[str, dict[str, float]] = {}
        self._old = ""
        self._queries: int | None = None
        self._profile: list[LoggedProfileRow] = []

    def __len__(self) -> int:
        return len(self._profile)

    def handlers(self) -> dict[str, Handler]:
        return {
            "throughput": lambda _line, qps: self._number("throughput_qps", qps),
            "walltime": lambda _line, seconds: self._number("walltime_s", seconds),
            "gpu-total": lambda _line, seconds: self._number("gpu_total_s", seconds),
            "unstable": lambda _line, percent: self._number("variance_percent", percent),
            "traced": self._traced,
            "metric-times": self._metric,
            "metric-heading": self._old_heading,
            "metric-value": self._old_value,
            "metric-percentile": self._old_percentile,
            "profile-columns": lambda _line, *_: self._profile.clear(),
            "profile-count": lambda _line, *_: self._profile.clear(),
            "profile-row": lambda _line, layer, numbers, *_: self._row(layer, numbers.rstrip("%").split()),
            "profile-row-first": self._row_first,
            "profile-record": self._record,
        }

    def performance(self, batch: int) -> Performance | None:
        """The summary with its diagnosis, for an implicit batch of so many; None where the run was not timed."""
        if not self._metrics and "throughput_qps" not in self._numbers:
            return None
        number = self._numbers.get
        return diagnose(
            Performance(
                metrics={name: _times(values) for name, values in self._metrics.items()},
                queries=self._queries,
                variance_percent=number("variance_percent"),
                throughput_qps=number("throughput_qps"),
                walltime_s=number("walltime_s"),
                gpu_total_s=number("gpu_total_s"),
            ),
            batch,
        )

    def profile(self) -> tuple[LoggedProfileRow, ...]:
        """The rows of the profile; its total is not a row."""
        return tuple(row for row in self._profile if row.layer != "Total")

    def _number(self, field: str, value: float | None) -> None:
        if value is not None:
            self._numbers[field] = value

    def _traced(self, _line: int, queries: int, _seconds: float | None) -> None:
        self._queries = queries

    def _metric(self, _line: int, metric: str, text: str) -> None:
        name = _METRICS.get(metric, "")
        for which, percent, number in _VALUE.findall(text):
            self._value(name, f"{percent or 99}%" if which == "percentile" else which, number)

    def _old_heading(self, _line: int, metric: str) -> None:
        """TensorRT 7 prints one value per line below the name of the metric."""
        self._old = _METRICS.get(metric, "")

    def _old_value(self, _line: int, which: str, ms: str, rest: str | None) -> None:
        self._value(self._old, which, ms)
        end_to_end = _END_TO_END.match(rest or "")
        if end_to_end:
            self._value("end_to_end", which, end_to_end[1])

    def _old_percentile(self, line: int, ms: str, percent: str, rest: str | None) -> None:
        self._old_value(line, f"{percent}%", ms, rest)

    def _value(self, metric: str, which: str, text: str) -> None:
        value = _float(text)
        if metric and value is not None:
            self._metrics.setdefault(metric, {})[which] = value

    def _row_first(self, _line: int, numbers: str, *rest: str) -> None:
        self._row(rest[-1], numbers.split())

    def _row(self, layer: str, numbers: list[str]) -> None:
        total, average, *median, percent = (float(number) for number in numbers)
        if len(self._profile) >= _MOST:
            return
        self._profile.append(
            LoggedProfileRow(
                layer=layer[:_LONGEST],
                total_ms=total,
                average_ms=average,
                median_ms=median[0] if median else None,
                percent=percent,
            )
        )

    def _record(self, _line: int, layer: str, text: str) -> None:
        numbers = re.findall(r"(?:^|: )(-?\d[\d.e+-]{0,24})", text)
        try:
            if len(numbers) in (3, 4):
                self._row(layer, numbers)
        except ValueError:
            return


def _times(values: dict[str, float]) -> Times:
    return Times(
        min=values.get("min"),
        max=values.get("max"),
        mean=values.get("mean"),
        median=values.get("median"),
        percentiles={which[:-1]: value for which, value in values.items() if which.endswith("%")},
    )


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
