"""Message patterns: templates that recognise one message of a log and extract its fields.

A pattern is written as the message itself, with its changing parts in braces:

    Running: {pass} on {node}
    {layer>} ({runner}) profiling completed in {seconds:num} seconds. Fastest Tactic: {tactic:hex} Time: {ms:num}

* `{name}` takes the text up to the first occurrence of what follows; it is not empty.
* `{name?}` may be empty.
* `{name>}` takes the text up to the *last* occurrence of what follows (node names contain brackets and spaces).
  At most one field of a pattern does that.
* `{name:kind}` also checks and converts: `int`, `num` (a float; infinite becomes None), `hex` (a tactic id in any
  spelling, as `0x` and 16 digits), `hex16` (a tactic id with 16 digits), `id` (a tactic id as printed), `word` (no
  white space).

Matching is a handful of `str.find` calls: its time is linear in the message, whatever the message holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from string import Formatter
from typing import Any, Literal

from qdqtool.trt.tactics import tactic_id as known_id

Fields = tuple[Any, ...]
Read = Callable[[str], "Fields | None"]
Light = Literal["no", "all", "rest", "noted"]
_NAMED = re.compile(r"\(\?P<(\w+)>")
HEX16 = 18
"""Characters of a tactic id that is written as `0x` and 16 digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessagePattern:
    """A log message with fixed words and named fields.

    Attributes:
        name: its meaning; several patterns (wordings of several releases) may share a name and its fields.
        form: the message with its fields in braces.
        examples: messages it recognises, from real logs; they are its test.
        light: "no" if each of its messages is handled. For other patterns the reader may count messages without
            parsing them. "all": all messages. "rest": all but the first of a row of messages. "noted": all, and the
            last message is available on request. They begin with eight fixed ASCII characters, or end with sixteen,
            or with eight and a tactic id. If a tactic id is not the first one, the text after it is searched too.
    """

    name: str
    form: str
    examples: tuple[str, ...]
    light: Light = "no"
    head: str = field(init=False, default="")
    tail: str = field(init=False, default="")
    before_id: str = field(init=False, default="")
    after_id: str = field(init=False, default="")
    anchor: str = field(init=False, default="")
    fields: tuple[str, ...] = field(init=False, default=())
    read: Read = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plan = _plan(self.form)
        object.__setattr__(self, "head", plan.head)
        object.__setattr__(self, "tail", plan.tail)
        if plan.fields and plan.fields[-1][1] == "hex16" and not plan.tail:
            object.__setattr__(self, "before_id", plan.between[-1])
        if plan.fields and plan.fields[0][1] == "hex" and plan.between:
            object.__setattr__(self, "after_id", plan.between[0])
        object.__setattr__(self, "anchor", plan.head or max((*plan.between, plan.tail), key=len))
        object.__setattr__(self, "fields", tuple(name for name, _ in plan.fields))
        object.__setattr__(self, "read", _compile(plan))


@dataclass(frozen=True, kw_only=True, slots=True)
class RegexPattern:
    """A row of a table or array in a log, matched by a regular expression over the whole line.

    The expression must be free of nested repetition, so that its time stays linear.
    """

    name: str
    form: str
    examples: tuple[str, ...]
    fields: tuple[str, ...] = field(init=False, default=())
    read: Read = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(_NAMED.findall(self.form)))
        object.__setattr__(self, "read", _matching(self.form))


def _matching(form: str) -> Read:
    # Most logs need few of the shapes, and compiling all of them takes a third of the loading time.
    pattern: re.Pattern[str] | None = None

    def read(body: str) -> Fields | None:
        nonlocal pattern
        if pattern is None:
            pattern = re.compile(form)
        match = pattern.fullmatch(body)
        return match.groups() if match else None

    return read


def message(name: str, form: str, *examples: str, light: Light = "no") -> MessagePattern:
    """Return the pattern for log messages of this form."""
    return MessagePattern(name=name, form=form, examples=examples, light=light)


def row(name: str, form: str, *examples: str) -> RegexPattern:
    """Return the pattern for rows of a table in a log."""
    return RegexPattern(name=name, form=form, examples=examples)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSection:
    """Log lines that have a meaning only after a heading: options, tables, layer records.

    Attributes:
        opens: name of the pattern that is its heading.
        rows: forms of its lines.
        first: whether rows are tried before the patterns of the whole log; otherwise after them.
        bare: whether its rows carry no logger prefix, so that the next line with a prefix ends it.
    """

    opens: str
    rows: tuple[MessagePattern | RegexPattern, ...]
    first: bool = False
    bare: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternSet:
    """Patterns about one subject; one file of `qdqtool.buildlog.patterns` registers them.

    Attributes:
        patterns: tried everywhere.
        sections: rows that have a meaning only after a heading.
        foreign: shapes of lines that are not the builder's, tried last and only if builders use prefixes.
    """

    patterns: tuple[MessagePattern | RegexPattern, ...] = ()
    sections: tuple[LogSection, ...] = ()
    foreign: tuple[RegexPattern, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    head: str
    fields: tuple[tuple[str, str], ...]
    between: tuple[str, ...]
    tail: str
    greedy: int | None
    optional: frozenset[int]


def _plan(form: str) -> _Plan:
    fields: list[tuple[str, str]] = []
    literals: list[str] = []
    greedy: int | None = None
    optional: set[int] = set()
    open_literal = ""
    for literal, name, kind, _ in Formatter().parse(form):
        # An escaped brace ends a literal early; no field follows it.
        open_literal += literal
        if name is None:
            continue
        literals.append(open_literal)
        open_literal = ""
        if name.endswith(">"):
            assert greedy is None, form
            greedy = len(fields)
        elif name.endswith("?"):
            optional.add(len(fields))
        fields.append((name.rstrip(">?"), kind or "text"))
    literals.append(open_literal)
    assert all(literals[1:-1]), f"two fields touch in {form!r}"
    return _Plan(
        head=literals[0],
        fields=tuple(fields),
        between=tuple(literals[1:-1]),
        tail=literals[-1] if fields else "",
        greedy=greedy,
        optional=frozenset(optional),
    )


def _compile(plan: _Plan) -> Read:
    if not plan.fields:
        head = plan.head
        return lambda body: () if body == head else None
    plain = all(kind == "text" for _, kind in plan.fields)
    if plain and not plan.tail and not plan.head and plan.optional == {1} and len(plan.fields) == 2:
        return _two_or_one(plan.between[0])
    plain = plain and not plan.optional
    if plain and not plan.tail and len(plan.fields) == 1:
        return _one(plan.head)
    if plain and len(plan.fields) == 2:
        return _two(plan.head, plan.between[0], plan.tail, last=plan.greedy == 0)
    return _general(plan)


def _one(head: str) -> Read:
    skip = len(head)

    def read(body: str) -> Fields | None:
        return (body[skip:],) if body.startswith(head) and len(body) > skip else None

    return read


def _two(head: str, middle: str, tail: str, *, last: bool) -> Read:
    begin, cut = len(head), -len(tail) or None

    def first_split(body: str) -> Fields | None:
        if not (body.startswith(head) and body.endswith(tail)):
            return None
        left, separator, right = body[begin:cut].partition(middle)
        return (left, right) if separator and left and right else None

    def last_split(body: str) -> Fields | None:
        if not (body.startswith(head) and body.endswith(tail)):
            return None
        left, separator, right = body[begin:cut].rpartition(middle)
        return (left, right) if separator and left and right else None

    return last_split if last else first_split


def _two_or_one(middle: str) -> Read:
    def read(body: str) -> Fields | None:
        left, separator, right = body.partition(middle)
        return (left, right) if separator and left else None

    return read


def _general(plan: _Plan) -> Read:
    head, tail = plan.head, plan.tail
    count = len(plan.fields)
    pivot = count - 1 if plan.greedy is None else plan.greedy
    before, after = plan.between[:pivot], plan.between[pivot:][::-1]
    convert = tuple((at, _KINDS[kind]) for at, (_, kind) in enumerate(plan.fields) if kind != "text")
    optional = plan.optional
    begin, cut = len(head), -len(tail) or None

    def read(body: str) -> Fields | None:
        if not (body.startswith(head) and body.endswith(tail)):
            return None
        inner = body[begin:cut]
        values: list[Any] = []
        for literal in before:
            value, separator, inner = inner.partition(literal)
            if not separator:
                return None
            values.append(value)
        late: list[Any] = []
        for literal in after:
            inner, separator, value = inner.rpartition(literal)
            if not separator:
                return None
            late.append(value)
        values.append(inner)
        values += late[::-1]
        if "" in values and not all(value or at in optional for at, value in enumerate(values)):
            return None
        for at, kind in convert:
            converted = kind(values[at])
            if converted is _WRONG:
                return None
            values[at] = converted
        return tuple(values)

    return read


_WRONG = object()


def _int(text: str) -> object:
    text = text.strip()
    digits = text[1:] if text[:1] in "+-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 25 else _WRONG


def _number(text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        return _WRONG
    return value if isfinite(value) else None


def tactic_id(text: str) -> object:
    """Convert a tactic id to `0x` and 16 digits. Releases print it signed decimal, hexadecimal, or hexadecimal padded."""
    return known_id(text) or _WRONG


def _hex(text: str) -> object:
    return tactic_id(text) if len(text) < 25 else _WRONG


def _hex16(text: str) -> object:
    return tactic_id(text) if len(text) == HEX16 and text.startswith("0x") else _WRONG


def _id(text: str) -> object:
    return text if text[:1] in _FIRST_OF_ID and len(text) < 25 else _WRONG


def _word(text: str) -> object:
    return _WRONG if " " in text or "\t" in text else text


_KINDS: dict[str, Callable[[str], object]] = {
    "int": _int,
    "num": _number,
    "hex": _hex,
    "hex16": _hex16,
    "id": _id,
    "word": _word,
}
_FIRST_OF_ID = frozenset("-0123456789")
