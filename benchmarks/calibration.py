"""Measures calibration against bare inference: wall time, processor time, peak memory.

    python benchmarks/calibration.py [--quick] [--networks NAME ...] [--samples N ...] [--batches N ...] [--rivals]

The floor is onnxruntime's FP32 inference over the same samples with all processors, its session being open; `--batches`
says how many it is fed at once (calibration runs them one by one). Floor and calibration run in turns in one process,
so that a busy machine slows both; the figures are medians of the ratios. The calibration is the whole call: model
opened, placement, one pass over the samples, tables.
`default_recipe_over_floor` is what `qdqtool.quantize` does with the shipped recipe (every calibrator judged by the
outputs, biases corrected, Q/DQ inserted) in this process, and `whole_job_over_floor` the command `qdqtool quantize` from
the start of its process to the file on disk; both over the same floor, `..._cpu` in processor seconds. Ratios of processor time
(`_cpu`) are taken to a floor whose threads do not spin while they wait. `fixed_seconds` is the first call of a process
with a single sample: imports, compiled loops, everything; `call_seconds` is the same once more, in the same process.
`..._per_sample` are the ratios without that: what each further sample costs.
`returned_over_floor` is the physical limit of the figures above: the same runs in an open session that returns every tensor
which placement asks for into memory that is used again, with a sample per processor, and counts nothing.
Peak memory is measured in processes of their own; `default_peak_mib_over_floor` is that of the shipped recipe, `run_peak_mib_over_floor` is that of `qdqtool run` with 8 samples, engine
and report included, over bare inference (null where the builder is not installed). `--rivals` measures onnxruntime.quantization and nvidia-modelopt
over the same floor, each in an environment of its own (some minutes and about 2 GB at the first run).

The last line is one JSON object. For the first network it repeats at the top:
`all_methods_over_floor`, `max_over_floor`, `default_recipe_over_floor`, `whole_job_over_floor` (ratios of wall time), `peak_mib_over_floor` (MiB), and
`peak_growth_8x_samples` (MiB that the peak grows when there are eight times as many samples).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

METHODS = ("max", "entropy", "percentile", "mse")
GOALS = {"resnet50": (1.5, 1.3), "bert_base": (1.8, 1.5), "vit_small": (1.6, 1.1), "mobilenet_v2": (2.2, 1.6)}
"""Ratios to stay below: all methods together, and max alone."""
_OF_A_RUN = 8
"""Samples of `qdqtool run`, whose peak its sessions set: more of them change it little."""


def main() -> int:
    """Measure every network that was asked for."""
    options = _options()
    if options.one:
        print(json.dumps(_one(*options.one)))
        return 0
    with tempfile.TemporaryDirectory(prefix="calibration-") as scratch:
        folder = options.folder or Path(scratch)
        results = {
            f"{network} x{samples} batch {batch}": _measured(network, samples, batch, folder, options.repeat)
            for network in options.networks
            for samples in options.samples
            for batch in options.batches
        }
        rivals = _rivals(options, folder) if options.rivals else {}
    _print_tables(results, rivals)
    first = next(iter(results.values()))
    names = (
        "all_methods_over_floor",
        "max_over_floor",
        "default_recipe_over_floor",
        "whole_job_over_floor",
        "peak_mib_over_floor",
        "peak_growth_8x_samples",
    )
    print(
        json.dumps(
            {**{name: first[name] for name in names}, "networks": results, "rivals": rivals}, sort_keys=True
        )
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure calibration against bare inference.")
    parser.add_argument("--quick", action="store_true", help="a small ResNet, 8 samples, one round")
    parser.add_argument("--networks", nargs="+", default=list(GOALS))
    parser.add_argument("--samples", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--rivals", action="store_true", help="install and measure onnxruntime and modelopt too"
    )
    parser.add_argument("--folder", type=Path, help="keep networks, data and rivals' environments here")
    parser.add_argument(
        "--one", nargs=4, metavar=("MODE", "MODEL", "DATA", "SAMPLES"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.quick:
        options.networks, options.samples, options.batches = ["resnet_small"], [8], [1]
        options.repeat = 1
    return options


def _measured(network: str, samples: int, batch: int, folder: Path, repeat: int) -> dict[str, Any]:
    """Everything about one network and one number of samples."""
    from networks import write

    print(f"measuring {network}, {samples} samples, batch {batch}", file=sys.stderr, flush=True)
    model, data = write(network, folder, samples * 8)
    place = (str(model), str(data))
    ratios = _child(f"ratios:{batch}:{repeat}", *place, samples)
    peaks = {
        mode: _child(f"{mode}:{batch}", *place, samples)["peak_mib"] for mode in ("floor", "all", "default")
    }
    many = _child(f"all:{batch}", *place, samples * 8)["peak_mib"]
    bare, run = (_child(f"{mode}:{batch}", *place, _OF_A_RUN)["peak_mib"] for mode in ("floor", "run"))
    return {
        **ratios,
        "peak_mib": peaks["all"],
        "floor_peak_mib": peaks["floor"],
        "peak_mib_over_floor": round(peaks["all"] - peaks["floor"]),
        "default_peak_mib_over_floor": round(peaks["default"] - peaks["floor"]),
        "peak_growth_8x_samples": round(many - peaks["all"]),
        "run_peak_mib": run,
        "run_peak_mib_over_floor": None if run is None else round(run - bare),
    }


def _child(mode: str, model: str, data: str, samples: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", mode, model, data, str(samples)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _one(mode: str, model: str, data: str, samples: str) -> dict[str, Any]:
    """Run in a process of its own: "floor", "all", "default" or "run" and ":BATCH", or "ratios:BATCH:REPEAT"."""
    kind, batch, *rest = mode.split(":")
    work = RunContext(Path(model), Path(data), int(samples), int(batch))
    if kind == "floor":
        work.floor()
    elif kind == "all":
        work.calibrate(METHODS)
    elif kind == "default":
        work.default_recipe()
    elif kind == "run":
        if not work.run():
            return {"peak_mib": None}
    else:
        return work.ratios(int(rest[0]))
    return {"peak_mib": round(_peak_mib())}


def _peak_mib() -> float:
    """Peak of this process's own memory; what getrusage says may be that of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class RunContext:
    """One network and its samples."""

    def __init__(self, model: Path, data: Path, samples: int, batch: int) -> None:
        self._model = model
        self._data = data
        self._samples = samples
        self._batch = batch

    def floor(self, *, spinning: bool = True) -> float:
        """Seconds of bare inference, the session being open."""
        import numpy as np
        import onnxruntime

        from qdqtool.calibration.samples.arrays import members
        from qdqtool.platform import processors

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = processors()
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(str(self._model), options, providers=["CPUExecutionProvider"])
        rows = members(self._data)[0].rows(range(self._samples))
        first = np.stack([row for row, _ in zip(rows, range(self._batch), strict=False)])
        session.run(None, {"x": first})
        rows = members(self._data)[0].rows(range(self._samples))
        began = time.perf_counter()
        while group := [row for _, row in zip(range(self._batch), rows, strict=False)]:
            session.run(None, {"x": np.stack(group)})
        return time.perf_counter() - began

    def calibrate(self, methods: tuple[str, ...], samples: int | None = None) -> dict[str, float]:
        """Seconds of the whole call, of collecting in it, and of making all tables."""
        began = time.perf_counter()
        from qdqtool.calibration.pool import CollectOptions
        from qdqtool.core.recipe import Recipe, SampleOptions
        from qdqtool.pipeline.calibration import Calibration, CalibrationRequest

        recipe = Recipe(samples=SampleOptions(limit=samples or self._samples))
        job = Calibration(CalibrationRequest(model=self._model, recipe=recipe, samples=str(self._data)))
        histograms = job.collect(CollectOptions(bins=methods != ("max",)), None)
        collected = time.perf_counter()
        job.tables(histograms, methods)
        ended = time.perf_counter()
        return {"whole": ended - began, "collecting": collected - began, "tables": ended - collected}

    def returned(self) -> dict[str, float]:
        """Wall and processor seconds of runs that return what is counted, the session being open."""
        from qdqtool.calibration.collect import activations
        from qdqtool.calibration.samples.arrays import members
        from qdqtool.calibration.session import Fetcher, open_collecting
        from qdqtool.core.recipe import Recipe
        from qdqtool.graph.instrumented.probe import probe
        from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
        from qdqtool.platform import processors

        job = Calibration(CalibrationRequest(model=self._model, recipe=Recipe()))
        fed = {info.name for info in job.model.view.inputs}
        wanted = [name for name in activations(job.placement) if name not in fed]
        with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
            source = probe(job.model, wanted, Path(folder)).source
            assert isinstance(source, Path)
            session = open_collecting(source, 1)
        rows = members(self._data)[0].rows(range(self._samples))
        lock = threading.Lock()

        def runs() -> None:
            fetcher = Fetcher(session, wanted)
            while True:
                with lock:
                    row = next(rows, None)
                if row is None:
                    return
                fetcher.run({"x": row[None]}, "")

        began, before = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(processors()) as pool:
            for done in [pool.submit(runs) for _ in range(processors())]:
                done.result()
        return {"whole": time.perf_counter() - began, "returned_cpu": time.process_time() - before}

    def default_recipe(self) -> float:
        """Seconds of `qdqtool.quantize` as shipped; the process has its modules already."""
        import qdqtool

        began = time.perf_counter()
        qdqtool.quantize(str(self._model), f"{self._data}[:{self._samples}]")
        return time.perf_counter() - began

    def run(self) -> bool:
        """The whole line in this process; False where the builder is not installed."""
        import qdqtool
        from qdqtool.errors import MissingPackage

        with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
            try:
                qdqtool.run(str(self._model), f"{self._data}[:{self._samples}]", out=Path(folder) / "run")
            except MissingPackage:
                return False
        return True

    def whole_job(self) -> tuple[float, float]:
        """Wall and processor seconds of the command, from the start of its process to the file."""
        with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
            samples = ["--samples", f"{self._data}[:{self._samples}]", "--out", str(Path(folder) / "q.onnx")]
            command = [sys.executable, "-m", "qdqtool", "quantize", str(self._model), *samples]
            environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
            before, began = os.times(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            wall, after = time.perf_counter() - began, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return wall, cpu

    def ratios(self, repeat: int) -> dict[str, Any]:
        """Floor, max alone and all methods in turns."""
        fixed, call = (self.calibrate(METHODS, samples=1)["whole"] for _ in range(2))
        rounds = [self._round() for _ in range(repeat)]

        def median(top: str, bottom: str, once: float = 0.0) -> float:
            return round(statistics.median((row[top] - once) / row[bottom] for row in rounds), 3)

        return {
            "fixed_seconds": round(fixed, 3),
            "call_seconds": round(call, 3),
            "floor_seconds": round(statistics.median(row["floor"] for row in rounds), 3),
            "max_over_floor": median("max", "floor"),
            "all_methods_over_floor": median("all", "floor"),
            "max_per_sample": median("max", "floor", call),
            "all_methods_per_sample": median("all", "floor", call),
            "max_over_floor_cpu": median("max_cpu", "quiet_cpu"),
            "all_methods_over_floor_cpu": median("all_cpu", "quiet_cpu"),
            "default_recipe_over_floor": median("default", "floor"),
            "default_recipe_over_floor_cpu": median("default_cpu", "quiet_cpu"),
            "whole_job_over_floor": median("job", "floor"),
            "whole_job_over_floor_cpu": median("job_cpu", "quiet_cpu"),
            "tables_over_collecting": median("tables", "collecting"),
            "returned_over_floor": median("returned", "floor"),
            "returned_over_floor_cpu": median("returned_cpu", "quiet_cpu"),
        }

    def _round(self) -> dict[str, float]:
        """Wall and processor seconds of everything once."""
        row = {}
        jobs: dict[str, Callable[[], float | dict[str, float]]] = {
            "floor": self.floor,
            "quiet": lambda: self.floor(spinning=False),
            "returned": self.returned,
            "max": lambda: self.calibrate(("max",)),
            "all": lambda: self.calibrate(METHODS),
            "default": self.default_recipe,
        }
        for name, job in jobs.items():
            before = time.process_time()
            took = job()
            row[f"{name}_cpu"] = time.process_time() - before
            row |= {name: took} if isinstance(took, float) else {**took, name: took["whole"]}
        row["job"], row["job_cpu"] = self.whole_job()
        return row


def _rivals(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from networks import write
    from rival_costs import measure

    return {
        f"{network} x{samples} batch {batch}": measure(
            *write(network, folder, samples * 8), samples=samples, batch=batch, folder=folder
        )
        for network in options.networks
        for samples in options.samples
        for batch in options.batches
    }


def _print_tables(results: dict[str, Any], rivals: dict[str, Any]) -> None:
    print(
        f"{'network':<32}{'floor s':>8}{'all':>7}{'max':>7}{'all cpu':>9}{'max cpu':>9}{'all/sample':>12}{'max/sample':>12}{'default':>9}{'job':>7}{'tables':>8}{'fixed s':>9}{'MiB over':>10}{'default':>9}{'growth':>8}{'returned':>10}{'run MiB':>9}"
    )
    for name, row in results.items():
        goal = GOALS.get(name.split()[0])
        verdict = ""
        if goal:
            met = row["all_methods_over_floor"] <= goal[0] and row["max_over_floor"] <= goal[1]
            verdict = "  met" if met else f"  goal {goal[0]} / {goal[1]}"
        print(
            f"{name:<32}{row['floor_seconds']:>8.2f}{row['all_methods_over_floor']:>7.2f}{row['max_over_floor']:>7.2f}"
            f"{row['all_methods_over_floor_cpu']:>9.2f}{row['max_over_floor_cpu']:>9.2f}"
            f"{row['all_methods_per_sample']:>12.2f}{row['max_per_sample']:>12.2f}"
            f"{row['default_recipe_over_floor']:>9.2f}{row['whole_job_over_floor']:>7.2f}"
            f"{row['tables_over_collecting']:>8.1%}{row['fixed_seconds']:>9.2f}{row['peak_mib_over_floor']:>10}{row['default_peak_mib_over_floor']:>9}"
            f"{row['peak_growth_8x_samples']:>8}{row['returned_over_floor']:>10.2f}{row['run_peak_mib_over_floor'] or '-':>9}{verdict}"
        )
    for name, row in rivals.items():
        print(f"{name}: " + ", ".join(f"{rival} {figures}" for rival, figures in row.items()))


if __name__ == "__main__":
    sys.exit(main())
