"""Handles failures of models that qdqtool makes for its own use: the step is skipped with a note, and the command continues.

Bias correction, the choice of calibrators, equalization and similar steps run changed copies of the network: with other
outputs, with a free batch, cut into pieces. If such a copy fails, the network is not at fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from qdqtool.core.protocols import Feeds
from qdqtool.errors import Bug, InputFileError, SystemFault
from qdqtool.graph.model import Model
from qdqtool.runtime.runner import open_model

Made = TypeVar("Made")
_log = logging.getLogger(__name__)
_LONGEST: Final = 300
"""Most characters of an error of a runtime that are shown."""


def or_without(
    what: str, make: Callable[[], Made], instead: Callable[[], Made]
) -> tuple[Made, tuple[str, ...]]:
    """Return the result of `make`; if a helper model of `make` fails, the result of `instead` with a note.

    `instead` must run what `make` needs of the user's files, unless that ran before: an error in these is raised by it.

    Raises:
        SystemFault: the disk is full, or the machine refuses something else.
    """
    try:
        return make(), ()
    except SystemFault:
        raise
    except InputFileError as error:
        _log.info("%s fails", what, exc_info=True)
        found, reason = instead(), _reason(error)
    note = f"{what} was skipped: a model that qdqtool wrote for it does not run. This is a mistake in qdqtool, not in the network; please report it with the network: {reason}"
    return found, (note,)


@contextmanager
def our_fault(what: str, check: Callable[[], object]) -> Iterator[None]:
    """Turn an error inside the block into a `Bug` if `check`, which runs the network itself on these samples, passes.

    For helper models that a command cannot do without; nothing else may run inside.

    Raises:
        Bug: a helper model fails.
    """
    try:
        yield
    except SystemFault:
        raise
    except InputFileError as error:
        check()
        raise Bug(
            f"{what} failed: a model that qdqtool wrote for it does not run; this is a mistake in qdqtool, not in the network: {_reason(error)}",
            fix="report this with the network; nothing was measured, so it is unknown whether a limit is met",
            where=error.where,
        ) from error


def run_plainly(model: Model, samples: Iterable[Feeds]) -> None:
    """Run the network itself on samples, to find out if the samples or the network are at fault.

    Raises:
        InputFileError: they are.
    """
    runner = open_model(model, description="the network")
    for feeds in samples:
        runner.run(feeds)


def _reason(error: InputFileError) -> str:
    return " ".join(error.what.split())[:_LONGEST]
