"""Finds the files of an old build in a folder, and reports which of them are worth keeping."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from qdqtool.backends.migration.advice import Advice, Migration
from qdqtool.backends.migration.command_line import migrate_command
from qdqtool.backends.migration.script import migrate_script
from qdqtool.backends.plan import banner_release, read_plan, spell
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import require_file, unreadable

_CACHE = re.compile(rb"TRT-(?P<release>\d+)-(?P<kind>\w+)\r?\n")
_BANNER = re.compile(r"^&&&& RUNNING TensorRT\.trtexec(?: \[[^\]]*\])* # (?P<command>.*)$", re.MULTILINE)
_HEAD = 1 << 16
"""Bytes at the start of a file that are read to detect its kind."""
_ENGINES = frozenset({".plan", ".engine", ".trt"})
# A folder given by mistake, such as a home, must not be searched for ever.
_MOST_FILES = 10_000


def migrate_path(path: Path) -> Migration:
    """Return advice for a script, calibration cache, log or engine, or for a folder of such files.

    Raises:
        InputFileError: it cannot be read, or is none of these.
    """
    if path.is_dir():
        return _folder(path)
    found = _file(path)
    if found is None:
        raise InputFileError(
            "is not a script, calibration cache, log with a trtexec banner, shell script with trtexec, or engine",
            fix="pass one of these, or a trtexec command line",
            where=str(path),
        )
    return found


def _folder(path: Path) -> Migration:
    files = sorted(child for child in path.iterdir() if child.is_file())[:_MOST_FILES]
    advice: list[Advice] = []
    first: Migration | None = None
    for file in files:
        found = _file(file)
        if found is None:
            continue
        if first is None and found.command:
            first = found
        advice += [replace(each, where=f"{file.name}: {each.where}") for each in found.advice]
    if not advice:
        raise InputFileError(
            "contains no file of TensorRT",
            fix="pass the folder with the log, engine, cache or script of a build",
            where=str(path),
        )
    told = first or Migration(source="", name="", advice=())
    return replace(told, source="build folder", name=path.name, advice=tuple(advice))


def _file(path: Path) -> Migration | None:
    if path.suffix == ".py":
        return migrate_script(path)
    require_file(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    cache = _CACHE.match(head)
    if cache is not None:
        return _cache(path, cache["kind"].decode())
    if path.suffix in _ENGINES:
        return _engine(path)
    return _log(path, head.decode("utf-8", "replace"))


def _cache(path: Path, kind: str) -> Migration:
    advice = Advice(
        where="cache",
        what=kind,
        action="change the model",
        reason="11 has no calibrators: no engine reads this cache, but its ranges are still valid",
        do=f"qdqtool cache to-qdq MODEL {path.name}",
    )
    return Migration(source="calibration cache", name=path.name, advice=(advice,))


def _engine(path: Path) -> Migration:
    try:
        release = spell(read_plan(path).release)
    except InputFileError:
        release = "older than 8.6, or unknown"
    advice = Advice(
        where="engine",
        what=release,
        action="drop",
        reason="only the release that built an engine loads it (unless it was built version compatible)",
        do="build it again from the ONNX model: qdqtool build",
    )
    return Migration(source="engine", name=path.name, advice=(advice,))


def _log(path: Path, head: str) -> Migration | None:
    banner = _BANNER.search(head)
    lines = [
        line
        for line in head.replace("\\\n", " ").splitlines()
        if re.match(r"\s*(\S*/)?trtexec(\.exe)?\s+-", line)
    ]
    text = banner["command"] if banner else next(iter(lines), "")
    try:
        found = migrate_command(text, name=path.name) if text else None
    except UsageError:
        return None
    if found is None or not banner:
        return found
    built = Advice(
        where="banner",
        what=spell(banner_release(head)) or "unknown release",
        action="measure anew",  # english: a value of JSON
        reason="releases measure times differently",
        do="measure old and new side by side: qdqtool time",
    )
    return replace(found, advice=(built, *found.advice))
