"""Exception for a build in the child process that ends without an engine."""

from __future__ import annotations

from typing import Any

from qdqtool.backends.flags import Flag


class BuildFailure(Exception):  # noqa: N818 -- says what happened
    """A build ended without an engine; `event` gives the parent process the reason."""

    def __init__(self, event: str, **facts: Any) -> None:
        super().__init__(event)
        self.event = {"event": event, **facts}


def refused_flag(flag: Flag, why: str) -> BuildFailure:
    """Return the failure for a flag that the library does not support, or whose value is invalid."""
    return BuildFailure("refused flag", flag=str(flag), why=why)
