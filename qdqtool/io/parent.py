"""The parent process as its worker sees it; `qdqtool.io.child` is the other side.

Standard input carries requests, standard output answers. Native code may print, and must not print into the answers:
descriptor 1 is turned to standard error before a library is loaded.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import IO, Any

from qdqtool.platform import no_core_dump

Tell = Callable[[dict[str, Any]], None]


def pipes(*, buffering: int = -1) -> tuple[IO[bytes], IO[bytes]]:
    """Where requests come from, and where answers go; a crash from here on leaves no core file."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    no_core_dump()
    return os.fdopen(0, "rb", buffering=buffering, closefd=False), answers


def meet() -> tuple[dict[str, Any], Tell]:
    """The one request, a line of JSON, and a function that sends the parent an event, a line of JSON each.

    When the parent closes standard input, or ends, this process ends too.
    """
    # Unbuffered: a daemon thread that waits inside a buffered reader would block the interpreter's end.
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
