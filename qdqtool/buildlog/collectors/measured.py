"""What was measured: the performance summary and the per-layer profile."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite

from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import LoggedProfileRow, Performance, Times

# --- collector -------------------------------------------------------------------------------------------------------

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
        """The summary with its diagnosis, for an implicit batch of so many; None if the run was not timed."""
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


# --- diagnosis of a performance summary ------------------------------------------------------------------------------
# What a performance summary means, in words.
#
# Latency is transfer to the device, GPU compute and transfer back; throughput is queries over wall time. The GPU waits
# when throughput is far below one over GPU compute time: because enqueueing takes longer than computing, because
# transfers do, or because the host pauses between queries.

BUSY = 0.9
"""Share of wall time in GPU compute from which the GPU counts as busy."""


def diagnose(seen: Performance, batch: int = 1) -> Performance:
    """The same performance with its diagnosis; with an implicit batch, throughput counts its samples as queries."""
    gpu = _middle(seen, "gpu_compute")
    words: list[str] = []
    if gpu and seen.throughput_qps:
        words += _utilization(seen, gpu / batch)
    if seen.gpu_total_s is not None and seen.walltime_s and seen.gpu_total_s < 0.5 * seen.walltime_s:
        words.append(
            f"the GPU computed for {seen.gpu_total_s:.3g} s of {seen.walltime_s:.3g} s: it is under-utilized"
        )
    if seen.variance_percent is not None:
        words.append(
            f"GPU compute time varies by {seen.variance_percent:.3g} %: the clock is not stable; lock it "
            "(nvidia-smi -lgc, jetson_clocks) or use --useSpinWait before comparing times"
        )
    return replace(seen, diagnosis=tuple(words))


def _utilization(seen: Performance, per_query: float) -> list[str]:
    assert seen.throughput_qps is not None
    share = seen.throughput_qps * per_query / 1000
    gpu = _middle(seen, "gpu_compute") or 0.0
    enqueue = _middle(seen, "enqueue")
    busy = f"{seen.throughput_qps:.6g} qps is {share:.0%} of one query per {per_query:.4g} ms"
    if share >= BUSY and enqueue and enqueue >= BUSY * gpu:
        return [
            (
                f"the GPU is busy ({busy}), and enqueue takes as long, {enqueue:.4g} ms: launching is the bottleneck, or the queue of "
                "launches is full and enqueue waits for the GPU; --useCudaGraph shows which"
            )
        ]
    if share >= BUSY:
        return [f"bound by GPU compute: {busy}"]
    words = [
        f"the GPU waits: {seen.throughput_qps:.6g} qps is {share:.0%} of one query per {per_query:.4g} ms of compute"
    ]
    transfers = (_middle(seen, "h2d") or 0.0) + (_middle(seen, "d2h") or 0.0)
    if enqueue and enqueue > gpu:
        words.append(
            f"enqueue takes {enqueue:.4g} ms, longer than GPU compute: launching is the bottleneck; use --useCudaGraph "
            "or larger batches"
        )
    if transfers > gpu:
        words.append(
            f"transfers take {transfers:.4g} ms, longer than GPU compute: keep data on the device, or measure with "
            "--noDataTransfers"
        )
    return words


def _middle(seen: Performance, metric: str) -> float | None:
    times: Times | None = seen.metrics.get(metric)
    if times is None:
        return None
    return times.mean if times.mean is not None else times.median
