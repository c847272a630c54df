"""Advice on one flag, call or file that TensorRT 11 handles differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdqtool.core.artefacts import Artefact

# english: these words are values of JSON, so they stay
Action = Literal["keep", "drop", "replace", "change the model", "measure anew", "look up"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Advice on one flag, call or file.

    Attributes:
        where: the flag, or "line 12".
        what: the thing itself, as written.
        action: what becomes of it.
        reason: why.
        do: the step to take; empty if there is none.
    """

    where: str
    what: str
    action: Action
    reason: str
    do: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """All advice for one source.

    Attributes:
        source: what was read ("command line", "script", "calibration cache", "build folder").
        name: the file or folder; empty for a command line.
        advice: in the order of the source.
        steps: commands that make the model for TensorRT 11, in their order.
        ours: commands of qdqtool that do the same as the source.
        command: the same command line for TensorRT 11, or empty.
    """

    source: str
    name: str
    advice: tuple[Advice, ...]
    steps: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    command: str = ""


MIGRATION = Artefact(kind="migration", schema=1, type=Migration)
