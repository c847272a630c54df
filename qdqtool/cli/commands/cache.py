"""Show, compare, check and convert calibration caches.

Reads the caches of TensorRT 5 to 10, the tables of onnxruntime (text, JSON, flatbuffer) and qdqtool's own tables.
TensorRT 11 reads no caches: `to-qdq` turns a float model and its cache into a Q/DQ model, `from-qdq` does the opposite.

onnxruntime writes three tables; use `calibration.json`. The others contain only the highest value of a tensor (seen
with 1.31), even if the lowest value is farther from zero.

    qdqtool cache show calibration.cache
    qdqtool cache diff calibration.cache other.cache
    qdqtool cache merge first.cache second.cache --take max --out both.cache
    qdqtool cache retarget calibration.cache --trt 10.3 --out newer.cache
    qdqtool cache lint calibration.cache --model model.onnx
    qdqtool cache to-qdq model.onnx calibration.cache --out model.qdq.onnx
    qdqtool cache from-qdq model.qdq.onnx --trt 8.6.1 --model float.onnx --out calibration.cache
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qdqtool.cli.options import Changes, RecipeName
from qdqtool.core.wording import Command, count_noun

if TYPE_CHECKING:
    from qdqtool.core.findings import Finding

PLUGIN = typer.Typer(no_args_is_help=True, help="Show, compare, check and convert calibration caches.")
File = Annotated[Path, typer.Argument(help="Calibration cache or table.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="File to write.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Release = Annotated[
    str, typer.Option("--trt", help="TensorRT release that will read the cache: 8.6.1, 10.3.")
]
Algorithm = Annotated[str | None, typer.Option(help="EntropyCalibration2, MinMaxCalibration, ...")]
# A larger input is not a cache.
_MOST_NOTES = 1000


@PLUGIN.command()
def show(
    file: File,
    match: Annotated[
        str,
        typer.Option(help="Show only tensors whose name contains this text or matches this glob pattern."),
    ] = "*",
    sort: Annotated[str, typer.Option(help="Sort by name, scale or line.")] = "line",
    as_json: Json = False,
) -> None:
    """List the tensors of a calibration cache with scale and range."""
    from fnmatch import fnmatchcase

    from qdqtool.calibration.caches import read_cache
    from qdqtool.errors import UsageError

    orders: dict[str, Any] = {
        "name": lambda entry: entry.tensor,
        "scale": lambda entry: (entry.scale != entry.scale, -entry.scale),
        "line": lambda entry: entry.line,
    }
    if sort not in orders:
        raise UsageError(f"unknown value {sort!r} of --sort", fix="choose name, scale or line")
    cache = read_cache(file)
    chosen = (e for e in cache.entries if match in e.tensor or fnmatchcase(e.tensor, match))
    entries = sorted(chosen, key=orders[sort])
    if as_json:
        rows = [
            {"tensor": e.tensor, "scale": _number(e.scale), "amax": _number(e.amax), "line": e.line}
            for e in entries
        ]
        _print_json(
            {"format": cache.format, "header": cache.header.text if cache.header else None, "entries": rows}
        )
        return
    _table(("tensor", "scale", "amax"), ((e.tensor, f"{e.scale:.6g}", f"{e.amax:.6g}") for e in entries))
    _say(
        f"{cache.header.text if cache.header else cache.format}: {len(entries)} of {count_noun(len(cache.entries), 'entry', 'entries')}"
    )
    if cache.unread:
        _say(
            f"{count_noun(len(cache.unread), 'line is not an entry', 'lines are not entries')}: {Command('cache', ('lint', str(file))).line}"
        )


@PLUGIN.command()
def diff(
    first: File,
    second: Annotated[Path, typer.Argument(help="Cache or table to compare with.")],
    limit: Annotated[int, typer.Option(min=0, help="Number of rows to print; 0 prints all rows.")] = 40,
    as_json: Json = False,
) -> None:
    """Compare the scales of two calibration caches, the largest difference first."""
    from qdqtool.calibration.caches import read_cache
    from qdqtool.calibration.caches.contents import differences

    changed = differences(read_cache(first), read_cache(second))
    if as_json:
        _print_json(
            [
                {
                    "tensor": d.tensor,
                    "first": _number(d.first),
                    "second": _number(d.second),
                    "ratio": _number(d.ratio),
                }
                for d in changed
            ]
        )
        return
    shown = changed[:limit] if limit else changed
    rows = ((d.tensor, _text(d.first), _text(d.second), _text(d.ratio)) for d in shown)
    _table(("tensor", "first", "second", "second / first"), rows)
    _say(
        f"{count_noun(len(changed), 'tensor differs', 'tensors differ')}"
        + (f", {len(shown)} shown" if len(shown) < len(changed) else "")
    )


@PLUGIN.command()
def merge(
    files: Annotated[
        list[Path], typer.Argument(help="Caches to merge; the new cache gets header and format of the first.")
    ],
    out: Out,
    take: Annotated[
        str, typer.Option(help="Scale to keep if caches disagree: first, last, max, or error to refuse.")
    ] = "error",
) -> None:
    """Merge several calibration caches into one."""
    from qdqtool.calibration.caches import read_cache, write_cache
    from qdqtool.calibration.caches.contents import merge_caches
    from qdqtool.errors import UsageError

    if take not in {"error", "first", "last", "max"}:
        raise UsageError(
            f"unknown value {take!r} of --take", fix="choose one of the values error, first, last, max"
        )
    caches = [read_cache(file) for file in files]
    merged = merge_caches(caches, take)  # type: ignore[arg-type]
    write_cache(out, merged)
    for file, cache in zip(files, caches, strict=True):
        _notes(
            [
                f"{file}, line {line.line} is not a cache entry and was skipped: {line.text!r}"
                for line in cache.unread
            ]
        )
    _say(f"{count_noun(len(merged.entries), 'entry', 'entries')}: wrote {out}")


@PLUGIN.command()
def retarget(
    file: File,
    out: Out,
    release: Annotated[
        str | None, typer.Option("--trt", help="TensorRT release for the new header: 8.6.1, 10.3.")
    ] = None,
    algorithm: Algorithm = None,
    onnxruntime: Annotated[
        str | None,
        typer.Option("--ort", help="Write an onnxruntime table in this form: json, flatbuffers or text."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Rename the entries to the tensors of this ONNX model, matched by their order."),
    ] = None,
) -> None:
    """Write a calibration cache for another TensorRT release, for onnxruntime, or for another export of the model."""
    from qdqtool.calibration.caches import read_cache, write_cache
    from qdqtool.calibration.caches.converting import (
        for_onnxruntime,
        for_tensorrt,
        note_left_out,
        rename_entries,
    )
    from qdqtool.errors import UsageError

    if (release is None and onnxruntime is None and model is None) or (release and onnxruntime):
        raise UsageError(
            "the options do not name exactly one program that will read the new cache",
            fix="pass --trt RELEASE or --ort FORM (not both), or --model FILE",
        )
    cache = read_cache(file)
    if model is not None:
        from qdqtool.graph.onnx_io.load import load

        cache = rename_entries(cache, load(model).view)
    original = cache
    if release:
        cache = for_tensorrt(cache, release, algorithm)
    elif onnxruntime:
        cache = for_onnxruntime(cache, onnxruntime)
    write_cache(out, cache)
    _notes(note_left_out(original, cache))
    _say(f"{cache.header.text if cache.header else cache.format}: wrote {out}")


@PLUGIN.command()
def lint(
    file: File,
    model: Annotated[Path | None, typer.Option(help="Float ONNX model that the cache belongs to.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Cache of the same model that was calibrated with max.")
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 if a finding has this severity or a higher one: error, warning, info, never."
        ),
    ] = "error",
    as_json: Json = False,
) -> int:
    """Find mistakes in a cache, alone and for a model. A calibration.json beside the cache says how its ranges were chosen."""
    from qdqtool.calibration.caches import read_cache
    from qdqtool.calibration.caches.linting import lint_cache
    from qdqtool.core.findings import Severity
    from qdqtool.core.kinds import CALIBRATION
    from qdqtool.errors import UsageError

    limits = {severity.value: severity.rank for severity in Severity} | {"never": 99}
    if fail_on not in limits:
        raise UsageError(f"unknown value {fail_on!r} of --fail-on", fix=f"choose one of {', '.join(limits)}")
    view = None
    if model is not None:
        from qdqtool.graph.onnx_io.load import load

        view = load(model).view
    beside = file.with_name("calibration.json")
    table = CALIBRATION.read(beside) if _is_calibration(beside) else None
    findings = lint_cache(read_cache(file), None if against is None else read_cache(against), view, table)
    _show_findings(findings, as_json=as_json)
    return int(any(finding.severity.rank >= limits[fail_on] for finding in findings))


def _is_calibration(path: Path) -> bool:
    """Return True if the file is a calibration that qdqtool wrote; onnxruntime gives its JSON table the same name."""
    from qdqtool.core.kinds import CALIBRATION
    from qdqtool.errors import InputFileError
    from qdqtool.io.json_files import read_json

    try:
        content = read_json(path) if path.is_file() else None
    except InputFileError:
        return False
    return isinstance(content, dict) and content.get("kind") == CALIBRATION.kind


@PLUGIN.command("to-qdq")
def to_qdq(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    cache: Annotated[Path, typer.Argument(help="Its calibration cache.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Q/DQ model to write.")],
    recipe: RecipeName = None,
    changes: Changes = None,
    samples: Annotated[
        str, typer.Option(help="With insert.types=fp16: samples that show which nodes overflow.")
    ] = "",
) -> None:
    """Turn a float model and its calibration cache into a Q/DQ model for TensorRT 10, 11 and RTX."""
    from qdqtool.calibration.caches import read_cache
    from qdqtool.cli.options import load_recipe
    from qdqtool.pipeline import readback
    from qdqtool.pipeline.writing import write

    network, notes = readback.to_qdq(model, read_cache(cache), load_recipe(recipe, changes), samples)
    write(network, out, step="cache to-qdq")
    _notes(notes)
    _say(f"wrote {out}")


@PLUGIN.command("from-qdq")
def from_qdq(
    model: Annotated[Path, typer.Argument(help="Q/DQ model.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Calibration cache to write.")],
    release: Release,
    algorithm: Annotated[
        str, typer.Option(help="Calibrator that will read the cache.")
    ] = "EntropyCalibration2",
    float_model: Annotated[
        Path | None, typer.Option("--model", help="Also write the float model to this file.")
    ] = None,
) -> None:
    """Turn a Q/DQ model into a float model and a calibration cache for TensorRT up to 10."""
    from qdqtool.calibration.caches import write_cache
    from qdqtool.calibration.caches.contents import make_header
    from qdqtool.pipeline import readback
    from qdqtool.pipeline.writing import write

    plain, cache, notes = readback.from_qdq(model, make_header(release, algorithm))
    if float_model is not None:
        write(plain, float_model, step="cache from-qdq")
    write_cache(out, cache)
    _notes(notes)
    _say(f"{count_noun(len(cache.entries), 'entry', 'entries')}: wrote {out}")


def _show_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        names = ("code", "severity", "subject", "reason", "fix")
        _print_json([{name: getattr(finding, name) for name in names} for finding in findings])
        return
    rows = ((f.severity.value, f.code, f.subject, f"{f.reason}; {f.fix}") for f in findings)
    _table(("", "code", "subject", "reason; fix"), rows)
    _say(count_noun(len(findings), "finding") if findings else "nothing found")


def _table(columns: Sequence[str], rows: Any) -> None:
    """Print a table on a terminal, or plain lines in a pipe."""
    from qdqtool.cli.screen import readable, stdout

    cells = [columns, *(tuple(map(readable, row)) for row in rows)]
    if len(cells) == 1:
        return
    if stdout().is_terminal:
        _draw(cells)
        return
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _draw(cells: Sequence[Sequence[str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from qdqtool.cli.screen import show_table

    table = Table(*cells[0], box=None)
    for row in cells[1:]:
        table.add_row(*map(escape, row))
    show_table(table)


def _say(text: str) -> None:
    from qdqtool.cli.screen import readable, stderr

    stderr().print(readable(text))


def _notes(notes: Sequence[str]) -> None:
    for note in notes[:_MOST_NOTES]:
        _say(f"note: {note}")
    if len(notes) > _MOST_NOTES:
        _say(f"note: and {len(notes) - _MOST_NOTES} more of this kind")


def _print_json(value: object) -> None:
    from qdqtool.io.json_files import canonical

    sys.stdout.write(canonical(value))


def _number(value: float | None) -> float | str | None:
    """Return the number for JSON. NaN and infinity become strings, because JSON does not have them."""
    return value if value is None or abs(value) < float("inf") else str(value)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
