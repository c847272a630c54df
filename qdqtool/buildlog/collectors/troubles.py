"""Warnings and errors, each wording once, and the reason when a build failed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.place import Place
from qdqtool.core.buildlog import Failure
from qdqtool.core.causes import Cause
from qdqtool.core.events import LogRecord
from qdqtool.trt.causes import UNNAMED, cause_of, decisive, node_of

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_MOST = 4000
"""Wordings kept per run and severity."""
# Characters of a message that are kept; longer ones print a whole graph.
_LONGEST = 2000
_NO_FAILURE = "dla-kind"
"""Messages that are errors in the log, though what follows them says that the layer falls back to the GPU, or does not."""
_KEPT = frozenset("WEF")
_Key = tuple[str, tuple[str, ...]]


_CHAINS = frozenset({"skipped", "tactic-out-of-memory", "workspace-short"})
"""Patterns of lines that say why a kernel of the layer being tuned was left out."""
_REASONS = frozenset({"reason", "assertion"})
"""Lines without a severity that hold the reason of the error before or after them."""
_HOST = "host-decides"
NOTED = frozenset({*_CHAINS, *_REASONS, _HOST})
"""Patterns whose messages are kept whole, however loud they are."""
_Said = tuple[int, str]
"""A line and its message."""


class TroublesCollector:
    """Keeps warnings and errors by wording, and the lines that lead to an error.

    Args:
        place: knows which layer is being tuned.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._reasons: list[_Said] = []
        self._decisions: dict[str, tuple[int, Cause]] = {}
        # The last line of each cause for which a kernel was left out, and the layer that was tuned then.
        self._skipped: dict[str, tuple[int, str, str]] = {}
        self._chain: list[_Said] = []
        self._causes: dict[str, Cause | None] = {}
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
        """Keep a warning, an error, or a message that gives a reason.

        Args:
            line: where it stands.
            severity: how loud it is.
            text: the message.
            topic: the name of its pattern, "" when unread.
            names: the tensors and layers it is about: messages about others are kept apart.
        """
        if topic in NOTED:
            self._keep(line, text[:_LONGEST], topic)
        if severity not in _KEPT:
            return
        if severity != "W" and not self._chain and (cause := self._cause(text[:_LONGEST])) and cause.before:
            self._chain = self._left_out(cause)
        kept = self._warnings if severity == "W" else self._errors
        key = (self._wording(text[:_LONGEST]), names)
        if topic == "scale-missing" and len(self.without_scale) < _MOST:
            self.without_scale.update(dict.fromkeys(names))
        if key in kept:
            self._counts[severity == "W", key] += 1
        elif len(kept) < _MOST:
            kept[key] = LogRecord(line=line, severity=severity, text=text[:_LONGEST], topic=topic)

    def _keep(self, line: int, text: str, topic: str) -> None:
        cause = self._cause(text)
        if topic == _HOST and cause is not None:
            self._decisions.setdefault(cause.name, (line, cause))
        elif topic in _REASONS and len(self._reasons) < _MOST:
            self._reasons.append((line, text))
        elif topic in _CHAINS and cause is not None:
            self._skipped[cause.name] = (line, text, self._place.announced())

    def _cause(self, text: str) -> Cause | None:
        """The cause of a text; one wording comes thousands of times, with other numbers."""
        wording = self._wording(text)
        if wording not in self._causes and len(self._causes) < _MOST:
            self._causes[wording] = cause_of(text)
        return self._causes[wording] if wording in self._causes else cause_of(text)

    def _left_out(self, cause: Cause) -> list[_Said]:
        """The lines that say why kernels of the layer that is tuned now were left out."""
        here = self._place.announced()
        return [
            (line, text)
            for name, (line, text, layer) in self._skipped.items()
            if name in cause.before and _layer(layer) == _layer(here)
        ]

    @property
    def decisions(self) -> tuple[tuple[int, Cause], ...]:
        """What applications around the builder decided, each with its first line."""
        return tuple(self._decisions.values())

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
        """The message that decides why the build failed, with the lines of its chain."""
        found_errors = [record for record in self.errors if record.topic != _NO_FAILURE]
        # A kernel that was left out for another layer is in no chain, and no reason.
        ending = [record for record in found_errors if record.topic not in _CHAINS] or found_errors
        errors = [(record.line, record.text) for record in ending]
        if not errors:
            return None
        said = sorted({*errors, *self._reasons, *self._chain})
        found = decisive([text for _, text in said])
        named = found is not None and found[1].rank not in UNNAMED
        unknown = next((one for one in errors if cause_of(one[1]) is None), None)
        if not named and unknown is not None:
            return Failure(line=unknown[0], text=unknown[1], evidence=(unknown[0],))
        if found is None:
            return Failure(line=errors[0][0], text=errors[0][1], evidence=(errors[0][0],))
        at, cause = found
        line, text = said[at]
        ends = [
            one for one in errors if one[0] > line and (end := cause_of(one[1])) and cause.name in end.before
        ][:1]
        return Failure(
            line=line,
            text=text,
            meaning=cause.meaning,
            fix=cause.fix,
            cause=cause.name,
            node=next(filter(None, (node_of(words) for _, words in [said[at], *ends])), ""),
            evidence=(line, *(number for number, _ in ends)),
        )


def _layer(announced: str) -> str:
    """The layer of an announcement, without the kernel family that is timed."""
    return announced.rpartition(" (")[0] or announced
