"""The parent as its worker process sees it: one request comes in, events go out, and both end together.

Standard input carries the request, one line of JSON, and stays open: when it closes, the parent is gone and so are
we. Standard output carries events, one line of JSON each. Native code never sees it: descriptor 1 is turned to
standard error, the log, before the library is loaded.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

from qdqtool.platform import no_core_dump

Tell = Callable[[dict[str, Any]], None]


def meet() -> tuple[dict[str, Any], Tell]:
    """The request, and what tells the parent an event; a crash from here on leaves no core file behind."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    no_core_dump()
    # Unbuffered: a daemon thread that waits inside a buffered reader would block the interpreter's end.
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    request: dict[str, Any] = json.loads(requests.readline())
    threading.Thread(target=_die_with_parent, args=(requests.read,), daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    return request, tell


def _die_with_parent(read: Callable[[int], bytes]) -> None:
    while read(1 << 10):
        pass
    os._exit(1)
