"""Runs an engine in a child process. Its standard input receives inputs; its standard output returns outputs.

The library's messages go to standard error. The process ends when its standard input does.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool import errors
from qdqtool.backends.building.failures import last_line
from qdqtool.backends.native.logger import logger_of
from qdqtool.backends.plan import MODULES, child_failure, read_plan, require_trust, run_failure, spell
from qdqtool.backends.timing.engine_times import EngineClock
from qdqtool.core.protocols import Feeds
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import BuildError, QdqError
from qdqtool.io import child
from qdqtool.io.child import pipes

# --- frames ----------------------------------------------------------------------------------------------------------
# Frames of arrays between two processes: one line of JSON, then .npz data of the size given in that line.


Arrays = Mapping[str, "NDArray[Any]"]


def write(stream: IO[bytes], words: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Write one message of words and arrays to the pipe between the runner and its child process.

    Raises:
        OSError: the reader has ended.
    """
    packed = io.BytesIO()
    if arrays:
        # NumPy's function has parameters such as "file"; numbers cannot collide with them
        numbered: dict[str, Any] = {f"a{number}": array for number, array in enumerate(arrays.values())}
        np.savez(packed, **numbered)
    head = {**words, "names": list(arrays or ()), "bytes": packed.tell()}
    stream.write(json.dumps(head).encode() + b"\n" + packed.getvalue())
    stream.flush()


def read(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read the next message of words and arrays; None at the end of the stream, or if it is incomplete.

    Raises:
        ValueError: another process writes in between.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    words = json.loads(line)
    if not isinstance(words, dict) or not {"bytes", "names"} <= words.keys():
        raise ValueError("not a frame")
    size, names = words.pop("bytes"), words.pop("names")
    packed = stream.read(size)
    if len(packed) < size:
        return None
    if not names:
        return words, {}
    with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
        return words, {name: archive[f"a{number}"] for number, name in enumerate(names)}


# --- runner ----------------------------------------------------------------------------------------------------------
# Runs an engine in a child process, because loading an engine executes code in it.


_PATIENCE_S = 600.0
"""Time limit in seconds for loading, and for one inference."""
_LAST_WORDS_S = 5.0
"""Time limit in seconds for the child to exit after it sent no valid answer."""


class EngineRunner:
    """Runner of one engine on this machine's GPU."""

    at_once = 1

    def __init__(self, process: subprocess.Popen[bytes], path: Path, log: Path) -> None:
        plan = read_plan(path)
        self.description = f"{path.name} on {plan.maker} {spell(plan.release)}"
        self._process = process
        self._path = path
        self._log = log
        words, _ = self._ask({"module": MODULES[plan.maker], "plan": str(path.absolute())})
        self.inputs = tuple(
            TensorInfo(name=name, dtype=DType(dtype), shape=tuple(shape))
            for name, dtype, shape in words["inputs"]
        )
        self.outputs: tuple[str, ...] = tuple(words["outputs"])

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run the engine and return one array per output.

        Raises:
            QdqError: the inputs do not fit the engine, or it fails.
        """
        return self._ask({}, {info.name: feeds[info.name] for info in self.inputs})[1]

    def _ask(
        self, words: dict[str, Any], arrays: Arrays | None = None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        guard = threading.Timer(_PATIENCE_S, self._process.kill)
        guard.start()
        try:
            answer = self._exchange(words, arrays)
        finally:
            guard.cancel()
        if answer is None:
            raise self._death()
        if "kind" in answer[0]:
            kind: type[QdqError] = getattr(errors, answer[0]["kind"], BuildError)
            raise kind(answer[0]["what"], fix=answer[0]["fix"], where=str(self._path))
        return answer

    def _exchange(
        self, words: dict[str, Any], arrays: Arrays | None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        try:
            write(_open(self._process.stdin), words, arrays)
            return read(_open(self._process.stdout))
        except (OSError, ValueError):
            return None

    def _death(self) -> BuildError:
        try:
            code = self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return run_failure(code, last_line(self._log), self._path)


@contextmanager
def open_engine(path: Path, *, trust: bool) -> Iterator[EngineRunner]:
    """Open a runner for the engine, for the duration of the block.

    Raises:
        UsageError: not trusted.
        InputFileError: no engine.
        MissingPackage: its library, or a GPU, is not here.
        BuildError: it cannot be loaded.
    """
    read_plan(path)
    require_trust(trust, path)
    with tempfile.TemporaryDirectory(prefix="qdqtool-engine-") as folder:
        log = Path(folder) / "log"
        with child.conversation((sys.executable, "-m", "qdqtool.backends.engine_runner"), log) as process:
            yield EngineRunner(process, path, log)


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


# --- worker ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Load an engine in the child process, describe its inputs and outputs, then run it for each request."""
    questions, answers = pipes()
    frame = read(questions)
    if frame is None:
        return
    words, _ = frame
    try:
        trt = importlib.import_module(words["module"])
        serve(EngineClock(trt, logger_of(trt), Path(words["plan"]).read_bytes(), {}, {}), questions, answers)
    except (QdqError, ImportError, OSError) as error:
        failure = error if isinstance(error, QdqError) else child_failure(error)
        write(answers, {"kind": type(failure).__name__, "what": failure.what, "fix": failure.fix})


def serve(engine: EngineClock, questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every set of inputs with the engine's outputs, until the stream ends.

    Raises:
        QdqError: the inputs do not fit, or the engine fails.
    """
    inputs, outputs = engine.interface()
    described: list[Any] = [[info.name, info.dtype.value, info.shape] for info in inputs]
    write(answers, {"inputs": described, "outputs": outputs})
    while (frame := read(questions)) is not None:
        write(answers, {}, engine.infer(frame[1]))


if __name__ == "__main__":
    main()
