"""Where the study of a sweep is kept, and what it says when it fails."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.redact import without_password


class StorageLost(InputFileError):  # noqa: N818 -- what happened to it
    """The storage does not answer any more; it may answer again, unless its disk is `full`."""

    @property
    def full(self) -> bool:
        """Whether there is no space left, which waiting does not change."""
        return _is_full(self.what)


def _is_full(what: str) -> bool:
    return "disk is full" in what or "No space left" in what


@contextmanager
def speaking_plainly(url: str) -> Iterator[None]:
    """Turn what the storage says into errors with a fix.

    Raises:
        StorageLost: the storage cannot be reached, read or written.
    """
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError):
        raise  # about the address, not the storage
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = without_password(str(error.__cause__ or error).splitlines()[0], url)
        raise StorageLost(
            f"the study's storage fails: {cause}",
            fix="free some space; finished trials are kept"
            if _is_full(cause)
            else "check the address and the server; finished trials are kept",
            where=url,
        ) from error


class Storage:
    """Where studies are kept: a file, or a database that many machines share."""

    def __init__(self, url: str) -> None:
        """Open the storage at `url`: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.

        Raises:
            MissingPackage: optuna or the driver of the database is not installed.
            UsageError: `url` is no such address.
            InputFileError: nobody answers there, or it cannot be used.
        """
        try:
            import optuna
            import sqlalchemy.exc
        except ImportError as error:
            raise MissingPackage("sweeps need optuna", fix="pip install 'qdqtool[sweep]'") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)  # how optuna makes its tables is not news
        self.url = url
        try:
            with speaking_plainly(url):
                self.opened = optuna.storages.RDBStorage(
                    re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url),
                    engine_kwargs={"pool_pre_ping": True, "connect_args": _patience(url)},
                )
        except ImportError as error:
            raise MissingPackage(
                f"the storage needs a package: {error}", fix="pip install 'qdqtool[sweep]'", where=url
            ) from error
        except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError, ValueError) as error:
            raise UsageError(
                f"is no address of a storage: {str(error).splitlines()[0]}",
                fix="write sqlite:///file.db or postgresql://user:password@host/database",
                where=url,
            ) from error

    def close(self) -> None:
        """Let go of the connections; the storage cannot be used any more."""
        self.opened.remove_session()
        self.opened.engine.dispose()


def _patience(url: str) -> dict[str, int]:
    """What keeps a driver from waiting for ever on a connection that nobody closed, such as one through a dead router.

    Half a minute without a word and the connection counts as lost; SQLite waits as long for another process's lock.
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
