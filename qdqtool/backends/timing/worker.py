"""Child process that loads and times engines: reads one request, writes events; the library's messages go to the log."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.backends.native.logger import logger_of
from qdqtool.backends.timing.engine_times import EngineClock
from qdqtool.backends.timing.rounds import Effort, take_turns
from qdqtool.backends.timing.trtexec_times import raw_name
from qdqtool.errors import QdqError
from qdqtool.io.child import Tell, meet


def main() -> None:
    """Handle the one request on standard input."""
    request, tell = meet()
    try:
        tell({"event": "timed", **measure(importlib.import_module(request["module"]), request, tell)})
    except QdqError as error:
        tell({"event": "failed", "kind": type(error).__name__, "what": error.what, "fix": error.fix})
    except (ImportError, OSError) as error:
        tell({"event": "failed", "kind": "MissingPackage", "what": str(error), "fix": "see qdqtool doctor"})


def measure(trt: Any, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Load the engines and measure them in turns; if requested, profile layers and save outputs.

    Raises:
        QdqError: an engine cannot be loaded or run, or the inputs do not fit.
    """
    logger = logger_of(trt)
    feeds = dict(np.load(request["inputs"], allow_pickle=False)) if request["inputs"] else {}
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    clocks = []
    for path in map(Path, request["plans"]):
        clock = EngineClock(trt, logger, path.read_bytes(), shapes, feeds)
        clock.name = path.name
        clocks.append(clock)
    effort = Effort(**request["effort"])
    series = take_turns(
        clocks, effort, lambda done, total: tell({"event": "turn", "done": done, "total": total})
    )
    profiles = [clock.profile(effort.iterations) for clock in clocks] if request["profile"] else []
    if request["save"]:
        _save(clocks, Path(request["save"]))
    return {"clock": clocks[0].measures, "rounds": [each.rounds for each in series], "profiles": profiles}


def _save(clocks: list[EngineClock], folder: Path) -> None:
    for clock in clocks:
        for name, array in clock.outputs().items():
            (folder / f"{clock.name}.{raw_name(name, 'output', array)}").write_bytes(array.tobytes())


if __name__ == "__main__":
    main()
