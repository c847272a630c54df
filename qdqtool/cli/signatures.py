"""Options that several commands share: the recipe, changes of it, and the builder to quantize for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.core.target import Target


# --- recipe and builder ----------------------------------------------------------------------------------------------

TARGET_HELP = "Builder: rtx, 8, 10, 11, or a release such as 8.6.1, 10.13 or rtx-1.7.1."

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
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where models run: cpu, cuda, cuda:1, tensorrt, rtx, openvino, or a plug-in provider library.",
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops", help="Library of onnxruntime custom operators, for plug-ins; may be repeated."
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugins", help="Library of TensorRT plug-ins for the build; may be repeated."),
]
BuildCache = Annotated[
    Path | None,
    typer.Option(
        help="Folder that keeps finished builds for later runs; default for rtx: $QDQTOOL_BUILD_CACHE."
    ),
]
BuilderTarget = Annotated[
    str | None, typer.Option("--target", help=f"{TARGET_HELP} Default: the recipe's target.")
]
BuilderGpus = Annotated[
    str | None, typer.Option("--sm", help="GPU architectures to build for: 86,89. Default: the recipe's.")
]


Preset = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        help="Preprocess images as imagenet, imagenet-inception, yolo, clip or caffe networks expect.",
    ),
]


def for_preset(name: str | None) -> list[str]:
    """Turn `--preprocess` into changes of the recipe.

    Raises:
        UsageError: no such preset.
    """
    from qdqtool.core.recipe import PRESETS
    from qdqtool.errors import UsageError

    if name is None:
        return []
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", fix=f"choose {', '.join(PRESETS)}", where="--preprocess")
    values = [f"samples.preprocess.{key}={json.dumps(value)}" for key, value in PRESETS[name].items()]
    return ["samples.sources={}", *values]


def for_device(device: str | None) -> list[str]:
    """Turn `--device` into a change of the recipe."""
    return [] if device is None else [f"compute.device={json.dumps(device)}"]


def for_operators(libraries: Sequence[Path] | None, plugins: Sequence[Path] | None = None) -> list[str]:
    """Turn `--custom-ops` and `--plugins` into changes of the recipe."""
    options = {"runtime.custom_ops": libraries, "build.plugins": plugins}
    return [f"{key}={json.dumps([str(path) for path in paths])}" for key, paths in options.items() if paths]


def for_builder(target: str | None, sm: str | None) -> list[str]:
    """Turn `--target` and `--sm` into changes of the recipe."""
    return [*([f"build.sm=[{sm}]"] if sm else []), *([f"place.target='{target}'"] if target else [])]


# --- --target --------------------------------------------------------------------------------------------------------
# The option `--target` of every command that asks for a builder, and its older spellings.


def asked_target(target: str, old: str | None, spelled: str, sm: Sequence[str] = ()) -> Target:
    """Return the requested builder; `old` is the value of the older option `spelled`.

    Raises:
        UsageError: no such builder or GPU architecture.
    """
    from qdqtool.cli.screen import stderr
    from qdqtool.core.target import Target

    if old is None:
        return Target.parse(target, sm)
    word = _FORMER.get(old, old)
    stderr().print(f"note: {spelled} is --target now: --target {word}")
    return Target.parse(word, sm)


def comma_words(entries: Sequence[str] | None) -> list[str]:
    """Split the values of an option that may be repeated and may hold commas: `--sm 86,89 --sm 120`."""
    return [word.strip() for entry in entries or () for word in entry.split(",") if word.strip()]


_FORMER = {"classic": "10"}
"""Values of older options and the current target; older versions predicted all releases of TensorRT as one."""


# --- output formats --------------------------------------------------------------------------------------------------
# Output formats of findings: for people, for scripts, and for tools that show findings beside the code.

FORMS = ("text", "json", "sarif", "junit", "markdown", "github")


def check_form(form: str) -> None:
    """Refuse an unknown output format.

    Raises:
        UsageError: no form is called so.
    """
    from qdqtool.errors import UsageError

    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", fix=f"choose {', '.join(FORMS)}", where="--format")
