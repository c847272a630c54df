"""Measures what qdqtool costs before and around the work itself: start, help, the embedded example, big reports.

    python benchmarks/startup.py [--repeat N] [--report]

Every figure is the median over processes of their own; those that end in `_cpu_s` are processor seconds (user and
system, children included), which a busy machine hardly moves, the others wall clock.

- `help_s`: `qdqtool --help`; `version_s`: `qdqtool --version`.
- `demo_s`: the embedded example from process start to exit, into an empty folder; `demo_steps_s`: its steps alone, as
  they measured themselves; `demo_again_s`: the same command once more, with every step up to date.
- `modules_help`, `modules_demo`: Python modules that are imported.
- `report_5000_s` (with --report): the report of a run folder with 5,000 engine layers, assembled and rendered.
- `place_ms_per_node`, `lint_ms_per_node` (with --report): on a chain of 3,000 nodes, model in memory.

The last line is one JSON object with all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from checkout import ROOT

from qdqtool.core.report import LayerRow, TensorRow

DIGITS = ROOT / "recipes" / "examples" / "digits"
COMPILED = Path(tempfile.gettempdir()) / "qdqtool-startup-bytecode"
"""Compiled modules, as an installation has them; a first run that nobody times fills it."""
GOALS = {"help_s": 0.5, "demo_s": 3.0, "report_5000_s": 2.0, "place_ms_per_node": 0.3}


def main() -> int:
    """Print a line per figure, then all of them."""
    parser = argparse.ArgumentParser(description="Measure start-up and fixed costs.")
    parser.add_argument("--quick", action="store_true", help="one process per figure")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="also time a large report and placement")
    options = parser.parse_args()
    repeat = 1 if options.quick else options.repeat
    found = {
        **_timed("help", ["--help"], repeat),
        **_timed("version", ["--version"], repeat),
        **_demo(repeat),
    }
    if options.report:
        found |= _large()
    for name, value in found.items():
        goal = f"  goal {GOALS[name]}" if name in GOALS else ""
        print(f"{name:<22}{value:>9.3f}{goal}")
    print(json.dumps(found, sort_keys=True))
    return 0


def _timed(name: str, arguments: list[str], repeat: int) -> dict[str, float]:
    runs = [_run(arguments) for _ in range(repeat)]
    return {
        f"{name}_s": round(statistics.median(wall for wall, _ in runs), 3),
        f"{name}_cpu_s": round(statistics.median(cpu for _, cpu in runs), 3),
    }


def _run(arguments: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one command."""
    before, began = os.times(), time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(COMPILED)}
    command = [sys.executable, "-m", "qdqtool", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=ROOT)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def _demo(repeat: int) -> dict[str, float]:
    rows = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="startup-") as folder:
            out = Path(folder) / "demo"
            command = [
                "run",
                str(DIGITS / "digits.onnx"),
                *("--samples", str(DIGITS / "calibration.npz")),
                *("--eval-samples", str(DIGITS / "evaluation.npz")),
                *("--labels", str(DIGITS / "labels.npy")),
                *("--out", str(out)),
            ]
            wall, cpu = _run(command)
            steps = json.loads((out / "steps.json").read_text("utf-8"))["data"]["steps"]
            again, again_cpu = _run(command)
            rows.append(
                {
                    "demo_s": wall,
                    "demo_cpu_s": cpu,
                    "demo_steps_s": sum(step["measured"]["seconds"] for step in steps.values()),
                    "demo_again_s": again,
                    "demo_again_cpu_s": again_cpu,
                }
            )
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def _large() -> dict[str, float]:
    """Costs per report, layer and node, in processor seconds of this process."""
    from dataclasses import replace

    from qdqtool.core.kinds import REPORT
    from qdqtool.core.recipe import PlacementOptions
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.placement.decide import decide
    from qdqtool.placement.lint import lint
    from qdqtool.report.html import render

    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        out = Path(folder) / "demo"
        samples = str(DIGITS / "calibration.npz")
        _run(["run", str(DIGITS / "digits.onnx"), "--samples", samples, "--out", str(out)])
        small = REPORT.read(out / "report.json")
        model = load(_chain(Path(folder), 1500))
    layers = [
        _renamed(layer, turn) for turn in range(1 + 5000 // len(small.layers)) for layer in small.layers
    ]
    report = replace(small, layers=tuple(layers[:5000]))
    nodes = len(model.view.nodes)
    options = PlacementOptions()
    return {
        "report_5000_s": round(_cpu(lambda: render(report)), 3),
        "place_ms_per_node": round(1000 * _cpu(lambda: decide(model.view, options)) / nodes, 3),
        "lint_ms_per_node": round(1000 * _cpu(lambda: lint(model, options.builder)) / nodes, 3),
    }


def _renamed(layer: LayerRow, turn: int) -> LayerRow:
    """The layer as one of another network, whose names are its own."""
    from dataclasses import replace

    def renamed(rows: tuple[TensorRow, ...]) -> tuple[TensorRow, ...]:
        return tuple(replace(row, name=f"{row.name}_{turn}") for row in rows)

    return replace(
        layer,
        name=f"{layer.name}_{turn}",
        onnx_nodes=tuple(f"{node}_{turn}" for node in layer.onnx_nodes),
        inputs=renamed(layer.inputs),
        outputs=renamed(layer.outputs),
    )


def _chain(folder: Path, length: int) -> Path:
    """A model of so many convolutions, each with a Relu behind it and every fourth with a sum."""
    import onnx
    from networks import Drawing

    draw = Drawing()
    x = skip = "x"
    for number in range(length):
        x = draw.node("Relu", draw.conv(x, (16, 16), 3))
        if number % 4 == 3:
            x = skip = x if number < 4 else draw.node("Add", x, skip)
    path = folder / "chain.onnx"
    onnx.save(draw.model(("x", [1, 16, 8, 8], onnx.TensorProto.FLOAT), x), path)
    return path


def _cpu(job: Callable[[], object]) -> float:
    before = time.process_time()
    job()
    return time.process_time() - before


if __name__ == "__main__":
    sys.exit(main())
