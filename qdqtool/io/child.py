"""Communication with child processes: `run` and `ask` are the parent's side, `meet` is the child's side.

The program runs in a separate process group, so Ctrl-C reaches only us and we end the whole group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from qdqtool.platform import kill_group, no_core_dump, own_group

# --- parent ----------------------------------------------------------------------------------------------------------
# The worker's side of the connection to its parent process; `qdqtool.io.child` is the other side.
#
# Standard input carries requests, standard output answers. Native code may print, but must not print into the answers:
# descriptor 1 is redirected to standard error before a library is loaded.


Tell = Callable[[dict[str, Any]], None]


def pipes(*, buffering: int = -1) -> tuple[IO[bytes], IO[bytes]]:
    """Return the streams of a child process for requests and answers. After this call, a crash writes no core file."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    no_core_dump()
    return os.fdopen(0, "rb", buffering=buffering, closefd=False), answers


def meet() -> tuple[dict[str, Any], Tell]:
    """Return the request of the parent process, and a function that sends events to it, all as lines of JSON.

    When the parent closes standard input, or ends, this process ends too.
    """
    # Unbuffered: a daemon thread that waits in a buffered reader would block the end of the interpreter.
    requests, events = pipes(buffering=0)
    request: dict[str, Any] = json.loads(requests.readline())
    threading.Thread(target=_die_with_parent, args=(requests.read,), daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event).encode() + b"\n")
        events.flush()

    return request, tell


def _die_with_parent(read: Callable[[int], bytes]) -> None:
    while read(1 << 10):
        pass
    os._exit(1)


# --- child -----------------------------------------------------------------------------------------------------------


_LONGEST_LINE = 1 << 20
"""Longest line in bytes; a longer line is passed on in pieces."""
_LAST_WORDS_S = 2.0
"""Seconds for which reading continues after the program ended, if one of its children keeps the pipe open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a program ended: its exit code, whether it timed out, and its duration.

    Attributes:
        code: exit code; negative is the number of the signal that killed it.
        timed_out: whether we ended it because its time was up.
        seconds: wall-clock time.
    """

    code: int
    timed_out: bool
    seconds: float


def run(
    arguments: Sequence[str],
    *,
    on_line: Callable[[bytes], object],
    timeout_s: float,
    first_words: str = "",
    errors: Path | None = None,
) -> Ended:
    """Run a program to its end, or kill it with its children. Each line of its output goes to `on_line`.

    The program's standard error is appended to the file `errors`, in whose folder it then runs; without `errors`, it
    is mixed into standard output. `first_words` go to its standard input, which stays open until the program ends, so
    that the program can notice if this process ends. An interruption (Ctrl-C, an error in `on_line`) ends the program
    and its children.

    Raises:
        OSError: the program cannot be started.
    """
    start = time.monotonic()
    process = _start_process(arguments, errors)
    timed_out = threading.Event()
    silent = threading.Event()
    guard = threading.Thread(target=_guard, args=(process, silent), daemon=True)
    limit = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), _time_is_up, (process, timed_out))
    limit.daemon = True
    try:
        guard.start()
        limit.start()
        _write_line(process.stdin, first_words)
        _listen(process.stdout, on_line)
        silent.set()
        guard.join()
    finally:
        limit.cancel()
        _end(process)
    return Ended(code=process.returncode, timed_out=timed_out.is_set(), seconds=time.monotonic() - start)


def ask(
    module: str,
    request: Mapping[str, Any],
    *,
    on_event: Mapping[str, Callable[[dict[str, Any]], object]],
    timeout_s: float,
    errors: Path,
) -> tuple[dict[str, Any], Ended]:
    """Run a module of this package that serves one request with `meet`. Return its verdict and how it ended.

    The verdict is the last event without a function in `on_event`, by the name of the event; {"event": "none"}
    without such an event.

    Raises:
        OSError: the process cannot be started.
    """
    verdict: dict[str, Any] = {"event": "none"}

    def hear(line: bytes) -> None:
        nonlocal verdict
        event = json.loads(line)
        heard = on_event.get(event["event"])
        if heard is None:
            verdict = event
        else:
            heard(event)

    ended = run(
        (sys.executable, "-m", module),
        first_words=json.dumps(request) + "\n",
        errors=errors,
        on_line=hear,
        timeout_s=timeout_s,
    )
    return verdict, ended


@contextmanager
def conversation(arguments: Sequence[str], errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with open pipes. At the end of the block, the program and its children are killed.

    The program's standard error is appended to the file `errors`, in whose folder it runs.

    Raises:
        OSError: the program cannot be started.
    """
    process = _start_process(arguments, errors)
    try:
        yield process
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()


def _start_process(arguments: Sequence[str], errors: Path | None) -> subprocess.Popen[bytes]:
    with ExitStack() as files:
        return subprocess.Popen(  # noqa: S603 -- running a program is what this is for
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=files.enter_context(errors.open("ab")) if errors else subprocess.STDOUT,
            cwd=errors.parent if errors else None,
            env={**os.environ, "PYTHONPATH": _import_path()},
            **own_group(),
        )


def _import_path() -> str:
    """Return the PYTHONPATH with which a child imports this copy of the package."""
    here = str(Path(__file__).parent.parent.parent)
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


def _guard(process: subprocess.Popen[bytes], silent: threading.Event) -> None:
    """Kill the process group if it still holds the pipe open after its leader ended."""
    process.wait()  # with a timeout it would poll every 50 ms, a tenth of the time of a small build
    silent.wait(_LAST_WORDS_S)
    kill_group(process)


def _time_is_up(process: subprocess.Popen[bytes], timed_out: threading.Event) -> None:
    timed_out.set()
    kill_group(process)


def _write_line(stdin: IO[bytes] | None, words: str) -> None:
    assert stdin is not None
    try:
        stdin.write(words.encode())
        stdin.flush()
    except BrokenPipeError:
        return  # it has already ended; its exit code shows why


def _listen(stdout: IO[bytes] | None, on_line: Callable[[bytes], object]) -> None:
    assert stdout is not None
    with stdout:
        while line := stdout.readline(_LONGEST_LINE):
            on_line(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_group(process)
    process.wait()
    if process.stdin is not None:
        try:
            process.stdin.close()
        except BrokenPipeError:
            return  # the child ended before it had read everything
