"""YAML from files that may be hostile: they are refused before reading them takes long."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import Node

from qdqtool.errors import InputFileError, UsageError

_DEEPEST = 32
"""Deepest nesting of sections: the reader checks all open brackets again at every word, so 20 KB of brackets take 13 seconds."""


def parse_yaml(
    text: str,
    where: str,
    *,
    most: int,
    aliases: bool = True,
    raises: type[InputFileError | UsageError] = InputFileError,
) -> tuple[Any, Node | None]:
    """Return the document in a YAML text, and its nodes with their lines; (None, None) if it is empty.

    `most` is the largest number of names, values and brackets: the reader takes some 100 microseconds for each.

    Raises:
        InputFileError: (or the class `raises`) the text is not YAML, too large or too deeply nested, or uses aliases
            that are not allowed.
    """
    depth = 0
    try:
        for number, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > _DEEPEST:
                raise raises(
                    f"the file has more than {_DEEPEST} nested sections",
                    fix="use fewer nested sections",
                    where=where,
                )
            if isinstance(event, AliasEvent) and not aliases:
                raise raises(
                    "anchors and aliases are not supported",
                    fix="write the value instead of the anchor or alias",
                    where=where,
                )
            if number > most:
                raise raises(
                    f"the file has more than {most} names and values",
                    fix="write fewer names; one glob pattern can name many nodes",
                    where=where,
                )
        reader = YAML(typ="safe", pure=True)
        root = reader.compose(text)
        return (None if root is None else reader.constructor.construct_document(root)), root
    except (YAMLError, ValueError, RecursionError) as error:
        raise raises(
            f"the file is not YAML: {yaml_trouble(error)}", fix="correct this line", where=where
        ) from error


def yaml_trouble(error: YAMLError | ValueError | RecursionError) -> str:
    """Describe the error in a YAML text, in one line with the line number."""
    if isinstance(error, RecursionError):
        return "the text is nested too deeply"
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    began = error.context_mark
    inside = f", {error.context} that begins in line {began.line + 1}" if error.context and began else ""
    problem = str(error.problem).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{inside}"
