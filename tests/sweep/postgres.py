"""A real PostgreSQL on a free port of this machine, for as long as a test needs it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


def binaries() -> Path:
    """Where initdb and pg_ctl are; the test is skipped where they are not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if found:
        return found[-1].parent
    on_path = shutil.which("pg_ctl")
    if on_path is None:
        pytest.skip("needs PostgreSQL (Debian package postgresql)")
    return Path(on_path).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A database that can be stopped and started again."""

    address: str
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def server() -> Iterator[str]:
    """The address of an empty database."""
    with restartable() as found:
        yield found.address


@contextmanager
def restartable() -> Iterator[Server]:
    """An empty database.

    Its files lie in a folder of their own: other test runs close pytest's shared one to the user of the database.
    """
    programs = binaries()
    place = Path(tempfile.mkdtemp(prefix="qdqtool-postgres-"))
    try:
        with _running(programs, place) as found:
            yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _running(programs: Path, place: Path) -> Iterator[Server]:
    data = place / "pg"
    data.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root; its Debian package brings a user.
        owner = pwd.getpwnam("postgres")
        for path in (place, data):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        as_user = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*arguments: str) -> None:
        subprocess.run(
            [*as_user, *arguments], check=True, cwd="/", stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )

    call(str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "sweeper", "--no-sync")
    options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1 -c fsync=off"
    address = f"postgresql://sweeper@127.0.0.1:{port}/postgres"
    control = (str(programs / "pg_ctl"), "-D", str(data))

    def begin() -> None:
        call(*control, "-o", options, "-l", str(data / "log"), "-w", "start")

    def end() -> None:
        """Kill the process that `postmaster.pid` names; those that it started go with it."""
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        while (data / "postmaster.pid").exists():
            time.sleep(0.01)

    begin()
    try:
        yield Server(address=address, stop=end, start=begin)
    finally:
        if (data / "postmaster.pid").exists():
            call(*control, "-m", "immediate", "-w", "stop")
