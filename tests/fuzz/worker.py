"""Feeds one reader with damaged files, in a child that is forked for some hundreds of them; `benchmarks/fuzz.py` counts.

The parent imports everything once and never reads an input. A child is a copy of it that takes milliseconds to make: it
damages the files with the numbers it was given, reads each, and says what went wrong; which one it is at stands in
memory that both share. What kills it or makes it silent costs that one input, and the next child goes on behind it.

An input is named by the reader, the seed and its number, whatever was read before it. One that went wrong is read
again, alone in a child of its own, so that a fault which earlier inputs brought about is told from one that it has by itself.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from qdqtool.errors import Bug, QdqError
from tests.fuzz.readers import READERS
from tests.processes import is_asleep, worked_s

MOST_BYTES = 1 << 30
"""Growth of resident memory from which an input counts as too large."""
ADDRESSES = 6 << 30
"""Bytes of address space: a reader that takes more is stopped before it takes the machine with it."""
SLOW_S = 10.0
"""Seconds of processor time from which an input counts as a hang."""
SILENT_S = 30.0
"""Processor seconds of a child and its own children at one input after which it is ended."""
ASLEEP = 60
"""Looks, one second apart, at which nothing of a child wants to work: it waits for what never comes."""
LOOKING_S = 1.0
"""Seconds between two looks at a child."""
BATCH = 500
"""Inputs of one child: whatever they leave in its memory is forgotten with it."""
_FORGET = Path("/proc/self/clear_refs")
AGAIN = 10
"""Inputs that went wrong for the same reason which are read again."""
FINDINGS = "findings.jsonl"
"""Where a child writes what went wrong, in its folder."""


@dataclass(frozen=True)
class Finding:
    """What went wrong with one input.

    Attributes:
        number: which one.
        kind: crashes, internal_errors, over_memory or hangs.
        why: the error and where it came from, or how the child ended.
        alone: whether it goes wrong as the only input of a child, too; not tried again where others did for the same reason.
    """

    number: int
    kind: str
    why: str
    alone: bool | None = None


class Fuzzer:
    """Reads inputs of one reader by their numbers.

    Args:
        name: of the reader.
        files: good files by name.
        seed: what the damage is drawn from.

    Attributes:
        inputs: how many were begun.
    """

    def __init__(self, name: str, files: Mapping[str, bytes], seed: int = 0) -> None:
        self.name = name
        self.inputs = 0
        self._files = sorted(files.items())
        self._seed = seed
        self._reasons = Counter[tuple[str, str]]()
        self._at = memoryview(mmap.mmap(-1, 8)).cast("q")

    def content(self, number: int) -> tuple[str, bytes]:
        """The ending of an input's name, and the damaged file."""
        dice = random.Random(f"{self.name} {self._seed} {number}")
        name, content = dice.choice(self._files)
        return Path(name).suffix, READERS[self.name].damage(content, dice)

    def findings(self, numbers: range, until: float = float("inf")) -> Iterator[Finding]:
        """Read inputs; `until` is the time of `time.monotonic` from which no other is begun."""
        at = numbers.start
        while at < numbers.stop and time.monotonic() < until:
            after, batch = self._child(range(at, min(numbers.stop, at + BATCH)), until)
            self.inputs += after - at
            at = after
            for found in batch:
                self._reasons[found.kind, found.why] += 1
                if self._reasons[found.kind, found.why] > AGAIN:
                    yield found
                    continue
                _, again = self._child(range(found.number, found.number + 1), float("inf"))
                yield replace(found, alone=found.kind in {other.kind for other in again})

    def _child(self, numbers: range, until: float) -> tuple[int, list[Finding]]:
        """Read inputs in a child; the number behind the last one that was begun, and what went wrong."""
        self._at[0] = numbers.start - 1
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                self._work(numbers, until, folder)
            os.close(writing)
            try:
                why = self._watch(child, reading)
            finally:
                os.close(reading)
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            said = folder / FINDINGS
            lines = said.read_text("utf-8").splitlines() if said.exists() else []
        batch = [Finding(**json.loads(line)) for line in lines]
        if why:
            kind = "crashes" if why.startswith("exit") else "hangs"
            batch.append(Finding(number=self._at[0], kind=kind, why=why))
        return self._at[0] + 1, batch

    def _watch(self, child: int, pipe: int) -> str:
        """Wait until a child has ended, or end it; what was wrong with that."""
        at, asleep, worked = self._at[0], 0, worked_s(child)
        try:
            while True:
                # The other end closes with the child, or stays open in a process that it left behind.
                select.select([pipe], [], [], LOOKING_S)
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return f"exit code {code}" if code else ""
                if self._at[0] != at:
                    at, asleep, worked = self._at[0], 0, worked_s(child)
                    continue
                asleep = asleep + 1 if is_asleep(child) else 0
                if asleep >= ASLEEP:
                    why = f"waits for {asleep * LOOKING_S:g} s"
                    break
                if worked_s(child) - worked > SILENT_S:
                    why = f"works for {SILENT_S:g} s"
                    break
        except BaseException:
            _end(child)
            raise
        _end(child)
        return why

    def _work(self, numbers: range, until: float, folder: Path) -> NoReturn:
        """Be the child."""
        with (folder / FINDINGS).open("a", encoding="utf-8") as said:
            try:
                parent = os.getppid()
                room = _confined(folder)
                for number in numbers:
                    if time.monotonic() > until or os.getppid() != parent:
                        break
                    self._at[0] = number
                    for kind, why in wrong(self._read(number, room)):
                        said.write(json.dumps({"number": number, "kind": kind, "why": why}) + "\n")
                        said.flush()
            except BaseException:  # noqa: BLE001 -- of the fuzzer itself: the parent tells it, and nothing runs twice
                why = "the fuzzer itself: " + traceback.format_exc()
                said.write(json.dumps({"number": self._at[0], "kind": "crashes", "why": why}) + "\n")
                said.flush()
            finally:
                os._exit(0)

    def _read(self, number: int, room: Path) -> dict[str, Any]:
        """Attempt an input in an empty folder, and leave it empty."""
        suffix, content = self.content(number)
        path = room / f"input{suffix}"
        path.write_bytes(content)
        try:
            return attempt(self.name, path)
        finally:
            for left in room.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _confined(folder: Path) -> Path:
    """Limit this process, let it say nothing, let everything it starts end with it; its folder for files."""
    os.setpgid(0, 0)
    for handle in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    room = folder / "room"
    room.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return room


def _end(child: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def wrong(tried: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with an attempt: kinds, and why."""
    why = " ".join(str(tried.get(key, "")) for key in ("why", "at", "own"))
    if tried["result"] == "internal error":
        yield "internal_errors", why
    if tried["over_memory"]:
        yield "over_memory", f"{tried['took'] >> 20} MiB"
    if tried["slow"]:
        yield "hangs", f"{tried['seconds']:.1f} s of the processor"


def attempt(name: str, path: Path) -> dict[str, Any]:
    """What became of one input: ok, refused, or an internal error with its last lines; and what it took."""
    before = _peak_since_now()
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
    took = _peak() - before
    return {
        **found,
        "seconds": seconds,
        "slow": seconds > SLOW_S,
        "took": took,
        "over_memory": took > MOST_BYTES,
    }


def _peak_since_now() -> int:
    """Make the system forget the peak of resident memory; what is resident now."""
    with suppress(OSError):
        _FORGET.write_text("5", "ascii")
    return _peak()


def _peak() -> int:
    """The most bytes that were resident at a time since the system was made to forget it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
