"""Finds trtexec, and reads its supported flags from its help text."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from qdqtool.backends.building.guards import Strong
from qdqtool.backends.flags import Flag
from qdqtool.backends.plan import Release, banner_release, spell
from qdqtool.errors import MissingPackage, UsageError
from qdqtool.io import child

_PLACES = ("/usr/src/tensorrt/bin/trtexec", "/opt/tensorrt/bin/trtexec")
"""Paths where NVIDIA's packages install trtexec without changing PATH."""
_VARIABLE = "QDQTOOL_TRTEXEC"
_DEFINITION = re.compile(r"^\s*(--[A-Za-z][\w-]*(?:=\S*)?(?:,\s*--[A-Za-z][\w-]*(?:=\S*)?)*)", re.MULTILINE)
_NAME = re.compile(r"--([A-Za-z][\w-]*)")
_MOST_HELP = 20_000
"""Largest number of lines that are read from the help text."""
# Seconds; the first start loads gigabytes of libraries, maybe from a network disk.
_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A trtexec program and the flags it supports.

    Attributes:
        path: path of the program.
        release: from its banner; empty if it prints none.
        flags: names of the flags its own help explains.
    """

    path: Path
    release: Release
    flags: frozenset[str]

    @property
    def strong(self) -> Strong:
        """Whether trtexec's networks are strongly typed: "always", "on request" or "never"."""
        if "int8" not in self.flags:
            return "always"
        return "on request" if "stronglyTyped" in self.flags else "never"

    def first_of(self, *names: str) -> Flag | None:
        """Return the first of these flags that trtexec supports, because releases name some flags differently."""
        return next((Flag(name=name) for name in names if name in self.flags), None)

    def check(self, flags: tuple[Flag, ...]) -> None:
        """Refuse flags that trtexec does not support.

        Raises:
            UsageError: names them, with the nearest it knows.
        """
        unknown = [flag for flag in flags if flag.name not in self.flags]
        if not unknown:
            return
        near = {flag.name: get_close_matches(flag.name, self.flags, n=1) for flag in unknown}
        hints = [f"--{names[0]} instead of --{name}?" for name, names in near.items() if names]
        hints.append("qdqtool migrate explains flags that were removed")
        raise UsageError(
            f"this trtexec ({spell(self.release) or 'of unknown release'}) does not know "
            + ", ".join(f"--{flag.name}" for flag in unknown),
            fix=" ".join(hints),
            where=str(self.path),
        )


def find_trtexec() -> Path:
    """Return the trtexec of QDQTOOL_TRTEXEC, else of PATH, else of NVIDIA's install folders.

    Raises:
        MissingPackage: there is none.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise MissingPackage(
                f"{_VARIABLE} names a program that does not exist", fix="correct the variable", where=named
            )
        return Path(named)
    program = shutil.which("trtexec") or next((place for place in _PLACES if Path(place).is_file()), None)
    if program is None:
        raise MissingPackage(
            "trtexec was not found",
            fix=f"install TensorRT's command-line tools and put trtexec on PATH, or set {_VARIABLE}",
        )
    return Path(program)


def ask(path: Path) -> Program:
    """Run trtexec with --help, and return its release and flags.

    Raises:
        MissingPackage: the program cannot be run, prints nothing, hangs, or is another program.
    """
    lines: list[bytes] = []

    def hear(line: bytes) -> None:
        if len(lines) < _MOST_HELP:
            lines.append(line)

    try:
        ended = child.run((str(path), "--help"), on_line=hear, timeout_s=_PATIENCE_S)
    except OSError as error:
        raise _strange(path, f"cannot be run: {error.strerror or error}") from error
    text = b"".join(lines).decode("utf-8", "replace")
    if ended.timed_out:
        raise _strange(path, f"did not answer --help within {_PATIENCE_S:g} s")
    if "=== Build Options ===" not in text:
        problem = "prints nothing" if not text.strip() else "is another program"
        died = f" (it ended with code {ended.code})" if ended.code else ""
        raise _strange(path, f"{problem} when asked for --help{died}")
    names = {name for definition in _DEFINITION.findall(text) for name in _NAME.findall(definition)}
    return Program(path=path, release=banner_release(text), flags=frozenset(names))


def _strange(path: Path, problem: str) -> MissingPackage:
    return MissingPackage(
        f"{problem}: it is not a working trtexec", fix=f"set {_VARIABLE} to trtexec", where=str(path)
    )
