"""Runs the whole line over real models and prints a table of accuracy, INT8 nodes, fallbacks, time and memory.

    python benchmarks/models.py [--models DIR] [--out DIR] [--only NAME ...] [--quick]

The models are not part of the project: DIR is a folder with one folder per model, as models.yaml names them; by
default `../shared/models` beside the checkout. Calibration and evaluation samples are always different ones.
The last line of the output is one JSON object with everything that the tables show.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
DEFAULT_MODELS = HERE.parent.parent / "shared" / "models"
STEPS = [
    "prepare",
    "place",
    "collect",
    "calibrate",
    "insert",
    "build",
    "parse",
    "engine",
    "audit",
    "compare",
    "report",
]
Entry = dict[str, Any]


def main() -> int:
    """Run every model that was asked for; 1 when one of them failed."""
    options = _options()
    entries: dict[str, Entry] = YAML(typ="safe").load((HERE / "models.yaml").read_text("utf-8"))
    chosen = options.only or list(entries)
    results = {}
    for name in chosen:
        print(f"running {name}", file=sys.stderr, flush=True)
        results[name] = measure(name, entries[name], options)
    print(accuracy_table(results))
    print(fallback_list(results))
    print(step_table(results))
    print(json.dumps({"models": results, **totals(results)}, sort_keys=True))
    return 1 if any("error" in result for result in results.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the whole line over real models and print tables.")
    parser.add_argument("--models", type=Path, default=DEFAULT_MODELS, help="folder of models and their data")
    parser.add_argument("--out", type=Path, default=Path("runs/models"), help="folder of the run folders")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument("--quick", action="store_true", help="16 calibration and 32 evaluation samples")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="recipe change for all models"
    )
    return parser.parse_args()


def measure(name: str, entry: Entry, options: argparse.Namespace) -> dict[str, Any]:
    """One model through the whole line, and what came out."""
    out = options.out / name
    started = time.perf_counter()
    done = subprocess.run(command(name, entry, options), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        return {
            "error": done.stderr.strip().splitlines()[-6:],
            "exit_code": done.returncode,
            "seconds": seconds,
        }
    report = json.loads((out / "report.json").read_text("utf-8"))["data"]
    steps = json.loads((out / "steps.json").read_text("utf-8"))["data"]["steps"]
    return {
        "recipe": entry["recipe"],
        "summary": report["summary"],
        "fallbacks": report["fallbacks"],
        "task": (report["comparison"] or {}).get("task", []),
        "steps": {step: footprint["measured"] for step, footprint in steps.items()},
        "seconds": round(seconds, 2),
    }


def command(name: str, entry: Entry, options: argparse.Namespace) -> list[str]:
    """The `qdqtool run` call of one model."""
    changes = [f"samples.preprocess={json.dumps(entry['preprocess'])}", *entry.get("set", []), *options.set]
    if options.quick:
        changes += ["samples.limit=16", "compare.limit=32"]
    return [
        *(sys.executable, "-m", "qdqtool", "run", str(options.models / name / "model.onnx")),
        *("--recipe", entry["recipe"], *sample_words(name, entry, options)),
        *(word for change in changes for word in ("--set", change)),
        *("--out", str(options.out / name), "--json"),
    ]


def sample_words(name: str, entry: Entry, options: argparse.Namespace) -> list[str]:
    """Calibration samples, evaluation samples and labels as the command line takes them."""
    place = options.models / entry["samples"]
    if "split" not in entry:
        return ["--samples", str(place), "--eval-samples", str(options.models / entry["evaluation"])]
    calibration, evaluation = (options.out / f"{name}.{part}" for part in ("calibration", "evaluation"))
    for folder in (calibration, evaluation):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    classes = class_table(entry, options.models)
    for number, picture in enumerate(sorted(path for path in place.iterdir() if path.suffix == ".JPEG")):
        if number % entry["split"] == 0:
            (calibration / picture.name).symlink_to(picture.resolve())
        elif picture.name in classes:
            (evaluation / picture.name).symlink_to(picture.resolve())
    table = options.out / f"{name}.labels.tsv"
    table.write_text(
        "file\tclass_id\n" + "".join(f"{file}\t{label}\n" for file, label in classes.items()), "utf-8"
    )
    return ["--samples", str(calibration), "--eval-samples", str(evaluation), "--labels", str(table)]


def class_table(entry: Entry, models: Path) -> dict[str, int]:
    """Class by file name; for a detector its own classes, where the picture shows one."""
    text = (models / entry["labels"]).read_text("utf-8")
    named = {row[0]: int(row[1]) for row in (line.split("\t") for line in text.splitlines()[1:])}
    if "coco" not in entry:
        return named
    classes = {}
    for coco, runs in entry["coco"].items():
        for run in str(runs).split():
            first, _, last = run.partition("-")
            classes.update(dict.fromkeys(range(int(first), int(last or first) + 1), coco))
    return {name: classes[label] for name, label in named.items() if label in classes}


def accuracy_table(results: dict[str, Any]) -> str:
    """One row per model."""
    lines = [
        "| model | metric | FP32 | INT8 | loss | INT8 / compute nodes | kernels (compute, Q/DQ) | findings | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if "error" in result:
            lines.append(
                f"| {name} | failed with exit code {result['exit_code']}: {' '.join(result['error'])} |||||||"
            )
            continue
        summary, (metric, reference, int8) = result["summary"], headline(result)
        findings = (
            ", ".join(f"{count} {severity}" for severity, count in summary["findings"].items() if count)
            or "none"
        )
        kernels = f"{summary['kernels']} ({summary['compute_kernels']}, {summary['qdq_kernels']})"
        lines.append(
            f"| {name} | {metric} | {reference:.2f} | {int8:.2f} | {reference - int8:+.2f} "
            f"| {summary['nodes_int8']} / {summary['nodes_total']} | {kernels} | {findings} | {result['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def headline(result: dict[str, Any]) -> tuple[str, float, float]:
    """Name, float value and INT8 value of the metric that counts for this model."""
    accuracy = result["summary"]["accuracy"]
    return accuracy["metric"], accuracy["reference"], accuracy["int8"]


def fallback_list(results: dict[str, Any]) -> str:
    """Every node that does not run INT8, with reason and fix."""
    lines = []
    for name, result in results.items():
        fallbacks = result.get("fallbacks", ())
        lines.append(f"{name}: {len(fallbacks)} fallbacks")
        for row in fallbacks:
            asked = "requested" if row["requested"] else "not requested"
            lines.append(
                f"- {row['node']} ({row['op']}, {row['precision']}, {asked}): {row['reason'] or 'NO REASON'}. Fix: {row['fix']}"
            )
    return "\n".join(lines) + "\n"


def step_table(results: dict[str, Any]) -> str:
    """Seconds and peak MiB of every step as measured when it ran."""
    done = {name: result["steps"] for name, result in results.items() if "steps" in result}
    names = list(dict.fromkeys([*STEPS, *(step for steps in done.values() for step in steps)]))
    lines = ["| seconds / peak MiB | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(_cost(steps.get(step, {})) for step in names) + " |"
        for name, steps in done.items()
    ]
    return "\n".join(lines) + "\n"


def _cost(measured: dict[str, float]) -> str:
    peaks = [value for key, value in measured.items() if key.endswith("peak_mib")]
    return (
        f"{measured.get('seconds', 0):.1f} / {max(peaks):.0f}"
        if peaks
        else f"{measured.get('seconds', 0):.1f} / ?"
    )


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """What a script checks first."""
    done = [result for result in results.values() if "error" not in result]
    losses = [reference - int8 for _, reference, int8 in map(headline, done)]
    rows = [row for result in done for row in result["fallbacks"]]
    return {
        "largest_loss": round(max(losses), 3) if losses else None,
        "fallbacks": len(rows),
        "fallbacks_requested": sum(row["requested"] for row in rows),
        "fallbacks_without_reason": sum(not row["reason"] for row in rows),
        "failed": sorted(name for name, result in results.items() if "error" in result),
    }


if __name__ == "__main__":
    sys.exit(main())
