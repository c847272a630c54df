"""Options of commands: those of every command, at any position on the line, and those that several commands share.

Each command is wrapped once, so that no command repeats `--verbose`, `--wide` and `--max-memory`, and `--trust` if it
takes a recipe. They share the recipe, changes of the recipe, and the builder to quantize for.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qdqtool.cli.screen import stderr, wide
from qdqtool.io.files import allow_memory
from qdqtool.redact import redact_text

if TYPE_CHECKING:
    from qdqtool.core.recipe import Recipe
    from qdqtool.core.target import Target
    from qdqtool.graph.view import Model

# --- options that several commands share -----------------------------------------------------------------------------


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
    typer.Option(
        "--recipe", "-r", help="Shipped recipe or .yaml file; only its preprocessing and metrics are used."
    ),
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change one value of the recipe: key=value.")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device that runs models: cpu, cuda, cuda:1, tensorrt, rtx, openvino, or the path of a plug-in provider library.",
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops", help="onnxruntime library that computes the operators of plug-ins; may be repeated."
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugins", help="TensorRT plug-in library for the build; may be repeated."),
]
On = Annotated[
    str,
    typer.Option(
        "--on", help="Build and time engines with trtexec on this machine: local, or ssh://user@host."
    ),
]
OnSeveral = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        help="Build and time engines with trtexec on this machine: local, or ssh://user@host. Repeat it for several.",
    ),
]
Trtexec = Annotated[str, typer.Option(help="With --on: path of trtexec on that machine.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="With --on: print the commands without running them.")
]
BuildCache = Annotated[
    Path | None,
    typer.Option(
        help="Folder that keeps finished builds for later commands; default for rtx: $QDQTOOL_BUILD_CACHE."
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
    return [
        *([f"build.sm={json.dumps(comma_words([sm]))}"] if sm else []),
        *([f"place.target={json.dumps(target)}"] if target else []),
    ]


# --- --target --------------------------------------------------------------------------------------------------------
# The option `--target` of every command that asks for a builder, and its older spellings.


def asked_target(target: str, old: str | None, spelled: str, sm: Sequence[str] = ()) -> Target:
    """Return the builder that the user requested; `old` is the value of the older option `spelled`.

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
    """Split the values of an option that may be repeated and may contain commas: `--sm 86,89 --sm 120`."""
    return [word.strip() for entry in entries or () for word in entry.split(",") if word.strip()]


_FORMER = {"classic": "10"}
"""Values of older options and the current target; older versions predicted all releases of TensorRT as one."""


# --- output formats --------------------------------------------------------------------------------------------------
# Output formats of findings: for people, for scripts, and for tools that show findings next to the code.

FORMS = ("text", "json", "sarif", "junit", "markdown", "github")


def check_form(form: str) -> None:
    """Refuse an output format that a command does not have.

    Raises:
        UsageError: no form is called so.
    """
    from qdqtool.errors import UsageError

    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", fix=f"choose {', '.join(FORMS)}", where="--format")


# --- options of every command ----------------------------------------------------------------------------------------


_trust: ContextVar[bool] = ContextVar("trust", default=False)

_VERBOSE = Annotated[bool, typer.Option("--verbose", "-v", help="Print more messages to standard error.")]
_WIDE = Annotated[bool, typer.Option("--wide", help="Do not narrow tables to the width of the terminal.")]
_TRUST = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Trust the recipe: import and run the Python functions it names, and let it extend files anywhere.",
    ),
]
_MAX_MEMORY = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory limit for the content of input files, such as 8GiB; default: all memory of the machine.",
    ),
]
_OF_RECIPES = frozenset({"recipe", "changes"})
"""Parameters whose presence shows that a command loads a recipe."""


def is_trusted() -> bool:
    """Return True if functions in a recipe may run: with --trust, or with `trust: true` in the user's configuration."""
    return _trust.get() or _trusts_by_default()


def load_recipe(
    recipe: str | None, changes: Iterable[str] | None = None, *, labels: str | None = None
) -> Recipe:
    """Load a recipe by name or path, with `--set` changes, settings for the labels, and the user's trust.

    Raises:
        UsageError: mistakes in the recipe or the changes; functions, or a file outside its folder, without trust.
        InputFileError: the recipe or the configuration cannot be read.
    """
    from qdqtool.pipeline import recipes

    return recipes.load(recipe, recipes.add_scoring(changes or (), labels), trust=is_trusted())


def fitting_recipe(
    recipe: str | None,
    model: Path | Callable[[], Model],
    changes: Iterable[str] | None = None,
    *,
    labels: str | None = None,
) -> tuple[str, Recipe]:
    """Return the name and content of the named recipe. If none is named, use the one that fits the model and print its name.

    `model` is a file, or a function that opens it. The task is the one that a file beside the model states.

    Raises:
        UsageError, InputFileError: as `load_recipe`, or the model cannot be read.
    """
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.preparations import read_task
    from qdqtool.pipeline.suggest import fitting

    if labels is None:
        changes = (*read_task(model if isinstance(model, Path) else model().path, recipe), *(changes or ()))
    if recipe is not None:
        return recipe, load_recipe(recipe, changes, labels=labels)
    network = load(model) if isinstance(model, Path) else model()
    name, why = fitting(network, changes or ())
    words = f"recipe {name}, because {why}; --recipe chooses another"
    stderr().print(words)
    return name, load_recipe(name, changes, labels=labels)


def building(
    *,
    target: str | None,
    sm: str | None,
    builder: str | None,
    shapes: tuple[str, str, str],
) -> list[str]:
    """Return recipe changes for the build options; `shapes` are the smallest, the usual and the largest."""
    names = ("min_shapes", "opt_shapes", "max_shapes")
    typed = [f"build.{name}={json.dumps(value)}" for name, value in zip(names, shapes, strict=True) if value]
    typed += [f"build.builder={builder}"] if builder else []
    return typed + for_builder(target, sm)


def configuration() -> Path:
    """Return the path of the user's configuration. The file need not exist."""
    return Path(typer.get_app_dir("qdqtool")) / "config.yaml"


def log_to_stderr(*, verbose: bool) -> None:
    """Send log records to standard error, without passwords."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)


class _Redacting(logging.Formatter):
    """Formatter of log records that hides passwords, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


def examples(module: str, command: str = "") -> str:
    """Return the example commands of a module's documentation for the end of its help; only those of `command` if given."""
    start = f"    qdqtool {command} " if command else "    qdqtool "
    lines = [line.strip() for line in module.splitlines() if f"{line} ".startswith(start)]
    # \b keeps the help from joining the lines
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _recipes() -> list[str]:
    from qdqtool.pipeline import recipes

    return list(recipes.names())


def _methods() -> list[str]:
    from qdqtool.core.calibration import CALIBRATORS

    return [*CALIBRATORS.names(), "all"]


def _builders() -> list[str]:
    from qdqtool.backends import BUILDERS

    return list(BUILDERS.names())


_VALUES: dict[str, Callable[[], list[str]]] = {
    "recipe": _recipes,
    "method": _methods,
    "builder": _builders,
    "target": lambda: ["rtx", "8.6", "10", "11"],
    "fail_on": lambda: ["error", "warning", "info", "never"],
}
"""Values that a shell may complete, by name of the option."""


def _add_completion(parameter: inspect.Parameter) -> None:
    """Add shell completion to an option that has a known set of values."""
    values = _VALUES.get(parameter.name)
    for described in getattr(parameter.annotation, "__metadata__", ()) if values else ():
        if getattr(described, "autocompletion", 0) is None:
            described.autocompletion = values


def with_common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the options that all commands have."""
    signature = inspect.signature(command, eval_str=True)
    for parameter in signature.parameters.values():
        _add_completion(parameter)
    has = signature.parameters.keys()
    extra: dict[str, Any] = {"verbose": _VERBOSE, "wide": _WIDE, "max_memory": _MAX_MEMORY}
    if has & _OF_RECIPES and "trust" not in has:
        extra["trust"] = _TRUST
    extra = {name: annotation for name, annotation in extra.items() if name not in has}

    @functools.wraps(command)
    def run(*args: Any, **values: Any) -> Any:
        common = {name: values.pop(name) for name in extra}
        if common.get("verbose"):
            log_to_stderr(verbose=True)
        wide.set(common.get("wide", False))
        _trust.set(bool(common.get("trust", values.get("trust", False))))
        with allow_memory(common.get("max_memory")):
            _start_opening(values.get("model"))
            return command(*args, **values)

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if name == "max_memory" else False,
            annotation=annotation,
        )
        for name, annotation in extra.items()
    ]
    described: Any = run
    described.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    described.__annotations__ = {
        name: entry.annotation for name, entry in described.__signature__.parameters.items()
    }
    return run


def _start_opening(model: object) -> None:
    """If the command will open a model, start the checker process early, so that it is ready after the imports."""
    if isinstance(model, str | Path) and Path(model).suffix.lower() == ".onnx" and Path(model).is_file():
        from qdqtool.graph.onnx_io.passes import warm_up

        warm_up()


def _trusts_by_default() -> bool:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from qdqtool.errors import UsageError
    from qdqtool.io.files import unreadable

    path = configuration()
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # HOME may be a file, such as /dev/null
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            "the file is not YAML", fix="write `trust: true` or delete the file", where=str(path)
        ) from error
    settings = content if isinstance(content, dict) else {"": content}
    if not set(settings) <= {"trust"} or not isinstance(settings.get("trust", False), bool):
        raise UsageError(
            "the file may contain only `trust`", fix="write `trust: true` or delete the file", where=str(path)
        )
    return bool(settings.get("trust", False))
