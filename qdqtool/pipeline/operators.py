"""Uses the libraries and stand-ins of a recipe for operators that onnxruntime lacks."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends.torch_qat.callables import resolve
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.runtime.operators import Operators, use

_KEY = "runtime.stand_ins"


def use_operators(recipe: Recipe) -> None:
    """Let every session that opens from now on compute with the libraries and stand-ins of the recipe, and no others.

    Raises:
        UsageError: there is no such library, or a stand-in is not a function.
    """
    options = recipe.runtime
    libraries = tuple(Path(word).expanduser() for word in options.custom_ops)
    missing = next((path for path in libraries if not path.is_file()), None)
    if missing is not None:
        raise UsageError(
            f"the library {missing} does not exist",
            fix="pass the shared library of onnxruntime custom operators",
            where="runtime.custom_ops",
        )
    stand_ins = {}
    for word, text in options.stand_ins.items():
        domain, colons, op = word.rpartition("::")
        if not colons or not op:
            raise UsageError(
                f"{word!r} does not name an operator",
                fix='write "domain::Operator": "module:function"',
                where=_KEY,
            )
        stand_ins[domain, op] = resolve(text, Path(), _KEY)
    use(Operators(libraries=tuple(path.resolve() for path in libraries), stand_ins=stand_ins))
