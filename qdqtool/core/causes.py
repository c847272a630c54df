"""Known reasons for a failed build, or for layers that stay float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rank = Literal["exact", "general", "vague", "unknown", "echo"]
Fault = Literal["build", "model file", "machine"]
Degree = Literal["exact", "general", "unknown"]
"""How exactly the reason of a failure is known: itself, the class of its error, or not even that."""

GENERAL: dict[str, str] = {
    "general": "a general answer: qdqtool knows only the class of this error, not its exact cause",
    "unknown": "no answer: qdqtool knows no text like this",
}
"""Degrees of an inexact answer, with their printed words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Facts about the build around an error text, which select the fix; "" for unknown facts.

    Attributes:
        program: the program around the builder, as `parse` names it ("tensorrt-llm"), or OWN_BUILD.
        types: types that the build may use, as trtexec prints them ("FP32+FP16").
        io: types and formats of inputs and outputs, as trtexec takes them ("fp16:chw,int8:chw").
        step: the step in which the log ends, as `parse` names it ("calibration").
    """

    program: str = ""
    types: str = ""
    io: str = ""
    step: str = ""


OWN_BUILD = "qdqtool"
"""Program of a build that this tool runs: its model has Q/DQ, so no calibrator and no flag chooses a type."""
OURS = Situation(program=OWN_BUILD)
"""Situation of such a build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """Meaning and fix of a known error for builds that meet all conditions below.

    The first entry whose conditions are met replaces the usual meaning and fix.

    Attributes:
        layer: regular expression that the name of the layer must match; "" for any layer.
        program: program around the builder; "" for any.
        types: regular expression that the types of the build must match; "" for any, also unknown ones.
        io: regular expression that the formats of inputs and outputs must match; "" for any.
        step: step in which the log ends; "" for any.
        meaning: meaning of the text in this situation; "" if it is the usual meaning.
        fix: what to do there.
    """

    layer: str = ""
    program: str = ""
    types: str = ""
    io: str = ""
    step: str = ""
    meaning: str = ""
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A message that builders and applications print, its meaning, and the fix.

    Attributes:
        name: name of the cause.
        area: parser, typing, format, shape, kernel, myelin, memory, plugin, dla, driver, gpu, engine, running, calibration, refit,
            file, host or check.
        pattern: regular expression that finds the text in a message.
        meaning: meaning of the text.
        fix: what to do.
        releases: releases of TensorRT that print it.
        rank: "exact": names the reason. "general": may end a chain of errors, so an exact reason before it decides.
            "vague": the class of an error without a known cause. "unknown": an error of no class. "echo": only
            repeats that a step failed.
        effect: "fails" ends the build; "float" leaves layers, or the whole engine, without INT8; "warns" does neither.
        fault: whose error it is: the build's, the model file's, or the machine's.
        precision: the type that is built instead, if the text names it ("fp16"); "" otherwise.
        lint: the finding of `qdqtool lint` that shows it before a build; "" if none does.
        before: causes that decide if they are in the lines before a general one.
        variants: other words for some situations.
    """

    name: str
    area: str
    pattern: str
    meaning: str
    fix: str
    releases: str = "all"
    rank: Rank = "exact"
    effect: Literal["fails", "float", "warns"] = "fails"
    fault: Fault = "build"
    precision: str = ""
    lint: str = ""
    before: tuple[str, ...] = ()
    variants: tuple[Wording, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Result of `qdqtool explain`: the page as text, and the cause if the words are an error message."""

    words: str
    text: str
    cause: Cause | None = None
