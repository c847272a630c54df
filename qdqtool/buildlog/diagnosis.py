"""What a performance summary means, in words.

Latency is transfer to the device, GPU compute and transfer back; throughput is queries over wall time. The GPU waits
when throughput is far below one over GPU compute time: because enqueueing takes longer than computing, because
transfers do, or because the host pauses between queries.
"""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.buildlog import Performance, Times

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
