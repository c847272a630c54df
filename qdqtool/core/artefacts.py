"""JSON files of a run folder: one envelope, equal bytes for equal input, checked when read.

Every artefact is `{"kind", "schema", "provenance", "data"}`. Keys are sorted, and no value depends on time or place,
so equal inputs give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from qdqtool._version import __version__
from qdqtool.errors import InputFileError
from qdqtool.io.files import write_text
from qdqtool.io.json_files import canonical, read_json

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artefact(Generic[T]):
    """A kind of JSON file of a run folder: its name in the file, its schema number, and the type of its data."""

    kind: str
    schema: int
    type: type[T]

    def __post_init__(self) -> None:
        _BY_TYPE.setdefault(self.type, self)

    def dump(self, data: T, provenance: dict[str, str] | None = None) -> str:
        """Return the JSON text of `data` with kind, schema and provenance; equal data gives equal text."""
        envelope = {
            "kind": self.kind,
            "schema": self.schema,
            "provenance": {"qdqtool": __version__, **(provenance or {})},
            "data": _adapter(self.type).dump_python(data, mode="json", by_alias=True),
        }
        return canonical(envelope)

    def write(self, path: Path, data: T, provenance: dict[str, str] | None = None) -> None:
        """Write `data` as a JSON artefact to `path`, atomically."""
        write_text(path, self.dump(data, provenance))

    def read(self, path: Path) -> T:
        """Read the data of the artefact at `path`.

        Raises:
            InputFileError: unreadable, another kind, a newer schema, or data that does not fit.
        """
        envelope = read_json(path)
        if not isinstance(envelope, dict) or "kind" not in envelope or "data" not in envelope:
            raise InputFileError(
                "the file is not a qdqtool artefact",
                fix=f"pass a file of kind {self.kind!r}",
                where=str(path),
            )
        if envelope["kind"] != self.kind:
            raise InputFileError(
                f"the file holds a {envelope['kind']!r}, not a {self.kind!r}",
                fix=f"pass a file of kind {self.kind!r}",
                where=str(path),
            )
        schema = envelope.get("schema")
        if not isinstance(schema, int) or schema > self.schema:
            raise InputFileError(
                f"the file has schema {schema!r}; this version reads up to {self.schema}",
                fix="install a newer qdqtool, or write the file again with this one",
                where=str(path),
            )
        try:
            data: T = _adapter(self.type).validate_python(envelope["data"])
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InputFileError(
                f"{error.error_count()} fields are invalid, first data.{place}: {first['msg']}",
                fix="write the file again with the command that creates it",
                where=str(path),
            ) from error
        return data


_BY_TYPE: Final[dict[Any, Artefact[Any]]] = {}
"""All declared kinds of files, by the type of their data. Results use it to save themselves without importing each other."""


def artefact_of(kind: type[T]) -> Artefact[T]:
    """Return the kind of artefact that stores data of this type.

    Raises:
        TypeError: no file stores it, or `qdqtool.core.kinds` was never imported.
    """
    if kind not in _BY_TYPE:
        raise TypeError(f"{kind.__name__} is not stored in a separate file")
    return _BY_TYPE[kind]


def get_ready(*kinds: Artefact[Any]) -> None:
    """Create the validators of these artefacts in advance, so that the first read or write is fast."""
    for kind in kinds:
        _adapter(kind.type)


_ADAPTERS: Final[dict[Any, TypeAdapter[Any]]] = {}
"""Validators and serializers, by type of data. They are cached, because creating one is slower than most uses of it."""


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
