"""Times the models in this folder with trtexec, on a machine with TensorRT and a GPU. It needs only Python 3.8.

    python time_trials.py [--trtexec PATH] [--rounds 7] [--iterations 100] [--profile] [--out times.json]

Every model becomes an engine. All builds share one timing cache. Then all engines are run in turns, so that a GPU that gets
warm or busy slows all of them. times.json gets the medians of each round: GPU compute time, and enqueue time if trtexec
exports it. It also gets the power mode of a Jetson, and the clock and temperature of the GPU at the end of each round. With
--profile it gets the times of all layers, from a separate run of each engine. The command `qdqtool sweep ... --import
times.json` reads this file.
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
# Seconds between two readings of the GPU clock while an engine runs: long, because nvidia-smi disturbs the
# measurement.
LOOK_S = 1.0
# Names of the GPU of a Jetson in /sys/class/devfreq: Nano and Orin with JetPack 6, TX2, Xavier, Orin with JetPack 5.
JETSON = ("gpu", "gp10b", "gv11b", "ga10b")


def main() -> int:
    """Build the engines, time them, and write times.json."""
    parser = argparse.ArgumentParser(description="Time the models of this folder with trtexec.")
    parser.add_argument("--trtexec", default=shutil.which("trtexec") or "/usr/src/tensorrt/bin/trtexec")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--profile", action="store_true", help="also time all layers")
    parser.add_argument("--out", default="times.json", help="name of the file of times in this folder")
    options = parser.parse_args()
    if not shutil.which(options.trtexec):
        sys.stderr.write(f"{options.trtexec} is not installed: pass --trtexec PATH\n")
        return 3
    manifest = json.loads((HERE / "manifest.json").read_text("utf-8"))
    help_text = run(options.trtexec, "--help").stdout
    about = [manifest, options.trtexec, options.iterations]
    failed, rounds, enqueue, states = earlier(about)
    for model in manifest["models"]:
        if model["name"] in failed or (model["name"] in rounds and plan(model["name"]).exists()):
            continue
        trouble = build(options.trtexec, help_text, model)
        if trouble:
            failed[model["name"]] = trouble
            sys.stderr.write(f"{model['name']}: {trouble}\n")
        else:
            rounds[model["name"]], enqueue[model["name"]] = [], []
        note(about, failed, rounds, enqueue, states)
    models = {model["name"]: model for model in manifest["models"]}
    names = list(rounds)
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else ():
            if name in failed or len(rounds[name]) > turn:
                continue
            try:
                ms, host_ms, state = time_round(options.trtexec, models[name], options.iterations)
            except RuntimeError as error:
                # the times of the other engines are still useful
                failed[name] = str(error)
                del rounds[name], enqueue[name]
                sys.stderr.write(f"{name}: {error}\n")
                continue
            rounds[name].append(ms)
            enqueue[name] += host_ms
            states.append(state)
            note(about, failed, rounds, enqueue, states)
            sys.stderr.write(f"round {turn + 1}: {name} {rounds[name][-1]:.4f} ms\n")
    profiles = {}
    for name in list(rounds) if options.profile else []:
        try:
            profiles[name] = profile(options.trtexec, models[name], options.iterations)
        except RuntimeError as error:  # noqa: PERF203 -- an engine without a profile must not cost the others theirs
            # the times of the finished rounds are still useful
            sys.stderr.write(f"{name} has no layer times: {error}\n")
    times = {
        "digest": manifest["digest"],
        "gpu": gpu(),
        "rounds": rounds,
        "failed": failed,
        "enqueue": enqueue,
        "power_mode": power_mode(),
        "clocks_mhz": [state[0] for state in states if state],
        "celsius": [state[1] for state in states if state],
        "profiles": profiles,
    }
    (HERE / options.out).write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", "utf-8")
    (HERE / "progress.json").unlink()
    return 0 if rounds else 4


def earlier(
    about: "list[Any]",
) -> "tuple[dict[str, str], dict[str, list[float]], dict[str, list[float]], list[list[float]]]":
    """Return the results of a stopped earlier run with these models."""
    kept = HERE / "progress.json"
    progress = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
    if progress.get("about") != about:
        return {}, {}, {}, []
    return progress["failed"], progress["rounds"], progress["enqueue"], progress["states"]


def note(
    about: "list[Any]",
    failed: "dict[str, str]",
    rounds: "dict[str, list[float]]",
    enqueue: "dict[str, list[float]]",
    states: "list[list[float]]",
) -> None:
    """Save the timing results so far. The file is replaced as a whole, so it is never incomplete."""
    fresh = HERE / "progress.tmp"
    progress = {"about": about, "failed": failed, "rounds": rounds, "enqueue": enqueue, "states": states}
    fresh.write_text(json.dumps(progress), "utf-8")
    fresh.replace(HERE / "progress.json")


def build(trtexec: str, help_text: str, model: "dict[str, Any]") -> str:
    """Build the engine of a model. Return the reason if it fails, or ""."""
    flags = [f"--onnx={HERE / model['file']}", f"--saveEngine={plan(model['name'])}"]
    if "--timingCacheFile" in help_text:
        flags.append(f"--timingCacheFile={HERE / 'timing.cache'}")
    if "--stronglyTyped" in help_text:
        flags.append("--stronglyTyped")
    else:
        flags += [flag for flag in model["weakly"] if flag in help_text]
    if model["shapes"]:
        flags += [f"--{word}Shapes={model['shapes']}" for word in ("min", "opt", "max")]
    flags.append("--skipInference" if "--skipInference" in help_text else "--buildOnly")
    done = run(trtexec, *flags, *model["flags"])
    if done.returncode == 0 and plan(model["name"]).exists():
        return ""
    return trouble_of(done)


def trouble_of(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the first error that trtexec prints."""
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "[E]" in line]
    return (errors or [f"trtexec ended with {done.returncode}"])[0][:300]


def time_round(
    trtexec: str, model: "dict[str, Any]", iterations: int
) -> "tuple[float, list[float], list[float]]":
    """Return the median compute time of a round (no transfers), the median enqueue time, and the GPU's state.

    Both times are milliseconds. The enqueue time is a list, which is empty for old releases that export none.
    For the state, see `gpu_state`.
    RuntimeError if the engine does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        done, state = watch(trtexec, f"--exportTimes={times}", *inference(model, iterations))
        if done.returncode:
            raise RuntimeError(trouble_of(done))
        rows = json.loads(times.read_text("utf-8"))
        enqueue = [row["endEnqMs"] - row["startEnqMs"] for row in rows if "endEnqMs" in row]
        return (
            float(statistics.median(row["computeMs"] for row in rows)),
            [float(statistics.median(enqueue))] if enqueue else [],
            state,
        )


def profile(trtexec: str, model: "dict[str, Any]", iterations: int) -> "list[dict[str, Any]]":
    """Return name, average and median milliseconds of each layer, in the engine's order.

    Release 8.2 exports no medians: then the average stands for the median. RuntimeError if there are no layer times.
    """
    with tempfile.TemporaryDirectory() as folder:
        layers = Path(folder) / "profile.json"
        done = run(trtexec, f"--exportProfile={layers}", "--dumpProfile", *inference(model, iterations))
        if done.returncode or not layers.is_file():
            raise RuntimeError(trouble_of(done))
        return [
            {
                "name": row["name"],
                "average": row["averageMs"],
                "median": row.get("medianMs", row["averageMs"]),
            }
            for row in json.loads(layers.read_text("utf-8"))
            if "averageMs" in row
        ]


def inference(model: "dict[str, Any]", iterations: int) -> "list[str]":
    """Return the flags that run an engine."""
    return [
        f"--loadEngine={plan(model['name'])}",
        f"--iterations={iterations}",
        "--duration=0",
        f"--warmUp={WARM_UP_MS}",
        "--useSpinWait",
        # without shapes every dynamic dimension would be 1, which an engine for other shapes refuses
        *([f"--shapes={model['shapes']}"] if model["shapes"] else []),
        *model["flags"],
    ]


def plan(name: str) -> Path:
    """Return the path of a model's engine file."""
    return HERE / f"{name}.plan"


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a program and return its result."""
    return subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603


def watch(*command: str) -> "tuple[subprocess.CompletedProcess[str], list[float]]":
    """Run a program. Return its result and the GPU's last state during the run (after the run, if the run was very short)."""
    state = []  # type: list[float]
    with tempfile.TemporaryFile("w+", errors="replace") as text:
        child = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT)  # noqa: S603
        while child.poll() is None:
            try:
                child.wait(LOOK_S)
            except subprocess.TimeoutExpired:  # noqa: PERF203 -- this is what the loop is for
                state = gpu_state() or state
        text.seek(0)
        done = subprocess.CompletedProcess(command, child.returncode, text.read(), "")
        return done, state or gpu_state()


def gpu_state() -> "list[float]":
    """Return the clock of the GPU in MHz and its temperature in degrees Celsius; empty if the machine does not show both.

    A Jetson shows both in files of the Linux kernel, other machines through nvidia-smi.
    """
    clocks = [path for kind in JETSON for path in Path("/sys/class/devfreq").glob(f"*.{kind}/cur_freq")]
    zones = [path.parent for path in Path("/sys/class/thermal").glob("*/type") if "gpu" in read(path).lower()]
    fields = [read(path) for path in clocks[:1]] + [read(zone / "temp") for zone in zones[:1]]
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return [int(fields[0]) / 1e6, int(fields[1]) / 1e3]
    fields = nvidia_smi("clocks.sm,temperature.gpu").split(",")
    try:
        return [float(field) for field in fields] if len(fields) == 2 else []
    except ValueError:  # "[N/A]"
        return []


def read(path: Path) -> str:
    """Return the text of a file of the Linux kernel; empty if it cannot be read."""
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def power_mode() -> str:
    """Return the power mode of a Jetson ("MAXN", "15W"); empty on other machines."""
    if not shutil.which("nvpmodel"):
        return ""
    lines = run("nvpmodel", "-q").stdout.splitlines()
    modes = [line.partition(":")[2].strip() for line in lines if line.startswith("NV Power Mode:")]
    return modes[0] if modes else ""


def gpu() -> str:
    """Return the name of the GPU; "unknown GPU" if nvidia-smi does not show it."""
    return nvidia_smi("name") or "unknown GPU"


def nvidia_smi(fields: str) -> str:
    """Return these fields of the first GPU, separated by commas; empty without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return ""
    lines = run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.splitlines()
    return lines[0].strip() if lines else ""


if __name__ == "__main__":
    sys.exit(main())
