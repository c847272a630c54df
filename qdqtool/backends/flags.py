"""Builder flags in trtexec's spelling, which all builders share.

    --fp16   --memPoolSize=workspace:1024   --builderOptimizationLevel=5

Every backend reads this spelling: `trtexec` hands it on, `trt` and `rtx` translate it into calls.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qdqtool.errors import UsageError

_FLAG = re.compile(r"--(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMG]i?B?|B)?", re.IGNORECASE)
_WINDOWS = re.compile(r"\\[\w.]|[A-Za-z]:\\")
"""Backslash of a Windows path: in front of a letter, a digit or a dot, or behind the letter of a drive."""
_UNITS = {"": 1 << 20, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

PLUGIN_LIBRARIES = ("plugins", "staticPlugins", "dynamicPlugins")
"""Flags that name a plug-in library to load before the model is read."""
_FILES = frozenset(
    {"calib", "timingCacheFile", "tempdir", "leanDLLPath", *PLUGIN_LIBRARIES}
    | {"setPluginsToSerialize", "refitFromOnnx"}
)
"""Flags whose value is a path."""

PRECISIONS = frozenset({"fp16", "bf16", "int8", "fp8", "int4", "best"})
"""Flags that allow weakly typed networks more types; `best` allows all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One builder flag in trtexec's form: `--name` or `--name=value`."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def read_flag(word: str) -> Flag | None:
    """Return the flag in a word; None if the word is not of the form `--name` or `--name=value`."""
    match = _FLAG.fullmatch(word)
    return None if match is None else Flag(name=match["name"], value=match["value"])


def parse_flags(words: Iterable[str]) -> tuple[Flag, ...]:
    """Parse words of a command line as flags.

    Raises:
        UsageError: a word is not of the form `--name` or `--name=value`.
    """
    flags = []
    for word in words:
        flag = read_flag(word)
        if flag is None:
            raise UsageError(
                f"{word!r} is not a flag", fix="write flags like those of trtexec: --name or --name=value"
            )
        flags.append(flag)
    return tuple(flags)


def absolute(flag: Flag) -> Flag:
    """Make the path in a flag absolute, if the value of the flag is a path."""
    if flag.name not in _FILES or not flag.value:
        return flag
    return Flag(name=flag.name, value=str(Path(flag.value).absolute()))


def split_flags(text: str) -> tuple[str, ...]:
    """Split a line of flags into words, respecting quotes. Backslashes escape, except in a line with Windows paths.

    Raises:
        UsageError: a quote is not closed.
    """
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters = True, ""
    if _WINDOWS.search(text):
        words.escape = ""
    try:
        return tuple(words)
    except ValueError as error:
        raise UsageError(f"cannot read the flags {text!r}: {error}", fix="close the quote") from error


def plain_sizes(flag: Flag) -> Flag:
    """Rewrite sizes in flags as MiB without a unit, which every release of trtexec reads alike.

    trtexec 8.4 to 8.6 ignores the text after the number. Releases from 10 on read the last letter as the unit, so
    1024MiB is 1024 bytes (logs of 8.6.0, 10.14.1 and 10.16). A size that is not a whole number of MiB keeps one
    letter, which 10 understands.
    """
    if flag.name != "memPoolSize" or not flag.value:
        return flag
    return Flag(name=flag.name, value=",".join(map(_plain_size, flag.value.split(","))))


def workspace_pool(flag: Flag) -> Flag:
    """Rewrite `--workspace=SIZE` (removed in 10) as `--memPoolSize` (since 8.4).

    Sizes in other flags are rewritten by `plain_sizes`.
    """
    if flag.name == "workspace" and flag.value:
        flag = Flag(name="memPoolSize", value=f"workspace:{flag.value}")
    return plain_sizes(flag)


def _plain_size(part: str) -> str:
    pool, colon, text = part.partition(":")
    size = bytes_of(text)
    if not colon or size is None:
        return part
    for unit, letter in ((_UNITS["M"], ""), (_UNITS["K"], "K"), (1, "B")):
        if size % unit == 0:
            return f"{pool}:{size // unit}{letter}"
    return part


def bytes_of(text: str) -> int | None:
    """Parse a size in a flag into bytes; None for other text. "1024" and "1024MiB" are MiB; B, KiB and GiB also work."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = (match["unit"] or "").upper()
    return int(float(match["number"]) * _UNITS[unit[:1]])
