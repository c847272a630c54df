"""The answer about each run of a log: was it built, in which precision, why not INT8, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdqtool.core.buildlog import Answer, Failure, LoggedProfileRow, RunDigest, RunHeader
from qdqtool.core.causes import Cause
from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import ComputeNode, LogRecord
from qdqtool.core.tensors import FLOAT
from qdqtool.core.wording import Command, count_noun, list_names
from qdqtool.engine.roles import copies
from qdqtool.io.escaping import printable
from qdqtool.trt.causes import by_name, cause_of

# --- unsaid ----------------------------------------------------------------------------------------------------------
# Statements on the precision of layers if a log prints none, and how to get the missing information.


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
    """Return what a log without printed layers leaves unknown about INT8 layers."""
    return tuple(map(printable, _sentences(run)))


def _sentences(run: RunDigest) -> Iterator[str]:
    answer = run.answer
    if run.failure is not None:
        why = f" ({answer.why_not}; {answer.fix})" if answer is not None and run.failure.meaning else ""
        yield f"the build failed, so no layer runs: line {run.failure.line}: {run.failure.text}{why}"
    elif answer is not None and answer.why_not and answer.evidence:
        lines = list_names(tuple(map(str, answer.evidence)), _NAMED)
        yield f"{_label(answer)}{answer.why_not}; {answer.fix} (line {lines})"
    precision = run.options.get("Build", {}).get("Precision", "")
    if precision and "INT8" in precision:
        yield f"INT8 was allowed (precision {precision}): any layer may run in INT8, and the log does not show which layers do"
    elif precision and precision != _OWN_TYPES:
        yield (
            f"INT8 was not allowed (precision {precision}): no layer is INT8 by calibration; layers between Q/DQ nodes may be INT8, which a verbose log shows"
        )
    if run.without_scale:
        yield (
            f"{_some(run.without_scale, 'tensor')} without a scale: the layers that read or write such a tensor run in float; calibrate with data for which these tensors are not zero, or insert Q/DQ (qdqtool run)"
        )
    if run.int8_refused:
        yield f"INT8 was refused for {_some(run.int8_refused, 'layer')}, because a scale is missing"
    if run.dla_refused:
        yield f"DLA refuses {_some(run.dla_refused, 'layer')}: they run on the GPU, or the build fails"
    if run.unobeyed:
        yield f"no kernel has the precision that was requested for {_some(run.unobeyed, 'layer')}"
    if run.overruled:
        yield (
            f"{_some(run.overruled, 'layer')} got a faster kernel of a different precision than requested; trtexec --precisionConstraints=obey prevents this"
        )
    yield f"the log prints no layers of the engine, so their precisions are unknown; {_HOW.get(run.front_end, _IN_CODE)}"


def _some(names: Collection[str], noun: str) -> str:
    return f"{count_noun(len(names), noun)} ({list_names(names, _NAMED)})"


# --- answer ----------------------------------------------------------------------------------------------------------


_LATER = frozenset({"check", "refit", "engine", "host", "gpu"})
"""Areas of causes that occur after a build, or in a program that may not have begun one."""
_BUILDERS = frozenset({"trtexec", "rtx", "mlperf"})
"""Front ends that always build, unless they load an engine."""
_FILE = re.compile(r"_(fp32|fp16|int8)\.engine$")
"""End of the names of DeepStream's engine files."""

_TYPES = {
    "--fp16": "FP16",
    "--bf16": "BF16",
    "--int8": "INT8",
    "--fp8": "FP8",
    "--int4": "INT4",
    "--best": "FP16+INT8",
}
"""Flags of trtexec that allow a type."""

_OWN_TYPES = "Strongly Typed"
"""Precision that trtexec prints if the model alone states the types."""

_LOW = frozenset({"INT8", "FP8", "INT4"})
"""Types of fewer than 16 bits that a flag allows."""

_LABELS = {"ranges": "INT8 without calibration: "}
"""Words before the reason, by its subject."""
_UNFINISHED = "the log does not show how the build ended"
_WHOLE = "pass the whole log, to its end; if it has no more lines, log with verbose messages (trtexec --verbose, trt.Logger.VERBOSE)"
_LOG_BUILD = "log the build of the engine: delete the engine file and run the program with verbose messages, or run trtexec --onnx=FILE --verbose --skipInference"
_DESCRIBE = "describe the engine: trtexec --loadEngine=FILE --exportLayerInfo=layers.json"
_NO_TYPES = "the log shows neither the types that the build was allowed nor those of the layers"
_MUCH = 0.05
"""Share of the time above which copies are an answer."""
_OF_DLA = re.compile(r" (?:from|to) nvm$| copy finish$")
"""Rows of a profile for the copies around a part on DLA."""
_LONG = 600.0
"""Seconds above which the time of a build is an answer."""

Decision = tuple[int, Cause]
"""Line in which an application decides, and its cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvidence:
    """The facts about a run from which its answer is made.

    Attributes:
        nodes: compute nodes of a model with Q/DQ.
        layers: compute layers of an engine without.
        decisions: decisions of applications.
        left_out: causes for which kernels were left out, without a failed build.
        profile: rows of the profile in the log.
        engine: line and path of the engine file that was written; (0, "") if none is named.
        generated: whether the log says that an engine was made.
        done: line in which a program says so; 0 if none does.
        is_calibrated: whether the builder had the ranges of a calibration.
        has_qdq: whether the log shows Q or DQ nodes.
        has_steps: whether the log shows a step of a build, or its options.
        knows_model: whether the log shows the nodes of the model.
        others: types of the printed layers without a product, each with its number.
    """

    nodes: Sequence[ComputeNode]
    layers: Sequence[EngineLayer]
    decisions: Sequence[Decision]
    left_out: Sequence[Decision] = ()
    profile: Sequence[LoggedProfileRow] = ()
    engine: tuple[int, str]
    generated: bool
    done: int = 0
    is_calibrated: bool = False
    has_qdq: bool
    has_steps: bool
    knows_model: bool
    others: Mapping[str, int] = field(default_factory=dict)


def answer(run: RunHeader, run_evidence: RunEvidence) -> Answer:
    """Answer about one run: was the engine built, in which types, and why is it not INT8."""
    if run.failure is not None:
        failure = run.failure
        node = f"node {failure.node}: " if failure.node and failure.meaning else ""
        echoes = bool(failure.cause) and by_name(failure.cause).rank == "echo"
        decided = list(_decisions(run_evidence)) if echoes else []
        return Answer(
            failed=True,
            built=run_evidence.generated
            or (None if _loads(run) or _goes_on(run) else _find_earlier_build(failure)),
            why_not="; before it: ".join(
                [f"{node}{failure.meaning or failure.text}", *(why for why, _, _ in decided)]
            ),
            fix="; ".join([failure.fix, *(fix for _, fix, _ in decided)]),
            degree=failure.degree,
            evidence=(
                *(failure.evidence or (failure.line,)),
                *(at for _, _, lines in decided for at in lines),
            ),
        )
    built = _was_built(run, run_evidence)
    precision, lines = _precision(run, run_evidence)
    lines |= {run_evidence.engine[0], run_evidence.done if built else 0} - {0}
    for why, fix, evidence in _decisions(run_evidence):
        return Answer(
            built=built,
            precision=precision,
            why_not=why,
            about="program",
            fix=fix,
            evidence=tuple(sorted({*lines, *evidence})),
        )
    is_open = built is None and run.status == "cut"
    settled = _not_requested(run, run_evidence) if is_open else None
    for why, fix, evidence in _reasons(run, run_evidence):
        if settled is not None:
            also = "" if why == settled[0] else f"; so far it also says: {why}"
            return Answer(
                built=built,
                precision=precision,
                why_not=f"{settled[0]}{also}",
                quantized="INT8",
                fix=settled[1] if not also else f"{settled[1]}. For what it also says: {fix}",
                evidence=tuple(sorted({*lines, *evidence})),
            )
        # A build without an end may have failed for any reason; its earlier messages do not show the reason.
        return Answer(
            built=built,
            precision=precision,
            why_not=f"{_open_end(run_evidence)}; so far it says: {why}" if is_open else why,
            about="log" if is_open else "",
            quantized="" if is_open else _quantized(run, run_evidence),
            fix=f"{_WHOLE}. For what it says so far: {fix}" if is_open else fix,
            evidence=tuple(sorted({*lines, *evidence})),
        )
    general = _beyond(run, run_evidence, built=built) or Answer(built=built)
    if built and not precision and not general.why_not:
        general = Answer(
            built=True,
            why_not=_NO_TYPES,
            about="log",
            fix=f"{_DESCRIBE}; or build with verbose messages (trtexec --verbose, trt.Logger.VERBOSE)",
        )
    return replace(general, precision=precision, evidence=tuple(sorted({*lines, *general.evidence})))


def _decisions(evidence: RunEvidence) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield reported decisions of programs around the builder for float, each with fix and log line."""
    for line, cause in evidence.decisions:
        if cause.effect == "float":
            yield cause.meaning, cause.fix, (line,)


def _quantized(run: RunHeader, evidence: RunEvidence) -> str:
    """Return the low-bit format that the build was to use, such as "INT8"; "" if the log does not show it."""
    intended = Counter(node.asked for node in evidence.nodes if node.asked)
    if intended:
        return intended.most_common(1)[0][0].upper()
    allowed = types_allowed(run.options, run.argv)
    low = [name for name in allowed.split("+") if name in _LOW]
    if run.without_scale or run.int8_refused or evidence.is_calibrated or (allowed and not low):
        return "INT8"
    return low[0] if low else ""


def _beyond(run: RunHeader, evidence: RunEvidence, *, built: bool | None) -> Answer | None:
    """Return the answer for a log that shows nothing about INT8: about ranges, its end, or times."""
    made_up = _find_invented_int8(run, evidence)
    if made_up:
        return Answer(
            built=built, why_not=_MADE_UP, about="ranges", fix=by_name("ranges-set").fix, evidence=made_up
        )
    waiting = [(line, cause) for line, cause in evidence.decisions if cause.effect == "warns"]
    if waiting and built is None:
        line, cause = waiting[-1]
        return Answer(built=None, why_not=cause.meaning, about="log", fix=cause.fix, evidence=(line,))
    build = max(
        (phase for phase in run.phases if phase.stated), key=lambda phase: phase.seconds, default=None
    )
    if build is not None and build.seconds > _LONG:
        return Answer(
            built=built,
            why_not=f"{build.name} took {build.seconds / 60:.0f} minutes: {by_name('program-builds').meaning.partition(': ')[2]}",
            about="time",
            fix=by_name("program-builds").fix,
            evidence=(build.line,),
        )
    total = sum(row.average_ms for row in evidence.profile)
    waited = sum(row.average_ms for row in evidence.profile if _OF_DLA.search(row.layer))
    if waited > total / 2:
        return Answer(
            built=built,
            why_not=f"rows of copies to and from DLA take {waited / total:.0%} of the time: they hold the time that the GPU waits for DLA, which runs its part "
            "(ForeignNode) as one program and reports no times of its layers",
            about="time",
            fix="compare with a build without --useDLACore; a build log with --verbose lists the layers on DLA; fewer parts on DLA need fewer copies",
        )
    spent = sum(row.average_ms for row in evidence.profile if copies(row.layer))
    if spent < _MUCH * total or not total:
        return _explain_no_answer(run, evidence, built=built)
    return Answer(
        built=built,
        why_not=f"copies between types and layouts take {spent / total:.0%} of the time that the profile lists; the layers "
        "beside them differ in type or layout, and the log does not show which types",
        about="time",
        fix="build again with --dumpLayerInfo --profilingVerbosity=detailed, and read log and profile together: "
        f"{Command('audit', ('MODEL', '--layers', 'LOG'))} names the nodes that stay float between INT8 nodes",
    )


def _explain_no_answer(run: RunHeader, evidence: RunEvidence, *, built: bool | None) -> Answer | None:
    """Return why the log has no answer and what to do: it runs a finished engine, or has no end."""
    loaded = _find_loaded_engine(run.options, run.argv)
    if loaded:
        return Answer(
            built=built,
            why_not=f"the run loads a finished engine ({loaded}): the types were chosen when the engine was built, and flags such as --int8 have no effect now",
            about="log",
            fix=f"read the log of the engine's build, or {_DESCRIBE}",
        )
    if evidence.others and not evidence.layers and not evidence.nodes:
        types = ", ".join(f"{count} {name}" for name, count in evidence.others.items())
        return Answer(
            built=built,
            why_not=f"the layers in this text write {types}, and no layer here is a convolution or matrix product: the layers that gain from INT8 are missing in this text",
            about="log",
            fix="pass the whole list of layers: those of Conv, Gemm and MatMul show whether the engine computes in INT8",
        )
    is_read = run.lines > run.blank + run.foreign + run.unread
    if built is not None or not is_read:
        return None
    if run.memory.engine_mib is not None and not run.funnel:
        return Answer(
            built=None,
            why_not="the log loads an engine that was built earlier, and does not show the types that were chosen in the build",
            about="log",
            fix=f"{_LOG_BUILD}; or {_DESCRIBE}",
        )
    if not evidence.has_steps:
        return Answer(
            built=None,
            why_not="this text shows no step of a TensorRT build and none of its options",
            about="program",
            fix="record the build itself, with both outputs in the file and verbose messages (trtexec --verbose, trt.Logger.VERBOSE, "
            "polygraphy convert -vv, onnxruntime with trt_detailed_build_log=1 and log_severity_level=0)",
        )
    if run.status != "cut":
        return None
    return Answer(
        built=None,
        why_not=_open_end(evidence),
        about="log",
        fix=_WHOLE,
    )


def _open_end(evidence: RunEvidence) -> str:
    """Return what is unknown because the log has no end."""
    return _UNFINISHED if evidence.layers or evidence.nodes else f"{_UNFINISHED} or which types were chosen"


def _find_earlier_build(failure: Failure) -> bool | None:
    """Return True if an engine failed after its build, False if the build failed; None if unknown."""
    cause = by_name(failure.cause) if failure.cause else None
    if cause is not None and cause.area == "running":
        return True
    if cause is None or cause.area == "calibration":
        return False
    return None if cause.area in _LATER or cause.effect == "warns" else False


def _goes_on(run: RunHeader) -> bool:
    """Return True if TensorRT refused a plug-in node, and onnxruntime gives the node to another provider."""
    cause = by_name(run.failure.cause) if run.failure and run.failure.cause else None
    named = run.front_end == "onnxruntime" or (
        run.failure is not None and ":onnxruntime:" in run.failure.text
    )
    return named and cause is not None and cause.area == "plugin"


def _loads(run: RunHeader) -> bool:
    """Return True if a run failed because of an engine that it loaded."""
    return any((cause := cause_of(record.text)) and cause.area == "engine" for record in run.errors)


def _was_built(run: RunHeader, evidence: RunEvidence) -> bool | None:
    """Return True if an engine was built, False if not; None if unknown."""
    if evidence.generated or run.status == "built":
        return True
    if run.status == "failed":
        return False
    passed = run.status == "passed" and run.front_end in _BUILDERS
    return True if (passed or evidence.done) and not _find_loaded_engine(run.options, run.argv) else None


def _find_loaded_engine(options: Mapping[str, Mapping[str, str]], argv: Sequence[str]) -> str:
    """Return the engine that trtexec loads instead of building one; "" if it builds."""
    engine = next((word.partition("=")[2] for word in argv if word.startswith("--loadEngine=")), "")
    if "--model-type engine" in " ".join(argv):  # polygraphy run FILE --model-type engine
        engine = next((word for word in argv[2:] if not word.startswith("-")), "a file")
    return engine or options.get("Build", {}).get("Load engine", "").strip()


def sentence(answer: Answer) -> str:
    """Return the short answer about a build log in one sentence."""
    if answer.built is False:
        return f"not built: {answer.why_not or 'the log does not say why'}"
    if answer.about == "program" and answer.built is None:
        return answer.why_not
    built = "built" if answer.built else "the log shows no finished build"
    precision = f"; {answer.precision}" if answer.precision else ""
    return f"{built}{precision}{f'; {_label(answer)}{answer.why_not}' if answer.why_not else ''}"


def _label(answer: Answer) -> str:
    """Return the words before the reason in an answer, which name its subject."""
    if answer.failed:
        return "failed: "
    return f"why not {answer.quantized}: " if answer.quantized else _LABELS.get(answer.about, "")


def _precision(run: RunHeader, evidence: RunEvidence) -> tuple[str, set[int]]:
    counts = Counter(
        [node.precision for node in evidence.nodes] or [str(layer.precision) for layer in evidence.layers]
    )
    if counts:
        words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        return f"{'compute nodes' if evidence.nodes else 'compute layers'}: {words}", set()
    for line, cause in evidence.decisions:
        if cause.precision:
            return cause.precision, {line}
    line, path = evidence.engine
    named = _FILE.search(path or _find_loaded_engine(run.options, run.argv))
    if named:
        return named[1], {line} - {0}
    allowed = types_allowed(run.options, run.argv) or ("INT8" if evidence.is_calibrated else "")
    return (f"{allowed} allowed" if allowed else ""), set()


def types_allowed(options: Mapping[str, Mapping[str, str]], argv: Sequence[str]) -> str:
    """Return the types that the build may use, from trtexec's output or from its command; "" if neither shows them."""
    if _find_loaded_engine(options, argv):
        return ""
    # "FP32+INT8 (obey precision constraints)" and "Strongly Typed"
    printed = options.get("Build", {}).get("Precision", "").partition(" (")[0]
    types = [_TYPES[word] for word in argv if word in _TYPES]
    builds = bool(types) or any(word.startswith("--onnx=") for word in argv)
    own = "--stronglyTyped" in argv or printed == _OWN_TYPES
    return "" if own else printed or ("+".join(["FP32", *types]) if builds else "")


def _reasons(run: RunHeader, evidence: RunEvidence) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    """Yield reasons why layers are not INT8, the most important first, with the fix and the log lines."""
    for line, cause in evidence.left_out:
        # Too little memory does not explain a type, but in a log without an end it may be the only reason shown.
        if not evidence.nodes and not evidence.layers and (cause.area != "memory" or run.status == "cut"):
            yield f"the builder skipped kernels: {cause.meaning}", cause.fix, (line,)
    if run.dla_refused:
        cause = by_name("dla-layer")
        layer, reason = next(iter(run.dla_refused.items()))
        yield (
            f"DLA refuses {count_noun(len(run.dla_refused), 'layer')}, first {layer}: {reason}; they run on the GPU if the build allows it",
            cause.fix,
            _lines(
                run.warnings, *(record.topic for record in run.warnings if record.topic.startswith("dla-"))
            ),
        )
    not_requested = _not_requested(run, evidence)
    if not_requested is not None:
        yield (*not_requested, ())
    made_up = _find_invented_int8(run, evidence)
    floats = [layer for layer in evidence.layers if layer.precision.is_float]
    if made_up and floats:
        yield (
            (
                f"{_MADE_UP}; {count_noun(len(floats), 'compute layer is', 'compute layers are')} float, because a float kernel was faster or "
                f"none for INT8 exists: first {floats[0].name}"
            ),
            by_name("ranges-set").fix,
            made_up,
        )
    plain = [node for node in evidence.nodes if node.precision == FLOAT]
    if plain:
        first = plain[0]
        yield (
            (
                f"{count_noun(len(plain), 'of the compute nodes is float', 'of the compute nodes are float')}, first {first.node} ({first.op}): "
                f"{first.reason}"
            ),
            f"{Command('audit', ('MODEL', '--layers', 'LOG'))} reports the cause of each",
            (),
        )
    if evidence.nodes and not plain:
        return
    if run.int8_refused or run.without_scale:
        missing = run.without_scale or dict.fromkeys(run.int8_refused.values(), ())
        calibrated = evidence.is_calibrated or any(phase.name == "calibration" for phase in run.phases)
        cause = by_name("scale-left-out" if calibrated else "scale-missing")
        elsewhere = "; the layers between other tensors may run in INT8" if calibrated else ""
        yield (
            f"{_some(missing, 'tensor')} without a scale{' after the calibration' if calibrated else ''}: the layers around run in float{elsewhere}",
            cause.fix,
            _lines(run.warnings, "scale-missing"),
        )
    constrained = run.unobeyed or run.overruled
    if constrained:
        yield (
            f"{_some(constrained, 'layer')} got a different precision than requested",
            by_name("not-obeyed").fix,
            _lines(run.warnings, "unobeyed", "overruled"),
        )
    by_hand = _lines(run.warnings, "explicit-skips")
    if by_hand and run.front_end == "onnxruntime" and not evidence.has_qdq:
        cause = by_name("ranges-set")
        yield cause.meaning, cause.fix, by_hand


def _not_requested(run: RunHeader, evidence: RunEvidence) -> tuple[str, str] | None:
    """Return the reason "INT8 was not requested" and its fix; None if INT8 may have been requested."""
    allowed = types_allowed(run.options, run.argv)
    if not allowed or _LOW.intersection(allowed.split("+")) or evidence.has_qdq or evidence.nodes:
        return None
    shown = (
        "the model has no Q/DQ"
        if evidence.knows_model
        else "the log does not show whether the model has Q/DQ"
    )
    capable = _has_int8(run.options.get("Device", {}).get("Compute Capability", ""))
    return (
        f"INT8 was not requested (precision {allowed}), and {shown}{'' if capable else '; this GPU has no fast INT8'}",
        f"insert Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))}), which requests INT8 in the model"
        if capable
        else by_name("no-fast-int8").fix,
    )


def _has_int8(capability: str) -> bool:
    """Return True if GPUs of a compute capability ("5.3") have fast INT8, or if it is unknown."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)", capability.strip())
    return numbers is None or (6, 2) != (int(numbers[1]), int(numbers[2])) >= (6, 1)


_MADE_UP = "neither a calibrator nor a table gives ranges, so trtexec invents the ranges: the times can be compared, but the INT8 outputs are useless"


def _find_invented_int8(run: RunHeader, evidence: RunEvidence) -> tuple[int, ...]:
    """Return the log lines which show that trtexec built INT8 without calibration and without Q/DQ."""
    if (
        run.front_end != "trtexec"
        or evidence.has_qdq
        or any(word.startswith("--calib=") for word in run.argv)
    ):
        return ()
    return _lines(run.warnings, "explicit-skips")


def _lines(records: Iterable[LogRecord], *topics: str) -> tuple[int, ...]:
    return tuple(record.line for record in records if record.topic in topics)[:_NAMED]
