"""Feeds every reader with damaged files and counts crashes, internal errors, memory above 1 GiB and hangs.

    python benchmarks/fuzz.py --seconds 60 --json
    python benchmarks/fuzz.py --readers onnx,caches --inputs 100000 --seed 7 --keep crashers
    python benchmarks/fuzz.py --readers caches --seed 7 --first 1234 --inputs 1

`--seconds` and `--inputs` are for each reader. Files are damaged inside their structure (protobuf fields, JSON values,
members of archives, headers of arrays), see tests/fuzz: the cheap readers take a thousand of them in a second of the
processor. Inputs are read in child processes whose address space is limited; one that kills its child, or works on for
half a minute of processor time, or waits for a minute, is counted and kept under its reader, kind, seed and number, which
make it again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)
os.environ["OMP_NUM_THREADS"] = "1"

from tests.fuzz.readers import READERS  # noqa: E402
from tests.fuzz.worker import Finding, Fuzzer  # noqa: E402

KINDS = ("crashes", "internal_errors", "over_memory", "hangs")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="for each reader; 60 where no --inputs are given")
    parser.add_argument("--inputs", type=int, help="for each reader")
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that went wrong")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--quick", action="store_true", help="20 inputs for each reader")
    asked = parser.parse_args()
    if asked.quick:
        asked.inputs = 20
    if asked.seconds is None and asked.inputs is None:
        asked.seconds = 60.0
    names = asked.readers.split(",")
    files = good_files(names)
    by_reader = {}
    for name in names:
        by_reader[name] = fuzz(Fuzzer(name, files[name], asked.seed), asked)
        if not asked.json:
            print(name, by_reader[name], flush=True)
    keys = ("inputs", *KINDS)
    total = {key: sum(counts[key] for counts in by_reader.values()) for key in keys}
    print(json.dumps({**total, "by_reader": by_reader}))
    return 1 if any(total[key] for key in KINDS) else 0


def good_files(names: Iterable[str]) -> dict[str, Mapping[str, bytes]]:
    """What is damaged, by reader; made in a process of its own, because a process with threads cannot be forked safely."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), initializer=_silent) as apart:
        return {name: apart.submit(_seeds, name).result() for name in names}


def _silent() -> None:
    logging.disable(logging.CRITICAL)
    for handle in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), handle)


def _seeds(name: str) -> Mapping[str, bytes]:
    return READERS[name].seeds()


def fuzz(fuzzer: Fuzzer, asked: argparse.Namespace) -> dict[str, int]:
    """Inputs of one reader and what went wrong with them, until the time is up or the last one read."""
    end = float("inf") if asked.seconds is None else time.monotonic() + asked.seconds
    count = 1 << 60 if asked.inputs is None else asked.inputs
    counts = Counter[str]()
    for found in fuzzer.findings(range(asked.first, asked.first + count), end):
        counts[found.kind] += 1
        if found.alone is not None:
            keep(fuzzer, found, asked)
    return {"inputs": fuzzer.inputs, **{kind: counts[kind] for kind in KINDS}}


def keep(fuzzer: Fuzzer, found: Finding, asked: argparse.Namespace) -> None:
    """Print a finding and write its input, and why beside it, where these were asked for."""
    suffix, content = fuzzer.content(found.number)
    name = f"{fuzzer.name}-{found.kind}-{asked.seed}-{found.number}"
    when = "" if found.alone else " (not when it is read alone)"
    if not asked.json:
        print(f"{name}{suffix}{when}: {found.why}", flush=True)
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
        (asked.keep / f"{name}{suffix}").write_bytes(content)
        with (asked.keep / "why.txt").open("a", encoding="utf-8") as why:
            why.write(f"{name}{suffix}{when}: {found.why}\n")


if __name__ == "__main__":
    sys.exit(main())
