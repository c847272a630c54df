"""The command line: arguments, progress, output, exit codes."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from qdqtool.cli import process

__all__ = ["main"]

_YOUNG = 50_000
"""Number of new objects before Python's garbage collector first searches for cycles. Imports alone create
over 100,000 objects, and all of them stay. With Python's default of 700, repeated searches took a tenth of
the time of a short command.
"""


def main() -> NoReturn:
    """Run the command line and exit with the documented code."""
    process.open_streams()
    gc.set_threshold(_YOUNG)
    try:
        process.watch_signals()
        process.hide_arguments()
        process.write_any_text()
        with process.temporary_folder():
            from qdqtool.cli.app import run

            code = run(sys.argv[1:])
    except BaseException:
        ended = process.find_stop_signal()
        if ended is None:
            raise
        # rich may be missing: the signal may arrive while it is imported.
        sys.stderr.write(f"error: {ended.what}\n  fix: {ended.fix}\n")
        code = ended.exit_code
    sys.exit(code)
