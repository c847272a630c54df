"""Reads recipes: turns safe YAML into a checked `Recipe`, or reports all mistakes together; `extends:` inherits from another."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import Node

from qdqtool.core.recipe import Recipe
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import make_folder, read_at_most, require_file, write_bytes
from qdqtool.io.yaml_files import parse_yaml, yaml_trouble
from qdqtool.pipeline.recipe_mistakes import Places, check_document
from qdqtool.runtime.device import names_library

SCHEMA_URL = "https://qdqtool.github.io/qdqtool/recipe.schema.json"
"""Address at which the documentation publishes `schema()`; editors complete and check a recipe that names it."""
_EXAMPLE = {
    "model.onnx": "digits.onnx",
    "calibration.npz": "calibration.npz",
    "evaluation.npz": "evaluation.npz",
    "labels.npy": "labels.npy",
}
"""Files of the embedded example, with the names that the documentation gives a user's files."""
_LARGEST = 1 << 20
"""Most bytes of a recipe."""
_MOST_ENTRIES = 5_000
"""Most names, values and brackets of one file: the YAML reader takes time for each."""
_TASK = "compare.task"
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_MOST_SHOWN = 40
"""Most mistakes that are printed; a file that is not a recipe has one in every line."""


def folder() -> Path:
    """Return the folder of the shipped recipes: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_recipes"
    return shipped if shipped.is_dir() else package.parent / "recipes"


def names() -> tuple[str, ...]:
    """Return the names of the shipped recipes."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


def write_example(place: Path) -> tuple[Path, ...]:
    """Write the embedded example into a folder: `model.onnx`, calibration.npz, evaluation.npz and labels.npy.

    After a return, all files of the example are there. Existing files with equal content stay.

    Raises:
        UsageError: a file exists with other content; no file is written.
        SystemFault: the folder cannot be written to.
    """
    source = folder() / "examples" / "digits"
    files = {place / name: (source / origin).read_bytes() for name, origin in _EXAMPLE.items()}
    for path, content in files.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise UsageError(
                "the file already exists, with other content",
                fix="choose another folder with --out",
                where=str(path),
            )
    make_folder(place)
    for path, content in files.items():
        if not path.exists():
            write_bytes(path, content)
    return tuple(files)


def locate(recipe: str) -> Path:
    """Return the file of a recipe given by path or by shipped name.

    Raises:
        UsageError: neither a file nor a shipped recipe.
    """
    path = Path(recipe)
    require_file(path)
    # `Path.is_file` raises where a name is too long for the system.
    is_file = os.path.isfile(path)  # noqa: PTH113
    if path.suffix in {".yaml", ".yml"} or is_file:
        if is_file:
            return path
        raise UsageError("the recipe file does not exist", fix="check the path", where=recipe)
    if recipe in names():
        return folder() / f"{recipe}.yaml"
    raise _unknown(recipe)


def _unknown(recipe: str) -> UsageError:
    close = get_close_matches(recipe, names(), n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else f"choose one of {', '.join(names())}, or pass a .yaml file"
    )
    return UsageError(f"unknown recipe {recipe!r}", fix=hint)


def load(recipe: str | None, changes: Iterable[str] = (), *, trust: bool = False) -> Recipe:
    """Return the recipe with this name or path, with the `--set key=value` changes applied; None means all defaults.

    Args:
        recipe: name of a shipped recipe, or a path.
        changes: "key=value", applied over it.
        trust: whether a file that is not shipped may name functions, which are imported and run, and extend files
            outside its own folder.

    Raises:
        UsageError: mistakes in the recipe or the changes, all in one message; or, without `trust`, functions or a
            file outside the recipe's folder.
        InputFileError: the file cannot be read.
    """
    path = None if recipe is None else locate(recipe)
    places = Places()
    files = [] if path is None else _chain(path, trust=trust)
    # before the files are joined, because a joined section is also a section of its file
    code = [(file.path, tuple(_named_code(file))) for file in files]
    document: dict[str, Any] = {}
    for file in reversed(files):
        _merge(document, file.document)
        places.add_file(file.root, file.path.name if file is not files[0] else "")
    for change in changes:
        places.add_change(_apply(document, change), f"--set {change}")
    checked_recipe, wrong = check_document(document, places)
    if checked_recipe is None or wrong:
        count = count_noun(len(wrong), "mistake")
        more = [f"and {len(wrong) - _MOST_SHOWN} more"] if len(wrong) > _MOST_SHOWN else []
        raise UsageError(
            f"the recipe has {count}:\n  " + "\n  ".join([*wrong[:_MOST_SHOWN], *more]),
            fix=f"correct these mistakes; {Command('recipe', ('schema',))} prints everything that a recipe can contain",
            # A shipped recipe has no mistakes, so a mistake is in the changes.
            where="--set" if path is None or path.parent == folder() else str(path),
        )
    if not trust:
        _refuse_code(code, set(_code_of(document)))
    return checked_recipe


def change_recipe(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Return the recipe with `a.b=value` changes, as `--set` takes them.

    Raises:
        UsageError: a change is not understood, or the recipe does not allow it.
    """
    document = recipe.model_dump()
    places = Places()
    for change in changes:
        places.add_change(_apply(document, change), f"--set {change}")
    checked_recipe, wrong = check_document(document, places)
    if checked_recipe is None or wrong:
        way = f"correct it; {Command('recipe', ('schema',))} prints everything that a recipe can contain"
        raise UsageError("; ".join(wrong), fix=way, where="--set")
    return checked_recipe


def add_scoring(changes: Iterable[str], labels: object) -> tuple[str, ...]:
    """Return the changes, with `compare.task=classify` first if there are `labels`, so that labels are used by default.

    Raises:
        UsageError: a change asks for a task that takes no labels.
    """
    typed = tuple(changes)
    if labels is None or (isinstance(labels, str | os.PathLike) and Path(labels).is_dir()):
        return typed
    for change in typed:
        key, _, value = change.partition("=")
        if key.strip() == _TASK and value.strip().strip("\"'") in {"agreement", "none"}:
            raise UsageError(
                f"labels are given, but {_TASK}={value.strip()} does not use labels",
                fix=f"remove the labels, or remove {_TASK} (its default with labels is classify)",
                where="labels",
            )
    return (f"{_TASK}=classify", *typed)


def inspect(
    recipe: str, changes: Iterable[str] = (), *, trust: bool = False
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe as `load` does, and the functions that it names. No function runs, so this needs no trust.

    Functions are returned as "compare.metrics: module:function". `trust` lets the recipe extend files outside its folder.

    Raises:
        UsageError: mistakes in the recipe or the changes, or a file outside the recipe's folder without `trust`.
        InputFileError: the file cannot be read.
    """
    named = tuple(words for file in _chain(locate(recipe), trust=trust) for words in _named_code(file))
    return load(recipe, changes, trust=True), named


def names_code(recipe: Recipe) -> bool:
    """Return True if the recipe, written to a file, needs trust: it names functions or libraries."""
    return any(_code_of(recipe.model_dump(mode="json")))


def head(recipe: str) -> str:
    """Return the comments at the beginning of a recipe: its purpose, measurements, and values that are worth changing."""
    lines = _text(locate(recipe)).splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.startswith("#"), lines))


def dump(recipe: Recipe) -> str:
    """Return the recipe as YAML with all values."""
    stream = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(recipe.model_dump(mode="json"), stream)
    return stream.getvalue()


def values(path: Path) -> dict[str, str]:
    """Return the values of a recipe that `dump` wrote, as text by key: {"place.first_layer": "float"}.

    Raises:
        InputFileError: the file cannot be read.
        UsageError: it is not a recipe.
    """
    document, _ = _document(_text(path), path)
    document.pop("description", None)
    texts: dict[str, str] = {}
    for section, entries in document.items():
        own = entries if isinstance(entries, dict) else {"": entries}
        for key, value in own.items():
            name = f"{section}.{key}".removesuffix(".")
            texts[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return texts


def schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe. It is made from the models that read a recipe."""
    document = {
        "$id": SCHEMA_URL,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    } | Recipe.model_json_schema()
    document["properties"]["extends"] = {
        "type": "string",
        "description": "A shipped recipe, or a file in the folder of this recipe; write only the values that differ.",
    }
    return document


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """One file of a recipe: its path, its content, and the YAML nodes with their lines."""

    path: Path
    document: dict[str, Any]
    root: Node | None


def _chain(path: Path, *, trust: bool) -> list[_File]:
    """Return a recipe file, the file that it extends, and so on.

    `extends:` names a shipped recipe or a file beside this recipe; with `trust`, any file.
    """
    files: list[_File] = []
    visited: list[Path] = []
    here: Path | None = path
    while here is not None:
        if here.resolve() in visited:
            chain = " -> ".join(entry.name for entry in [*visited, here])
            raise UsageError(f"the recipe extends itself: {chain}", fix="break the cycle", where=str(path))
        visited.append(here.resolve())
        document, root = _document(_text(here), here)
        parent = document.pop("extends", None)
        if here != path:
            _anchor(document, here.parent)
        files.append(_File(path=here, document=document, root=root))
        here = None if parent is None else _parent(parent, here, None if trust else path.parent)
    return files


_FUNCTIONS = (
    "compare.metrics",
    "qat.model",
    "qat.data",
    "qat.loss",
    "qat.metric",
    "runtime.custom_ops",
    "runtime.stand_ins",
    "build.plugins",
)
"""Keys whose values may name a Python function as "module:function" or "file.py:function"."""


def _named_code(file: _File) -> Iterator[str]:
    """Yield the functions that a file names, unless qdqtool ships the file."""
    if folder() not in file.path.resolve().parents:
        yield from _code_of(file.document)


def _code_of(document: dict[str, Any]) -> Iterator[str]:
    keys: dict[str, Any] = {}
    for key in _FUNCTIONS:
        section, _, name = key.partition(".")
        options = document.get(section)
        keys[key] = options.get(name) if isinstance(options, dict) else None
    sweep = document.get("sweep")
    space = sweep.get("space") if isinstance(sweep, dict) else None
    keys |= {
        f"sweep.space.{key}": space[key] for key in _FUNCTIONS if isinstance(space, dict) and key in space
    }
    for key, value in keys.items():
        is_library = key.endswith(("custom_ops", "plugins"))
        yield from (f"{key}: {text}" for text in _texts(value) if ":" in text or is_library)
    compute = document.get("compute")
    device = compute.get("device") if isinstance(compute, dict) else None
    devices = [device, space.get("compute.device") if isinstance(space, dict) else None]
    yield from (f"compute.device: {text}" for text in _texts(devices) if names_library(text))


def _texts(value: object) -> Iterator[str]:
    """Yield all strings in a value, also in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _refuse_code(named: list[tuple[Path, tuple[str, ...]]], used: set[str]) -> None:
    """Refuse functions that files name and the whole recipe uses; what the user's own changes name was typed."""
    for path, texts in named:
        if code := [text for text in texts if text in used]:
            loaded = any(text.startswith("compute.device") for text in code)
            code_words = "libraries" if loaded else "functions"
            raise UsageError(
                f"a run would execute these {code_words} that the recipe names: {'; '.join(code)}",
                fix="read this code; if you trust it, pass --trust (in Python: trust=True), or write `trust: true` into "
                f"your own configuration ({Command('doctor')} says where)",
                where=str(path),
            )


def _anchor(document: dict[str, Any], folder: Path) -> None:
    """Make paths of functions in an inherited recipe absolute, so that the inheriting recipe finds them."""
    options = document.get("qat")
    if not isinstance(options, dict):
        return
    for key, value in options.items():
        file, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if colon and file.endswith(".py") and (folder / file).is_file():
            options[key] = f"{(folder / file).resolve()}:{name}"


def _parent(name: object, child: Path, home: Path | None) -> Path:
    """Return the file that `child` extends. If `home` is set, the file must be a shipped recipe or in the folder `home`.

    Paths outside are not opened: the existence of a file, and the names in it, must stay hidden from the author of a
    recipe.
    """
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise UsageError(
            f"extends: the value {name!r} is not the name of a recipe",
            fix="write the name of one shipped recipe, or the path of one file",
            where=str(child),
        )
    if name in names():
        return folder() / f"{name}.yaml"
    beside = child.parent / name
    # `Path.resolve` raises where links make a circle.
    if home is not None and Path(os.path.realpath(home)) not in Path(os.path.realpath(beside)).parents:
        raise UsageError(
            f"extends: {name!r} is outside the folder of the recipe",
            fix="copy that file into the folder of the recipe; or read it and, if you trust it, pass --trust "
            "(in Python: trust=True)",
            where=str(child),
        )
    if beside.suffix not in {".yaml", ".yml"}:
        raise _unknown(name)
    if beside.is_file():
        return beside
    if home is None:
        return locate(name)
    raise UsageError("the recipe file does not exist", fix="check `extends`", where=str(beside))


def _merge(under: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        inherited = under.get(key)
        if isinstance(inherited, dict) and isinstance(value, dict):
            _merge(inherited, value)
        else:
            under[key] = value


def _document(text: str, path: Path) -> tuple[dict[str, Any], Node | None]:
    """Return the content of a YAML text, and the YAML nodes."""
    document, root = parse_yaml(text, str(path), most=_MOST_ENTRIES, aliases=False, raises=UsageError)
    if document is None:
        return {}, root
    if not isinstance(document, dict):
        raise UsageError(
            "a recipe is a mapping of names to values", fix="start with `place:`", where=str(path)
        )
    return document, root


def _text(path: Path) -> str:
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError("the recipe is larger than 1 MiB", fix="pass a recipe", where=str(path))
        return content.decode("utf-8")
    except OSError as error:
        raise InputFileError(
            f"the recipe cannot be read: {error.strerror}", fix="check the path", where=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise InputFileError(
            "the recipe is not UTF-8 text", fix="pass a recipe in YAML", where=str(path)
        ) from error


def _apply(document: dict[str, Any], change: str) -> tuple[str, ...]:
    """Put a change `a.b.c=value` into the document of a recipe; return the path a.b.c."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            "the setting is not key=value",
            fix="write a setting such as place.first_layer=float",
            where=f"--set {change}",
        )
    try:
        # JSON writes a character outside the first plane as two escapes, which YAML reads as two characters
        text = _PAIR.sub(lambda pair: bytes.fromhex(pair[1] + pair[2]).decode("utf-16-be"), text)
        value = YAML(typ="safe", pure=True).load(text) if text.strip() else ""
        if isinstance(value, float) and key.strip() == "place.target":
            value = text.strip()  # 10.10 is not a number here, and the typed text is known
    except YAMLError as error:
        raise UsageError(
            f"the value is not YAML: {yaml_trouble(error)}", fix="quote the value", where=f"--set {change}"
        ) from error
    *parents, last = key.strip().split(".")
    place = document
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UsageError(
                f"{parent!r} is a value, not a section of settings",
                fix="check the name of the setting",
                where=f"--set {change}",
            )
        place = inner
    place[last] = value
    return (*parents, last)
