"""Finds all mistakes of a recipe: the place, what is wrong, and the nearest correct name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from qdqtool.accuracy.metric import METRICS
from qdqtool.auditing.full_audit import known_checks
from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import parse_shapes
from qdqtool.backends.torch_qat.fake_quant import ENGINES
from qdqtool.core.calibration import CALIBRATORS, LOST_CHANNELS
from qdqtool.core.findings import waivers
from qdqtool.core.recipe import AUTO, FORMATS_OF, Recipe
from qdqtool.datachecks.all_checks import CHECKS as DATA_CHECKS
from qdqtool.errors import UsageError
from qdqtool.matching.registry import RULES
from qdqtool.pipeline.recipe_places import Path, Places
from qdqtool.runtime.device import provider_of
from qdqtool.trt.ops import LISTED_AS, PLACEABLE

_LOSSES, _SCORES = ("cross_entropy", "mse"), ("top1", "loss")
Mistake = tuple[Path, str]


def checked(document: dict[str, Any], places: Places) -> tuple[Recipe | None, list[str]]:
    """Return the recipe of a document, or None, and one line for each wrong value.

    Names that belong to nothing (plug-ins, functions, shapes, keys) are looked for even if other values are wrong;
    those are taken out of the document for it.
    """
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        lines = _explained(error, places)
        for path in lines:
            _take_out(document, path)
        try:
            rest = [_line(path, words, places) for path, words in _misnamed(Recipe.model_validate(document))]
        except ValidationError:
            rest = []
        return None, [*lines.values(), *rest]
    wrong = [_line(path, words, places) for path, words in _misnamed(recipe)]
    return recipe, wrong


def _explained(error: ValidationError, places: Places) -> dict[Path, str]:
    found: dict[Path, list[str]] = {}
    for problem in error.errors():
        found.setdefault(_own(problem["loc"]), []).append(_words(problem))
    given = {_own(problem["loc"]): _got_text(problem) for problem in error.errors()}
    return {
        path: _line(path, " or ".join(dict.fromkeys(words)) + given[path], places)
        for path, words in found.items()
    }


def _take_out(document: dict[str, Any], path: Path) -> None:
    """Remove the value at `path`, or the whole list if it is in one."""
    here: Any = document
    for place, part in enumerate(path):
        inner = here.get(part)
        if place == len(path) - 1 or not isinstance(inner, dict):
            here.pop(part, None)
            return
        here = inner


def _misnamed(recipe: Recipe) -> Iterator[Mistake]:
    methods: dict[Path, str] = {("calibrate", "method"): recipe.calibrate.method}
    methods |= {("calibrate", "overrides", key): value for key, value in recipe.calibrate.overrides.items()}
    for path, method in methods.items():
        known = (AUTO, *CALIBRATORS.names()) if path[-1] == "method" else CALIBRATORS.names()
        yield from _not_among(path, [method.partition(":")[0]], known)
    yield from _not_among(("build", "builder"), [recipe.build.builder], BUILDERS.names())
    yield from _not_among(("place", "skip_rules"), recipe.place.skip_rules, RULES.names())
    yield from _not_among(("place", "ops"), recipe.place.ops, tuple(sorted(PLACEABLE)))
    excludable = tuple(sorted(PLACEABLE | set(LISTED_AS)))
    yield from _not_among(("place", "exclude_ops"), recipe.place.exclude_ops, excludable)
    if recipe.audit.ignore:
        yield from _not_among(("audit", "ignore"), waivers(recipe.audit.ignore), _ignorable())
    yield from _not_among(("compare", "metrics"), _plain(recipe.compare.metrics), METRICS.names())
    for key in (key for key in recipe.sweep.space if not key.startswith(FORMATS_OF)):
        yield from _no_key(("sweep", "space", key), key)
    if recipe.place.builder.family == "8" and recipe.insert.types != "fp32":
        words = "TensorRT 8 reads FP32 scales only: keep fp32, and let the builder choose types (trtexec --fp16 --int8)"
        yield ("insert", "types"), words
    yield from _bad_device(recipe)
    yield from _bad_shapes(recipe)
    yield from _bad_functions(recipe)


def _bad_device(recipe: Recipe) -> Iterator[Mistake]:
    try:
        provider_of(recipe.compute.device)
    except UsageError as error:
        yield ("compute", "device"), f"{error.what}; {error.fix}"


def _ignorable() -> tuple[str, ...]:
    """Return the codes and names of every finding that a run may report."""
    data = DATA_CHECKS.coded()
    return (*known_checks(), *data, *sorted(data.values()), *LOST_CHANNELS)


def _bad_functions(recipe: Recipe) -> Iterator[Mistake]:
    options = recipe.qat
    yield from _not_among(("qat", "engine"), [options.engine], ENGINES.names())
    yield from _not_among(("qat", "loss"), _plain([options.loss]), _LOSSES)
    yield from _not_among(("qat", "metric"), _plain([options.metric]), _SCORES)
    for name, text in (("model", options.model), ("data", options.data)):
        if text and not all(text.rpartition(":")[::2]):
            yield (
                ("qat", name),
                f"{text!r} does not name a function; write module:function or file.py:function",
            )


def _bad_shapes(recipe: Recipe) -> Iterator[Mistake]:
    for end in ("min_shapes", "opt_shapes", "max_shapes"):
        trouble = _shape_trouble(getattr(recipe.build, end))
        if trouble:
            yield ("build", end), trouble


def _shape_trouble(text: str) -> str:
    try:
        parse_shapes(text)
    except UsageError as error:
        return f"{error.what}; {error.fix}"
    return ""


def _no_key(path: Path, key: str) -> Iterator[Mistake]:
    section, _, name = key.rpartition(".")
    known = fields(tuple(section.split(".")))
    if not section or name not in known:
        yield path, "is not a key of a recipe" + (f"; {_nearest(name, known)}" if known else "")


def _plain(names: Iterable[str]) -> list[str]:
    """Return the names that are not functions of the user."""
    return [name for name in names if ":" not in name]


def _not_among(path: Path, names: Iterable[str], known: tuple[str, ...]) -> Iterator[Mistake]:
    for name in names:
        if name not in known:
            yield path, f"unknown name {name!r}; {_nearest(name, known)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, tuple(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(known)}"


def _line(path: Path, words: str, places: Places) -> str:
    place = places.of(path)
    return f"{'.'.join(path) or '(top)'}: {words}" + (f" ({place})" if place else "")


def _words(problem: ErrorDetails) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown name; {_nearest(str(problem['loc'][-1]), fields(_own(problem['loc'][:-1])))}"
    if problem["type"] in {"model_type", "dict_type"}:
        return "should be a section of names and values"
    return problem["msg"][0].lower() + problem["msg"][1:]


def _got_text(problem: ErrorDetails) -> str:
    return "" if problem["type"] == "extra_forbidden" else f", got {problem['input']!r}"


def _own(loc: tuple[int | str, ...]) -> Path:
    """Return the path as the user wrote it, without the alternatives that pydantic tried."""
    path: list[str] = []
    model: type[BaseModel] | None = Recipe
    keyed = False
    for part in loc:
        if model is not None:
            field = model.model_fields.get(str(part))
            model = _section(field) if field else None
            keyed = field is not None and get_origin(field.annotation) is dict
        elif isinstance(part, str) and not keyed:
            continue
        else:
            keyed = False
        path.append(str(part))
    return tuple(path)


def fields(path: Path) -> list[str]:
    """Return the names that are valid in the section at `path`; [] if there is no section."""
    model: type[BaseModel] = Recipe
    for part in path:
        field = model.model_fields.get(part)
        inner = _section(field) if field else None
        if inner is None:
            return []
        model = inner
    return sorted([*model.model_fields, *([] if path else ["extends"])])


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section type of a field; None if the field is a value."""
    candidates = (field.annotation, *get_args(field.annotation))
    # Python 3.10 takes tuple[int, ...] for a class, too.
    classes = (kind for kind in candidates if isinstance(kind, type) and get_origin(kind) is None)
    return next((kind for kind in classes if issubclass(kind, BaseModel)), None)
