"""Measures what more processors and more machines cost: processor seconds of collecting, and whether its bits stay the same.

    python benchmarks/cluster.py [--quick] [--network NAME] [--samples N]

One process with 1, 2, 4 and 8 threads, each of which runs samples by itself (more threads than processors show what the
division costs, not how fast it is), and a Dask cluster on this machine, a worker with one thread per processor. Processor seconds
of this process and of the workers, user and system, the model opened here each time; the workers are up and have it open,
which `cluster_start_s` holds. All in turns, medians over --repeat rounds.

The last line is one JSON object: `cluster_over_process` (goal 1.1), `threads_over_one` by number of threads, `identical`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import dask
from checkout import ROOT
from distributed import Client, LocalCluster
from networks import write

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.span import Span
from qdqtool.core.recipe import Recipe
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.cluster import LOCAL_SETTINGS, collect_on_cluster
from qdqtool.platform import processors

THREADS = (1, 2, 4, 8)


def main() -> int:
    """Print a line per way, then all of it."""
    parser = argparse.ArgumentParser(description="Measure collecting on more processors and machines.")
    parser.add_argument("--quick", action="store_true", help="a small ResNet, one round")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.network, options.repeat = "resnet_small", 1
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers run this checkout too
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        model, data = write(options.network, Path(folder), options.samples)
        found = _measured(CalibrationRequest(model=model, recipe=Recipe(), samples=str(data)), options.repeat)
    for name, value in found.items():
        print(f"{name:<24}{value}")
    print(json.dumps(found, sort_keys=True))
    return 0


def _measured(request: CalibrationRequest, repeat: int) -> dict[str, object]:
    seconds: dict[str, list[float]] = {}
    results: list[Histograms] = []
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
        collect_on_cluster(Calibration(request), CollectOptions(), address, None)
        started = time.perf_counter() - began
        for _ in range(repeat):
            for threads in THREADS:
                before = time.process_time()
                job = Calibration(request)
                collection = job.collection(CollectOptions(threads=threads), resumable=False)
                results.append(collection.run(Span(total=len(job.samples))))
                seconds.setdefault(f"{threads}", []).append(time.process_time() - before)
            before = time.process_time() + sum(map(_processor_seconds, pids))
            results.append(collect_on_cluster(Calibration(request), CollectOptions(), address, None))
            after = time.process_time() + sum(map(_processor_seconds, pids))
            seconds.setdefault("cluster", []).append(after - before)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "cluster_over_process": round(middle["cluster"] / middle["1"], 3),
        "cluster_start_s": round(started, 2),
        "identical": all(one.tensors == results[0].tensors for one in results),
        "processor_s": {name: round(value, 2) for name, value in middle.items()},
        "threads_over_one": {
            str(threads): round(middle[str(threads)] / middle["1"], 3) for threads in THREADS
        },
    }


def _processor_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
