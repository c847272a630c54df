"""The process in which engines are loaded and timed: one request in, events out, the library's messages to the log.

Standard streams are used as by the builder's process: the request comes as one line of JSON on standard input, which
stays open; events go to the original standard output, everything else to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.backends.native.ears import logger_of
from qdqtool.backends.native.limits import no_core_dump
from qdqtool.backends.timing.engine import EngineClock
from qdqtool.backends.timing.raw import raw_name
from qdqtool.backends.timing.rounds import Effort, take_turns
from qdqtool.errors import QdqError


def main() -> None:
    """Serve the one request on standard input."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    no_core_dump()
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    request = json.loads(requests.readline())
    threading.Thread(target=_die_with_parent, args=(requests,), daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    try:
        tell({"event": "timed", **measure(importlib.import_module(request["module"]), request, tell)})
    except QdqError as error:
        tell({"event": "failed", "kind": type(error).__name__, "what": error.what, "fix": error.fix})
    except (ImportError, OSError) as error:
        tell({"event": "failed", "kind": "MissingPackage", "what": str(error), "fix": "see qdqtool doctor"})


def measure(trt: Any, request: dict[str, Any], tell: Any) -> dict[str, Any]:
    """Load the engines, measure them in turns, and profile and save what is asked for.

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


def _die_with_parent(requests: Any) -> None:
    while requests.read(1 << 10):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
