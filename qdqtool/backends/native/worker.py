"""Child process for native builds: reads one request, writes events, and logs every line to standard error."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from qdqtool.backends.native.job import build, parse, targets_of
from qdqtool.backends.native.settings import BuildFailure
from qdqtool.errors import of_system
from qdqtool.io.child import Tell, meet
from qdqtool.platform import peak_mib


def main() -> None:
    """Handle the one request on standard input."""
    request, tell = meet()
    threading.stack_size(request["stack_mib"] << 20)
    builder = threading.Thread(target=_serve, args=(request, tell))
    builder.start()
    builder.join()


def _serve(request: dict[str, Any], tell: Tell) -> None:
    try:
        trt = importlib.import_module(request["module"])
    except (ImportError, OSError) as error:
        tell({"event": "no library", "why": str(error)})
        return
    try:
        if request.get("check"):
            targets = targets_of(trt, request["targets"])
            if "model" in request:
                parse(trt, request)
            tell({"event": "checked", "targets": targets})
            return
        built = build(trt, request, tell)
    except BuildFailure as reason:
        tell(reason.event)
    except OSError as error:
        fault = of_system(error)
        if fault is None:
            raise
        tell({"event": "system fault", "what": fault.what, "fix": fault.fix})
    else:
        tell({"event": "built", "peak_mib": peak_mib(), **built})


if __name__ == "__main__":
    main()
