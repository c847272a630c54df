"""Measures what a sensitivity study costs, in inferences of the float model.

    python benchmarks/sensitivity.py [--quick] [--networks NAME ...] [--samples N] [--repeat N]

Random weights and samples: only shapes matter. Floor and study run in turns in one process, so that a busy machine
slows both; the figures are medians of ratios of processor time, all with one thread per sample: others spin.

- `evaluation_over_inference`: one run with one node quantized, from input to output with open sessions and nothing
  taken over from other runs, over one inference; the mean over all nodes.
- `whole_over_inference`: the same with every node quantized: Q and DQ of all activations are what it costs more.
- `scan_inferences_per_layer`: the exhaustive scan layer by layer (every node alone, the float model and the whole), as
  a study does it, sessions opened on the way: inferences of the whole scan per sample.
- `scan_of_more_samples`: the same for samples that come after, which find the sessions open.
- `scan_limit`: what a scan that opens nothing and cuts nowhere would cost: the float model, the whole, and for every node the
  part of the network from it on, by the processor time of the stages. Below lies nothing that gives the same bits: what is
  behind a node that differs has to be run. (Batches do not help: ResNet-50 takes as long per sample, with the same bits. Its last
  stage alone takes 7 % less in batches of 8, but a scan that stacked samples there took 34.7 to 37.9 instead of 33.3 to 34.4.)
- `layers`: convolutions and matrix products that are switched, `naive_inferences`: runs of the scan, which is what it costs without stages.

The last line is one JSON object: the figures of the first network, and of all under "networks".
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

GOALS = {"evaluation_over_inference": 1.2, "scan_inferences_per_layer": 30}
"""Of ResNet-50."""


def main() -> int:
    """Measure every network that was asked for."""
    parser = argparse.ArgumentParser(description="Measure sensitivity studies against inference.")
    parser.add_argument("--quick", action="store_true", help="a small ResNet, 4 samples")
    parser.add_argument("--networks", nargs="+", default=["resnet50", "mobilenet_v2", "vit_small"])
    parser.add_argument(
        "--samples", type=int, default=32, help="as many as the recipes take, unless told otherwise"
    )
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.networks, options.samples, options.repeat = ["resnet_small"], 4, 1
    with tempfile.TemporaryDirectory(prefix="sensitivity-") as scratch:
        results = {
            network: _measured(network, options.samples, options.repeat, Path(scratch))
            for network in options.networks
        }
    for network, row in results.items():
        print(f"{network}: " + ", ".join(f"{name} {value}" for name, value in row.items()))
    print("goals (ResNet-50): " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    print(json.dumps({**next(iter(results.values())), "networks": results}, sort_keys=True))
    return 0


def _measured(network: str, count: int, repeat: int, folder: Path) -> dict[str, Any]:
    import numpy as np
    from networks import write

    from qdqtool.calibration.samples import open_samples
    from qdqtool.graph.instrumented.stages import StagedModel
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.onnx_io.save import save
    from qdqtool.pipeline import recipes
    from qdqtool.pipeline.quantization import QuantizationJob
    from qdqtool.pipeline.search.switched import StagedRunner
    from qdqtool.runtime.runner import open_runner
    from qdqtool.trt.ops import PRODUCTS

    print(f"measuring {network}, {count} samples", file=sys.stderr, flush=True)
    model, data = write(network, folder, count)
    quantized = folder / f"{network}.qdq.onnx"
    recipe = recipes.load("conv-int8", ["calibrate.method=max", "calibrate.bias=keep"])
    work = QuantizationJob(model, recipe, str(data))
    save(work.inserted(work.table(lambda *_: None)), quantized)
    feeds = [
        dict(sample.feeds)
        for sample in open_samples(str(data), load(model).view.inputs, recipe.samples.preprocess)
    ]
    plain = open_runner(model, description="float", threads=1)
    plain.run(feeds[0])
    loaded = load(quantized)
    view = loaded.view
    nodes = [node for node in StagedModel(loaded).nodes if view.by_name[node].op in PRODUCTS]
    alone = {node: frozenset({node}) for node in nodes}
    scan = {"float": frozenset[str](), **alone, "whole": frozenset(StagedModel(loaded).nodes)}

    def floor() -> None:
        for one in feeds:
            plain.run(one)

    open_runners: list[StagedRunner] = []

    def scanned() -> None:
        if not open_runners:
            open_runners.append(StagedRunner(StagedModel(loaded), network))
        runner = open_runners[0]
        for start in range(0, len(feeds), size := runner.together(feeds[0])):
            for _ in runner.run(feeds[start : start + size], scan):
                pass

    def evaluation(name: str) -> float:
        """Processor seconds of one run with open sessions."""
        runner = StagedRunner(StagedModel(loaded), network)
        list(runner.run(feeds[:1], {name: scan[name]}))
        return _timed(lambda: list(runner.run(feeds, {name: scan[name]}))) / len(feeds)

    stages = _stage_times(loaded, feeds[0])

    def behind(node: str) -> float:
        """The share of the network from the stage of this node on, and of that stage what is not in front of it."""
        number, own = next(
            (place, stage.switchable)
            for place, stage in enumerate(StagedModel(loaded).stages)
            if node in stage.switchable
        )
        peers = [name for name in own if name in alone]
        return sum(stages[number:]) - stages[number] * peers.index(node) / len(peers)

    rows = []
    for _ in range(repeat):
        open_runners.clear()
        base, cost, more = (_timed(job) / len(feeds) for job in (floor, scanned, scanned))
        open_runners.clear()
        some = [evaluation(name) for name in list(alone)[:: max(1, len(alone) // 8)]]
        rows.append(
            {
                "evaluation_over_inference": float(np.mean(some)) / base,
                "whole_over_inference": (whole := evaluation("whole") / base),
                "scan_inferences_per_layer": cost / base,
                "scan_of_more_samples": more / base,
                "scan_limit": 1 + whole + sum(behind(node) for node in nodes),
            }
        )
    medians = {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}
    return {**medians, "layers": len(nodes), "naive_inferences": len(scan)}


def _stage_times(loaded: Any, feeds: dict[str, Any]) -> list[float]:
    """The share of each stage of the float model in its processor time."""
    from qdqtool.graph.instrumented.stages import StagedModel
    from qdqtool.runtime.runner import open_runner

    staged = StagedModel(loaded)
    parts = [range(number, number + 1) for number in range(len(staged.stages))]
    parts = [part for part in parts if staged.outputs_of(part)]
    runners = [
        open_runner(staged.variant(part, ()), description=f"stage {part[0]}", threads=1) for part in parts
    ]
    least = [float("inf")] * len(staged.stages)
    for _ in range(5):
        state = dict(feeds)
        for part, runner in zip(parts, runners, strict=True):
            fed = {name: state[name] for name in staged.inputs_of(part)}
            began = time.process_time()
            state |= runner.run(fed)
            least[part[0]] = min(least[part[0]], time.process_time() - began)
    known = [0.0 if value == float("inf") else value for value in least]
    return [value / sum(known) for value in known]


def _timed(job: Callable[[], object]) -> float:
    """Processor seconds of a job."""
    before = time.process_time()
    job()
    return time.process_time() - before


if __name__ == "__main__":
    sys.exit(main())
