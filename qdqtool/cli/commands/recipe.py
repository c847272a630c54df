"""List, show and check recipes, and print the schema of everything a recipe can say."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

PLUGIN = typer.Typer(no_args_is_help=True, help="List, show and check recipes; print their schema.")
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change one value: place.first_layer=float.")
]


@PLUGIN.command("list")
def list_recipes() -> None:
    """Name the shipped recipes and say what each is for."""
    from rich.table import Table

    from qdqtool.cli.screen import stdout
    from qdqtool.workflows import recipes

    table = Table("recipe", "for", box=None)
    for name in recipes.names():
        table.add_row(name, recipes.load(name).description)
    stdout().print(table)


@PLUGIN.command()
def show(
    recipe: Annotated[str, typer.Argument(help="Shipped recipe or .yaml file.")], changes: Changes = None
) -> None:
    """Print a recipe with every value written out."""
    from qdqtool.workflows import recipes

    sys.stdout.write(recipes.dump(recipes.load(recipe, changes or [])))


@PLUGIN.command()
def check(
    recipe: Annotated[str, typer.Argument(help="Shipped recipe or .yaml file.")], changes: Changes = None
) -> None:
    """Say whether a recipe is right; all mistakes are reported at once."""
    from qdqtool.workflows import recipes

    recipes.load(recipe, changes or [])
    sys.stdout.write(f"{recipe}: no mistakes\n")


@PLUGIN.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors and scripts."""
    from qdqtool.core.artefacts import canonical
    from qdqtool.workflows import recipes

    sys.stdout.write(canonical(recipes.schema()))
