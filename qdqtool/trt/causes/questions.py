"""Questions about the time of an engine or a build, precision and accuracy, and the commands that answer them."""

from __future__ import annotations

import re

from qdqtool.core.causes import Cause
from qdqtool.core.commands import Command
from qdqtool.trt.causes.classes import LINT

_AUDIT = Command("audit", ("LAYERS",))
_DETAILED = "LAYERS is the log of a build with --verbose --profilingVerbosity=detailed --dumpLayerInfo, or what --exportLayerInfo wrote"
_LOW = r"(?:int8|fp8|int4|quanti[sz]\w*|qat|ptq|q/?dq)"

QUESTIONS = (
    Cause(
        name="not-faster",
        area="time",
        pattern=rf"{_LOW}.{{0,80}}(?:slow|not (?:\w+ )?fast|no (?:\w+ )?(?:speed|gain|accelerat)|same (?:\w+ )?(?:speed|time|latency)|not accelerat)",
        meaning="INT8 saves time only in kernels that read INT8. Usual reasons for none: the float layers are FP32 (--int8 without --fp16), Q/DQ that stay kernels, "
        "copies between types and layouts, products that are not quantized (attention), or an engine that only starts small kernels",
        fix=f"{_AUDIT} names the float layers, the separate Q/DQ and the copies, each with its fix ({_DETAILED}); allow FP16 beside INT8, and compare with an FP16 "
        "engine on the same GPU",
        rank="general",
    ),
    Cause(
        name="which-precision",
        area="precision",
        pattern=r"(?:which|what|how|are|is|list|check).{0,60}(?:layers?|nodes?|precision).{0,60}(?:int8|fp8|fp16|fp32|float|fall|fell|precision|quanti[sz]ed)",
        meaning="the layer information of the engine says in which type each layer computes, and the build log why",
        fix=f"{_AUDIT} lists every compute node: INT8 or not, why, and what to do ({_DETAILED})",
        rank="general",
    ),
    Cause(
        name="not-fused",
        area="precision",
        pattern=r"(?:q/?dq|quantize\w*).{0,80}(?:not|never|n't|isn't).{0,12}(?:fuse|merge|remove|fold|absorb)",
        meaning="a Q or DQ becomes a separate kernel if no layer beside it can take it: a pair in the wrong place, scales that differ, or an operator without INT8 kernels",
        fix=f"{LINT} names such pairs before a build; {_AUDIT} says what became of each in the engine ({_DETAILED})",
        rank="general",
    ),
    Cause(
        name="accuracy-lost",
        area="accuracy",
        pattern=r"(?:accura|map\b|precision|results?|outputs?|detect).{0,80}(?:drop|gone|lost|loss|bad|wrong|worse|poor|degrad|zero|differ|incorrect|nothing)"
        r"|(?:drop|loss|lose|degrad\w*|poor|wrong|bad).{0,40}(?:accura|map\b|results?|outputs?)",
        meaning="few layers cause most of such a loss. Usual reasons: samples or preprocessing that differ from use, a range made for outliers, or a detection head "
        "whose boxes and scores share one scale",
        fix=f"{Command('compare', ('MODEL', 'QUANTIZED', '--samples', 'DATA'))} measures it, and {Command('sensitivity', ('QUANTIZED', '--samples', 'DATA'))} names "
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
    """Return the question that these words ask, with the way to its answer; None if they ask none of these."""
    return next(
        (question for question in QUESTIONS if re.search(question.pattern, words, re.IGNORECASE)), None
    )
