"""Statements on the precision of layers if a log prints none, and how to get the missing information."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qdqtool.core.buildlog import RunDigest
from qdqtool.core.wording import counted, listed
from qdqtool.io.escaping import printable

_NAMED = 3
"""Most names that a sentence lists."""
_HOW = {
    "trtexec": "build again with --verbose --profilingVerbosity=detailed --dumpLayerInfo, or describe the finished engine: "
    "trtexec --loadEngine=FILE --exportLayerInfo=layers.json (detailed only if it was built with detailed verbosity)",
    "polygraphy": "build with `polygraphy convert --profiling-verbosity detailed -vv`, or pass the output of "
    "`polygraphy inspect model ENGINE --model-type engine --show layers`",
}
_IN_CODE = (
    "set config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED before the build, log with trt.Logger.VERBOSE, and pass "
    "the text of engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)"
)


def unsaid(run: RunDigest) -> tuple[str, ...]:
    """Return sentences on which layers are INT8, why, and what to do, as far as a log without layers shows it."""
    return tuple(map(printable, _sentences(run)))


def _sentences(run: RunDigest) -> Iterator[str]:
    told = run.answer
    if run.failure is not None:
        why = f" ({told.why_not}; {told.fix})" if told is not None and run.failure.meaning else ""
        yield f"the build failed, so no layer runs: line {run.failure.line}: {run.failure.text}{why}"
    elif told is not None and told.why_not and told.evidence:
        lines = listed(tuple(map(str, told.evidence)), _NAMED)
        yield f"why not INT8: {told.why_not}; {told.fix} (line {lines})"
    precision = run.options.get("Build", {}).get("Precision", "")
    if precision and "INT8" in precision:
        yield f"INT8 was allowed (precision {precision}): each layer may run in INT8 or not, and the log does not show which"
    elif precision:
        yield (
            f"INT8 was not allowed (precision {precision}): no layer is INT8 by calibration; layers between Q/DQ nodes may be, "
            "which a verbose log shows"
        )
    if run.without_scale:
        yield (
            f"{_some(run.without_scale, 'tensor')} without a scale: the layers around run in float; calibrate with data that "
            "reaches them, or insert Q/DQ (qdqtool run)"
        )
    if run.int8_refused:
        yield f"INT8 was refused for {_some(run.int8_refused, 'layer')}, because a scale is missing"
    if run.dla_refused:
        yield f"DLA refuses {_some(run.dla_refused, 'layer')}: they run on the GPU, or the build fails"
    if run.unobeyed:
        yield f"no kernel has the requested precision {_some(run.unobeyed, 'layer')}"
    if run.overruled:
        yield (
            f"{_some(run.overruled, 'layer')} got a faster kernel of a different precision than requested; trtexec --precisionConstraints=obey prevents this"
        )
    yield f"the log prints no layers of the engine, so their precisions are unknown; {_HOW.get(run.front_end, _IN_CODE)}"


def _some(names: Collection[str], what: str) -> str:
    return f"{counted(len(names), what)} ({listed(names, _NAMED)})"
