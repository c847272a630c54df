"""Reads a Python script, never runs it, and finds the calls that TensorRT 11 does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from qdqtool.backends.migration.advice import Advice, Migration
from qdqtool.backends.migration.api_facts import ASSIGNED, MEMBERS, NAMES, ApiFate
from qdqtool.backends.migration.command_line import gone_flag
from qdqtool.errors import InputFileError
from qdqtool.io.files import read_at_most, unreadable

_LARGEST = 16 << 20
"""Bytes; no script is larger."""
_PACKAGE = "tensorrt"
_CLASSES = frozenset(
    {"Builder", "BuilderFlag", "ICudaEngine", "IExecutionContext", "Logger", "OnnxParser", "Runtime"}
) | frozenset(name for name in NAMES if name[:1].isupper())
"""Classes by which `trt` is known to be TensorRT."""


def migrate_script(path: Path) -> Migration:
    """The advice for a Python script; empty when it does not use TensorRT.

    Raises:
        InputFileError: it cannot be read, or is not Python 3.
    """
    tree = _parse(path)
    uses = _uses_tensorrt(tree)
    runs = any(isinstance(node, ast.Constant) and "trtexec" in str(node.value) for node in ast.walk(tree))
    advice: list[Advice] = []
    if uses or runs:
        for node in ast.walk(tree):
            advice += _of_node(node, uses=uses, runs=runs)
    unique = dict.fromkeys(sorted(advice, key=lambda found: (_line(found), found.what)))
    return Migration(source="script", name=path.name, advice=tuple(unique))


def _parse(path: Path) -> ast.Module:
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError("is larger than 16 MiB", fix="pass one Python script", where=str(path))
        return ast.parse(content, filename=path.name)
    except OSError as error:
        raise unreadable(path, error) from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputFileError(
            f"is not Python 3: {error}",
            fix="convert it with 2to3 first, or pass another file",
            where=str(path),
        ) from error


def _uses_tensorrt(tree: ast.Module) -> bool:
    """Whether TensorRT is imported anywhere, by a statement or by name, or handed over as `trt`."""
    return any(_is_import(node) or _is_module(node) for node in ast.walk(tree))


def _is_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == _PACKAGE for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == _PACKAGE
    if not isinstance(node, ast.Call) or not node.args or "import" not in _called(node):
        return False
    first = node.args[0]
    return (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and re.match(r"tensorrt\b(?!_rtx)", first.value) is not None
    )


def _is_module(node: ast.AST) -> bool:
    """Whether this is `trt.BuilderFlag` or another class of TensorRT, whatever `trt` came from."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "trt"
        and node.attr in _CLASSES
    )


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _of_node(node: ast.AST, *, uses: bool, runs: bool) -> Iterator[Advice]:
    if runs and isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _of_text(node.value, node.lineno)
    if not uses:
        return
    if isinstance(node, ast.Attribute):
        yield from _of_attribute(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _advice(node.lineno, node.id, NAMES[node.id])
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in NAMES:
                yield _advice(node.lineno, f"import {alias.name}", NAMES[alias.name])


def _of_attribute(node: ast.Attribute) -> Iterator[Advice]:
    owner = _last(node.value)
    member = MEMBERS.get((owner, node.attr))
    if member is not None:
        yield _advice(node.lineno, f"{owner}.{node.attr}", member)
    elif node.attr in NAMES:
        yield _advice(node.lineno, f".{node.attr}", NAMES[node.attr])
    elif node.attr in ASSIGNED and isinstance(node.ctx, ast.Store):
        yield _advice(node.lineno, f".{node.attr} =", ASSIGNED[node.attr])


def _of_call(node: ast.Call) -> Iterator[Advice]:
    """Names that are asked for as text; `hasattr` only asks whether they are there."""
    if _called(node) not in {"getattr", "setattr"} or len(node.args) < 2:
        return
    owner, name = node.args[0], node.args[1]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return
    fate = NAMES.get(name.value) or MEMBERS.get((_last(owner), name.value))
    if fate is None and _called(node) == "setattr":
        fate = ASSIGNED.get(name.value)
    if fate is not None:
        yield _advice(node.lineno, f"{_called(node)}(..., {name.value!r})", fate)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _of_text(text: str, line: int) -> Iterator[Advice]:
    """Flags of trtexec in a string, as scripts that run it have them."""
    for word in text.split():
        found = gone_flag(word)
        if found is not None:
            yield Advice(
                where=f"line {line}", what=found.what, action=found.action, reason=found.reason, do=found.do
            )


def _advice(line: int, what: str, fate: ApiFate) -> Advice:
    return Advice(
        where=f"line {line}",
        what=what,
        action=fate.action,
        reason=f"gone in TensorRT {fate.gone}",
        do=fate.do,
    )


def _line(advice: Advice) -> int:
    return int(advice.where.removeprefix("line "))
