"""The storage for the study of a sweep. Failures of the storage become errors with a fix."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.io.files import acquire, release, replacing, unwritable
from qdqtool.redact import without_password

_CLAIM_S = 60
"""Seconds after which a worker that claims a trial counts as lost; a claim takes a few milliseconds."""


class StorageLost(InputFileError):  # noqa: N818 -- what happened to it
    """The storage does not answer. It may answer later, unless its disk is `full`."""

    @property
    def full(self) -> bool:
        """True if the disk has no space left. Waiting does not help then."""
        return _is_full(self.what)


def _is_full(message: str) -> bool:
    return "disk is full" in message or "No space left" in message


@contextmanager
def speaking_plainly(url: str) -> Iterator[None]:
    """Turn errors of the storage into errors with a fix.

    Raises:
        StorageLost: the storage cannot be reached, read or written.
    """
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError):
        raise  # the error is about the address, not the storage
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = without_password(str(error.__cause__ or error).splitlines()[0], url)
        raise StorageLost(
            f"the study's storage fails: {cause}",
            fix="free some space; finished trials are kept"
            if _is_full(cause)
            else "check the address and the server; finished trials are kept",
            where=url,
        ) from error


@contextmanager
def guard_rows(url: str) -> Iterator[None]:
    """Raise an error about a damaged study if the `with` block meets a row that no sweep writes.

    Code that can fail for other reasons must be outside the block.

    Raises:
        InputFileError: a row cannot be read, or has impossible values.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        why = without_password(f"{type(error).__name__}: {error}".splitlines()[0], url)
        raise InputFileError(
            f"the study was not written by this tool, or is damaged ({why})",
            fix="start a new sweep with another --study or --out",
            where=url,
        ) from error


class Storage:
    """The place where studies are stored: a file, or a database for many machines."""

    def __init__(self, url: str) -> None:
        """Open the storage at `url`: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.

        Raises:
            MissingPackage: the driver of the database is not installed.
            UsageError: `url` is not such an address.
            InputFileError: no server answers, or it cannot be used.
        """
        import optuna
        import sqlalchemy.exc

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)  # do not show how optuna creates its tables
        self.url = url
        try:
            with speaking_plainly(url):
                _make_whole(url)
                self.opened = optuna.storages.RDBStorage(
                    re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url),
                    engine_kwargs={"pool_pre_ping": True, "connect_args": _patience(url)},
                )
        except ImportError as error:
            raise MissingPackage(
                f"the storage needs a package: {error}",
                fix="pip install 'qdqtool[sweep,postgres]'",
                where=url,
            ) from error
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError, ValueError) as error:
            raise UsageError(
                f"the text is not the address of a storage: {str(error).splitlines()[0]}",
                fix="write sqlite:///file.db or postgresql://user:password@host/database",
                where=url,
            ) from error

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Lock the study `name` for one worker on any machine. If the worker dies, the lock is released.

        Raises:
            StorageLost: the storage does not answer, or somebody stays in here for longer than a claim can take.
            InputFileError: no lock file can be written beside the SQLite file.
        """
        from sqlalchemy import text

        engine = self.opened.engine
        if engine.dialect.name == "sqlite":
            with alone_beside(Path(engine.url.database or "")):
                yield
            return
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        with speaking_plainly(self.url), engine.begin() as transaction:
            for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
                # If a machine loses its connection here, the server ends its transaction, so that other machines can
                # continue.
                transaction.execute(text(f"set local {limit} = '{_CLAIM_S}s'"))
            transaction.execute(text("select pg_advisory_xact_lock(:key)"), {"key": key})
            yield

    def close(self) -> None:
        """Close the connections. Afterwards the storage cannot be used."""
        self.opened.remove_session()
        self.opened.engine.dispose()


def absolute_address(url: str) -> str:
    """Return the address of a study; the path of a SQLite file becomes absolute, for processes in other folders."""
    file = re.fullmatch(r"(sqlite(?:\+\w+)?:///)(?!:memory:|file:)([^?]+)(.*)", url)
    return url if file is None else f"{file[1]}{Path(file[2]).absolute().as_posix()}{file[3]}"


def _make_whole(url: str) -> None:
    """Create a new SQLite file with all tables under a temporary name, then rename it.

    SQLite commits each table separately. A process that was stopped between a table and its index left a file that
    accepts two studies of one name, and no later sweep could use it.
    """
    import optuna
    import sqlalchemy

    if not url.startswith("sqlite:"):
        return
    address = sqlalchemy.make_url(url)
    path = Path(address.database or ":memory:")
    if path.name == ":memory:" or address.query or not path.parent.is_dir():
        return
    with alone_beside(path):
        if path.exists():
            return
        with replacing(path) as draft:
            database = optuna.storages.RDBStorage(
                address.set(database=str(draft)).render_as_string(hide_password=False)
            )
            database.remove_session()
            database.engine.dispose()


@contextmanager
def alone_beside(path: Path) -> Iterator[None]:
    """Lock the storage at this path with a file beside it. A second worker waits until the first worker has finished.

    Raises:
        InputFileError: the lock file cannot be written.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        acquire(lock)
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        yield
    finally:
        release(lock)


def _patience(url: str) -> dict[str, int]:
    """Return driver options that limit the waiting time on a dead connection, for example through a dead router.

    After half a minute without a message, the connection counts as lost. SQLite waits as long for another process's
    lock.
    """
    if url.startswith("sqlite:"):
        return {"timeout": 30}
    return {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
