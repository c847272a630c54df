"""Warnings and errors, each wording once, and the reason when a build failed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from qdqtool.buildlog.causes import cause_of, is_consequence
from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import Failure
from qdqtool.core.events import LogRecord

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_MOST = 4000
"""Wordings kept per run and severity."""
# Characters of a message that are kept; longer ones print a whole graph.
_LONGEST = 2000
_NO_FAILURE = "dla-kind"
"""Messages that are errors in the log, though what follows them says that the layer falls back to the GPU, or does not."""
_Key = tuple[str, tuple[str, ...]]


class TroublesCollector:
    """Keeps warnings and errors by wording."""

    def __init__(self) -> None:
        self._warnings: dict[_Key, LogRecord] = {}
        self._errors: dict[_Key, LogRecord] = {}
        self._counts: Counter[tuple[bool, _Key]] = Counter()
        self._wordings: dict[str, str] = {}
        self.int8_refused: dict[str, str] = {}
        self.refused_at: dict[str, int] = {}
        # Tensors that the builder warned to have no scale, in the order of the log.
        self.without_scale: dict[str, None] = {}

    def handlers(self) -> dict[str, Handler]:
        return {"int8-rejected": self._refused}

    def note(self, line: int, severity: str, text: str, topic: str, names: tuple[str, ...] = ()) -> None:
        """Keep a message of severity W, E, F or X.

        Args:
            line: where it stands.
            severity: how loud it is.
            text: the message.
            topic: the name of its pattern, "" when unread.
            names: the tensors and layers it is about: messages about others are kept apart.
        """
        kept = self._warnings if severity == "W" else self._errors
        key = (self._wording(text[:_LONGEST]), names)
        if topic == "scale-missing" and len(self.without_scale) < _MOST:
            self.without_scale.update(dict.fromkeys(names))
        if key in kept:
            self._counts[severity == "W", key] += 1
        elif len(kept) < _MOST:
            kept[key] = LogRecord(line=line, severity=severity, text=text[:_LONGEST], topic=topic)

    def _wording(self, text: str) -> str:
        """The text without what changes; the same few texts come thousands of times."""
        wording = self._wordings.get(text)
        if wording is None:
            wording = _CHANGING.sub("#", text)
            if len(self._wordings) < _MOST:
                self._wordings[text] = wording
        return wording

    def _refused(self, line: int, layer: str, tensor: str, *_fields: object) -> None:
        if len(self.int8_refused) < _MOST:
            self.int8_refused.setdefault(layer, tensor)
            self.refused_at.setdefault(layer, line)

    @property
    def warnings(self) -> tuple[LogRecord, ...]:
        """Warnings in the order of their first line."""
        return self._counted(self._warnings)

    @property
    def errors(self) -> tuple[LogRecord, ...]:
        """Errors in the order of their first line."""
        return self._counted(self._errors)

    def _counted(self, kept: dict[_Key, LogRecord]) -> tuple[LogRecord, ...]:
        quiet = kept is self._warnings
        return tuple(
            replace(record, count=record.count + more) if (more := self._counts[quiet, key]) else record
            for key, record in kept.items()
        )

    def failure(self) -> Failure | None:
        """The error that explains the others: the first known cause, else the first that is no consequence."""
        errors = [record for record in self.errors if record.topic != _NO_FAILURE]
        for record in errors:
            known = cause_of(record.text)
            if known is not None:
                return Failure(line=record.line, text=record.text, meaning=known.meaning, fix=known.fix)
        reasons = [record for record in errors if not is_consequence(record.text)] or errors
        return Failure(line=reasons[0].line, text=reasons[0].text) if reasons else None
