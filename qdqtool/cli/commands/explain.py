"""Explain a word: a pass of TensorRT's optimizer, a kernel name, a memory format, or a plug-in of qdqtool.

    qdqtool explain QDQToCopy
    qdqtool explain sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_..._tensor16x8x32
    qdqtool explain 'Int8(50176,50176:4,224,1)'
    qdqtool explain entropy
    qdqtool explain QDQ120

A word in front says what is meant where that is not plain: `pass`, `tactic`, `format`. Without a word it lists the
passes that have a page.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.plugins import Registry

_REGISTRIES = (
    "calibrators.methods",
    "qdqtool.placement.rules",
    "qdqtool.placement.lints",
    "qdqtool.auditing.checks",
    "qdqtool.accuracy.metrics",
    "qdqtool.backends.builders",
    "qdqtool.buildlog.patterns",
    "qdqtool.cli.commands",
)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A pass, plug-in, kernel or finding (QDQ120) by name; a format: 'Int8(1,1:32,9)'."
        ),
    ] = None,
) -> None:
    """Explain a pass of the optimizer, a kernel name, a memory format, or a plug-in of qdqtool."""
    kind, *rest = words or [""]
    subject = " ".join(rest)
    if kind == "tactic" and subject:
        text = _tactic(subject)
    elif kind == "format" and subject:
        text = _format(subject)
    elif kind:
        text = _page(" ".join(words or []).removeprefix("pass "))
    else:
        text = _contents()
    sys.stdout.write(text.rstrip() + "\n")


def _tactic(name: str) -> str:
    from qdqtool.trt.tactics import explain_tactic

    found = explain_tactic(name)
    yes_no = {True: "yes", False: "no", None: "the name does not say"}
    rows = (
        ("architecture", found.architecture),
        ("operation", found.operation),
        ("types", found.types),
        ("layout", found.layout),
        ("tile", found.tile),
        ("stages", found.stages),
        ("unit", found.unit),
        ("INT8 inputs", yes_no[found.int8]),
        ("tensor cores", yes_no[found.tensor_cores]),
    )
    return "\n".join([found.name, *(f"  {title:<13}{value or '-'}" for title, value in rows)])


def _format(text: str) -> str:
    from qdqtool.errors import UsageError
    from qdqtool.trt.tensor_formats import explain_format

    found = explain_format(text)
    if found is None:
        raise UsageError(
            f"{text!r} is not a memory format", fix="write it as in the log: 'Int8(50176,50176:4,224,1)'"
        )
    return f"{text}\n  {found.words}"


def _page(name: str) -> str:
    """The page of a pass, the manual of the first plug-in of that name, or what a format or a kernel's name says."""
    from difflib import get_close_matches

    from qdqtool.buildlog.manual.passes import PAGES, page_of
    from qdqtool.core.calibration import CALIBRATORS
    from qdqtool.errors import UsageError
    from qdqtool.plugins import Registry
    from qdqtool.trt.tensor_formats import explain_format

    name = _rule_of(name)
    page = page_of(name)
    if page is not None:
        return page.text()
    known: list[str] = [one.name for one in PAGES.values()]
    for package in _REGISTRIES:
        shelf = CALIBRATORS if package == CALIBRATORS.package else Registry(package=package)
        if name in _names(shelf):
            return shelf.manual(name)
        known += _names(shelf)
    if explain_format(name) is not None:
        return _format(name)
    if _is_kernel(name):
        return _tactic(name)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else "see `qdqtool explain` for the pages there are"
    raise UsageError(f"nothing is called {name!r}", fix=hint)


def _is_kernel(name: str) -> bool:
    from qdqtool.trt.tactics import explain_tactic

    found = explain_tactic(name)
    return bool(found.architecture or found.unit or name.startswith("__myl_"))


def _rule_of(name: str) -> str:
    """The lint rule or audit check that a code such as QDQ120 stands for; other words stay."""
    if not re.fullmatch(r"(?i:qdq)[0-9]+", name):
        return name
    from qdqtool.auditing.run import CHECKS
    from qdqtool.placement.lint import codes

    checks = {CHECKS.load(check).code: check for check in CHECKS.usable()}
    return {**codes(), **checks}.get(name.upper(), name)


def _names(shelf: Registry) -> tuple[str, ...]:
    try:
        return shelf.names()
    except ModuleNotFoundError:
        return ()


def _contents() -> str:
    from qdqtool.buildlog.manual.passes import PAGES

    lines = [f"  {page.name:<30}{page.what.partition('. ')[0]}" for page in PAGES.values()]
    return "\n".join(["passes and steps of the optimizer:", *lines])


PLUGIN = explain
