"""Feeds every reader with damaged files and counts crashes, internal errors, memory above 1 GiB and hangs.

    python benchmarks/fuzz.py --seconds 60 --json
    python benchmarks/fuzz.py --readers onnx,caches --seconds 600 --seed 7 --keep crashers/

`--seconds` are for each reader. Files are damaged inside their structure (protobuf fields, JSON values, members of
archives, headers of arrays), see tests/fuzz. Every input runs in a child process whose address space is limited; one
that kills the child, or works on for half a minute of processor time without a word, is counted and kept: on a busy
machine a worker may be silent for minutes because it does not get to work. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.processes import worked_s  # noqa: E402

READERS = (
    "onnx", "commands", "builds", "arrays", "archives", "polygraphy", "images", "labels", "caches", "recipes", "layers", "profiles",
    "artefacts", "logs",
)  # fmt: skip
SILENT_S = 30.0
"""Processor seconds of a worker and its children without a word after which an input hangs."""
STARTING_S = 180.0
"""The same for a worker that starts: it imports everything, and makes a run whose files are damaged."""
WAITING_S = 900.0
"""Seconds by the clock after which a worker hangs that does not work at all."""
LOOKING_S = 1.0
"""Seconds between two looks at a worker that says nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader")
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the inputs that went wrong")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    asked = parser.parse_args()
    by_reader = {}
    for name in asked.readers.split(","):
        by_reader[name] = fuzz(name, asked)
        if not asked.json:
            print(name, dict(by_reader[name]), flush=True)
    total = sum(by_reader.values(), Counter())
    keys = ("inputs", "crashes", "internal_errors", "over_memory", "hangs")
    summary = {key: total[key] for key in keys}
    print(
        json.dumps(
            {
                **summary,
                "by_reader": {name: {key: found[key] for key in keys} for name, found in by_reader.items()},
            }
        )
    )
    return 1 if any(total[key] for key in keys[1:]) else 0


def fuzz(name: str, asked: argparse.Namespace) -> Counter[str]:
    """Run workers one after the other until the time is up: a new one where the last one died."""
    found: Counter[str] = Counter()
    end = time.monotonic() + asked.seconds
    seed = asked.seed
    while (left := end - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory() as folder:
            _one_worker(name, seed, left, Path(folder), found, asked)
        seed += 1_000_003
    return found


def _one_worker(
    name: str, seed: int, seconds: float, folder: Path, found: Counter[str], asked: argparse.Namespace
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fuzz.worker",
            name,
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
            "--folder",
            folder,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(process.stdout, lines), daemon=True).start()
    path, patience, phase = None, STARTING_S, "imports"
    while True:
        line = _next_word(process.pid, lines, patience)
        if line == "":
            found["hangs"] += 1
            _keep(asked, name, "hang", path, f"silent; the last it said: {phase}")
            process.kill()
            break
        if line is None:
            if process.wait() != 0:
                found["crashes"] += 1
                _keep(asked, name, "crash", path, f"exit code {process.returncode}")
            break
        told = json.loads(line)
        if "starting" in told:
            phase = told["starting"]
            continue
        patience = SILENT_S
        if "input" in told:
            phase = f"input {told['input']}"
            path = Path(told["path"])
            found["inputs"] += 1
            continue
        for kind, is_so in (
            ("internal_errors", told["result"] == "internal error"),
            ("over_memory", told["over_memory"]),
            ("hangs", told["slow"]),
        ):
            if is_so:
                found[kind] += 1
                _keep(
                    asked, name, kind, path, " ".join(str(told.get(key, "")) for key in ("why", "at", "own"))
                )
    process.wait()


def _next_word(pid: int, lines: queue.Queue[str | None], patience: float) -> str | None:
    """The next line of a worker; None where it has ended, "" where it hangs."""
    with suppress(queue.Empty):
        # Nearly every word comes at once; asking the system what a process has worked costs more than most inputs.
        return lines.get(timeout=LOOKING_S)
    begin, worked = time.monotonic(), worked_s(pid)
    while worked_s(pid) - worked <= patience and time.monotonic() - begin <= WAITING_S:
        with suppress(queue.Empty):
            return lines.get(timeout=LOOKING_S)
    return ""


def _listen(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _keep(asked: argparse.Namespace, name: str, kind: str, path: Path | None, why: str) -> None:
    if not asked.json:
        print(f"{name} {kind}: {why}", flush=True)
    if asked.keep is not None and path is not None and path.exists():
        asked.keep.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in asked.keep.glob(f"{name}-{kind}-*"))
        (asked.keep / f"{name}-{kind}-{number}{path.suffix}").write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
