"""Finds all mistakes in a recipe: the place, the problem, and the nearest correct name. Also finds patterns that match nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from qdqtool.accuracy.metric import METRICS
from qdqtool.auditing.full_audit import known_checks
from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import parse_shapes
from qdqtool.backends.torch_qat.fake_quant import ENGINES
from qdqtool.core.calibration import CALIBRATORS, LOST_CHANNELS
from qdqtool.core.findings import waivers
from qdqtool.core.recipe import AUTO, FORMATS_OF, Naming, Recipe, RecipeSection
from qdqtool.core.wording import Command, Setting
from qdqtool.datachecks import CHECKS as DATA_CHECKS
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import RULES
from qdqtool.runtime.device import provider_of
from qdqtool.trt.ops import LISTED_AS, PLACEABLE

# --- recipe places ---------------------------------------------------------------------------------------------------
# The place of each value of a recipe: the file and line, or the command line.


Path = tuple[str, ...]
"""Names from the top of a recipe to a value; entries of a list are numbers."""


class Places:
    """The line of each value of a recipe. Later files and changes replace earlier ones."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def add_file(self, root: Node | None, name: str = "") -> None:
        """Record the lines of a YAML document. `name` is the file of an inherited recipe; "" is the recipe itself."""
        if root is not None:
            before = f"{name}, " if name else ""
            self._known |= {path: f"{before}line {line}" for path, line in _lines(root, ())}

    def add_change(self, path: Path, words: str) -> None:
        """Record that a change (`--set`) sets the value at `path`; `words` name the place in messages."""
        self._known[path] = words

    def of(self, path: Path) -> str:
        """Return where the recipe sets the value at `path`, else the section that contains it; else ""."""
        while path and path not in self._known:
            path = path[:-1]
        return self._known.get(path, "")


def _lines(node: Node, above: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                path = (*above, str(key.value))
                yield path, key.start_mark.line + 1
                yield from _lines(value, path)
    elif isinstance(node, SequenceNode):
        for number, value in enumerate(node.value):
            path = (*above, str(number))
            yield path, value.start_mark.line + 1
            yield from _lines(value, path)


# --- patterns --------------------------------------------------------------------------------------------------------
# Checks patterns of a recipe that name nodes, tensors and operators: a pattern that matches nothing is a mistake.
#
# Otherwise a layer that should stay float would be quantized without a message. The fields are those that
# `core.recipe` marks with `Naming`. A recipe for a family of models lists the patterns that not every model has under
# `optional`. `place.kept_float` is written by `qdqtool run --max-drop` and is noted only.


_NEAREST: Final = 3
"""Most names that are shown for a pattern."""
_SHOWN: Final = 5
"""Most patterns that one error names."""
_LIST_NAMES: Final = {
    "node": f"{Command('place', ('MODEL',))} prints the names",
    "tensor": "use the names of the ONNX model after preparation",
    "operator": "write the operator type as ONNX does",
}


def refuse_unmatched(recipe: Recipe, view: GraphView, *sections: str) -> None:
    """Raise if a pattern in these sections of the recipe matches nothing in the prepared model.

    Raises:
        UsageError: names the field, the pattern, and the nearest names of the model.
    """
    wrong = [
        (f"{section}.{field}", pattern, naming)
        for section in sections
        for field, naming, patterns in named_parts(getattr(recipe, section))
        for pattern in _list_unmatched(naming, patterns, view)
        if not any(fnmatchcase(pattern, allowed) or pattern == allowed for allowed in recipe.optional)
    ]
    if not wrong:
        return
    lines = [
        f"{field}: no {naming.kind} of the model matches {pattern!r}; {_nearest_names(pattern, _names(naming, view))}"
        for field, pattern, naming in wrong[:_SHOWN]
    ]
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    _, pattern, naming = wrong[0]
    raise UsageError(
        "\n  ".join([*lines, *more]),
        fix=f"correct the pattern ({_LIST_NAMES[naming.kind]}), or allow it to match nothing: {Setting('optional', json.dumps([pattern]))}",
        where="recipe",
    )


def refuse_formats(globs: Collection[str], recipe: Recipe, view: GraphView) -> None:
    """Raise if a glob of `place.formats` in a sweep matches no node.

    Raises:
        UsageError: as `refuse_unmatched`.
    """
    place = recipe.place.model_copy(update={"formats": dict.fromkeys(globs, "float")})
    refuse_unmatched(recipe.model_copy(update={"place": place}), view, "place")


def named_parts(section: RecipeSection) -> Iterator[tuple[str, Naming, tuple[str, ...]]]:
    """Yield each field of a recipe section that names parts of a model, with values that are not defaults."""
    kind: type[BaseModel] = type(section)
    for name, field in kind.model_fields.items():
        naming = next((mark for mark in field.metadata if isinstance(mark, Naming)), None)
        if naming is not None:
            usual = tuple(field.default)
            yield name, naming, tuple(word for word in getattr(section, name) if word not in usual)


def _list_unmatched(naming: Naming, patterns: Collection[str], view: GraphView) -> Iterator[str]:
    names = _names(naming, view) if patterns else ()
    for pattern in patterns:
        # the name x[0] does not match the pattern x[0]
        is_glob = naming.kind != "operator" and escape(pattern) != pattern
        if not (any(fnmatchcase(name, pattern) for name in names) if is_glob else pattern in names):
            yield pattern


def _names(naming: Naming, view: GraphView) -> Collection[str]:
    if naming.kind == "node":
        return dict.fromkeys(node.name for node in view.nodes)
    if naming.kind == "operator":
        ops = {node.op for node in view.nodes}
        return ops | {LISTED_AS[op] for op in ops & LISTED_AS.keys()}
    tensors = (name for node in view.nodes for name in (*node.inputs, *node.outputs) if name)
    return dict.fromkeys([*(info.name for info in view.inputs), *tensors])


def _nearest_names(pattern: str, names: Collection[str]) -> str:
    """Return a hint with the names of the model that are closest to a pattern, or with its first names."""
    if not names:
        return "the model has no such names"
    if pattern in names:
        return f"in a pattern, [ begins a set of characters: write {escape(pattern)!r} for this name"
    other_case = [name for name in names if fnmatchcase(name.casefold(), pattern.casefold())]
    if other_case:
        return f"capital and small letters differ: {_list_names(other_case)}"
    plain = re.sub(r"[*?\[\]]", "", pattern)
    ends = {name.rpartition("/")[2]: name for name in names}
    close = get_close_matches(plain, names, n=_NEAREST) or [
        ends[end] for end in get_close_matches(plain, ends, n=_NEAREST)
    ]
    return f"did you mean {_list_names(close)}?" if close else f"its names begin with {_list_names([*names])}"


def _list_names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_NEAREST])) + (", ..." if len(names) > _NEAREST else "")


# --- recipe mistakes -------------------------------------------------------------------------------------------------


_LOSSES, _SCORES = ("cross_entropy", "mse"), ("top1", "loss")
Mistake = tuple[Path, str]


def check_document(document: dict[str, Any], places: Places) -> tuple[Recipe | None, list[str]]:
    """Return the recipe of a document, or None, and one line for each wrong value.

    Names that do not exist (plug-ins, functions, shapes, keys) are reported even if other values are wrong; wrong
    values are removed from the document first.
    """
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        lines = _explain_errors(error, places)
        for path in lines:
            _take_out(document, path)
        try:
            misnamed = [
                _line(path, words, places) for path, words in _find_misnamed(Recipe.model_validate(document))
            ]
        except ValidationError:
            misnamed = []
        return None, [*lines.values(), *misnamed]
    wrong = [_line(path, words, places) for path, words in _find_misnamed(recipe)]
    return recipe, wrong


def _explain_errors(error: ValidationError, places: Places) -> dict[Path, str]:
    problems: dict[Path, list[str]] = {}
    for problem in error.errors():
        problems.setdefault(_own(problem["loc"]), []).append(_words(problem))
    values = {_own(problem["loc"]): _got_text(problem) for problem in error.errors()}
    return {
        path: _line(path, " or ".join(dict.fromkeys(words)) + values[path], places)
        for path, words in problems.items()
    }


def _take_out(document: dict[str, Any], path: Path) -> None:
    """Remove the value at `path` of a document; if it is in a list, remove the whole list."""
    here: Any = document
    for place, part in enumerate(path):
        inner = here.get(part)
        if place == len(path) - 1 or not isinstance(inner, dict):
            here.pop(part, None)
            return
        here = inner


def _find_misnamed(recipe: Recipe) -> Iterator[Mistake]:
    methods: dict[Path, str] = {("calibrate", "method"): recipe.calibrate.method}
    methods |= {("calibrate", "overrides", key): value for key, value in recipe.calibrate.overrides.items()}
    for path, method in methods.items():
        choices = (AUTO, *CALIBRATORS.names()) if path[-1] == "method" else CALIBRATORS.names()
        yield from _not_among(path, [method.partition(":")[0]], choices)
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
    if not recipe.place.builder.reads_half_scales and recipe.insert.types != "fp32":
        words = "TensorRT 8 reads FP32 scales only: keep fp32, and let the builder choose types (trtexec --fp16 --int8)"
        yield ("insert", "types"), words
    try:
        provider_of(recipe.compute.device)
    except UsageError as error:
        yield ("compute", "device"), f"{error.what}; {error.fix}"
    for end in ("min_shapes", "opt_shapes", "max_shapes"):
        trouble = _shape_trouble(getattr(recipe.build, end))
        if trouble:
            yield ("build", end), trouble
    yield from _bad_functions(recipe)


def _ignorable() -> tuple[str, ...]:
    """Return the codes and names of all findings that a run can report."""
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


def _shape_trouble(text: str) -> str:
    try:
        parse_shapes(text)
    except UsageError as error:
        return f"{error.what}; {error.fix}"
    return ""


def _no_key(path: Path, key: str) -> Iterator[Mistake]:
    section, _, name = key.rpartition(".")
    keys = fields(tuple(section.split(".")))
    if not section or name not in keys:
        yield path, "is not a key of a recipe" + (f"; {_nearest(name, keys)}" if keys else "")


def _plain(names: Iterable[str]) -> list[str]:
    """Return the names except those of user functions, which contain a colon (module:function)."""
    return [name for name in names if ":" not in name]


def _not_among(path: Path, names: Iterable[str], choices: tuple[str, ...]) -> Iterator[Mistake]:
    for name in names:
        if name not in choices:
            yield path, f"unknown name {name!r}; {_nearest(name, choices)}"


def _nearest(name: str, choices: Iterable[str]) -> str:
    close = get_close_matches(name, tuple(choices), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(choices)}"


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
    """Return the path of a recipe value as the user wrote it, without the type alternatives that pydantic adds."""
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
    """Return the section type of a recipe field; None if the field is a value."""
    candidates = (field.annotation, *get_args(field.annotation))
    # Python 3.10 takes tuple[int, ...] for a class, too.
    classes = (kind for kind in candidates if isinstance(kind, type) and get_origin(kind) is None)
    return next((kind for kind in classes if issubclass(kind, BaseModel)), None)
