"""Explain a word: a pass of TensorRT's optimizer, a verdict of a log, a code, a kernel name, a format, or a plug-in.

    qdqtool explain QDQToCopy
    qdqtool explain int8-in
    qdqtool explain runtime-copy
    qdqtool explain sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_..._tensor16x8x32
    qdqtool explain 'Int8(50176,50176:4,224,1)'
    qdqtool explain entropy
    qdqtool explain QDQ120
    qdqtool explain 'Could not find any implementation for node Conv_1.'
    qdqtool explain 'why is INT8 slower than FP16'

For an error text of a builder, or of a program around it, it prints the cause and a fix; if the text has several lines,
it uses the decisive one. For a question about time, precision or accuracy it names the command that answers it. If a
name is ambiguous, write its kind before it: `pass`, `tactic`, `format`. Without an argument it lists all pages.
"""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.core.wording import Command

if TYPE_CHECKING:
    from qdqtool.core.causes import Cause, Explained


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Name of a pass, plug-in, kernel or finding (QDQ120); a memory format: 'Int8(1,1:32,9)'; or an error text."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Explain a pass, a verdict, a code, a kernel name, a memory format, a plug-in of qdqtool, or an error text."""
    from qdqtool.cli.screen import show_text
    from qdqtool.core.kinds import EXPLANATION

    explained = _find_explanation(words or [])
    if as_json:
        sys.stdout.write(EXPLANATION.dump(explained))
    else:
        show_text(explained.text.rstrip() + "\n", prose=True)


def _find_explanation(words: list[str]) -> Explained:
    from qdqtool.core.causes import Explained
    from qdqtool.pages import explanation

    kind, *following = words or [""]
    subject = " ".join(following)
    spoken = " ".join(words)
    cause = None
    if kind == "tactic" and subject:
        text = _tactic(subject)
    elif kind == "format" and subject:
        text = _format(subject)
    elif " " in spoken.strip() and explanation(spoken) is None and (cause := _cause(spoken)) is not None:
        text = _cause_words(cause)
    elif kind:
        text = _page(spoken.removeprefix("pass ")) + _list_builder_errors(spoken)
    else:
        text = _contents()
    return Explained(words=spoken, text=text, cause=cause)


def _cause(text: str) -> Cause | None:
    """Return the cause of an error text as `parse` reports it for a log with this text; for a question, return the answer.

    None if the words are neither an error text nor a known question.
    """
    from qdqtool import buildlog
    from qdqtool.trt.causes import by_name, diagnosis, question_of

    question = question_of(text)
    run = buildlog.read(io.BytesIO(text.encode())).runs[0]
    failure = run.failure
    if failure is not None and failure.cause and not (failure.degree == "unknown" and question):
        return replace(by_name(failure.cause), meaning=failure.meaning, fix=failure.fix)
    deciding = diagnosis(text.splitlines())
    cause = None if deciding is None else deciding[1]
    return question or cause if cause is None or cause.rank == "unknown" else cause


def _list_builder_errors(code: str) -> str:
    """Return the builder errors for this finding of `qdqtool lint`; "" for other words."""
    from qdqtool.trt.causes import list_shown_by

    return "".join(f"\nAs an error of the builder: {cause.meaning}\n" for cause in list_shown_by(code))


def _cause_words(cause: Cause) -> str:
    from qdqtool.core.advice import explain_placeholders
    from qdqtool.core.causes import GENERAL
    from qdqtool.trt.causes import by_name

    rows = [("meaning", cause.meaning), ("fix", cause.fix), ("releases", cause.releases)]
    if cause.rank in ("vague", "unknown"):
        rows.append(("degree", GENERAL["general" if cause.rank == "vague" else "unknown"]))
    if placeholders := explain_placeholders(cause.fix):
        rows.insert(2, ("", placeholders))
    if cause.lint:
        rows.append(("before", f"{Command('lint')} finds it before a build: {cause.lint}"))
    if cause.before and cause.rank != "vague":
        rows.append(("chain", "the cause is in earlier lines; look for one of these:"))
        rows += [("", by_name(name).meaning) for name in cause.before]
    return "\n".join([f"{cause.area}: {cause.name}", *(f"  {title:<10}{text}" for title, text in rows)])


def _tactic(name: str) -> str:
    from qdqtool.trt.tactics import explain_tactic

    tactic = explain_tactic(name)
    yes_no = {True: "yes", False: "no", None: "not in the name"}
    rows = (
        ("architecture", tactic.architecture),
        ("operation", tactic.operation),
        ("types", tactic.types),
        ("layout", tactic.layout),
        ("tile", tactic.tile),
        ("stages", tactic.stages),
        ("unit", tactic.unit),
        ("INT8 inputs", yes_no[tactic.int8]),
        ("tensor cores", yes_no[tactic.tensor_cores]),
    )
    return "\n".join([tactic.name, *(f"  {title:<13}{value or '-'}" for title, value in rows)])


def _format(text: str) -> str:
    from qdqtool.errors import UsageError
    from qdqtool.trt.tensor_formats import explain_format

    words = explain_format(text)
    if words is None:
        raise UsageError(
            f"{text!r} is not a memory format",
            fix="write the format as in the log: 'Int8(50176,50176:4,224,1)'",
        )
    return f"{text}\n  {words}"


def _page(name: str) -> str:
    """Return the page for a word, or the explanation of a memory format or a kernel name."""
    from difflib import get_close_matches

    from qdqtool.errors import UsageError
    from qdqtool.pages import explanation, known_words
    from qdqtool.trt.tensor_formats import explain_format

    text = explanation(name)
    if text is not None:
        return text
    if explain_format(name) is not None:
        return _format(name)
    if _is_kernel(name):
        return _tactic(name)
    close = get_close_matches(
        name.lower(), words := {word.lower(): word for word in known_words()}, n=1, cutoff=0.6
    )
    hint = (
        f"did you mean {words[close[0]]!r}?" if close else f"see {Command('explain')} for a list of all pages"
    )
    raise UsageError(f"no page explains {name!r}", fix=hint)


def _is_kernel(name: str) -> bool:
    from qdqtool.trt.tactics import explain_tactic

    tactic = explain_tactic(name)
    return bool(tactic.architecture or tactic.unit or name.startswith("__myl_"))


def _contents() -> str:
    from itertools import groupby

    from qdqtool.pages import coded_plugins, pages

    lines: list[str] = []
    listed = dict.fromkeys(pages().values())
    for topic, group in groupby(listed, key=lambda page: page.topic):
        lines += [f"{topic}:", *(f"  {', '.join(page.names):<32}{page.summary}" for page in group), ""]
    lines.append("Findings of lint and audit:")
    for code, (registry, name) in coded_plugins().items():
        lines.append(f"  {code + ' ' + name:<32}{registry.manual(name).splitlines()[0]}")
    return "\n".join(lines)


PLUGIN = explain
