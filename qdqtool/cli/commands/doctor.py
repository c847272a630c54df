"""Show what is installed, the GPU and TensorRT of this machine, what works, and how to install what is missing.

Builds and loads nothing: it reads the metadata of packages, asks the driver for the GPU, and runs trtexec --help.

    qdqtool doctor
    qdqtool doctor --json
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what is installed, what works with it, and how to install what is missing."""
    from rich.markup import escape
    from rich.table import Table

    from qdqtool.backends.inventory import INVENTORY, take_inventory
    from qdqtool.cli.options import configuration, is_trusted
    from qdqtool.cli.screen import show_table, stdout

    inventory = take_inventory()
    if as_json:
        sys.stdout.write(INVENTORY.dump(inventory))
        return
    table = Table("", "", "found", "for", box=None, pad_edge=False)
    marks = {"works": "[green]ok[/]", "limited": "[yellow]~[/]", "missing": "[red]-[/]"}
    for item in inventory.items:
        table.add_row(marks[item.state], *map(escape, (item.name, item.detail, item.enables)))
    show_table(table)
    state = "trusts functions in recipes" if is_trusted() else "functions in recipes need --trust"
    stdout().print(f"configuration: {configuration()}: {state}")
    for item in inventory.items:
        if item.fix:
            stdout().print(f"{item.name}: {item.fix}")


PLUGIN = doctor
