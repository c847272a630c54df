"""A real PostgreSQL on a free port of this machine, for as long as a test needs it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def server() -> Iterator[str]:
    """The address of an empty database.

    Its files lie in a folder of their own: other test runs close pytest's shared one to the user of the database.
    """
    programs = binaries()
    place = Path(tempfile.mkdtemp(prefix="qdqtool-postgres-"))
    try:
        with _running(programs, place) as address:
            yield address
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _running(programs: Path, place: Path) -> Iterator[str]:
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
    call(str(programs / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(data / "log"), "-w", "start")
    try:
        yield f"postgresql://sweeper@127.0.0.1:{port}/postgres"
    finally:
        call(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
