"""Runs the whole line over real models and prints a table of accuracy, INT8 nodes, fallbacks, time and memory.

    python benchmarks/models.py [--models DIR] [--out DIR] [--only NAME ...] [--quick]

The models are not part of the project: DIR is a folder with one folder per model, as models.yaml names them; by
default `../shared/models` beside the checkout. Calibration and evaluation samples are always different ones.
The last line of the output is one JSON object with everything that the tables show.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
DEFAULT_MODELS = HERE.parent.parent / "shared" / "models"
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
    result = {
        "recipe": entry["recipe"],
        "summary": report["summary"],
        "fallbacks": report["fallbacks"],
        "task": (report["comparison"] or {}).get("task", []),
        "steps": {step: footprint["measured"] for step, footprint in steps.items()},
        "seconds": round(seconds, 2),
        "peak_mib_so_far": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }
    if "coco" in entry:
        result["detector"] = detect(entry, options.models, out, sample_words(name, entry, options)[1])
    return result


def command(name: str, entry: Entry, options: argparse.Namespace) -> list[str]:
    """The `qdqtool run` call of one model."""
    samples, evaluation = sample_words(name, entry, options)
    changes = [f"samples.preprocess={json.dumps(entry['preprocess'])}", *entry.get("set", []), *options.set]
    if options.quick:
        changes += ["samples.limit=16", "compare.limit=32"]
    labels = (
        []
        if "labels" not in entry or "coco" in entry
        else ["--labels", str(options.models / entry["labels"])]
    )
    return [
        *(sys.executable, "-m", "qdqtool", "run", str(options.models / name / "model.onnx")),
        *("--recipe", entry["recipe"], "--samples", samples, "--eval-samples", evaluation, *labels),
        *(word for change in changes for word in ("--set", change)),
        *("--out", str(options.out / name), "--json"),
    ]


def sample_words(name: str, entry: Entry, options: argparse.Namespace) -> tuple[str, str]:
    """Calibration and evaluation samples as the command line takes them."""
    place = options.models / entry["samples"]
    if "split" not in entry:
        return str(place), str(options.models / entry["evaluation"])
    calibration, evaluation = (options.out / f"{name}.{part}" for part in ("calibration", "evaluation"))
    for folder in (calibration, evaluation):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    pictures = sorted(path for path in place.iterdir() if path.suffix.lower() in {".jpeg", ".jpg", ".png"})
    for number, picture in enumerate(pictures):
        folder = evaluation if number % entry["split"] else calibration
        (folder / picture.name).symlink_to(picture.resolve())
    return str(calibration), str(evaluation)


def detect(entry: Entry, models: Path, out: Path, evaluation: str) -> dict[str, float]:
    """Share of pictures whose best box has the right class, for the float and the INT8 model, in percent."""
    labels = coco_labels(entry, models / entry["labels"])
    right: dict[str, list[bool]] = {"float": [], "int8": []}
    same = []
    sessions = [onnxruntime.InferenceSession(out / f"model.{kind}.onnx") for kind in ("prepared", "qdq")]
    for picture, feeds in pictures_of(entry, sessions[0].get_inputs()[0], evaluation):
        answers = [best_class(session.run(None, feeds)[0][0]) for session in sessions]
        same.append(answers[0] == answers[1])
        if picture in labels:
            for kind, answer in zip(("float", "int8"), answers, strict=True):
                right[kind].append(answer == labels[picture])
    shares = {kind: 100 * float(np.mean(hits)) for kind, hits in right.items()}
    return {
        **shares,
        "agreement": 100 * float(np.mean(same)),
        "labelled": len(right["float"]),
        "samples": len(same),
    }


def pictures_of(entry: Entry, entry_node: Any, evaluation: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """File name and feeds of every evaluation sample, made as the run made them."""
    from qdqtool.calibration.samples import SampleSpec, open_samples
    from qdqtool.core.dtypes import DType
    from qdqtool.core.recipe import Preprocess
    from qdqtool.core.tensors import TensorInfo

    info = TensorInfo(name=entry_node.name, dtype=DType.FLOAT32, shape=tuple(entry_node.shape))
    spec = SampleSpec(text=evaluation, preprocess=Preprocess.model_validate(entry["preprocess"]))
    for sample in open_samples(spec, (info,)):
        yield Path(sample.name).name, dict(sample.feeds)


def best_class(boxes: np.ndarray) -> int:
    """Class of the box with the largest objectness x class score; rows are x, y, w, h, objectness, 80 scores."""
    return int((boxes[:, 4:5] * boxes[:, 5:]).max(axis=0).argmax())


def coco_labels(entry: Entry, table: Path) -> dict[str, int]:
    """COCO class by file name, where the picture's ImageNet class has one."""
    classes = {}
    for coco, runs in entry["coco"].items():
        for run in str(runs).split():
            first, _, last = run.partition("-")
            classes.update(dict.fromkeys(range(int(first), int(last or first) + 1), coco))
    rows = [line.split("\t") for line in table.read_text("utf-8").splitlines()[1:]]
    return {row[0]: classes[int(row[1])] for row in rows if int(row[1]) in classes}


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
    if "detector" in result:
        return "class of best box", result["detector"]["float"], result["detector"]["int8"]
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
    names = list(dict.fromkeys(step for steps in done.values() for step in steps))
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
