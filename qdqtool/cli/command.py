"""How the words of a command are read, where the parser below would get them wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from qdqtool.errors import UsageError

# --- commands --------------------------------------------------------------------------------------------------------


class _Whole:
    """In the list of commands every one has its whole sentence, over several lines where it is long."""

    help: str | None

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first paragraph of the help; `limit` is where the parser would cut it."""
        del limit
        return " ".join((self.help or "").partition("\n\n")[0].split())


class QdqGroup(_Whole, TyperGroup):
    """A command that only holds others."""


class QdqCommand(_Whole, TyperCommand):
    """A command whose `--cluster` may stand alone, and whose paths are never empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words that the parser leaves over.

        Raises:
            UsageError: a path is empty.
        """
        given = tuple(args)  # the parser takes words away
        left = super().parse_args(ctx, spelled_out(args))
        inputs = {one.name for one in self.params if one.param_type_name == "argument"}
        _refuse_empty_paths(given, ctx.params, inputs)
        return left


def _refuse_empty_paths(words: Sequence[str], values: dict[str, Any], inputs: Collection[str | None]) -> None:
    """An empty path would mean the current folder: `--out "$UNSET"` of a script wrote there.

    Inputs may be more than paths (- for standard input, a function in a file), and so plain words.
    """
    if "" not in words and not any(word.endswith("=") for word in words):
        return
    here = [word for word in words if word.rpartition("=")[2] in {".", "./"}]
    for name, value in values.items():
        paths = value if isinstance(value, list | tuple) else [value]
        empty = any(isinstance(path, Path) and path == Path() for path in paths) and not here
        if empty or (name in inputs and "" in paths):
            raise UsageError(
                "the path is empty",
                fix="name a file or a folder; . is the current one",
                where=name.replace("_", "-"),
            )


# --- --cluster without an address ------------------------------------------------------------------------------------
# `--cluster` without an address: the parser below knows only options that always take a word.

_CLUSTER = "--cluster"
_ADDRESS = re.compile(r"local|[a-z][a-z0-9+.-]*://\S*|[^\s/\\]+:\d+")


def spelled_out(words: Sequence[str]) -> list[str]:
    """The same words, where a `--cluster` that no address follows is followed by "local".

    An address is `local`, `scheme://...` or `host:port`; anything else belongs to somebody else on the line.
    """
    result: list[str] = []
    for number, word in enumerate(words):
        result.append(word)
        following = words[number + 1] if number + 1 < len(words) else "-"
        if word == _CLUSTER and "--" not in words[:number] and not _ADDRESS.fullmatch(following):
            result.append("local")
    return result
