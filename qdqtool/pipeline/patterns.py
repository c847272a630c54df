"""Checks patterns of a recipe that name nodes, tensors and operators: a pattern that matches nothing is a mistake.

A layer that was to stay float would be quantized without a message. The fields are those that `core.recipe` marks with
`Naming`. A recipe for a family of models lists the patterns that not every model has under `optional`.
`place.kept_float` is written by `qdqtool run --max-drop` and is noted only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

from pydantic import BaseModel

from qdqtool.core.commands import Command, Setting
from qdqtool.core.recipe import Naming, Recipe, RecipeSection
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView
from qdqtool.trt.ops import LISTED_AS

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
        for pattern in _unmatched(naming, patterns, view)
        if not any(fnmatchcase(pattern, allowed) or pattern == allowed for allowed in recipe.optional)
    ]
    if not wrong:
        return
    lines = [
        f"{field}: no {naming.kind} of the model matches {pattern!r}; {_nearest(pattern, _names(naming, view))}"
        for field, pattern, naming in wrong[:_SHOWN]
    ]
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    _, pattern, naming = wrong[0]
    raise UsageError(
        "\n  ".join([*lines, *more]),
        fix=f"correct it ({_LIST_NAMES[naming.kind]}), or allow it to match nothing: {Setting('optional', json.dumps([pattern]))}",
        where="recipe",
    )


def refuse_formats(globs: Collection[str], recipe: Recipe, view: GraphView) -> None:
    """Raise if a glob of `place.formats` that a sweep searches matches no node.

    Raises:
        UsageError: as `refuse_unmatched`.
    """
    place = recipe.place.model_copy(update={"formats": dict.fromkeys(globs, "float")})
    refuse_unmatched(recipe.model_copy(update={"place": place}), view, "place")


def named_parts(section: RecipeSection) -> Iterator[tuple[str, Naming, tuple[str, ...]]]:
    """Yield each field of a section that names parts of a model, with the values added to its default."""
    kind: type[BaseModel] = type(section)
    for name, field in kind.model_fields.items():
        naming = next((one for one in field.metadata if isinstance(one, Naming)), None)
        if naming is not None:
            usual = tuple(field.default)
            yield name, naming, tuple(word for word in getattr(section, name) if word not in usual)


def _unmatched(naming: Naming, patterns: Collection[str], view: GraphView) -> Iterator[str]:
    names = _names(naming, view) if patterns else ()
    for pattern in patterns:
        found = pattern in names
        if not found and naming.kind != "operator":
            found = any(fnmatchcase(name, pattern) for name in names)
        if not found:
            yield pattern


def _names(naming: Naming, view: GraphView) -> Collection[str]:
    if naming.kind == "node":
        return dict.fromkeys(node.name for node in view.nodes)
    if naming.kind == "operator":
        ops = {node.op for node in view.nodes}
        return ops | {LISTED_AS[op] for op in ops & LISTED_AS.keys()}
    made = (name for node in view.nodes for name in (*node.inputs, *node.outputs) if name)
    return dict.fromkeys([*(info.name for info in view.inputs), *made])


def _nearest(pattern: str, names: Collection[str]) -> str:
    """Return names that differ in case or by a few letters, or the first names of the model."""
    if not names:
        return "the model has none"
    other_case = [name for name in names if fnmatchcase(name.casefold(), pattern.casefold())]
    if other_case:
        return f"capital and small letters differ: {_listed(other_case)}"
    plain = re.sub(r"[*?\[\]]", "", pattern)
    ends = {name.rpartition("/")[2]: name for name in names}
    close = get_close_matches(plain, names, n=_NEAREST) or [
        ends[end] for end in get_close_matches(plain, ends, n=_NEAREST)
    ]
    return f"did you mean {_listed(close)}?" if close else f"its names begin with {_listed([*names])}"


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_NEAREST])) + (", ..." if len(names) > _NEAREST else "")
