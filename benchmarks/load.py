"""What much work does to memory and time: many lints, a large engine, a long sweep, a model of gigabytes, many runs.

    python benchmarks/load.py                            all of it: about an hour
    python benchmarks/load.py --parts lints,engine       some of it
    python benchmarks/load.py --scale 0.1                a tenth of it

Each part runs in a process of its own. Memory is resident memory in MiB, of the process and not of its children; seconds
are of processor time where they are called cpu_s. The last line is JSON: the figures of each part by its name.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = str(ROOT)
Figures = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="two parts, a hundredth of them")
    asked = parser.parse_args()
    if asked.quick:
        asked.parts, asked.scale = "lints,engine", 0.01
    if asked.child:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(PARTS[asked.child](Path(folder), asked.scale)))
        return 0
    found = {}
    for name in asked.parts.split(","):
        words = [sys.executable, __file__, "--child", name, "--scale", str(asked.scale)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        found[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": True}
        print(name, found[name], flush=True)
    print(json.dumps(found))
    return int(any("failed" in figures for figures in found.values()))


def lints(folder: Path, scale: float) -> Figures:
    """10,000 lints in one process: memory does not grow with their number."""
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.placement.lint import lint
    from tests import models

    path = models.save(models.residual_cnn(), folder)
    count, memory = max(20, int(10_000 * scale)), []
    begin = time.process_time()
    for number in range(count):
        lint(load(path))
        if number in {count // 10, count // 2, count - 1}:
            memory.append(round(resident()))
    return {"lints": count, "mib_at_10_50_100_percent": memory, "cpu_s": cpu(begin)}


def engine(folder: Path, scale: float) -> Figures:
    """An engine of 5,000 layers is shown, drawn as a table, audited and made a page."""
    count = max(50, int(5_000 * scale))
    layers = [
        {
            "Name": f"conv{number}",
            "LayerType": "CaskConvolution",
            "Inputs": [_tensor(number)],
            "Outputs": [_tensor(number + 1)],
            "TacticName": "sm80_xmma_fprop_implicit_gemm_indexed_interleaved_i8i8_i8i32_f32",
            "Metadata": f"[ONNX Layer: conv{number}]",
        }
        for number in range(count)
    ]
    path = folder / "layers.json"
    path.write_text(json.dumps({"Layers": layers, "Bindings": ["t0", f"t{count}"]}))
    found: Figures = {"layers": count}
    for name, words in (
        ("show", ("engine", "show", str(path), "--json")),
        ("audit", ("audit", str(path))),
        ("page", ("report", str(path), "--out", str(folder / "page.html"))),
    ):
        found[f"{name}_cpu_s"], found[f"{name}_mib"] = command(*words)
    return found


def _tensor(number: int) -> dict[str, Any]:
    return {"Name": f"t{number}", "Dimensions": [1, 64, 28, 28], "Format/Datatype": "Int8 NC/32HW32"}


def sweep(folder: Path, scale: float) -> Figures:
    """A sweep of 500 trials by four workers that share a SQLite file; every trial is done once."""
    model, samples = _material(folder)
    trials = max(8, int(500 * scale))
    values = [round(90 + 0.01 * number, 2) for number in range(trials)]
    space = f'sweep.space={{"calibrate.method": [percentile], "calibrate.percentile": {values}}}'
    words = ["sweep", model, "--samples", samples, "--out", str(folder / "s"), "--trials", str(trials)]
    for setting in (space, "sweep.keep_float=[0]", "sweep.speed=none"):
        words += ["--set", setting]
    begin = time.monotonic()
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "qdqtool", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(4)
    ]
    codes, peaks = [], []
    for worker in workers:
        _, status, used = os.wait4(worker.pid, 0)
        worker.returncode = os.waitstatus_to_exitcode(status)
        codes.append(worker.returncode)
        peaks.append(used.ru_maxrss >> 10)
    data = json.loads((folder / "s" / "sweep.json").read_text("utf-8"))["data"]
    complete = [trial for trial in data["trials"] if trial["state"] == "complete"]
    settings = {tuple(trial["outcome"]["settings"]) for trial in complete}
    return {
        "trials": trials,
        "codes": codes,
        "complete": len(complete),
        "different": len(settings),
        "wall_s": round(time.monotonic() - begin, 1),
        "mib": max(peaks),
        "files": files(folder / "s"),
        "database_mib": round((folder / "s" / "study.db").stat().st_size / 2**20, 2),
    }


def large(folder: Path, scale: float) -> Figures:
    """A model of 2.5 GB is linted by a process that may have 3 GB of memory."""
    import onnx

    from tests import models

    proto = models.gemms()
    count = max(1, int(25 * scale))
    size = 100_000_000
    weights = folder / "weights.bin"
    with weights.open("wb") as stream:
        for number in range(count):
            stream.write((b"\x00\x00\x80" + bytes([60 + number % 4])) * (size // 4))
    for number in range(count):
        tensor = proto.graph.initializer.add(name=f"large{number}", data_type=1, dims=[size // 4])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", weights.name), ("offset", number * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        proto.graph.node.add(
            op_type="ReduceMax", input=[f"large{number}"], output=[f"m{number}"], name=f"max{number}"
        )
        proto.graph.output.add(name=f"m{number}")
        proto.graph.output[-1].type.tensor_type.elem_type = 1
    path = models.save(proto, folder)
    cpu_s, mib = command("lint", str(path), addresses=3 << 30)
    return {"bytes": weights.stat().st_size, "cpu_s": cpu_s, "mib": mib, "limit_mib": 3072}


def runs(folder: Path, scale: float) -> Figures:
    """200 runs beside each other in one folder, and the last as quick and as small as the first."""
    model, samples = _material(folder)
    count = max(3, int(200 * scale))
    costs = [
        command("run", model, "--samples", samples, "--out", str(folder / "runs" / f"{number:03}"))
        for number in range(count)
    ]
    part = max(1, count // 10)
    first, last = costs[:part], costs[-part:]
    return {
        "runs": count,
        "first_cpu_s": round(sum(cpu_s for cpu_s, _ in first) / part, 2),
        "last_cpu_s": round(sum(cpu_s for cpu_s, _ in last) / part, 2),
        "first_mib": max(mib for _, mib in first),
        "last_mib": max(mib for _, mib in last),
        "files": files(folder / "runs"),
        "files_of_one": files(folder / "runs" / "000"),
    }


PARTS: dict[str, Callable[[Path, float], Figures]] = {
    "lints": lints, "engine": engine, "sweep": sweep, "large": large, "runs": runs,
}  # fmt: skip


def _material(folder: Path) -> tuple[str, str]:
    import numpy as np

    from tests import models

    dice = np.random.default_rng(0)
    np.savez(folder / "s.npz", x=dice.standard_normal((4, 8, 8, 8)).astype(np.float32))
    return str(models.save(models.conv_chain(), folder)), str(folder / "s.npz")


def command(*words: str, addresses: int | None = None) -> tuple[float, int]:
    """CPU seconds, children included, and peak MiB of a command."""

    def limit() -> None:
        if addresses is not None:
            resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))

    with subprocess.Popen(
        [sys.executable, "-m", "qdqtool", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=limit,  # noqa: PLW1509 -- one thread
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 1}:
        sys.exit(f"{words[0]} ended with {process.returncode}: {said.decode()[-500:]}")
    return round(used.ru_utime + used.ru_stime, 2), used.ru_maxrss >> 10


def files(folder: Path) -> int:
    """Files below a folder, hidden ones included."""
    return sum(path.is_file() for path in folder.rglob("*"))


def resident() -> float:
    """Resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def cpu(begin: float) -> float:
    return round(time.process_time() - begin, 1)


if __name__ == "__main__":
    sys.exit(main())
