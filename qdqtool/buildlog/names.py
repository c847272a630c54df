"""Names of nodes and layers: they contain ` + `, ` with `, ` and `, brackets and spaces, so separators prove nothing."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.trt.names import parts


class LoggedNames:
    """All names a run has shown; decides where one name ends and the next begins."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._known = set(names)
        self._parts: dict[str, tuple[str, ...]] = {}

    def add(self, name: str) -> None:
        """A name that an optimizer step has just made."""
        self._known.add(name)

    def split(self, text: str, separator: str) -> tuple[str, str]:
        """Two names joined by a separator that may also occur inside them.

        Where several places are possible, both sides known beats one side known beats the first place.
        The second part is "" where the separator does not occur.
        """
        first, found, second = text.partition(separator)
        if not found or separator not in second:
            return first, second
        best = (-1, first, second)
        at = text.find(separator)
        for _ in range(_PLACES):
            left, right = text[:at], text[at + len(separator) :]
            score = self._trust(left) + self._trust(right)
            if score > best[0]:
                best = (score, left, right)
            at = text.find(separator, at + 1)
            if at < 0:
                break
        return best[1], best[2]

    def parts(self, name: str) -> tuple[str, ...]:
        """The nodes that a fused name is made of: `A + B` and `A || B`, with `PWN(...)` opened."""
        if " + " not in name and " || " not in name and not name.startswith("PWN("):
            return (name,)
        known = self._parts.get(name)
        if known is None:
            known = self._parts[name] = parts(name)
        return known

    def _trust(self, name: str) -> int:
        if name in self._known:
            return 2
        return 1 if name and all(part in self._known for part in name.split(" + ")) else 0


_PLACES = 64
"""Separators looked at in one text; real names have a handful."""
