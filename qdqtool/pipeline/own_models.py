"""Models that qdqtool makes for itself: one that fails costs its step, with a note, and never the command.

Bias correction, the choice of calibrators, equalization and similar steps run changed copies of the network: with other
outputs, with a free batch, cut into pieces. If such a copy fails, the network is not at fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from qdqtool.errors import InputFileError, SystemFault

Made = TypeVar("Made")
_log = logging.getLogger(__name__)
_LONGEST: Final = 300
"""Characters of what a runtime says."""


def or_without(
    what: str, make: Callable[[], Made], instead: Callable[[], Made]
) -> tuple[Made, tuple[str, ...]]:
    """The result of `make`, or that of `instead` with a note if a helper model of `make` fails.

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
        found, reason = instead(), " ".join(error.what.split())[:_LONGEST]
    note = (
        f"{what} was left out: a model that qdqtool made for it fails, and the network is not at fault; "
        f"please report this with the network: {reason}"
    )
    return found, (note,)
