"""The process in which TensorRT for RTX builds: one request in, events out, every log line to standard error.

Standard input carries the request, one line of JSON, and stays open: when it closes, the parent is gone and so are
we. Standard output carries events, one line of JSON each. Native code never sees it: descriptor 1 is turned to
standard error, the log, before the library is loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qdqtool.backends.rtx.ears import logger_of, monitor_of
from qdqtool.backends.rtx.limits import no_core_dump, peak_mib

_MOST_MISTAKES = 200
"""Parser errors that are told."""

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serve the one request on standard input."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    no_core_dump()
    # Unbuffered: a daemon thread that waits inside a buffered reader would block the interpreter's end.
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    request = json.loads(requests.readline())
    threading.Thread(target=_die_with_parent, args=(requests.read,), daemon=True).start()
    threading.stack_size(request["stack_mib"] << 20)
    builder = threading.Thread(
        target=_serve, args=(request, lambda event: events.write(json.dumps(event) + "\n"))
    )
    builder.start()
    builder.join()


def _die_with_parent(read: Callable[[int], bytes]) -> None:
    while read(1 << 10):
        pass
    os._exit(1)


def _serve(request: dict[str, Any], tell: Tell) -> None:
    trt = importlib.import_module("tensorrt_rtx")
    known = {name.lower(): value for name, value in trt.ComputeCapability.__members__.items()}
    supported = sorted((name for name in known if name.startswith("sm")), key=lambda name: int(name[2:]))
    unknown = [target for target in request["targets"] if target not in supported]
    if unknown:
        tell({"event": "unknown targets", "unknown": unknown, "supported": supported})
        return
    log = logger_of(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    tell({"event": "progress", "phase": "parsing", "percent": 0})
    if not parser.parse_from_file(request["model"]):
        tell({"event": "refused", "mistakes": _mistakes(parser), "messages": log.errors})
        return
    config = _config(trt, builder, request, known)
    config.progress_monitor = monitor = monitor_of(trt, tell)  # the config does not keep it alive
    plan = builder.build_serialized_network(network, config)
    del monitor
    if plan is None:
        tell({"event": "refused", "mistakes": [], "messages": log.errors})
        return
    try:
        Path(request["plan"]).write_bytes(plan)
        Path(request["layers"]).write_text(log.layers, "utf-8")
    except OSError as error:
        tell({"event": "unwritable", "reason": error.strerror})
        return
    tell({"event": "built", "warnings": log.warnings, "peak_mib": peak_mib()})


def _config(trt: Any, builder: Any, request: dict[str, Any], known: dict[str, Any]) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(request["targets"])
    for index, target in enumerate(request["targets"]):
        config.set_compute_capability(known[target], index)
    if request["profiles"]:
        profile = builder.create_optimization_profile()
        for entry in request["profiles"]:
            profile.set_shape(entry["name"], entry["low"], entry["opt"], entry["high"])
        config.add_optimization_profile(profile)
    return config


def _mistakes(parser: Any) -> list[dict[str, str]]:
    found = (parser.get_error(index) for index in range(min(parser.num_errors, _MOST_MISTAKES)))
    return [
        {
            "code": error.code().name,
            "node": error.node_name(),
            "op": error.node_operator(),
            "text": error.desc(),
        }
        for error in found
    ]


if __name__ == "__main__":
    main()
