"""The table of causes. It finds the cause of an error text, and the cause that decides among several lines.

One row per reason, with texts of TensorRT 5 to 11, TensorRT for RTX, and the programs around them.

Most failed builds print several errors, and the last ones only repeat that it failed. "Could not find any
implementation" is general: the lines before it say why no kernel was left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from qdqtool.core.causes import Cause, Situation
from qdqtool.core.wording import Command
from qdqtool.trt.causes.anatomy import dissect, for_node, for_operator, general, in_situation
from qdqtool.trt.causes.builder import (
    ENGINE,
    KERNELS,
    MACHINE,
    RUNNING,
)
from qdqtool.trt.causes.calibration import CALIBRATION
from qdqtool.trt.causes.calls import CALLS
from qdqtool.trt.causes.classes import CLASSES, LINT, STATUSES
from qdqtool.trt.causes.dla import DLA
from qdqtool.trt.causes.model import FORMATS, PARSER, PLUGINS, SHAPES, TYPING
from qdqtool.trt.causes.programs import ECHOES, HOSTS
from qdqtool.trt.causes.serving import SERVING
from qdqtool.trt.causes.tools import TOOLS

CAUSES: tuple[Cause, ...] = (
    *CALLS,
    *TOOLS,
    *MACHINE,
    *STATUSES,
    *ENGINE,
    *RUNNING,
    *FORMATS,
    *PARSER,
    *TYPING,
    *SHAPES,
    *PLUGINS,
    *DLA,
    *CALIBRATION,
    *SERVING,
    *HOSTS,
    *ECHOES,
    *KERNELS,
    *CLASSES,
)
"""All causes, in the order in which they are compared with a text."""
RANKS = ("exact", "general", "vague", "unknown", "echo")
"""Ranks of causes, by which one of several lines decides."""
UNNAMED = frozenset({"vague", "unknown", "echo"})
"""Ranks of causes that do not name a reason."""
_OF_A_TEXT = ("exact", "general", "vague", "echo", "unknown")
"""Ranks of causes, by which one of several causes of a text is chosen."""
_LONGEST = 2000
"""Most characters of a message that are read; longer ones print a whole graph."""
_PROGRAMS = (
    (re.compile(r"(?i)tensorrt[-_]llm\b|\btrt-?llm\b"), "tensorrt-llm"),
    (re.compile(r"\[[VIWEF]:onnxruntime:"), "onnxruntime"),
    (re.compile(r"^[EF]\d{4} .*\] |failed to load '[^']*' version \d"), "triton"),
)
"""Programs that an error text names."""
_PARSED = re.compile(r"In node \d+ with name: (.+?) and operator: ")
_PARSING = "While parsing node number "
_PARSED_OLD = re.compile(
    r"While parsing node number \d+ \[\w+ -> \"([^\"]+)\"|Invalid Node - (.+)|violate shape constraints: (.+?): (?=\w)"
)
_SAID_OF = re.compile(r"^Error\[\d+\]: (?!I[A-Z]\w+::|Error Code)([^\s\[]+): (?=[a-z])")
"""The builder's check of one layer, with the layer's name before it."""
_INFERRED = re.compile(r"during shape inference of\n[^\n]*, name=(\S+)")


UNKNOWN = Situation()
"""A text without further known facts."""


@lru_cache(maxsize=1)
def _compile_patterns() -> tuple[tuple[re.Pattern[str], Cause], ...]:
    return tuple((re.compile(cause.pattern), cause) for cause in CAUSES)


@lru_cache(maxsize=1 << 12)
def cause_of(text: str) -> Cause | None:
    """Return the cause of an error text, or the class of the error; None if the text is not an error.

    An exact cause wins over a general one. The meaning of a class of errors contains the names in the text, and
    what stays unknown.
    """
    matching = [cause for pattern, cause in _compile_patterns() if pattern.search(text)]
    cause = min(matching, key=lambda cause: _OF_A_TEXT.index(cause.rank), default=None)
    if cause is None:
        return None
    return _put_into_words(cause, text)


def _put_into_words(cause: Cause, text: str, timed: str = "") -> Cause:
    """Return a cause; a general cause gets the names in the error text.

    `timed` is the layer that the builder timed last before the error.
    """
    is_quoted = (cause.rank, cause.area) == ("general", "host") and bool(dissect(text).statement)
    is_general = cause.rank in ("vague", "unknown") or cause.area == "myelin" or is_quoted
    return for_operator(general(cause, text, timed) if is_general else cause, text)


@lru_cache(maxsize=1)
def _map_names() -> dict[str, Cause]:
    return {cause.name: cause for cause in CAUSES}


def by_name(name: str) -> Cause:
    """Return the cause called `name` from the table of causes."""
    return _map_names()[name]


def list_shown_by(code: str) -> tuple[Cause, ...]:
    """Return the causes of failed builds that `qdqtool lint` reports before a build, under this finding code."""
    return tuple(cause for cause in CAUSES if cause.lint and cause.lint == code.upper())


def names(cause: str, text: str) -> bool:
    """Return True if an error text matches the pattern of this cause, even if it matches other causes too."""
    return any(candidate.name == cause and pattern.search(text) for pattern, candidate in _compile_patterns())


def decisive(texts: Sequence[str]) -> tuple[int, Cause] | None:
    """Return which of these texts decides why a build failed, and its cause; None if no text is known.

    The first exact cause, else the first general one. If the general one is the end of a chain ("Could not find any
    implementation"), earlier causes that are known to lead to it decide, including warnings.
    """
    causes = [(at, cause) for at, text in enumerate(texts) if (cause := cause_of(text)) is not None]
    fails = [
        place_and_cause
        for place_and_cause in causes
        if place_and_cause[1].effect == "fails" and place_and_cause[1].rank not in ("unknown", "echo")
    ] or causes
    chosen = min(
        fails,
        key=lambda place_and_cause: (RANKS.index(place_and_cause[1].rank), place_and_cause[0]),
        default=None,
    )
    if chosen is None or not chosen[1].before:
        return chosen
    before = chosen[1].before
    earlier = [
        place_and_cause
        for place_and_cause in causes
        if place_and_cause[0] < chosen[0] and place_and_cause[1].name in before
    ]
    return min(
        earlier,
        key=lambda place_and_cause: (before.index(place_and_cause[1].name), -place_and_cause[0]),
        default=chosen,
    )


def diagnosis(
    texts: Sequence[str], situation: Situation = UNKNOWN, timed: Sequence[str] = ()
) -> tuple[int, Cause] | None:
    """Return the index of the text that decides, and its cause; None if no text is an error.

    All commands report this cause.

    If only the class of the error is known, all texts of this class are read as one message. The situation chooses
    between the fixes of a cause.

    Args:
        texts: the lines that may decide.
        situation: other known facts.
        timed: for each text, the last layer that the builder timed before it, or nothing.
    """
    deciding = decisive(texts)
    if deciding is None:
        return None
    at, cause = deciding
    named = next((name for pattern, name in _PROGRAMS if any(map(pattern.search, texts))), "")
    situation = replace(situation, program=named or situation.program)
    last = timed[at] if timed else ""
    if cause.rank not in UNNAMED:
        layer = node_of(texts[at])
        worded = _put_into_words(by_name(cause.name), texts[at], last)
        return at, for_node(in_situation(worded, layer or last, situation), layer)
    alike = [text for text in texts if (own := cause_of(text)) is not None and own.name == cause.name]
    whole = "\n".join(alike)[:_LONGEST]
    joined = cause_of(whole)
    is_one = joined is not None and joined.name == cause.name
    words = whole if is_one else texts[at]
    parts = dissect(words)
    if not parts.node and not parts.op:
        # The parser names the node in the line after the error of the builder.
        words = "\n".join([words, *(text for text in texts[at + 1 : at + 2] if _PARSING in text)])
    worded = _put_into_words(by_name(cause.name), words, last)
    return at, in_situation(worded, "", situation)


def node_of(text: str) -> str:
    """Return the name of the node in an error text; "" if there is none. Names may contain brackets, commas and dots."""
    parsed = _PARSED.search(text)
    if parsed is not None:
        return parsed[1]
    named = _SAID_OF.search(text) or _INFERRED.search(text) or _PARSED_OLD.search(text)
    if named is not None:
        return named[named.lastindex or 0]
    match = re.search(r"for node (?!type )(.+)$", text, re.MULTILINE)
    if match is None:
        return ""
    name = re.split(r" due to |, try |\. See |\. In \w+ at ", match[1])[0].rstrip().removesuffix(".")
    if name.endswith(")") and name.count(")") > name.count("("):
        name = name[:-1]
    return name.removesuffix(".")


# --- questions -------------------------------------------------------------------------------------------------------
# Questions about the time of an engine or a build, precision and accuracy, and the commands that answer them.

_AUDIT = Command("audit", ("LAYERS",))
_DETAILED = "LAYERS is the log of a build with --verbose --profilingVerbosity=detailed --dumpLayerInfo, or the file of --exportLayerInfo"
_LOW = r"(?:int8|fp8|int4|quanti[sz]\w*|qat|ptq|q/?dq)"

QUESTIONS = (
    Cause(
        name="not-faster",
        area="time",
        pattern=rf"{_LOW}.{{0,80}}(?:slow|not (?:\w+ )?fast|no (?:\w+ )?(?:speed|gain|accelerat)|same (?:\w+ )?(?:speed|time|latency)|not accelerat)",
        meaning="INT8 saves time only in kernels that read INT8. If INT8 saves no time, the usual reasons are: the float layers are FP32 (--int8 without --fp16), Q/DQ that are separate kernels, "
        "copies between types and layouts, products that are not quantized (attention), or an engine of many small kernels, whose time is mostly kernel launches",
        fix=f"{_AUDIT} names the float layers, the separate Q/DQ and the copies, each with its fix ({_DETAILED}); allow FP16 as well as INT8, and compare with an FP16 "
        "engine on the same GPU",
        rank="general",
    ),
    Cause(
        name="which-precision",
        area="precision",
        pattern=r"(?:which|what|how|are|is|list|check).{0,60}(?:layers?|nodes?|precision).{0,60}(?:int8|fp8|fp16|fp32|float|fall|fell|precision|quanti[sz]ed)",
        meaning="the layer information of the engine states the type in which each layer computes, and the build log shows the reason",
        fix=f"{_AUDIT} lists every compute node: INT8 or not, why, and what to do ({_DETAILED})",
        rank="general",
    ),
    Cause(
        name="not-fused",
        area="precision",
        pattern=r"(?:q/?dq|quantize\w*).{0,80}(?:not|never|n't|isn't).{0,12}(?:fuse|merge|remove|fold|absorb)",
        meaning="a Q or DQ becomes a separate kernel if it cannot be fused with a layer next to it: the pair is in the wrong place, scales differ, or the operator has no INT8 kernel",
        fix=f"{LINT} names such pairs before a build; {_AUDIT} shows how each pair ended in the engine ({_DETAILED})",
        rank="general",
    ),
    Cause(
        name="accuracy-lost",
        area="accuracy",
        pattern=r"(?:accura|map\b|precision|results?|outputs?|detect).{0,80}(?:drop|gone|lost|loss|bad|wrong|worse|poor|degrad|zero|differ|incorrect|nothing)"
        r"|(?:drop|loss|lose|degrad\w*|poor|wrong|bad).{0,40}(?:accura|map\b|results?|outputs?)",
        meaning="a few layers usually cause most of the accuracy loss. Usual reasons: samples or preprocessing that differ from those in use, a range that outliers widen, or a detection head whose boxes and scores share one scale"
        "",
        fix=f"{Command('compare', ('MODEL', 'QUANTIZED', '--samples', 'DATA'))} measures the loss, and {Command('sensitivity', ('QUANTIZED', '--samples', 'DATA'))} names "
        "the layers to keep float",
        rank="general",
    ),
    Cause(
        name="long-build",
        area="time",
        pattern=r"(?:build|engine|conver|export|compil|calibrat).{0,80}(?:tak|took|long|slow|hour|minute|stuck|forever|hang|never finish)",
        meaning="the builder measures many kernels for each layer on this GPU, which takes minutes, and hours for large models, wide ranges of shapes or high "
        "optimization levels",
        fix="build with a lower optimization level (trtexec --builderOptimizationLevel=2), with fewer and narrower ranges of shapes, and keep the engine and a timing "
        "cache (--timingCacheFile=FILE)",
        rank="general",
    ),
)
"""Questions, the more special ones first."""


def question_of(words: str) -> Cause | None:
    """Return the entry of `QUESTIONS` that matches the words, with its answer; None if no entry matches."""
    return next(
        (question for question in QUESTIONS if re.search(question.pattern, words, re.IGNORECASE)), None
    )
