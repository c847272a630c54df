"""The one way in which a build inside the child process ends without an engine."""

from __future__ import annotations

from typing import Any

from qdqtool.backends.flags import Flag


class BuildFailure(Exception):  # noqa: N818 -- says what happened
    """There is no engine; `event` tells the parent why."""

    def __init__(self, event: str, **facts: Any) -> None:
        super().__init__(event)
        self.event = {"event": event, **facts}


def refused_flag(flag: Flag, why: str) -> BuildFailure:
    """The library cannot do what the flag asks, or its value makes no sense."""
    return BuildFailure("refused flag", flag=str(flag), why=why)
