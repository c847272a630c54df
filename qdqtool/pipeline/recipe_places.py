"""The place of each value of a recipe: the file and line, or the command line."""

from __future__ import annotations

from collections.abc import Iterator

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str, ...]
"""Names from the top of a recipe to a value; entries of a list are numbers."""


class Places:
    """Places of values; later files and changes replace earlier ones."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def add_file(self, root: Node | None, name: str = "") -> None:
        """Record the lines of a YAML document. `name` is the file of an inherited recipe; "" is the recipe itself."""
        if root is not None:
            before = f"{name}, " if name else ""
            self._known |= {path: f"{before}line {line}" for path, line in _lines(root, ())}

    def add_change(self, path: Path, words: str) -> None:
        """Record a change from the command line."""
        self._known[path] = words

    def of(self, path: Path) -> str:
        """Return the place of the value at `path`, or of the section that contains it; "" if it is not written."""
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


def yaml_trouble(error: YAMLError | ValueError | RecursionError) -> str:
    """Describe the error in a YAML text, in one line with the line number."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    began = error.context_mark
    inside = f", {error.context} that begins in line {began.line + 1}" if error.context and began else ""
    problem = str(error.problem).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{inside}"
