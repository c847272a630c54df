"""How fast and how small reading a log is, against `grep` on the same file and against a plain Python loop.

    python benchmarks/logs.py            500 MB and 2 GB
    python benchmarks/logs.py --quick    4 MB and 16 MB, within seconds
    python benchmarks/logs.py --every-carrier    every log in every carrier, nothing else: ten minutes

The logs are made by repeating verbose logs with renamed nodes: the real ones beside the checkout where they are, else
a log that is written here. Every figure is measured in one run on one machine; of each side the least of three tries
counts. The digest is the whole command, from starting Python to its last line; how long it takes on an empty file is
printed beside it. The plain loop reads only the first 24 MB, and its time is scaled to the file. The last line is JSON:
`digest_over_grep` (wall time of the digest over that of `grep -cE 'Running: |fusing|Fusing'`, larger file), `peak_mib`
(all processes together, larger file) and `peak_growth` (that over the smaller file's); `mb_per_cpu_second_slowest` (of
the real logs, each repeated with renamed nodes to 2 MB, the one that takes most CPU per byte; the time includes the
arranging of the grammar and is not disturbed by other programs); `carriers` and `carriers_equal` (carriers in which
logs were rewritten, and those of them that changed the digest of no log).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpus" / "verbose_log"
GREP = ("grep", "-cE", "Running: |fusing|Fusing")
EXPRESSIONS = (
    r"Running: (\w+) on (.+)",
    r"(\w+): Fusing (.+) with (.+)",
    r"fusing (.+) into (.+)",
    r"After (.+): (\d+)",
)
SIZES = {"full": (500, 2000), "quick": (4, 16)}
TRIES = 3

DIGEST = """
import sys
from pathlib import Path
from qdqtool.buildlog.split_reading import digests_of
from qdqtool.cli.log_words import brief_words, digest_words
if __name__ == "__main__":
    for run in digests_of(Path(sys.argv[1])):
        sys.stdout.write(digest_words(run) if run.number <= 8 else brief_words(run))
"""
"""What `qdqtool parse FILE` does."""
SHORTEST = 3_000
"""Bytes of a log that is worth timing."""
EVERY = 7
"""The share of the logs that each carrier gets."""
SAMPLE = 24_000_000
"""Bytes that the plain loop reads."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="smaller files, within a minute")
    arguments.add_argument(
        "--every-carrier", action="store_true", help="only rewrite every log in every carrier, and count"
    )
    asked = arguments.parse_args()
    if asked.every_carrier:
        print(json.dumps(every_carrier()))
        return
    sizes = SIZES["quick" if asked.quick else "full"]
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(Path(folder) / f"{size}.log", size) for size in sizes]
    small, large = results
    carriers, equal = carried_logs()
    last = {
        "digest_over_grep": round(large["digest"] / large["grep"], 2),
        "peak_mib": round(large["peak"], 1),
        "peak_growth": round(large["peak"] / small["peak"], 3),
        "mb_per_cpu_second_slowest": round(slowest(), 2),
        "carriers": carriers,
        "carriers_equal": equal,
    }
    print(json.dumps(last))


def measure(path: Path, size: int) -> dict[str, float]:
    lines = write_log(path, size * 1_000_000)
    program = path.with_suffix(".py")
    program.write_text(DIGEST)
    start = min(timed([sys.executable, str(program), os.devnull])[0] for _ in range(TRIES))
    grep = min(timed([*GREP, str(path)])[0] for _ in range(TRIES))
    tries = [timed([sys.executable, str(program), str(path)]) for _ in range(TRIES)]
    digest = min(seconds for seconds, _ in tries)
    peak = max(peak for _, peak in tries)
    plain = plain_loop(path)
    print(
        f"{path.stat().st_size / 1e6:.0f} MB, {lines:,} lines: grep {grep:.2f} s, digest {digest:.2f} s "
        f"({digest / grep:.1f} times grep, {1e9 * digest / lines:.0f} ns a line; an empty file {start:.2f} s), "
        f"peak {peak:.0f} MiB; a plain Python loop over four expressions {plain:.0f} s "
        f"(scaled from {min(SAMPLE, path.stat().st_size) / 1e6:.0f} MB)",
        flush=True,
    )
    path.unlink()
    return {"grep": grep, "digest": digest, "peak": peak}


def slowest() -> float:
    """Megabytes per second of CPU of the real log that is read most slowly."""
    sys.path.insert(0, str(ROOT))
    from qdqtool import buildlog

    speeds = []
    for name, text in real_logs():
        data = b"".join(rename(text, number) for number in range(1 + 2_000_000 // len(text)))
        begin = time.process_time()
        for _ in buildlog.digests(buildlog.TextSource(io.BytesIO(data))):
            pass
        speeds.append((len(data) / 1e6 / (time.process_time() - begin), name))
    for speed, name in sorted(speeds)[:5]:
        print(f"{speed:.1f} MB per CPU second: {name}", flush=True)
    return min(speeds)[0]


def carried_logs() -> tuple[int, int]:
    """Carriers, and those that changed the digest of no real log (each carrier gets every seventh, in turn)."""
    sys.path.insert(0, str(ROOT))
    from tests.buildlog import carried
    from tests.buildlog.test_carriers import said_alike

    logs = [(file, text.decode("utf-8", "surrogateescape")) for file, text in real_logs()]
    equal = 0
    for turn, name in enumerate(carried.NAMES):
        mine = logs[turn % EVERY :: EVERY]
        changed = sum(not said_alike(text, name, file) for file, text in mine)
        equal += not changed
        if changed:
            print(f"{changed} of {len(mine)} logs say something else in the carrier {name!r}", flush=True)
    return len(carried.NAMES), equal


def every_carrier() -> dict[str, int]:
    """Pairs of a real log and a carrier, those that cannot say the same, and those that do."""
    sys.path.insert(0, str(ROOT))
    from tests.buildlog import carried
    from tests.buildlog.test_carriers import is_ambiguous, said_alike

    counts = {
        "logs": len(real_logs()),
        "carriers": len(carried.NAMES) + len(carried.MORE),
        "pairs": 0,
        "ambiguous": 0,
        "equal": 0,
    }
    for file, content in real_logs():
        text = content.decode("utf-8", "surrogateescape")
        for name in (*carried.NAMES, *carried.MORE):
            ambiguous = is_ambiguous(file, name)
            counts["pairs"] += 1
            counts["ambiguous"] += ambiguous
            equal = not ambiguous and said_alike(text, name, file)
            counts["equal"] += equal
            if not (equal or ambiguous):
                print(f"{file} says something else in the carrier {name!r}", flush=True)
    return counts


@lru_cache(maxsize=1)
def real_logs() -> tuple[tuple[str, bytes], ...]:
    """Name and text of the real logs beside the checkout; of the log that is written here where there are none."""
    folders = [CORPUS, CORPUS.parent / "trtexec_log", CORPUS.parent / "rtx"]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    texts = []
    for file in files:
        if ".log" in file.name or ".txt" in file.name:
            text = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
            if len(text) >= SHORTEST:
                texts.append((file.name, text.rstrip(b"\n") + b"\n"))
    return tuple(texts) or tuple((f"log {number}", text) for number, text in enumerate(material()))


def write_log(path: Path, size: int) -> int:
    """Repeat the material with renamed nodes until the file has `size` bytes; how many lines it has."""
    lines = 0
    with path.open("wb") as out:
        for number, text in enumerate(itertools.cycle(material())):
            if out.tell() >= size:
                break
            lines += text.count(b"\n")
            out.write(rename(text, number))
    return lines


@lru_cache(maxsize=1)
def material() -> tuple[bytes, ...]:
    """Verbose logs of whole builds; one written here where the real ones are not."""
    files = sorted(CORPUS.iterdir()) if CORPUS.is_dir() else []
    texts = [
        lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes() for path in files
    ]
    builds = tuple(text.rstrip(b"\n") + b"\n" for text in texts if text.count(b"Timing Runner") > 200)
    if builds:
        return builds
    sys.path.insert(0, str(ROOT))
    from tests.buildlog import small

    return ((small.trtexec() * 100).encode(),)


def rename(text: bytes, number: int) -> bytes:
    """The same log of another model: every numbered node gets another number."""
    for word in (b"Conv", b"QuantizeLinear", b"MatMul", b"Relu", b"Add"):
        text = text.replace(word + b"_", b"%s_%d" % (word, number % 1000 + 1))
    return text


def timed(command: list[str] | tuple[str, ...]) -> tuple[float, float]:
    """Wall seconds of a command, and the peak of its memory in MiB, children added."""
    begin = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as child:
        peak = 0.0
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        while child.poll() is None:
            child.stdout.read()
            peak = max(peak, family_mib(child.pid))
            time.sleep(0.002)
        seconds = time.perf_counter() - begin
        child.stdout.read()
    if child.returncode:
        sys.exit(f"{command[0]} failed with {child.returncode}")
    return seconds, peak


def family_mib(pid: int) -> float:
    """Resident memory of a process and its children in MiB; 0 where /proc does not tell."""
    total = 0.0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    total += int(found.group(1)) / 1024 if found else 0.0
    return total + sum(family_mib(int(child)) for child in children)


def plain_loop(path: Path) -> float:
    """Seconds of the loop everybody writes first, four expressions searched in every line, for the whole file."""
    expressions = [re.compile(expression) for expression in EXPRESSIONS]
    read = 0
    begin = time.perf_counter()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for expression in expressions:
                if expression.search(line):
                    break
            read += len(line)
            if read > SAMPLE:
                break
    return (time.perf_counter() - begin) * path.stat().st_size / read


if __name__ == "__main__":
    main()
