"""The finished engine: its layers and bindings, its memory, and its measured times."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.records import LineLayer, LoggedLayer, RecordLayer, Region
from qdqtool.core.buildlog import LoggedProfileRow, Memory, Performance, Times
from qdqtool.trt.names import onnx_nodes

# --- layers ----------------------------------------------------------------------------------------------------------
# The finished engine: its layers from the text of any generation, and its bindings.


class LayersCollector:
    """Keeps the layers that a log prints: detailed records if there are any, else lines, else names."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str, str, str]] = []
        self._records: list[tuple[int, str, str]] = []
        self._names: list[tuple[int, str]] = []
        self.bindings: list[str] = []
        self.regions: list[Region] = []

    def __len__(self) -> int:
        return (
            len(self._lines) + len(self._records) + len(self._names) + len(self.bindings) + len(self.regions)
        )

    def handlers(self) -> dict[str, Handler]:
        return {
            "layers-heading": lambda _line: self._lines.clear(),
            "layers-detailed": self._restart,
            "layer": lambda line, kind, name, text: self._lines.append((line, kind, name, text)),
            "layer-record": lambda line, name, text: self._records.append((line, name, text)),
            "layer-name-only": lambda line, name: self._names.append((line, name)),
            "foreign-node": self._region,
            "bindings-heading": lambda _line: self.bindings.clear(),
            "io-heading": lambda _line: self.bindings.clear(),
            "io-tensor": lambda _line, tensor, *_: self.bindings.append(tensor),
            "binding": lambda _line, tensor: self.bindings.append(tensor),
        }

    def finish(self) -> tuple[LoggedLayer, ...]:
        """Return the layers of the engine, in its order."""
        if self._records:
            return tuple(RecordLayer(*record) for record in self._records)
        if self._lines:
            return tuple(LineLayer(line, name, kind, text) for line, kind, name, text in self._lines)
        return tuple(LoggedLayer(*name) for name in self._names)

    def tactics(self) -> dict[str, str]:
        """Return the printed tactic id of each layer, by the name of the layer."""
        stated = {
            name: text.partition("TacticValue: ")[2].partition(",")[0] for _, name, text in self._records
        }
        return stated | {name: text.partition(", ")[0] for _, _, name, text in self._lines}

    def _region(self, line: int, region: str, metadata: str) -> None:
        self.regions.append((line, region, onnx_nodes(metadata)))

    def _restart(self, _line: int) -> None:
        self._records.clear()
        self._names.clear()


# --- memory ----------------------------------------------------------------------------------------------------------
# Memory of builder and engine, device placement, and the size of the plan.


_BYTES = re.compile(r"(\d{1,18})(?: bytes)?")


class MemoryCollector:
    """Keeps the memory that a log reports: the last value of each kind, and the largest peak."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._device = ""
        self._placed = 0
        self._skipped, self._skipped_most, self._skipped_line = 0, 0, 0
        self.placement: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return self._placed

    def handlers(self) -> dict[str, Handler]:
        stated = {
            "memory-host": "host_persistent",
            "memory-device": "device_persistent",
            "memory-scratch": "scratch",
            "memory-activation": "activation",
            "memory-weights": "weights",
        }
        return {
            **{name: self._state(field) for name, field in stated.items()},
            "memory-peak": self._peak,
            "tactic-out-of-memory": lambda line, _tactic, needed, _id: self._skip(line, needed),
            "memory-peak-building": lambda _line, cpu: self._largest("peak_building_cpu_mib", cpu),
            "engine-loaded": lambda _line, mib: self._bytes.__setitem__("engine_mib", mib),
            "placement-heading": self._heading,
            "placement-layers": self._list,
            "on-gpu": lambda _line, layer: self._place("GPU", layer),
            "on-dla": lambda _line, layer: self._place("DLA", layer),
        }

    def finish(self, workspace: int | None) -> Memory:
        """Return the memory figures that the log reported.

        Args:
            workspace: the limit that was set, in bytes; None for the default.
        """
        return Memory(
            **self._bytes,
            workspace_limit=workspace,
            skipped=self._skipped,
            skipped_most=self._skipped_most if self._skipped else None,
            skipped_line=self._skipped_line,
        )

    def _skip(self, line: int, needed: int) -> None:
        self._skipped += 1
        self._skipped_most = max(self._skipped_most, needed)
        self._skipped_line = self._skipped_line or line

    def _state(self, field: str) -> Handler:
        def handle(_line: int, text: str) -> None:
            match = _BYTES.match(text)
            if match:
                self._bytes[field] = int(match.group(1))

        return handle

    def _peak(self, _line: int, cpu: int, gpu: int) -> None:
        self._largest("peak_cpu_mib", cpu)
        self._largest("peak_gpu_mib", gpu)

    def _largest(self, field: str, mib: int) -> None:
        self._bytes[field] = max(mib, self._bytes.get(field, 0))

    def _heading(self, line: int, device: str, layers: str) -> None:
        """Read a heading of TensorRT 7: a device (GPU or DLA), and the layers that run on the device."""
        self._device = device
        if layers.strip(" {},"):
            self._list(line, layers)

    def _list(self, _line: int, layers: str) -> None:
        for layer in layers.strip(" {},").split(", "):
            self._place(self._device, layer)

    def _place(self, device: str, layer: str) -> None:
        self._placed += 1
        self.placement.setdefault(device, []).append(layer)


# --- measured --------------------------------------------------------------------------------------------------------


# --- collector -------------------------------------------------------------------------------------------------------

_VALUE = re.compile(
    r"(min|max|mean|median|percentile)(?:\((\d{1,3}(?:\.\d{1,3})?)%\))? = ([-+.\deinf]{1,24}) ms"
)
_END_TO_END = re.compile(r" \(end to end ([\d.e+-]{1,24}) ms")
_MOST, _LONGEST = 50_000, 2000
"""Most rows of a profile, and most characters of a name, that are kept."""
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
    """Keeps the last performance summary of trtexec in a log, and the rows of the last layer profile."""

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
            "traced": self._trace_queries,
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

    def performance(self, at_once: int) -> Performance | None:
        """Return the performance summary with its diagnosis; None if the run was not timed."""
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
            at_once,
        )

    def profile(self) -> tuple[LoggedProfileRow, ...]:
        """Return the rows of the layer profile, without the total."""
        return tuple(row for row in self._profile if row.layer != "Total")

    def _number(self, field: str, value: float | None) -> None:
        if value is not None:
            self._numbers[field] = value

    def _trace_queries(self, _line: int, queries: int, _seconds: float | None) -> None:
        self._queries = queries

    def _metric(self, _line: int, metric: str, text: str) -> None:
        name = _METRICS.get(metric, "")
        for word, percent, number in _VALUE.findall(text):
            self._value(name, f"{percent or 99}%" if word == "percentile" else word, number)

    def _old_heading(self, _line: int, metric: str) -> None:
        """Remember the metric of a heading; TensorRT 7 prints its values on the next lines."""
        self._old = _METRICS.get(metric, "")

    def _old_value(self, _line: int, word: str, ms: str, text: str | None) -> None:
        self._value(self._old, word, ms)
        end_to_end = _END_TO_END.match(text or "")
        if end_to_end:
            self._value("end_to_end", word, end_to_end[1])

    def _old_percentile(self, line: int, ms: str, percent: str, text: str | None) -> None:
        self._old_value(line, f"{percent}%", ms, text)

    def _value(self, metric: str, statistic: str, text: str) -> None:
        value = _float(text)
        if metric and value is not None:
            self._metrics.setdefault(metric, {})[statistic] = value

    def _row_first(self, _line: int, numbers: str, *fields: str) -> None:
        self._row(fields[-1], numbers.split())

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
        percentiles={statistic[:-1]: value for statistic, value in values.items() if statistic.endswith("%")},
    )


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


# --- diagnosis of a performance summary ------------------------------------------------------------------------------
# Explains a performance summary in words.
#
# Latency is transfer to the device, GPU compute time and transfer back; throughput is queries per wall time. If
# throughput is far below 1 / GPU compute time, the GPU waits: enqueueing or transfers take longer than computing, or
# the host pauses between queries.

BUSY = 0.9
"""Smallest share of wall time in GPU compute for which the GPU counts as busy."""


def diagnose(performance: Performance, at_once: int = 1) -> Performance:
    """Add to a performance summary what limits the speed.

    `at_once` is the number of streams times the implicit batch, with which trtexec counts samples as queries.
    """
    gpu = _middle(performance, "gpu_compute")
    words: list[str] = []
    if gpu and performance.throughput_qps:
        words += _utilization(performance, gpu / at_once)
    if (
        performance.gpu_total_s is not None
        and performance.walltime_s
        and performance.gpu_total_s < 0.5 * performance.walltime_s
    ):
        words.append(
            f"the GPU computed for {performance.gpu_total_s:.3g} s of {performance.walltime_s:.3g} s: the GPU is under-utilized"
        )
    if performance.variance_percent is not None:
        words.append(
            f"GPU compute time varies by {performance.variance_percent:.3g} %: the clock is not stable; lock it "
            "(nvidia-smi -lgc, jetson_clocks) or use --useSpinWait before comparing times"
        )
    return replace(performance, diagnosis=tuple(words))


def _utilization(performance: Performance, per_query: float) -> list[str]:
    assert performance.throughput_qps is not None
    share = performance.throughput_qps * per_query / 1000
    gpu = _middle(performance, "gpu_compute") or 0.0
    enqueue = _middle(performance, "enqueue")
    busy = f"{performance.throughput_qps:.6g} qps is {share:.0%} of one query per {per_query:.4g} ms"
    if share >= BUSY and enqueue and enqueue >= BUSY * gpu:
        return [
            (
                f"the GPU is busy ({busy}), and enqueue takes as long, {enqueue:.4g} ms: kernel launches are the bottleneck, or the queue is full and enqueue waits for the GPU; a run with --useCudaGraph shows which of the two"
            )
        ]
    if share >= BUSY:
        return [f"bound by GPU compute: {busy}"]
    words = [
        f"the GPU waits: {performance.throughput_qps:.6g} qps is {share:.0%} of one query per {per_query:.4g} ms of compute"
    ]
    transfers = (_middle(performance, "h2d") or 0.0) + (_middle(performance, "d2h") or 0.0)
    if enqueue and enqueue > gpu:
        words.append(
            f"enqueue takes {enqueue:.4g} ms, longer than GPU compute: kernel launches are the bottleneck; use --useCudaGraph "
            "or larger batches"
        )
    if transfers > gpu:
        words.append(
            f"transfers take {transfers:.4g} ms, longer than GPU compute: keep data on the device, or measure with "
            "--noDataTransfers"
        )
    return words


def _middle(performance: Performance, metric: str) -> float | None:
    times: Times | None = performance.metrics.get(metric)
    if times is None:
        return None
    return times.mean if times.mean is not None else times.median
