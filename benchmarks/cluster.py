"""Measures what more processors and more machines cost: processor seconds of collecting, and whether its bits stay the same.

    python benchmarks/cluster.py [--quick] [--network NAME] [--samples N] [--threads N ...]

One process with 1, 2, 4 and 8 threads, each of which runs samples by itself (more threads than processors show what the
division costs, not how fast it is), and a Dask cluster on this machine, a worker with one thread per processor. Processor seconds
of this process and of the workers, user and system, the model opened here each time; the workers are up and have it open,
which `cluster_start_s` holds. All in turns, each round beginning with another one.

The cluster is held against the process that keeps as many processors busy: processors share caches and the way to memory, so
that two at work take more seconds each than one alone, whoever divides the work. Ratios are those of each round, of
which the median, the lowest and the highest are told: one round says little on a machine that does something else.

The last line is one JSON object: `cluster_over_process` (goal 1.1), `cluster_over_process_range`, `cluster_over_one_thread`,
`threads_over_one` by number of threads, `identical`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask
from checkout import ROOT
from distributed import Client, LocalCluster
from networks import write

from qdqtool.calibration.histograms import Histograms, Span
from qdqtool.calibration.pool import CollectOptions
from qdqtool.core.recipe import Recipe
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.cluster import LOCAL_SETTINGS, collect_on_cluster
from qdqtool.platform import processors

THREADS = (1, 2, 4, 8)


def main() -> int:
    """Print a line per way, then all of it."""
    parser = argparse.ArgumentParser(description="Measure collecting on more processors and machines.")
    parser.add_argument(
        "--quick", action="store_true", help="a small ResNet, 32 samples, two threads, one round"
    )
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    options = parser.parse_args()
    if options.quick:
        options.network, options.samples, options.repeat, options.threads = "resnet_small", 32, 1, [2]
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers run this checkout too
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        model, data = write(options.network, Path(folder), options.samples)
        request = CalibrationRequest(model=model, recipe=Recipe(), samples=str(data))
        found = _measured(request, options.repeat, sorted({1, processors(), *options.threads}))
    for name, value in found.items():
        print(f"{name:<24}{value}")
    print(json.dumps(found, sort_keys=True))
    return 0


def _measured(request: CalibrationRequest, repeat: int, threads: list[int]) -> dict[str, object]:
    results: list[Histograms] = []
    rows: list[dict[str, float]] = []
    began = time.perf_counter()
    # As `--cluster local` sets its workers, but in plain text: those take no second client, for their key is in no file.
    with (
        dask.config.set(LOCAL_SETTINGS),
        LocalCluster(
            host="127.0.0.1",
            n_workers=processors(),
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        address = client.scheduler.address.replace("tcp://", "dask://")
        pids = list(client.run(os.getpid).values())

        def spread() -> Histograms:
            return collect_on_cluster(Calibration(request), CollectOptions(), address, None)

        def alone(count: int) -> Histograms:
            job = Calibration(request)
            collection = job.collection(CollectOptions(threads=count), resumable=False)
            return collection.run(Span(total=len(job.samples)))

        ways: dict[str, Callable[[], Histograms]] = {str(count): partial(alone, count) for count in threads}
        ways["cluster"] = spread
        spread()
        started = time.perf_counter() - began
        for number in range(repeat):
            row = {}
            for name in [*list(ways)[number % len(ways) :], *list(ways)[: number % len(ways)]]:
                before = time.process_time() + sum(map(_processor_seconds, pids))
                results.append(ways[name]())
                row[name] = time.process_time() + sum(map(_processor_seconds, pids)) - before
            rows.append(row)
    shares = sorted(row["cluster"] / row[str(processors())] for row in rows)

    def median(name: str, over: str | None = None) -> float:
        return statistics.median(row[name] / (row[over] if over else 1) for row in rows)

    return {
        "cluster_over_process": round(statistics.median(shares), 3),
        "cluster_over_process_range": [round(shares[0], 3), round(shares[-1], 3)],
        "cluster_over_one_thread": round(median("cluster", "1"), 3),
        "cluster_start_s": round(started, 2),
        "identical": all(one.tensors == results[0].tensors for one in results),
        "processor_s": {name: round(median(name), 2) for name in rows[0]},
        "threads_over_one": {str(count): round(median(str(count), "1"), 3) for count in threads},
    }


def _processor_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
