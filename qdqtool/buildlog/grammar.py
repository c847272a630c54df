"""All sentences of the shelf, arranged so that a message meets only the few that can fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from qdqtool.buildlog.sentence import Fields, Read, Section, Sentence, Shape
from qdqtool.plugins import Shelf

PATTERNS = Shelf(package="qdqtool.buildlog.patterns")
KEY = 8
"""Bytes of a message that choose the sentences to try."""

Hear = Callable[..., None]
Bound = tuple[Read, Hear | None, Section | None]
"""A sentence as the reader uses it: how it reads, who hears it, what it opens."""


BoundInside = tuple[str, Read, Hear | None, Section | None]
"""The same behind a fixed part that occurs inside."""


class Grammar:
    """Sentences by their first bytes, by a fixed part inside, and sections by their heading.

    Attributes:
        keys: first `KEY` bytes of sentences -> place in `buckets`.
        buckets: sentences that begin with the same bytes, longest head first.
        light: sentences that may be counted without taking them apart.
        sections: heading -> section.
        foreign: shapes of lines that are not the builder's.
    """

    def __init__(self, families: tuple[str, ...] = ()) -> None:
        plugs = [PATTERNS.load(name) for name in families or PATTERNS.names()]
        sentences = [sentence for plug in plugs for sentence in plug.sentences]
        self.sections: dict[str, Section] = {s.opens: s for plug in plugs for s in plug.sections}
        self.foreign: tuple[Shape, ...] = tuple(shape for plug in plugs for shape in plug.foreign)
        self.keys: dict[str, int] = {}
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
        self.light = [s for s in sentences if isinstance(s, Sentence) and s.light != "no"]

    def read(self, body: str) -> tuple[str, Fields] | None:
        """What a message says: the name of its sentence and its fields; None when no sentence fits."""
        place = self.keys.get(body[:KEY])
        if place is not None:
            for sentence in self.buckets[place]:
                fields = sentence.read(body)
                if fields is not None:
                    return sentence.name, fields
        return self.read_rare(body)

    def read_rare(self, body: str) -> tuple[str, Fields] | None:
        """As `read`, for a message whose first bytes choose no sentence."""
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

    def bind(self, ears: Mapping[str, Hear]) -> list[tuple[Bound, ...]]:
        """The buckets, each sentence with who hears it and the section it opens."""
        return [
            tuple((s.read, ears.get(s.name), self.sections.get(s.name)) for s in bucket)
            for bucket in self.buckets
        ]

    def bind_inner(self, ears: Mapping[str, Hear]) -> list[BoundInside]:
        """Sentences without fixed first bytes: a fixed part inside, then as `bind`."""
        return [(anchor, s.read, ears.get(s.name), self.sections.get(s.name)) for anchor, s in self._inner]

    def _place(self, sentence: Sentence | Shape) -> None:
        if isinstance(sentence, Shape):
            self._shapes.append(sentence)
        elif not sentence.head:
            self._inner.append((sentence.anchor, sentence))
        elif len(sentence.head) < KEY or not sentence.head[:KEY].isascii():
            self._short.append(sentence)
        else:
            key = sentence.head[:KEY]
            if key not in self.keys:
                self.keys[key] = len(self.buckets)
                self.buckets.append([])
            self.buckets[self.keys[key]].append(sentence)


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
