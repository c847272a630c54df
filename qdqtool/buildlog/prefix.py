"""Line prefixes: who speaks, when, and how loud, for every front end that prints TensorRT's messages.

    [01/10/2024-21:52:52] [V] [TRT] msg     trtexec, the library's messages
    [01/10/2024-21:52:52] [I] msg           trtexec, its own messages
    [01/10/2024-21:52:52] [TRT] [V] msg     tensorrt.Logger in Python, 8.0 and newer
    [TensorRT] VERBOSE: msg                 tensorrt.Logger in Python, 5 to 7
    [V] msg   [V] [TRT] msg                 Polygraphy, TensorRT for RTX, loggers of one's own
    [TRT]    msg                            jetson-inference
    INFO: [TRT]: msg                        DeepStream
    TensorRT VERBOSE msg                    loggers of one's own

Outside these may stand what carried the line: docker and Kubernetes time stamps, systemd, docker compose, Nsight,
continuous integration. Joined or doubled stamps are peeled one after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

SEVERITIES = "VIWEFX"

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
_LEVEL = "|".join(_WORDS)
_STAMP = r"\[{1,2}\s*(?P<stamp>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]"

STAMPED, SHORT, REVERSED, OLD, DEEPSTREAM, NAMED, JETSON, BARE_STAMP = range(8)
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
)
_BRACKETED_CARRIERS = (
    # ROS: [INFO] [1700000000.123]: or [INFO] [1700000000.123] [node-1]:
    re.compile(r"\[(?:INFO|WARN|ERROR|DEBUG|FATAL)\] \[\d{1,12}\.\d{1,9}\](?: \[[\w./-]{1,80}\])?: "),
    # MLPerf harness: [2021-03-11 17:33:29,841 __init__.py:255 INFO]
    re.compile(
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [\w.]{1,60}:\d{1,6} {1,4}(?:INFO|WARNING|ERROR|DEBUG)\] "
    ),
    # TensorRT Edge-LLM: [21:33:58.857] [INFO] [TensorRT]
    re.compile(r"\[\d\d:\d\d:\d\d\.\d{3}\] \[(?:INFO|WARNING|ERROR|DEBUG|VERBOSE)\] (?:\[[\w.:]{1,120}\] )?"),
)
_NUMBERED_CARRIERS = (
    # docker, Kubernetes, GitHub: 2024-05-01T10:00:00.123456789Z [stdout F ]
    re.compile(
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] |- )?"
    ),
)
_LETTERED_CARRIERS = (
    # systemd, syslog: Jan 02 15:04:05 host unit[123]:
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [^\s:\[]{1,80}(?:\[\d{1,10}\])?: "),
    # glog, Triton: I0410 08:00:00.123456 1 logging.cc:49]
    re.compile(r"[VIWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,6}\s{1,4}\d{1,10} [\w./-]{1,120}:\d{1,7}\] "),
    # docker compose: name-1  |
    re.compile(r"[A-Za-z0-9][\w.-]{0,60} {1,20}\| (?=\[|&&&& |TensorRT )"),
)
_POSITION = re.compile(r"[\w./\\-]{1,200}\.(?:cpp|hpp|h|cc|cu|py|inl)(?::\d{1,7}|\(\d{1,7}\))(?::| -)? ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """What stood before a message.

    Attributes:
        stamp: `MM/DD/YYYY-HH:MM:SS`, or "".
        severity: one of `SEVERITIES`, or "" where none is printed.
        origin: "TRT" for the library's messages, "" for the front end's own.
        form: number of the prefix form, -1 where the line has none; tells front ends apart.
    """

    stamp: str = ""
    severity: str = ""
    origin: str = ""
    form: int = -1


NO_PREFIX = Prefix()
SOME_PREFIX = Prefix(form=SHORT)
"""A quiet prefix that nobody looked at closely."""
_PEELS = 4


def peel(line: str) -> tuple[Prefix, str]:
    """The prefix of a line and its message; of several joined prefixes, the innermost counts."""
    prefix, body = NO_PREFIX, line.lstrip()
    for _ in range(_PEELS):
        found, rest = _peel_once(body)
        if found is None:
            break
        prefix, body = (found if found.form >= 0 else prefix), rest
    return prefix, body


def without_position(body: str) -> str | None:
    """The message behind a source position (`ModelImporter.cpp:119: msg`), or None where there is none."""
    found = _POSITION.match(body)
    return body[found.end() :] if found and found.end() < len(body) else None


def seconds_of(stamp: str) -> float | None:
    """Seconds since 1970 of a time stamp (its time zone is not printed; differences are right), or None."""
    try:
        moment = datetime.strptime(stamp, "%m/%d/%Y-%H:%M:%S")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _peel_once(body: str) -> tuple[Prefix | None, str]:
    """One prefix or one carrier taken off; None where there is neither."""
    head = body[:1]
    forms: tuple[tuple[int, re.Pattern[str]], ...] = ()
    carriers: tuple[re.Pattern[str], ...]
    if head == "[":
        forms, carriers = _BRACKETED, _BRACKETED_CARRIERS
    elif head.isalpha():
        forms, carriers = _WORDED, _LETTERED_CARRIERS
        if body.startswith(_COMMON):
            return None, body
    elif head.isdigit():
        carriers = _NUMBERED_CARRIERS
    else:
        return None, body
    for number, form in forms:
        found = form.match(body)
        if found:
            return _prefix(found, number), body[found.end() :].lstrip()
    for carrier in carriers:
        found = carrier.match(body)
        if found:
            return NO_PREFIX, body[found.end() :].lstrip()
    return None, body


_COMMON = ("Layer(", "Name: ")
"""What lines without a prefix begin with most often."""


def _prefix(found: re.Match[str], number: int) -> Prefix:
    groups = found.groupdict()
    word = groups.get("word")
    return Prefix(
        stamp=groups.get("stamp") or "",
        severity=_WORDS[word] if word else groups.get("severity") or "",
        origin=groups.get("origin") or groups.get("late") or ("TRT" if word else ""),
        form=number,
    )
