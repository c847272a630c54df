"""All sentences of the shelf, arranged so that a message meets only the few that can fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

from qdqtool.buildlog.sentence import Fields, Read, Section, Sentence, Shape
from qdqtool.plugins import Registry

PATTERNS = Registry(package="qdqtool.buildlog.patterns")
KEY, SHORT_KEY = 8, 6
"""Bytes of a message that choose the sentences to try; the shorter key is asked where the longer one finds none."""

Hear = Callable[..., None]
Tried = tuple[Read, int, Section | None]
"""A sentence as the reader tries it: how it reads, whose ear it reaches, what it opens."""
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
        ears: name of a sentence -> number of its ear.
        sections: heading -> section.
        foreign: shapes of lines that are not the builder's.
    """

    def __init__(self, families: tuple[str, ...] = ()) -> None:
        plugs = [PATTERNS.load(name) for name in families or PATTERNS.usable()]
        sentences = [sentence for plug in plugs for sentence in plug.sentences]
        self.sections: dict[str, Section] = {s.opens: s for plug in plugs for s in plug.sections}
        self.foreign: tuple[Shape, ...] = tuple(shape for plug in plugs for shape in plug.foreign)
        self.keys: dict[str, int] = {}
        self.short_keys: dict[str, int] = {}
        self.endings: dict[str, int] = {}
        self.buckets: list[list[Sentence]] = []
        self.ears = {name: number for number, name in enumerate(dict.fromkeys(s.name for s in sentences))}
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
        self.light = [s for s in sentences if isinstance(s, Sentence) and s.light != "no"]

    def read(self, body: str) -> tuple[str, Fields] | None:
        """What a message says: the name of its sentence and its fields; None when no sentence fits."""
        place = self._bucket(body)
        if place is not None:
            for sentence in self.buckets[place]:
                fields = sentence.read(body)
                if fields is not None:
                    return sentence.name, fields
        return self._read_rare(body)

    def _bucket(self, body: str) -> int | None:
        """The bucket that the first bytes of a message choose, or its last."""
        place = self.keys.get(body[:KEY])
        if place is None:
            place = self.short_keys.get(body[:SHORT_KEY])
        return self.endings.get(body[-ENDING:]) if place is None else place

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

    @cached_property
    def tried(self) -> list[tuple[Tried, ...]]:
        """The buckets as the reader tries them, `SLOW` and `UNSURE` at their end."""
        common = [sentence for _, sentence in self._inner if sentence.name in _COMMON]
        return [
            tuple((s.read, self.ears[s.name], self.sections.get(s.name)) for s in bucket)
            for bucket in (*self.buckets, [], common)
        ]

    def hearing(self, ears: Mapping[str, Hear]) -> list[Hear | None]:
        """Who hears which sentence, by number of its ear."""
        heard: list[Hear | None] = [None] * len(self.ears)
        for name in self.ears.keys() & ears.keys():
            heard[self.ears[name]] = ears[name]
        return heard

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


def _without_names(form: str) -> str:
    """The same expression without named groups, so that it can stand beside others."""
    return re.sub(r"\(\?P<\w+>", "(?:", form)


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    """The grammar of the whole shelf, arranged once."""
    return Grammar()
