"""Tables in files: CSV that is safe to open in a spreadsheet, and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import MissingPackage, UsageError
from qdqtool.io.escaping import csv_cell
from qdqtool.io.files import replacing, write_text

Cell = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows with column names; None is an empty cell."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]


def csv_of(table: Table) -> str:
    """Return the table as CSV with a header line; see `escaping.csv_cell` for its cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([csv_cell(cell) for cell in row] for row in table.rows)
    return stream.getvalue()


def write_table(path: Path, table: Table) -> None:
    """Write the table atomically to `path`, a .csv or a .parquet file.

    Raises:
        UsageError: another ending.
        MissingPackage: Parquet is asked for and pyarrow is not installed.
        InputFileError: the folder cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in {".csv", ".parquet"}:
        raise UsageError(
            f"cannot write tables as {ending!r}", fix="pass a .csv or .parquet file", where=str(path)
        )
    if ending == ".csv":
        write_text(path, csv_of(table))
        return
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackage(
            "Parquet files need pyarrow", fix="pip install 'qdqtool[parquet]', or write CSV", where=str(path)
        ) from error
    columns: dict[str, list[Any]] = {
        name: _storable([row[at] for row in table.rows]) for at, name in enumerate(table.columns)
    }
    with replacing(path) as draft:
        parquet.write_table(pa.table(columns), draft)


def _storable(cells: list[Cell]) -> list[Cell]:
    """Return a column that Parquet can store: half surrogate pairs are replaced, integers of over 64 bits make floats."""
    if any(isinstance(cell, int) and not -_WIDE <= cell < _WIDE for cell in cells):
        cells = [float(cell) if isinstance(cell, int) else cell for cell in cells]
    return [cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in cells]


_WIDE = 1 << 63
"""The first integer that does not fit into 64 bits with a sign."""
