"""Prefixes of log lines: origin, time and severity of a message, for every program that prints TensorRT's messages.

    [01/10/2024-21:52:52] [V] [TRT] msg     trtexec, the library's messages
    [01/10/2024-21:52:52] [I] msg           trtexec, its own messages
    [01/10/2024-21:52:52] [TRT] [V] msg     tensorrt.Logger in Python, 8.0 and newer
    [TensorRT] VERBOSE: msg                 tensorrt.Logger in Python, 5 to 7
    [V] msg   [V] [TRT] msg                 Polygraphy, TensorRT for RTX, loggers of one's own
    [TRT]    msg                            jetson-inference
    INFO: [TRT]: msg                        DeepStream
    TensorRT VERBOSE msg                    loggers of one's own
    ERROR: [Torch-TensorRT] - msg           Torch-TensorRT, its own warnings and errors

Joined or doubled stamps are removed one after the other. Text that containers, launchers and other programs' loggers
print around these prefixes is learned from the log: see `carriers`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

_WORDS = {
    "VERBOSE": "V",
    "DEBUG": "V",
    "TRACE": "V",
    "INFO": "I",
    "NOTICE": "I",
    "WARNING": "W",
    "WARN": "W",
    "ERROR": "E",
    "INTERNAL_ERROR": "F",
    "INTERNAL ERROR": "F",
    "FATAL": "F",
}
SEVERITY_WORDS = {word.lower(): letter for word, letter in _WORDS.items()} | {
    "verb": "V",
    "err": "E",
    "critical": "F",
}
"""Names of severities in other programs, in lower case."""
_LEVEL = "|".join(_WORDS)
_STAMP = r"\[{1,2}\s*(?P<stamp>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]"

STAMPED, SHORT, REVERSED, OLD, DEEPSTREAM, NAMED, JETSON, BARE_STAMP, PYTHON, TORCH = range(10)
"""Forms of prefixes."""

_BRACKETED = (
    (
        STAMPED,
        re.compile(
            _STAMP + r" ?(?:\[(?P<origin>TRT)\] ?)?\[(?P<severity>[VIWEFX])\] ?(?:\[(?P<late>TRT)\] ?)?"
        ),
    ),
    (SHORT, re.compile(r"\[(?P<severity>[VIWEFX])\] ?(?:\[(?P<origin>TRT)\] ?)?")),
    (REVERSED, re.compile(r"\[(?P<origin>TRT)\] ?\[(?P<severity>[VIWEFX])\] ?")),
    (OLD, re.compile(rf"\[TensorRT\] (?P<word>{_LEVEL}): ?")),
    (JETSON, re.compile(r"\[(?P<origin>TRT)\]:? +")),
    (BARE_STAMP, re.compile(_STAMP + r" ?")),
)
_WORDED = (
    (DEEPSTREAM, re.compile(rf"(?P<word>{_LEVEL}): ?\[(?P<origin>TRT)\]:? ?")),
    (NAMED, re.compile(rf"TensorRT (?P<word>{_LEVEL}):? ?")),
    (TORCH, re.compile(r"(?P<word>WARNING|ERROR): ?\[Torch-TensorRT\] ?- ?")),
)
_NATIVE = re.compile(
    rf"(?=[\[A-Z])(?:{_STAMP} ?)?(?:(?:\[TRT\] ?)?\[[VIWEFX]\] ?(?:\[TRT\] ?)?|\[TensorRT\] (?:{_LEVEL}): ?"
    rf"|(?:{_LEVEL}): ?\[TRT\]:? ?|TensorRT (?:{_LEVEL}):? ?|\[TRT\]:? +)"
)
_GOES_ON = re.compile(rf"[\s\[]|$|(?:{_LEVEL}): ?\[TRT\]|TensorRT (?:{_LEVEL})")
_POSITION = re.compile(r"[\w./\\-]{1,200}\.(?:cpp|hpp|h|cc|cu|py|inl)(?::\d{1,7}|\(\d{1,7}\))(?::| -)? ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """The prefix of a log message: time stamp, severity and origin.

    Attributes:
        stamp: `MM/DD/YYYY-HH:MM:SS`, or "".
        severity: V, I, W, E, F or X; "" if none is printed.
        origin: "TRT" for the library's messages, "" for the front end's own.
        form: number of the prefix form, which depends on the front end; -1 if the line has no prefix.
    """

    stamp: str = ""
    severity: str = ""
    origin: str = ""
    form: int = -1


NO_PREFIX = Prefix()
# Largest number of nested prefixes, such as docker around a launcher around a logger.
_PEELS = 4


def peel(line: str) -> tuple[Prefix, str]:
    """Split a log line into its prefix and its message. Of several prefixes, the last one counts."""
    prefix, body = NO_PREFIX, line.lstrip()
    if body[:1] not in _BEGINNINGS:
        return prefix, body
    for _ in range(_PEELS):
        inner, remainder = _peel_once(body)
        if inner is None:
            break
        prefix, body = (inner if inner.form >= 0 else prefix), remainder
    return prefix, body


def may_go_on(line: str, at: int) -> bool:
    """Return True if white space, the start of a prefix, or the end of the line is at position `at`."""
    return _GOES_ON.match(line, at) is not None


def native(text: str, at: int = 0) -> re.Match[str] | None:
    """Match the builder's own prefix, with a severity or an origin, at a position of a log line."""
    return _NATIVE.match(text, at)


def without_position(body: str) -> str | None:
    """Return a message without its source position (`ModelImporter.cpp:119: `); None if it has none."""
    match = _POSITION.match(body)
    return body[match.end() :] if match and match.end() < len(body) else None


@lru_cache(maxsize=1024)
def seconds_of(stamp: str) -> float | None:
    """Convert a log's time stamp to seconds since 1970 in an unknown time zone; None for other text."""
    try:
        moment = datetime.strptime(stamp, "%m/%d/%Y-%H:%M:%S")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _peel_once(body: str) -> tuple[Prefix | None, str]:
    """Remove one prefix from a log line; None if the line has no prefix."""
    head = body[:1]
    forms: tuple[tuple[int, re.Pattern[str]], ...]
    if head == "[" and body[1:2] in _IN_BRACKETS:
        forms = _BRACKETED
    elif head in _BEGINNINGS and head != "[":
        forms = _WORDED
    else:
        return None, body
    for number, form in forms:
        match = form.match(body)
        if match:
            return _prefix(match, number), body[match.end() :].lstrip()
    return None, body


_IN_BRACKETS = frozenset("0123456789[ \tTVIWEFX")
_BEGINNINGS = frozenset(f"[T{''.join(word[0] for word in _WORDS)}")
"""First characters of prefixes: most lines without a prefix are rejected by them."""


def _prefix(match: re.Match[str], number: int) -> Prefix:
    groups = match.groupdict()
    word = groups.get("word")
    return Prefix(
        stamp=groups.get("stamp") or "",
        severity=_WORDS[word] if word else groups.get("severity") or "",
        origin=groups.get("origin") or groups.get("late") or ("TRT" if word else ""),
        form=PYTHON if number == STAMPED and groups.get("origin") else number,
    )
