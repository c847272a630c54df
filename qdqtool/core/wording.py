"""Words of messages: lists and counts in a sentence, and the commands and settings that a text names.

Advice texts render commands and settings, and `actions` parses them from the text. So a search, a test or a benchmark
runs exactly the text that a reader would type.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

# --- lists and counts ------------------------------------------------------------------------------------------------


_METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "next_token": "next token",
    "masks": "same masks",
    "keypoints": "same keypoints",
    "pixels": "same pixels",
    "positions": "same positions",
    "characters": "same characters",
    "sqnr_db": "SQNR",
    "psnr": "PSNR",
    "max_abs": "max abs",
    "mean_abs": "mean abs",
    "kl": "KL",
}


def list_names(names: Collection[object], most: int) -> str:
    """Return the first names, and the number of the other ones.

        >>> list_names(["a", "b", "c"], 2)
        'a, b and 1 more'

    Args:
        names: names to list, in their order.
        most: how many are named.
    """
    shown = ", ".join(map(str, islice(names, most)))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def first_of(texts: Iterable[str]) -> str:
    """Return the first text, and how many different texts follow it.

    >>> first_of(["a", "a"]), first_of(["a", "b", "c"])
    ('a', 'a (and 2 more of this kind)')
    """
    first, *more = dict.fromkeys(texts)
    return f"{first} (and {len(more)} more of this kind)" if more else first


def count_noun(number: int, noun: str, plural: str = "", *, grouped: bool = False) -> str:
    """Return a count with its noun, in singular or plural.

        >>> count_noun(1, "finding"), count_noun(0, "finding"), count_noun(2, "node was", "nodes were")
        ('1 finding', '0 findings', '2 nodes were')

    Args:
        number: how many.
        noun: word after the number 1.
        plural: word after other numbers; without it, `noun` with an s.
        grouped: whether thousands are set apart by commas.
    """
    return f"{number:{',' if grouped else ''}} {noun if number == 1 else plural or noun + 's'}"


def metric(name: str) -> str:
    """Return a metric's name as people write it: "top-1" for "top1"."""
    return _METRICS.get(name, name)


def computing_in(format_: str) -> str:
    """Return words that say in which format layers compute, for a name from `core.engine.count_formats`.

    >>> computing_in("fp8"), computing_in("int4-weights")
    ('in FP8', 'with INT4 weights')
    """
    title = format_.removesuffix("-weights").upper()
    return f"in {title}" if title == format_.upper() else f"with {title} weights"


# --- commands and settings -------------------------------------------------------------------------------------------


_OPTION = "--set "


@dataclass(frozen=True)
class Setting:
    """A setting of the recipe; its text is the option that sets it.

    >>> str(Setting("place.first_layer", "int8"))
    '--set place.first_layer=int8'
    """

    key: str
    value: str

    @classmethod
    def of(cls, text: str) -> Setting:
        """Parse a setting from text in the form that `recipes.load` reads."""
        key, _, value = text.partition("=")
        return cls(key, value)

    def __str__(self) -> str:
        return f"{_OPTION}{shlex.quote(self.text)}"

    @property
    def text(self) -> str:
        """The setting as text that `recipes.load` reads, such as `place.first_layer=float`."""
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class Command:
    """A command of this tool; words in capital letters are placeholders for the user's files.

    >>> str(Command("repair", ("--float", "a b")))
    "`qdqtool repair --float 'a b'`"
    """

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"`{self.line}`"

    @property
    def line(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(("qdqtool", self.name, *self.arguments))

    def replacing(self, options: tuple[str, ...]) -> Command:
        """Return the command with `options` at its end; earlier values of the same options are removed.

        >>> Command("run", ("m.onnx", "--samples", "random:4", "--json")).replacing(("--samples", "DATA")).line
        'qdqtool run m.onnx --json --samples DATA'
        """
        kept: list[str] = []
        words = iter(self.arguments)
        for word in words:
            if word in options and word.startswith("--") and word != "--set":
                next(words, None)
            else:
                kept.append(word)
        return Command(self.name, (*kept, *options))


Action = Setting | Command
REPAIR = Command("repair")
_TYPED = re.compile(r"`qdqtool (?P<command>[a-z][^`]*)`|--set (?=\S)")


def actions(fix: str) -> tuple[Action, ...]:
    """Return the settings and commands in the text of a fix, in order.

    >>> actions("--set 'place.skip_rules=[gemv]' quantizes it; `qdqtool repair --float mm` does not")
    (Setting(key='place.skip_rules', value='[gemv]'), Command(name='repair', arguments=('--float', 'mm')))
    """
    parsed: list[Action] = []
    for match in _TYPED.finditer(fix):
        if match["command"]:
            name, *arguments = shlex.split(match["command"])
            parsed.append(Command(name, tuple(arguments)))
        else:
            key, _, value = _first_word(fix[match.end() :]).partition("=")
            parsed.append(Setting(key, value))
    return tuple(parsed)


def _first_word(text: str) -> str:
    """Return the first word of a command line as a shell reads it, without punctuation of the surrounding sentence."""
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters = True, ""
    return (words.get_token() or "").rstrip(",;")
