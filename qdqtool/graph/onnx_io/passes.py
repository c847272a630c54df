"""Runs onnx's native passes in a child process with a limit of memory and of processor time.

A model of a hundred bytes can make shape inference request terabytes. It computes a Range of constants before a Cast
value by value, doubles a shape at each Concat with itself, and gives a ConstantOfShape as many dimensions as its
input has elements. Such a pass ends in `std::bad_alloc`, in the kernel's out-of-memory killer or in a segmentation
fault, and none of these can be caught in the process that they hit. So the passes run where they can be ended.

One child serves all requests of a process, so that its start, while the parent reads the file, is paid once.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import qdqtool
from qdqtool.core.wording import Command
from qdqtool.errors import SystemFault
from qdqtool.io.files import budget
from qdqtool.platform import own_group, signal_number

if TYPE_CHECKING:
    import onnx

_START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from qdqtool.graph.onnx_io.passes_worker import main; main()"
)
"""Start code of the child. It sets the search path before any import: the current directory may hold a planted module."""
# Limits for an untrusted file beyond its own size: bytes, and seconds of processor time.
_MEMORY: Final = 512 << 20
_MEMORY_PER_BYTE: Final = 32
"""Additional bytes that a pass may take per byte of its model; real models take less than a tenth."""
# Processor time; every MiB of the file adds more.
_SECONDS: Final = 8
_SECONDS_PER_MIB: Final = 20
"""Additional processor seconds that a pass may take per MiB of its model, without heavy weights."""
_PATIENCE: Final = 10
"""Wall-clock time per processor time, for machines that are busy or cannot limit processor time."""
_OWN_CODES: Final = 255
"""Largest exit code that a process sets itself; Windows uses larger ones for crashes."""
_TIME_IS_UP: Final = signal_number("SIGXCPU")
"""Signal that ends the child if the system limits processor time; None if only the clock can be checked."""
_KILLED: Final = signal_number("SIGKILL")


class PassRefused(Exception):  # noqa: N818 -- a verdict of onnx, which callers turn into their own error
    """Raised if an onnx pass rejects the model; the message is onnx's."""


class PassExceeded(Exception):  # noqa: N818 -- the same
    """Raised if an onnx pass was ended: it took too much memory or time, or crashed."""


class _Worker:
    """A child process that runs onnx passes, one after another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._gave_up = False
        home = str(Path(qdqtool.__file__).resolve().parent.parent)
        search = list(dict.fromkeys((home, *filter(None, sys.path))))
        self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and our own module
            [sys.executable, "-c", _START, *search],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            **own_group(),
        )

    def ask(self, name: str, content: bytes, arguments: dict[str, Any]) -> bytes:
        """Run the pass `name` in the child process and return its answer.

        Raises:
            PassRefused: the pass does not accept the model.
            PassExceeded: the pass was ended; this worker serves no more.
            SystemFault: the child ended unexpectedly.
        """
        seconds = _SECONDS + _SECONDS_PER_MIB * len(content) // (1 << 20)
        limits = {"memory": min(_MEMORY + _MEMORY_PER_BYTE * len(content), budget()), "seconds": seconds}
        head = {"pass": name, "size": len(content), "arguments": arguments, **limits}
        timer = threading.Timer(_PATIENCE * seconds, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            answer, body = self._talk(json.dumps(head).encode() + b"\n" + content)
        finally:
            timer.cancel()
        if answer.get("refused"):
            raise PassRefused(answer["refused"])
        if answer.get("exceeded"):
            raise PassExceeded(answer["exceeded"])
        return body

    def _give_up(self) -> None:
        self._gave_up = True
        self._process.kill()

    def end(self) -> None:
        """End the child process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was not sent yet is not wanted any more

    def _talk(self, question: bytes) -> tuple[dict[str, Any], bytes]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(question)
            stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        line = stdout.readline()
        if not line:
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        return answer, _exactly(stdout, answer["size"])

    def _death(self) -> Exception:
        code = self._process.wait()
        if (_TIME_IS_UP is None and self._gave_up) or code == -(_TIME_IS_UP or 0) != 0:
            return PassExceeded("exceeded the time limit for a model of its size")
        if self._gave_up or code == -(_KILLED or 0) != 0:
            # Neither is the model's doing: its own time was not up.
            end = (
                "got too little processor time" if self._gave_up else "was killed, perhaps for lack of memory"
            )
            return SystemFault(
                f"the process that checks models {end}; the model was not checked",
                fix="run the command again when the machine is less busy",
                where=sys.executable,
            )
        if code < 0 or code > _OWN_CODES:
            return PassExceeded(f"crashed (exit code {code})")
        # Only a signal is native code's answer to a model: this is a library that is missing, or memory for none.
        return SystemFault(
            f"the process that checks models ended unexpectedly (exit code {code}); the model was not checked",
            fix=f"run the command again; {Command('doctor')} checks the installation",
            where=sys.executable,
        )


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise PassExceeded("crashed in the middle of its answer")
    return content


_lock = threading.Lock()
_worker: _Worker | None = None


def warm_up() -> None:
    """Start the child process early, so that it is ready for the first onnx pass."""
    with _lock:
        _ready()


def run_pass(name: str, proto: onnx.ModelProto, **arguments: Any) -> bytes:
    """Return the result of the pass `name` of `passes_worker` for a model without its heavy weights.

    Raises:
        PassRefused: the pass does not accept the model.
        PassExceeded: it took more memory or time than a model of its size may take, or crashed.
        SystemFault: the child could not run.
    """
    content = proto.SerializeToString()
    with _lock:
        try:
            return _ready().ask(name, content, arguments)
        except PassRefused:
            raise
        except BaseException:  # an interrupt too: its child is gone, or still has the answer to give
            _end()
            raise


def _ready() -> _Worker:
    global _worker  # noqa: PLW0603 -- one child per process, and none of a parent that forked
    if _worker is None or _worker.owner != os.getpid():
        _worker = _Worker()
    return _worker


def _end() -> None:
    global _worker  # noqa: PLW0603 -- the same
    if _worker is not None and _worker.owner == os.getpid():
        _worker.end()
    _worker = None


atexit.register(_end)
