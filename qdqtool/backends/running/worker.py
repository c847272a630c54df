"""Child process that loads and runs an engine: inputs arrive on standard input, outputs go to standard output.

The library's messages go to standard error. The process ends when its standard input does.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import IO, Any

from qdqtool.backends.native.logger import logger_of
from qdqtool.backends.running.frames import read, write
from qdqtool.backends.timing.engine_times import EngineClock
from qdqtool.errors import QdqError
from qdqtool.io.child import pipes


def main() -> None:
    """Load the engine named in the first frame, describe its inputs and outputs, then run it on each following frame."""
    questions, answers = pipes()
    asked = read(questions)
    if asked is None:
        return
    words, _ = asked
    try:
        trt = importlib.import_module(words["module"])
        serve(EngineClock(trt, logger_of(trt), Path(words["plan"]).read_bytes(), {}, {}), questions, answers)
    except QdqError as error:
        write(answers, {"kind": type(error).__name__, "what": error.what, "fix": error.fix})
    except (ImportError, OSError) as error:
        write(answers, {"kind": "MissingPackage", "what": str(error), "fix": "see qdqtool doctor"})


def serve(engine: EngineClock, questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every set of inputs with the outputs, until the input ends.

    Raises:
        QdqError: the inputs do not fit, or the engine fails.
    """
    inputs, outputs = engine.interface()
    described: list[Any] = [[info.name, info.dtype.value, info.shape] for info in inputs]
    write(answers, {"inputs": described, "outputs": outputs})
    while (asked := read(questions)) is not None:
        write(answers, {}, engine.infer(asked[1]))


if __name__ == "__main__":
    main()
