"""One escaping function per output format, so that names from models, logs and dumps are printed as plain names.

A layer may be called `=HYPERLINK(...)`, carry ANSI escapes or half a surrogate pair. Every form that holds such names
passes them through the function of this file that is named like the form; JSON and HTML escape by themselves
(`io.json_files.canonical`, Jinja's autoescape).
"""

from __future__ import annotations

import re

_FORMULA = re.compile(" *[=+\\-@\uff1d\uff0b\uff0d\uff20]")
"""Start of a cell that a spreadsheet would calculate (OWASP, CSV injection), including full-width characters,
and leading blanks that some importers strip.
"""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~!@])")
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::")
_CONTROL_PICTURES = 0x2400
"""Code point of Unicode's visible pictures of the control characters 0 to 31."""


def printable(text: str, *, lines: bool = False) -> str:
    """Escape text for a terminal: unprintable characters become Python escapes; line breaks too, unless `lines`.

    A line that begins with two colons, with or without leading blanks, is a command to GitHub's runner, whatever prints
    it: it gets a backslash before them.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() or (lines and char == "\n") else repr(char)[1:-1] for char in text
        )
    return _COMMAND.sub(r"\1\\::", text) if "::" in text else text


def csv_cell(cell: str | float | None) -> str:
    """Return a CSV cell on one line. Text that a spreadsheet would read as a formula gets a leading apostrophe.

    Numbers, also in text form, are not changed.
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
    """Escape text for a paragraph or a table cell of GitHub's Markdown: no markup, no mentions, one line."""
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))


def github_message(text: str) -> str:
    """Escape the message of a workflow command: one line, with encoded percent signs and line breaks."""
    plain = printable(text.replace("\r\n", "\n").replace("\r", "\n"), lines=True)
    return plain.replace("%", "%25").replace("\n", "%0A")


def github_property(text: str) -> str:
    """Escape the value of a property of a workflow command; colons and commas are encoded too."""
    return github_message(text).replace(":", "%3A").replace(",", "%2C")


def xml(text: str) -> str:
    """Make text valid in XML 1.0: control characters become their pictures, half surrogate pairs become U+FFFD."""
    return text if text.isprintable() else "".join(map(_in_xml, text))


def xml_line(text: str) -> str:
    """Make text valid in XML 1.0, on one line: tabs and line breaks become spaces."""
    return text if text.isprintable() else xml(re.sub(r"[\t\n\r]", " ", text))


def dot_string(text: str) -> str:
    """Return a quoted string of Graphviz's DOT language; line breaks stay line breaks of the label."""
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
