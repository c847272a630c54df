"""All message patterns, arranged so that a message meets only the few that can fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

from qdqtool.buildlog.messages import messages
from qdqtool.buildlog.sentence import Family, Fields, Section, Sentence, Shape
from qdqtool.plugins import Registry

PATTERNS = Registry(package="qdqtool.buildlog.patterns")
KEY, SHORT_KEY = 8, 6
"""Bytes of a message that choose the sentences to try; the shorter key is asked where the longer one finds none."""

Hear = Callable[..., None]
SLOW, UNSURE = -2, -1
"""Buckets of messages that choose none: the one holds nothing, the other the most common sentences."""


class Grammar:
    """Sentences by their first bytes, by a fixed part inside, and sections by their heading.

    Attributes:
        keys: first `KEY` bytes of sentences -> place in `buckets`.
        short_keys: the same with `SHORT_KEY` bytes, for sentences with shorter heads.
        endings: last bytes of messages -> place in `buckets`, for sentences that begin with a name.
        buckets: sentences that begin (or end) with the same bytes, longest head first.
        light: sentences that may be counted without taking them apart.
        sections: heading -> section.
        columns: name of a sentence, or of a row of a section -> names of its fields.
        foreign: shapes of lines that are not the builder's.
    """

    def __init__(self, plugs: Sequence[Family]) -> None:
        sentences = [sentence for plug in plugs for sentence in plug.sentences]
        self.sections: dict[str, Section] = {s.opens: s for plug in plugs for s in plug.sections}
        self.foreign: tuple[Shape, ...] = tuple(shape for plug in plugs for shape in plug.foreign)
        self.keys: dict[str, int] = {}
        self.short_keys: dict[str, int] = {}
        self.endings: dict[str, int] = {}
        self.buckets: list[list[Sentence]] = []
        self._short: list[Sentence] = []
        self._inner: list[tuple[str, Sentence]] = []
        self._shapes: list[Shape] = []
        for sentence in sentences:
            self._place(sentence)
        for bucket in self.buckets:
            bucket.sort(key=lambda sentence: (sentence.name not in _COMMON, -len(sentence.head)))
        self._short.sort(key=lambda sentence: -len(sentence.head))
        self._inner.sort(
            key=lambda pair: _COMMON.index(pair[1].name) if pair[1].name in _COMMON else len(_COMMON)
        )
        # One look at all shapes at once: most messages have none of them.
        self._any_shape = re.compile(
            "|".join(f"(?:{_without_names(shape.form)})" for shape in self._shapes) or "(?!)"
        )
        self._starts = {sentence.head[:2] for sentence in self._short}
        rows = [row for section in self.sections.values() for row in section.rows]
        self.columns = {one.name: one.fields for one in reversed([*sentences, *rows])}
        self._naming = {
            s.name: tuple(at for at, field in enumerate(s.fields) if field in _NAMES) for s in sentences
        }
        self.light = [s for s in sentences if isinstance(s, Sentence) and s.light != "no"]

    def read(self, body: str) -> tuple[str, Fields] | None:
        """What a message says: the name of its sentence and its fields; None when no sentence fits."""
        for keys, key in (
            (self.keys, body[:KEY]),
            (self.short_keys, body[:SHORT_KEY]),
            (self.endings, body[-ENDING:]),
        ):
            place = keys.get(key)
            for sentence in self.buckets[place] if place is not None else ():
                fields = sentence.read(body)
                if fields is not None:
                    return sentence.name, fields
        return self._read_rare(body)

    def _read_rare(self, body: str) -> tuple[str, Fields] | None:
        """As `read`, for a message whose first and last bytes choose no sentence."""
        for anchor, sentence in self._inner:
            if anchor in body:
                fields = sentence.read(body)
                if fields is not None:
                    return sentence.name, fields
        if body[:2] in self._starts or body[:1] in self._starts:
            for sentence in self._short:
                if body.startswith(sentence.head):
                    fields = sentence.read(body)
                    if fields is not None:
                        return sentence.name, fields
        if self._any_shape.fullmatch(body) is None:
            return None
        for shape in self._shapes:
            fields = shape.read(body)
            if fields is not None:
                return shape.name, fields
        return None

    def named(self, name: str, fields: Fields) -> tuple[str, ...]:
        """The tensors, layers and nodes that a message is about."""
        return tuple(str(fields[at]) for at in self._naming.get(name, ()) if at < len(fields))

    def is_foreign(self, body: str) -> bool:
        """Whether a line that no sentence fits has the shape of another program's."""
        return self._any_foreign.fullmatch(body) is not None

    @cached_property
    def _any_foreign(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{_without_names(shape.form)})" for shape in self.foreign) or "(?!)")

    def _place(self, sentence: Sentence | Shape) -> None:
        if isinstance(sentence, Shape):
            self._shapes.append(sentence)
            return
        head = sentence.head
        if not head:
            self._inner.append((sentence.anchor, sentence))
            for ending, names in _ENDINGS.items():
                if sentence.name in names:
                    self._add(self.endings, ending, sentence)
        elif len(head) < SHORT_KEY or not head[:KEY].isascii():
            self._short.append(sentence)
        elif len(head) < KEY:
            self._add(self.short_keys, head[:SHORT_KEY], sentence)
        else:
            self._add(self.keys, head[:KEY], sentence)

    def _add(self, keys: dict[str, int], key: str, sentence: Sentence) -> None:
        if key not in keys:
            keys[key] = len(self.buckets)
            self.buckets.append([])
        self.buckets[keys[key]].append(sentence)


ENDING = 2
"""Bytes at the end of a message that choose the sentences to try, where its first do not."""
_ENDINGS = {"],": ("node-inputs", "node-outputs")}
"""How messages end that begin with a name -> what they are most likely."""

_COMMON = (
    "node-inputs",
    "node-outputs",
    "timed",
    "kernel-set",
    "no-tactics",
    "fused",
    "quantize-into",
    "layer-registered",
    "attempt",
)
"""Sentences that logs are full of: they are tried before others that could fit as well."""


_NAMES = frozenset({"tensor", "layer", "node", "region", "what"})
"""Fields that hold names of things; numbers in them are no changing details."""


def _without_names(form: str) -> str:
    """The same expression without named groups, so that it can stand beside others."""
    return re.sub(r"\(\?P<\w+>", "(?:", form)


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    """The grammar of all registered and all plain message patterns, arranged once."""
    return Grammar([*map(PATTERNS.load, PATTERNS.usable()), Family(sentences=messages())])
