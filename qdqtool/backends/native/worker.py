"""The process in which a native library builds: one request in, events out, every log line to standard error.

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
from typing import Any

from qdqtool.backends.native.job import build
from qdqtool.backends.native.limits import no_core_dump, peak_mib
from qdqtool.backends.native.verdict import NoEngine


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


def _serve(request: dict[str, Any], tell: Callable[[dict[str, Any]], object]) -> None:
    try:
        trt = importlib.import_module(request["module"])
    except (ImportError, OSError) as error:
        tell({"event": "no library", "why": str(error)})
        return
    try:
        built = build(trt, request, tell)
    except NoEngine as reason:
        tell(reason.event)
    else:
        tell({"event": "built", "peak_mib": peak_mib(), **built})


if __name__ == "__main__":
    main()
