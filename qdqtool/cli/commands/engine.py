"""Look into an engine: its layers, their tensors, types and formats, from layer information alone.

Reads layer dumps, the files of `--exportLayerInfo` and whole build logs. No GPU and no TensorRT is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.engine import Engine, EngineTensor

PLUGIN = typer.Typer(
    help="Look into an engine: its layers, their tensors, types and formats.", no_args_is_help=True
)


@PLUGIN.callback()
def engine() -> None:
    """Look into an engine: its layers, their tensors, types and formats."""


@PLUGIN.command()
def show(
    file: Annotated[Path, typer.Argument(help="Layer information or build log.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all that was read as JSON.")] = False,
) -> None:
    """Print the layers of an engine in launch order."""
    from qdqtool.cli.screen import stdout
    from qdqtool.core.kinds import ENGINE
    from qdqtool.engine.read import read

    found = read(file)
    if as_json:
        sys.stdout.write(ENGINE.dump(found))
        return
    stdout().print(_table(found))
    for line in _summary(found):
        stdout().print(line, markup=False, highlight=False)


def _table(found: Engine) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for title in ("layer", "kind", "role", "precision", "inputs", "outputs"):
        table.add_column(title, overflow="fold")
    for layer in found.layers:
        table.add_row(
            escape(layer.name),
            escape(layer.kind),
            layer.role.value,
            str(layer.precision),
            escape(", ".join(_tensor(tensor) for tensor in layer.inputs)),
            escape(", ".join(_tensor(tensor) for tensor in layer.outputs)),
        )
    return table


def _tensor(tensor: EngineTensor) -> str:
    shape = "?" if tensor.shape is None else "x".join(str(dim) for dim in tensor.shape)
    return f"{tensor.dtype}[{shape}]"


def _summary(found: Engine) -> list[str]:
    lines = [f"{len(found.layers)} layers, form {found.form}"]
    lines += [f"{found.unread} records were not understood"] if found.unread else []
    lines += [f"unknown type {words!r}: {count} tensors" for words, count in found.unknown_formats]
    return lines
