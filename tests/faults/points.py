"""Counts the places where a program asks the system to change something, and lets one of them go wrong.

A *point* is a call that writes, renames, removes, makes, syncs, locks or starts something, or a statement of SQLite. Its
name says which process made it, what it does to which file, and how many times this process had done just that:

    main write out/placement.json 2

Names hold no time and nothing random, so that a point found in one run is found in the next. Functions of the standard
library are replaced, before anything else imports them; files opened for writing get a raw stream of Python, so that
every write that reaches the system is seen. What native code writes by itself is not.

Only the standard library is used: `sitecustomize` imports this file by itself in every child process.
"""

# ruff: noqa: PTH100, PTH115, PTH119, PTH208

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

VARIABLE = "QDQTOOL_FAULTS"
"""JSON: `folder` for notes, `root` to which names are relative, for a hit `point` and `fault`; `kills` for snapshots."""
_RANDOM = re.compile(
    r"(\.qdqtool-draft-|\.cache-|/tmp|(?<=/tmp/)|qdqtool-(?:[a-z0-9]+-)?)[a-z0-9_]{8}(?![a-z0-9_])"
    # a file without a name, by which filelock finds out whether a file system has locks, goes by its number
    r"|(?<=/#)\d+(?= \(deleted\)$)"
)
_FAILS: dict[str, tuple[str, ...]] = {
    "ENOSPC": ("open", "write", "mkdir", "fsync", "truncate", "link"),
    "EROFS": ("open", "write", "mkdir", "rename", "remove", "rmdir", "chmod", "truncate", "link"),
    "EMFILE": ("open", "spawn"),
}
"""Faults that last, and what they make fail from then on; others happen once."""
_SQL = {
    "ENOSPC": "database or disk is full",
    "EIO": "disk I/O error",
    "EROFS": "attempt to write a readonly database",
    "EBUSY": "database is locked",
}
_INNERMOST = 3
"""Calls of the project that tell what writes, and from where."""
SUITED: dict[str, tuple[str, ...]] = {
    "open": ("ENOSPC", "EROFS", "EMFILE", "EIO", "EINTR", "kill"),
    "write": ("ENOSPC", "EIO", "EINTR", "kill"),
    "fsync": ("ENOSPC", "EIO", "EINTR", "kill"),
    "rename": ("EROFS", "EIO", "ENOSPC", "kill", "kill after"),
    "remove": ("EROFS", "EIO", "kill", "kill after"),
    "rmdir": ("EROFS", "EIO", "kill", "kill after"),
    "mkdir": ("ENOSPC", "EROFS", "EIO", "kill", "kill after"),
    "chmod": ("EROFS", "EIO", "kill"),
    "truncate": ("ENOSPC", "EROFS", "EIO", "kill"),
    "link": ("ENOSPC", "EROFS", "EIO", "kill"),
    "lock": ("ENOLCK", "EIO", "EINTR", "kill", "kill after"),
    "spawn": ("EMFILE", "EAGAIN", "ENOMEM", "kill", "kill after"),
    "sql": ("ENOSPC", "EIO", "EROFS", "EBUSY", "kill", "kill after"),
}
"""What each kind of point is tried with; `kill` is SIGKILL before it, for writes after half of the bytes."""

_open, _os_open, _exists = io.open, os.open, os.path.exists
_state: dict[str, Any] = {}
_counts: Counter[str] = Counter()


def begin(role: str = "") -> None:
    """Read what is asked for from the environment; from here on points count."""
    asked = json.loads(os.environ[VARIABLE])
    _counts.clear()
    _state.update(asked, role=role or _ordinal(asked["folder"], _program()))


def _program() -> str:
    """What this process runs: the module, or the file, or the words of `-c` that name a worker."""
    words = sys.orig_argv[1:]
    for place, word in enumerate(words):
        if word == "-m":
            return words[place + 1]
        if word == "-c":
            named = re.search(r"from ([\w.]+) import", words[place + 1])
            return named.group(1) if named else "-c"
        if not word.startswith("-"):
            return os.path.basename(word)
    return "python"


def _ordinal(folder: str, role: str) -> str:
    """The role with its number: the second builder is another process than the first."""
    for number in range(10_000):
        try:
            os.close(_os_open(f"{folder}/{role} {number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return f"{role}#{number}"
    raise AssertionError(role)


def _name(target: Any) -> str | None:
    """A path relative to the root, without what is random; None for what is no file of ours."""
    if isinstance(target, int):
        try:
            if not stat.S_ISREG(os.fstat(target).st_mode):
                return None
            target = os.readlink(f"/proc/self/fd/{target}")
        except OSError:
            return None
    path = os.path.abspath(os.fsdecode(target))
    if not path.startswith(_state["root"] + "/"):
        return None
    return without_random("/" + os.path.relpath(path, _state["root"]))[1:]


def without_random(name: str) -> str:
    """A path below the root, which begins with a slash, with stars for what is random in it."""
    return _RANDOM.sub(r"\1*", name)


def _point(kind: str, name: str | None) -> str | None:
    """Note a point; the fault to make there, if there is one. Kills before the point happen here."""
    if not _state or name is None:
        return None
    what = f"{kind} {name}"
    number = _counts[what]
    _counts[what] += 1
    point = f"{_state['role']} {what} {number}"
    hit = f"{_state['folder']}/hit"
    wanted = _state.get("fault")
    if wanted is None:
        _note("points", f"{point}\t{_site()}\t{'' if _children() else 'alone'}")
        return point if "kills" in _state and _state["role"] == "main" else None
    if point == _state["point"] and not _exists(hit):
        os.close(_os_open(hit, os.O_CREAT | os.O_WRONLY))
        if wanted == "kill" and kind != "write":
            _die()
        return str(wanted)
    return str(wanted) if kind in _FAILS.get(wanted, ()) and _exists(hit) else None


def _note(name: str, line: str) -> None:
    handle = _os_open(f"{_state['folder']}/{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    _os_write(handle, f"{line}\n".encode())
    os.close(handle)


def _site() -> str:
    """The calls that led here, and the innermost of ours alone: two words."""
    places, ours = [], []
    frame = sys._getframe(2)
    while frame is not None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        places.append(place)
        if "/qdqtool/" in place and len(ours) < _INNERMOST:
            ours.append(place)
        frame = frame.f_back
    return " ".join(hashlib.sha256("\n".join(one).encode()).hexdigest()[:16] for one in (places, ours))


def snapshot(root: str, blobs: str) -> dict[str, Any]:
    """What lies below a folder, but for `tmp`: kind, mode and content of every entry; contents go into `blobs`."""
    found: dict[str, Any] = {}
    for folder, inner, names in os.walk(root):
        if folder == root and "tmp" in inner:
            inner.remove("tmp")
        for name in [*inner, *names]:
            path = f"{folder}/{name}"
            told = os.lstat(path)
            content = ""
            if stat.S_ISLNK(told.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(told.st_mode):
                with _open(path, "rb") as opened:
                    data = opened.read()
                content = hashlib.sha256(data).hexdigest()
                if not _exists(f"{blobs}/{content}"):
                    handle = _os_open(f"{blobs}/{content}", os.O_CREAT | os.O_WRONLY)
                    _os_write(handle, data)
                    os.close(handle)
            found[os.path.relpath(path, root)] = (told.st_mode, content)
    return found


def _children() -> bool:
    """Whether children live that may write: the one that infers shapes changes no file, and ends with its parent."""
    numbers: list[str] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with _open(f"/proc/self/task/{thread}/children") as opened:
                numbers += opened.read().split()
        except FileNotFoundError:  # a thread that has just ended
            continue
    return any("passes_worker" not in _command(number) for number in numbers)


def _command(number: str) -> str:
    try:
        with _open(f"/proc/{number}/cmdline") as opened:
            return opened.read()
    except OSError:  # a child that has just ended
        return "passes_worker"


def _as_if_killed(point: str, fault: str) -> None:
    """Keep what a SIGKILL would leave here: what the system was given stays, and nothing else does.

    Where children live, a kill is another thing: they go on for a while. Those points are left to real kills.
    """
    if _children():
        return
    blobs = _state["kills"]
    state = json.dumps(snapshot(_state["root"], blobs), sort_keys=True)
    number = hashlib.sha256(state.encode()).hexdigest()
    if not _exists(f"{blobs}/{number}.json"):
        handle = _os_open(f"{blobs}/{number}.json", os.O_CREAT | os.O_WRONLY)
        _os_write(handle, state.encode())
        os.close(handle)
    _note("killed", json.dumps([point, fault, number]))


def _watched(point: str, kind: str, act: Callable[[], Any]) -> Any:
    """Do something between snapshots of what kills would leave."""
    if kind != "write":
        _as_if_killed(point, "kill")
    result = act()
    if kind == "write":
        _as_if_killed(point, "kill")
    elif "kill after" in SUITED[kind]:
        _as_if_killed(point, "kill after")
    return result


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _failure(fault: str, name: str | None) -> OSError:
    number = getattr(errno, fault)
    return OSError(number, os.strerror(number), name)


def _calling(kind: str, function: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
    """The function as a point whose file is the argument at `place`."""

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        relative = any(keywords.get(key) is not None for key in ("dir_fd", "src_dir_fd"))
        name = None if relative or not _state else _name(arguments[place])
        fault = _point(kind, name)
        if fault is not None and "fault" not in _state:
            if function is not _os_write:
                return _watched(fault, kind, lambda: function(*arguments, **keywords))
            handle, data = arguments
            first = function(handle, data[: len(data) // 2])
            _as_if_killed(fault, "kill")
            return first + function(handle, data[first:])
        if fault not in {None, "kill", "kill after"}:
            raise _failure(fault, name)
        if fault == "kill" and isinstance(arguments[1], bytes):
            arguments = (arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
        result = function(*arguments, **keywords)
        if fault is not None:
            _die()
        return result

    wrapped.__name__ = getattr(function, "__name__", kind)
    for features in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in features:
            features.add(wrapped)
    return wrapped


class _Raw(io.FileIO):
    """A raw file whose writes are points."""

    def write(self, data: Any) -> int:
        name = _name(self.fileno()) if _state else None
        fault = _point("write", name)
        if fault is None:
            return super().write(data)
        if "fault" not in _state:
            with memoryview(data) as view, view.cast("B") as content:
                first = super().write(content[: len(content) // 2])
                _as_if_killed(fault, "kill")
                return first + super().write(content[first:])
        if fault != "kill":
            raise _failure(fault, name)
        with memoryview(data) as view, view.cast("B") as content:
            super().write(content[: len(content) // 2])
        _die()
        raise AssertionError


def _opening(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **keywords: Any) -> Any:
    """`open`, with raw files of ours below everything that writes."""
    writes = bool(set(mode) & set("wax+"))
    if not (writes and _state) or _name(file) is None:
        return _open(file, mode, buffering, *more, **keywords)
    if not isinstance(file, int):
        name = _name(file)
        fault = _point("open", name)
        if fault is not None and "fault" not in _state:
            _as_if_killed(fault, "kill")
        elif fault is not None:
            raise _failure(fault, name)
    encoding, errors, newline, closefd, opener = [*more, *(None, None, None, True, None)[len(more) :]]
    encoding, errors, newline = (
        keywords.get(key, value)
        for key, value in (("encoding", encoding), ("errors", errors), ("newline", newline))
    )
    raw = _Raw(
        file,
        mode.replace("b", "").replace("t", ""),
        keywords.get("closefd", closefd),
        keywords.get("opener", opener),
    )
    if "b" in mode and buffering == 0:
        return raw
    size = io.DEFAULT_BUFFER_SIZE if buffering in {-1, 1} else buffering
    buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
    text.mode = mode
    return text


def _opening_low(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    name = _name(path) if _state and writes and dir_fd is None else None
    fault = _point("open", name)
    if fault is not None and "fault" not in _state:
        _as_if_killed(fault, "kill")
    elif fault not in {None, "kill"}:
        raise _failure(fault, name)
    return _os_open(path, flags, mode, dir_fd=dir_fd)


def _spawning(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, arguments: Any, *more: Any) -> Any:
        program = (
            arguments if isinstance(arguments, str) else os.path.basename(os.fsdecode(next(iter(arguments))))
        )
        fault = _point("spawn", str(program))
        if fault is not None and "fault" not in _state:
            _as_if_killed(fault, "kill")
            fault = None
        if fault not in {None, "kill", "kill after"}:
            raise _failure(fault, str(program))
        function(self, arguments, *more)
        if fault == "kill after":
            _die()

    return wrapped


class _Cursor(sqlite3.Cursor):
    """A cursor whose statements are points."""

    def execute(self, statement: str, *arguments: Any) -> Any:
        return _told(statement, lambda: super(_Cursor, self).execute(statement, *arguments))

    def executemany(self, statement: str, *arguments: Any) -> Any:
        return _told(statement, lambda: super(_Cursor, self).executemany(statement, *arguments))


class _Connection(sqlite3.Connection):
    """A connection whose statements and commits are points."""

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def commit(self) -> None:
        _told("COMMIT", super().commit)


def _told(statement: str, act: Callable[[], Any]) -> Any:
    fault = _point("sql", " ".join(statement.split()[:3])) if _state else None
    if fault is not None and "fault" not in _state:
        return _watched(fault, "sql", act)
    if fault not in {None, "kill", "kill after"}:
        raise sqlite3.OperationalError(_SQL[fault])
    result = act()
    if fault == "kill after":
        _die()
    return result


_connect = sqlite3.connect
_os_write = os.write


def _connecting(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
    keywords.setdefault("factory", _Connection)
    return _connect(*arguments, **keywords)


def install() -> None:
    """Replace what the standard library has; nothing counts before `begin`."""
    import fcntl

    io.open = builtins.open = _opening
    os.open = _opening_low
    for kind, names in (
        ("write", ("write", "pwrite", "writev", "sendfile", "copy_file_range")),
        ("fsync", ("fsync", "fdatasync")),
        ("rename", ("rename", "replace")),
        ("remove", ("unlink", "remove")),
        ("rmdir", ("rmdir",)),
        ("mkdir", ("mkdir",)),
        ("chmod", ("chmod", "fchmod")),
        ("truncate", ("truncate", "ftruncate")),
    ):
        for name in names:
            place = 1 if name == "copy_file_range" else 0
            setattr(os, name, _calling(kind, getattr(os, name), place))
    os.link, os.symlink = _calling("link", os.link, 1), _calling("link", os.symlink, 1)
    fcntl.flock, fcntl.lockf = _calling("lock", fcntl.flock), _calling("lock", fcntl.lockf)
    subprocess.Popen._execute_child = _spawning(subprocess.Popen._execute_child)
    sqlite3.connect = sqlite3.dbapi2.connect = _connecting
