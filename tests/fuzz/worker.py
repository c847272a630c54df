"""Feeds one reader with damaged files for some seconds; `benchmarks/fuzz.py` starts it and counts.

    python -m tests.fuzz.worker onnx --seconds 60 --seed 1 --folder /tmp/fuzz

A line of JSON before each input names it, so that a reader knows which one a crash or a hang belongs to; the
input itself lies in the folder for a while. Before the first one, a line says that the imports are done, and a line
that the good files are made: on a busy machine both take minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from qdqtool.errors import Bug, QdqError
from tests.fuzz.readers import READERS

MOST_BYTES = 1 << 30
"""Growth of resident memory from which an input counts as too large."""
ADDRESSES = 6 << 30
"""Bytes of address space: a reader that takes more is stopped before it takes the machine with it."""
KEPT = 64
"""Inputs that lie in the folder at a time: a reader that copies one away is faster than this."""
SLOW_S = 10.0
"""Seconds of processor time from which an input counts as a hang."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--inputs", type=int, default=1 << 60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    reader = READERS[asked.reader]
    answers.write(json.dumps({"starting": "good files"}) + "\n")
    seeds = sorted(reader.seeds().items())
    answers.write(json.dumps({"starting": f"{len(seeds)} good files"}) + "\n")
    end = time.monotonic() + asked.seconds
    for number in range(asked.inputs):
        if time.monotonic() > end:
            return
        dice = random.Random(f"{asked.reader} {asked.seed} {number}")
        name, content = dice.choice(seeds)
        path = asked.folder / f"input{number % KEPT}{Path(name).suffix}"
        path.write_bytes(reader.damage(content, dice))
        answers.write(json.dumps({"input": number, "path": str(path)}) + "\n")
        answers.write(json.dumps(attempt(asked.reader, path)) + "\n")


def attempt(name: str, path: Path) -> dict[str, Any]:
    """What became of one input: ok, refused, or an internal error with its last lines; and what it took."""
    before = _reset_peak()
    start = time.process_time()
    found: dict[str, Any] = {"result": "ok"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[name].attempt(path)
    except Bug as error:
        found = {"result": "internal error", "why": f"Bug: {error}"}
    except QdqError as error:
        found = (
            {"result": "refused"}
            if error.fix and error.what
            else {"result": "internal error", "why": "no fix"}
        )
    except Exception as error:  # noqa: BLE001 -- this is what we are looking for
        last = traceback.extract_tb(error.__traceback__)[-1]
        found = {"result": "internal error", "why": f"{type(error).__name__}: {error}"[:300]}
        found["at"] = f"{Path(last.filename).name}:{last.lineno}"
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if "qdqtool" in frame.filename]
        found["own"] = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(own[-4:]))
    seconds = time.process_time() - start
    return {**found, "slow": seconds > SLOW_S, "over_memory": _peak() - before > MOST_BYTES}


def _reset_peak() -> int:
    """Make the system forget the peak of resident memory; what is resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    sys.exit(main())
