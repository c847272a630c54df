"""Options that several commands have, each once: the recipe, changes of it, and the builder that it is for."""

from __future__ import annotations

from typing import Annotated

import typer

from qdqtool.cli.targets import TARGET_HELP

FittingRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe", "-r", help="Shipped recipe or .yaml file; default: the one that fits the model."
    ),
]
RecipeName = Annotated[str | None, typer.Option("--recipe", "-r", help="Shipped recipe or .yaml file.")]
ComparingRecipe = Annotated[
    str | None,
    typer.Option("--recipe", "-r", help="Shipped recipe or .yaml file: preprocessing and metrics."),
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change one value of the recipe.")]
BuilderTarget = Annotated[str | None, typer.Option("--target", help=f"{TARGET_HELP} The recipe's without.")]
BuilderGpus = Annotated[
    str | None, typer.Option("--sm", help="GPU architectures to build for: 86,89. The recipe's without.")
]


def for_builder(target: str | None, sm: str | None) -> list[str]:
    """What `--target` and `--sm` change in a recipe."""
    return [*([f"build.sm=[{sm}]"] if sm else []), *([f"place.target='{target}'"] if target else [])]
