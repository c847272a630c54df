"""One escaping function per form of output: names out of models, logs and dumps stay names wherever they are printed.

A layer may be called `=HYPERLINK(...)`, carry ANSI escapes or half a surrogate pair. Every form that holds such names
passes them through the function of this file that is named like the form; JSON and HTML escape by themselves
(`io.json_files.canonical`, Jinja's autoescape).
"""

from __future__ import annotations

import re

_FORMULA = re.compile(" *[=+\\-@\uff1d\uff0b\uff0d\uff20]")
"""How a cell begins that a spreadsheet calculates (OWASP, CSV injection), their full-width twins included, and behind blanks that some
importers strip."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~!@])")
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::")
_CONTROL_PICTURES = 0x2400
"""Unicode's visible pictures of the control characters 0 to 31."""


def printable(text: str, *, lines: bool = False) -> str:
    """Text for a terminal: what is not printable becomes a Python escape; line breaks too, unless `lines`.

    A line that begins with two colons, behind blanks or not, is a command to GitHub's runner, whatever prints it: it gets a
    backslash in front of them.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() or (lines and char == "\n") else repr(char)[1:-1] for char in text
        )
    return _COMMAND.sub(r"\1\\::", text) if "::" in text else text


def csv_cell(cell: str | float | None) -> str:
    """A cell of a CSV file: one line, and no formula: text that would be one gets an apostrophe in front.

    Numbers, also those in text, stay as they are.
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return f"{cell:.6g}"
    text = printable(str(cell))
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text.strip()) else text


def markdown(text: str) -> str:
    """Words inside a paragraph or a table cell of GitHub's Markdown: no markup, no mention, one line."""
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))


def github_message(text: str) -> str:
    """The message of a workflow command: one line; percent signs and line breaks are coded."""
    plain = printable(text.replace("\r\n", "\n").replace("\r", "\n"), lines=True)
    return plain.replace("%", "%25").replace("\n", "%0A")


def github_property(text: str) -> str:
    """The value of a property of a workflow command, where colons and commas are coded as well."""
    return github_message(text).replace(":", "%3A").replace(",", "%2C")


def xml(text: str) -> str:
    """Text that XML 1.0 can hold: control characters as their pictures, half surrogate pairs as U+FFFD."""
    return text if text.isprintable() else "".join(map(_in_xml, text))


def xml_line(text: str) -> str:
    """The same on one line: tabs and line breaks become blanks."""
    return text if text.isprintable() else xml(re.sub(r"[\t\n\r]", " ", text))


def dot_string(text: str) -> str:
    """A quoted string of Graphviz's DOT language; line breaks stay line breaks of the label."""
    body = printable(text, lines=True).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{body}"'


def _in_xml(char: str) -> str:
    code = ord(char)
    if char in "\t\n":
        return char
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    # Bidirectional controls reorder what a person reads; non-characters and surrogates are not XML.
    odd = 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    return "\N{REPLACEMENT CHARACTER}" if odd or _reorders(code) else char


def _reorders(code: int) -> bool:
    return code in {0x200E, 0x200F, 0x061C} or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
