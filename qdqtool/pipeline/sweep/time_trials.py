"""Times the models of this folder with trtexec, on a machine with TensorRT and a GPU. Needs only Python 3.8.

    python time_trials.py [--trtexec PATH] [--rounds 7] [--iterations 100]

Every model becomes an engine. Then all engines are run in turns, so that a GPU that gets warm or busy slows all of them.
times.json gets the medians of each round: GPU compute time, and enqueue time if trtexec exports it. The command
`qdqtool sweep ... --import times.json` reads this file.
If it is stopped, the same command continues: engines and finished rounds are noted in progress.json.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# trtexec's own default.
WARM_UP_MS = 200


def main() -> int:
    """Build, time, and write times.json."""
    parser = argparse.ArgumentParser(description="Time the models of this folder with trtexec.")
    parser.add_argument("--trtexec", default=shutil.which("trtexec") or "/usr/src/tensorrt/bin/trtexec")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    if not shutil.which(options.trtexec):
        sys.stderr.write(f"{options.trtexec} is not installed: pass --trtexec PATH\n")
        return 3
    manifest = json.loads((HERE / "manifest.json").read_text("utf-8"))
    help_text = run(options.trtexec, "--help").stdout
    about = [manifest, options.trtexec, options.iterations]
    failed, rounds, enqueue = earlier(about)
    for model in manifest["models"]:
        if model["name"] in failed or (model["name"] in rounds and plan(model["name"]).exists()):
            continue
        trouble = build(options.trtexec, help_text, model)
        if trouble:
            failed[model["name"]] = trouble
        else:
            rounds[model["name"]], enqueue[model["name"]] = [], []
        note(about, failed, rounds, enqueue)
    shapes = {model["name"]: model["shapes"] for model in manifest["models"]}
    names = list(rounds)
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else ():
            if name in failed or len(rounds[name]) > turn:
                continue
            try:
                ms, host_ms = time_round(options.trtexec, name, shapes[name], options.iterations)
            except RuntimeError as error:
                # the others' times are worth having
                failed[name] = str(error)
                del rounds[name], enqueue[name]
                sys.stderr.write(f"{name}: {error}\n")
                continue
            rounds[name].append(ms)
            enqueue[name] += host_ms
            note(about, failed, rounds, enqueue)
            sys.stderr.write(f"round {turn + 1}: {name} {rounds[name][-1]:.4f} ms\n")
    times = {
        "digest": manifest["digest"],
        "gpu": gpu(),
        "rounds": rounds,
        "failed": failed,
        "enqueue": enqueue,
    }
    (HERE / "times.json").write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", "utf-8")
    (HERE / "progress.json").unlink()
    return 0 if rounds else 1


def earlier(about: "list[Any]") -> "tuple[dict[str, str], dict[str, list[float]], dict[str, list[float]]]":
    """Return the results of an earlier run with these models that was stopped."""
    kept = HERE / "progress.json"
    progress = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
    if progress.get("about") != about or "enqueue" not in progress:
        return {}, {}, {}
    return progress["failed"], progress["rounds"], progress["enqueue"]


def note(
    about: "list[Any]",
    failed: "dict[str, str]",
    rounds: "dict[str, list[float]]",
    enqueue: "dict[str, list[float]]",
) -> None:
    """Save the results so far. The file is replaced as a whole, so it is never incomplete."""
    fresh = HERE / "progress.tmp"
    progress = {"about": about, "failed": failed, "rounds": rounds, "enqueue": enqueue}
    fresh.write_text(json.dumps(progress), "utf-8")
    fresh.replace(HERE / "progress.json")


def build(trtexec: str, help_text: str, model: "dict[str, Any]") -> str:
    """Build the engine of a model. Return why there is none, or ""."""
    flags = [f"--onnx={HERE / model['file']}", f"--saveEngine={plan(model['name'])}"]
    if "--stronglyTyped" in help_text:
        flags.append("--stronglyTyped")
    else:
        flags += [flag for flag in model["weakly"] if flag in help_text]
    if model["shapes"]:
        flags += [f"--{word}Shapes={model['shapes']}" for word in ("min", "opt", "max")]
    flags.append("--skipInference" if "--skipInference" in help_text else "--buildOnly")
    done = run(trtexec, *flags)
    if done.returncode == 0 and plan(model["name"]).exists():
        return ""
    return trouble_of(done)


def trouble_of(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the first error that trtexec prints."""
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "[E]" in line]
    return (errors or [f"trtexec ended with {done.returncode}"])[0][:300]


def time_round(trtexec: str, name: str, shapes: str, iterations: int) -> "tuple[float, list[float]]":
    """Return the median compute time of one round, without transfers, and in a list its median enqueue time.

    Both are milliseconds. Old releases export no enqueue times: then the list is empty. RuntimeError if the engine does
    not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        done = run(
            trtexec,
            f"--loadEngine={plan(name)}",
            f"--iterations={iterations}",
            "--duration=0",
            f"--warmUp={WARM_UP_MS}",
            "--useSpinWait",
            f"--exportTimes={times}",
            # without them every free dimension is 1, which an engine built for other shapes refuses
            *([f"--shapes={shapes}"] if shapes else []),
        )
        if done.returncode:
            raise RuntimeError(trouble_of(done))
        rows = json.loads(times.read_text("utf-8"))
        enqueue = [row["endEnqMs"] - row["startEnqMs"] for row in rows if "endEnqMs" in row]
        return (
            float(statistics.median(row["computeMs"] for row in rows)),
            [float(statistics.median(enqueue))] if enqueue else [],
        )


def plan(name: str) -> Path:
    """Return the path of a model's engine."""
    return HERE / f"{name}.plan"


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a program and return its result."""
    return subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603


def gpu() -> str:
    """Return the name of the GPU; "unknown GPU" if nvidia-smi does not show it."""
    if not shutil.which("nvidia-smi"):
        return "unknown GPU"
    lines = run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").stdout.splitlines()
    return lines[0].strip() if lines else "unknown GPU"


if __name__ == "__main__":
    sys.exit(main())
