"""Compare two build logs of one model: fusions, precision, times, and the first decision that differs.

    qdqtool diff build-8.5.log build-8.6.log

If a log has several runs, the last one is used. To compare two engines by their layers, use `qdqtool engine diff`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.core.buildlog import LogRun


def diff(
    first: Annotated[Path, typer.Argument(help="First build log.")],
    second: Annotated[Path, typer.Argument(help="Second build log.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two build logs of one model: fusions, precision, times, and the first decision that differs."""
    from qdqtool.buildlog.diff import compare
    from qdqtool.cli.log_words import diff_words
    from qdqtool.core.kinds import LOG_DIFF

    difference = compare(_last(first), _last(second))
    if as_json:
        sys.stdout.write(LOG_DIFF.dump(difference))
    else:
        sys.stdout.write(diff_words(difference))


def _last(path: Path) -> LogRun:
    from qdqtool.buildlog import read
    from qdqtool.errors import InputFileError
    from qdqtool.io.text import no_text

    run = read(path).runs[-1]
    if run.lines == run.blank:
        raise no_text(str(path))
    if not run.events and not run.funnel and run.performance is None:
        raise InputFileError(
            "the file is not the log of a build",
            fix="pass the log of a verbose build; for engines, use qdqtool engine diff",
            where=str(path),
        )
    return run


PLUGIN = diff
