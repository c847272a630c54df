"""Mutated logs: nothing that a file can hold may raise, hang, or take unbounded memory.

    python -m tests.fuzz.logs --inputs 1000000 --seed 1

Pieces of real logs (of the small one where the real ones are absent) are cut, spliced, repeated, bit-flipped and
peppered with the words that parsers stumble over, and wrapped as loggers and collectors wrap them; each is read,
digested, put in words, and now and then dumped. An input is slow when its time per byte is more than ten times the
median, measured again alone.
"""

from __future__ import annotations

import argparse
import io
import lzma
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from qdqtool import buildlog
from qdqtool.buildlog.diff import compare
from qdqtool.cli.log_words import diff_words, digest_words
from qdqtool.core.buildlog import BuildLog
from qdqtool.core.kinds import LOG
from tests.buildlog import carried, small
from tests.fuzz import mutations
from tests.shared import SHARED

SLOW = 10.0
"""Times the median per byte from which an input counts as slow."""
FLOOR = 0.02
"""Seconds below which no input counts as slow: a busy machine stumbles by that much."""

TOKENS = (
    b"&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec 'unbalanced",
    b"&&&& PASSED TensorRT.trtexec",
    b"[01/10/2024-21:52:52] [V] [TRT] ",
    b"[99/99/9999-99:99:99] [V] [TRT] ",
    b"[V] ",
    b"[E] [TRT] ",
    b"=== Build Options ===",
    b"=== Performance summary ===",
    b"=== Profile (10 iterations ) ===",
    b"Layer   Time (ms)   Avg. Time (ms)   Time %",
    b"Engine Layer Information:",
    b"Layers:",
    b"Bindings:",
    b"I/O Tensors:",
    b"GRAPH NODES",
    b"Output Tensors:",
    b"Original: 99999999999999999999999999 layers",
    b"Original: 5 layers",
    b"Engine generation completed in nan seconds.",
    b"Engine generation completed in 1e999 seconds.",
    b"Running: QDQToCopy on ",
    b"Fusing A with B with C with D",
    b"X: fusing ( and ) into ",
    b"Layer(): , Tactic: , -> ",
    b"Name: , LayerType: , Inputs: [ { Name: , Dimensions: [",
    b"Parsing node:  []",
    b"] inputs: [",
    b"_clone_",
    b"\x00",
    b"\r",
    b"\r\n",
    b"\x1b[31m",
    b"\x1b]0;",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xfd7zXZ\x00",
    b"\x1f\x8b\x08",
    b"BZh9",
    b"\xe2\x80\xa8",
    b"[" * 300,
    b"(" * 300,
    b"{ Name: " * 60,
    b" with " * 60,
    b" + " * 90,
    b"PWN(" * 90,
    b"0x" + b"f" * 200,
    b"-" * 400,
    b": " * 120,
    b"1 " * 150,
    b"a=b " * 90,
    b"\n" * 50,
    b" " * 500,
)


def seeds(limit: int = 40) -> list[bytes]:
    """Whole logs to cut pieces from."""
    found: list[bytes] = [small.trtexec(8201).encode(), small.trtexec(101401).encode()]
    for folder in ("verbose_log", "trtexec_log", "rtx"):
        path = SHARED / "corpus" / folder
        files = sorted(path.iterdir()) if path.is_dir() else []
        for file in files[: limit if folder != "rtx" else 6]:
            data = file.read_bytes()
            found.append(lzma.decompress(data) if file.suffix == ".xz" else data)
    return found


def mutants(logs: list[bytes], seed: int) -> Iterator[bytes]:
    """Endless mutated pieces, the same for the same seed."""
    dice = random.Random(seed)
    while True:
        data = _piece(logs, dice)
        for _ in range(dice.randint(0, 6)):
            data = dice.choice(_MUTATIONS)(data, logs, dice)
        yield data[: 1 << 16]


def survive(data: bytes, *, dump: bool = False) -> None:
    """Do with a log everything that commands do; whatever is wrong raises."""
    source = buildlog.TextSource(io.BytesIO(data))
    pairs = [(run.digest(), run.value()) for run in buildlog.open_runs(source)]
    for digest, value in pairs:
        words = digest_words(digest)
        assert all(char.isprintable() or char == "\n" for char in words), (
            "control characters reach the terminal"
        )
        assert value.lines >= value.blank + value.foreign + value.unread >= 0, "lines are counted twice"
    if dump:
        log = BuildLog(runs=tuple(value for _, value in pairs), notes=tuple(source.notes))
        LOG.dump(log)
        diff_words(compare(log.runs[0], log.runs[-1]))


def _piece(logs: list[bytes], dice: random.Random) -> bytes:
    log = dice.choice(logs)
    size = dice.choice((200, 1000, 3000, 6000))
    at = dice.randrange(max(1, len(log) - size))
    return log[at : at + size]


def _flip(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 8)):
        if changed:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _insert(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.choice(TOKENS) + data[at:]


def _insert_line(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(TOKENS))
    return b"\n".join(lines)


def _delete(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[at + dice.randint(1, 200) :]


def _repeat(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    piece = data[at : at + dice.randint(1, 120)]
    return data[:at] + piece * dice.randint(2, 40) + data[at:]


def _splice(data: bytes, logs: list[bytes], dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + _piece(logs, dice)


def _shuffle(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    lines = data.split(b"\n")
    dice.shuffle(lines)
    return b"\n".join(lines)


def _carry(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    """Out of another program's logger, a container, a table or a document; what comes after damages that."""
    name = dice.choice(_CARRIERS)
    text = data.decode("utf-8", "surrogateescape")
    if name in carried.EXPORTS:
        text = carried.EXPORTS[name](text)[0]
    elif name in carried.COPIED:
        text = carried.contained(text, carried.COPIED[name])
    else:
        text = carried.rewritten(text, name)
    return text.encode("utf-8", "surrogateescape")


def _damage_json(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    """Other values inside a document, or inside some lines of JSON."""
    whole = mutations.damaged_json(data, dice)
    if data[:1] not in b"{[" or dice.randrange(2):
        return whole
    lines = data.split(b"\n")
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(lines))
        lines[at] = mutations.damaged_json(lines[at], dice)
    return b"\n".join(lines)


def _turn(data: bytes, _logs: list[bytes], _dice: random.Random) -> bytes:
    return b"\n".join(reversed(data.split(b"\n")))


def _join(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    return data.replace(b"\n", b"", dice.randint(1, 5))


def _encode(data: bytes, _logs: list[bytes], dice: random.Random) -> bytes:
    return data.decode("latin-1").encode(dice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8")))


_MUTATIONS: tuple[Callable[[bytes, list[bytes], random.Random], bytes], ...] = (
    _flip,
    _insert,
    _insert_line,
    _delete,
    _repeat,
    _splice,
    _shuffle,
    _join,
    _encode,
    _carry,
    _damage_json,
    _turn,
)
_CARRIERS = (*carried.NAMES, *carried.MORE, *carried.COPIED, *carried.EXPORTS)


def hunt(inputs: int, seed: int, keep: Path) -> int:
    """Read so many mutants; keep those that raise or are slow, and return how many that are."""
    logs = seeds()
    rates: list[float] = []
    caught = 0
    for number, data in enumerate(mutants(logs, seed)):
        if number >= inputs:
            break
        try:
            seconds = _timed(data, dump=number % 50 == 0)
        except Exception as error:  # noqa: BLE001 -- a fuzzer reports whatever is raised
            caught += 1
            _keep(keep, f"crash-{seed}-{number}", data)
            print(f"input {number}: {type(error).__name__}: {error}", flush=True)
            continue
        if len(rates) < 5000:
            rates.append(seconds / max(len(data), 500))
        limit = max(SLOW * statistics.median(rates[-501:]) * max(len(data), 500), FLOOR)
        if seconds > limit and min(_timed(data, dump=False) for _ in range(5)) > limit:
            caught += 1
            _keep(keep, f"slow-{seed}-{number}", data)
            print(f"input {number}: {seconds:.3f} s for {len(data)} bytes", flush=True)
        if number % 20_000 == 0:
            print(f"{number} inputs, {caught} caught", flush=True)
    return caught


def _timed(data: bytes, *, dump: bool) -> float:
    begin = time.process_time()
    survive(data, dump=dump)
    return time.process_time() - begin


def _keep(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.log").write_bytes(data)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--inputs", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument(
        "--keep", type=Path, default=Path("fuzz-findings"), help="folder for what was caught"
    )
    wanted = arguments.parse_args()
    caught = hunt(wanted.inputs, wanted.seed, wanted.keep)
    print(f"{wanted.inputs} inputs, {caught} caught")
    sys.exit(1 if caught else 0)


if __name__ == "__main__":
    main()
