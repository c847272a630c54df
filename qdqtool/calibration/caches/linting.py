"""Finds problems in a calibration cache, alone or together with its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import median
from typing import TYPE_CHECKING, Final

from qdqtool.calibration.caches.contents import ALGORITHMS, LAST_WITH_CALIBRATORS, MARK, TENSORRT, Cache
from qdqtool.calibration.caches.converting import is_shifted, named_entries
from qdqtool.calibration.table import bounds
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.wording import Command, count_noun
from qdqtool.matching.attention import attentions
from qdqtool.trt.ops import AVERAGE_POOLS, CLAMPS, MAXIMUM_POOLS, PRODUCTS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView


# --- findings --------------------------------------------------------------------------------------------------------

HUGE = 1e6
"""Scale above which a range (127 times the scale) is an attention mask or an overflow."""
TINY = 2.0**-126
"""Smallest normal float32; dividing by smaller scales can overflow."""
FEW, FAR = 8, 1000
"""Number of tensors from which on scales are compared, and the largest ratio of a scale to the median. Of 47 caches
in public repositories with at least 8 tensors, 42 stay below a ratio of 900; the other 5 have attention masks and
overflows. The most frequent scale covers at most 28 % of the entries, except in one cache that was made up.
"""
SHOWN = 20
"""Largest number of unread lines that are reported one by one."""
CRUSHED, CLIPPED, WASTED = 0.25, 0.75, 1.1
"""Ratios that cause findings: a range below this share of another cache's range; below this share of a
tensor's bound; above this multiple of the bound.
"""


def lint_cache(
    cache: Cache,
    against: Cache | None = None,
    view: GraphView | None = None,
    table: CalibrationTable | None = None,
) -> tuple[Finding, ...]:
    """Return all findings, sorted by severity (worst first), then by code and subject.

    Args:
        cache: the cache in question.
        against: a cache of the same model with the largest magnitudes, which shows how much is clipped.
        view: the float model the cache is for.
        table: the calibration that the cache was written from; None if unknown.
    """
    findings = [*_header(cache), *_lines(cache), *_scales(cache), *_among_each_other(cache)]
    if against is not None:
        findings += _find_crushed(cache, against)
    if view is not None:
        findings += [
            *_find_spelling_faults(cache, view),
            *_find_bound_faults(cache, view, _methods(cache, table)),
            *_beyond(cache, view),
            *_missing(cache, view),
            *_foreign(cache, view),
        ]
    return tuple(
        sorted(findings, key=lambda finding: (-finding.severity.rank, finding.code, finding.subject))
    )


def _finding(code: str, severity: Severity, subject: str, reason: str, fix: str) -> Finding:
    return Finding(code=code, check="cache", severity=severity, subject=subject, reason=reason, fix=fix)


def _header(cache: Cache) -> Iterator[Finding]:
    header = cache.header
    if cache.format != TENSORRT:
        return
    if header is None or header.version is None:
        yield _finding(
            "CAL101",
            Severity.WARNING,
            "header",
            "the first line names no TensorRT release: TensorRT ignores the cache, and calibrates again or fails without data",
            "qdqtool cache retarget --trt RELEASE --algorithm NAME",
        )
    elif header.version[0] > LAST_WITH_CALIBRATORS:
        yield _finding(
            "CAL102",
            Severity.ERROR,
            header.text,
            "TensorRT 11 and later read no calibration caches",
            "turn model and cache into a Q/DQ model: qdqtool cache to-qdq",
        )
    if header is not None and header.text.startswith(MARK):
        yield _finding(
            "CAL104",
            Severity.WARNING,
            "header",
            "the file starts with a byte order mark, written by an editor: TensorRT ignores the cache",
            "save the file as UTF-8 without the mark, or write the first line again: qdqtool cache retarget --trt RELEASE",
        )
    if header is not None and header.algorithm not in ALGORITHMS:
        yield _finding(
            "CAL103",
            Severity.WARNING,
            header.text,
            f"unknown TensorRT calibrator {header.algorithm!r}",
            f"write the name of the calibrator that will read the cache: {', '.join(ALGORITHMS)}",
        )


def _lines(cache: Cache) -> Iterator[Finding]:
    if not cache.entries:
        yield _finding(
            "CAL112",
            Severity.WARNING,
            "entries",
            "the cache has no entries: every layer stays float",
            "calibrate again, with samples",
        )
    if len(cache.unread) > SHOWN:
        yield _finding(
            "CAL110",
            Severity.WARNING,
            f"line {cache.unread[SHOWN].line} and later",
            f"{count_noun(len(cache.unread) - SHOWN, 'more line is not an entry', 'more lines are not entries')}",
            "use an undamaged copy of the cache, or delete these lines",
        )
    for unread in cache.unread[:SHOWN]:
        yield _finding(
            "CAL110",
            Severity.WARNING,
            f"line {unread.line}",
            f"the line is not an entry: {unread.text[:60]!r}",
            "write the line as `tensor: 3c010a14`, or delete the line",
        )
    for tensor, entries in cache.repeated().items():
        scales = {entry.scale for entry in entries}
        lines = ", ".join(str(entry.line) for entry in entries[:SHOWN]) + (
            ", ..." if len(entries) > SHOWN else ""
        )
        yield _finding(
            "CAL111",
            Severity.WARNING if len(scales) > 1 else Severity.INFO,
            tensor,
            f"the tensor occurs {count_noun(len(entries), 'time')} (lines {lines}) with {'different' if len(scales) > 1 else 'the same'} scales; "
            "the last one counts",
            "keep one entry: qdqtool cache merge FILE -o NEW",
        )


def _scales(cache: Cache) -> Iterator[Finding]:
    for tensor, entry in sorted(cache.by_tensor().items()):
        if entry.scale == 0:
            yield _finding(
                "CAL120",
                Severity.WARNING,
                tensor,
                "scale 0: the tensor was always zero during calibration, and its layers cannot run in INT8",
                "calibrate with samples for which the tensor is not zero, or keep the layer float",
            )
        elif not entry.is_usable:
            yield _finding(
                "CAL121",
                Severity.ERROR,
                tensor,
                f"scale {entry.scale:g} is not a positive number",
                "calibrate again, or delete the entry so that the layers fall back to float",
            )
        elif entry.scale < TINY:
            yield _finding(
                "CAL123",
                Severity.WARNING,
                tensor,
                f"scale {entry.scale:.3g} is so small that a division by it overflows",
                "calibrate with samples that reach the tensor, or delete the entry so that the layers fall back to float",
            )
        elif entry.scale > HUGE:
            yield _finding(
                "CAL122",
                Severity.WARNING,
                tensor,
                f"range {entry.amax:.3g}: the cause is an attention mask or an overflow; all ordinary values become zero",
                "keep the layers that write and read this tensor float",
            )


def _among_each_other(cache: Cache) -> Iterator[Finding]:
    """Yield findings from comparing the scales of one cache with each other."""
    usable = {tensor: entry for tensor, entry in cache.by_tensor().items() if entry.is_usable}
    if len(usable) < FEW:
        return
    middle = median(entry.scale for entry in usable.values())
    for tensor, entry in sorted(usable.items()):
        if FAR * middle < entry.scale <= HUGE:
            yield _finding(
                "CAL124",
                Severity.WARNING,
                tensor,
                f"range {entry.amax:.4g} is {entry.scale / middle:.0f} times the range of the median tensor: the cause is a "
                "mask, an overflow or a single outlier",
                "calibrate this tensor by a percentile, or keep the layers that write and read it float",
            )
    scale, count = Counter(entry.scale for entry in usable.values()).most_common(1)[0]
    if 2 * count > len(usable):
        yield _finding(
            "CAL125",
            Severity.WARNING,
            f"{count} of {count_noun(len(usable), 'tensor')}",
            f"have the same scale {scale:.4g}, which no calibration produces: the cache was written by hand or by another program",
            "calibrate with samples",
        )


def _find_crushed(cache: Cache, against: Cache) -> Iterator[Finding]:
    reference = against.by_tensor()
    for tensor, entry in sorted(cache.by_tensor().items()):
        expected = reference.get(tensor)
        if (
            expected is None
            or not (entry.is_usable and expected.is_usable)
            or entry.scale >= CRUSHED * expected.scale
        ):
            continue
        yield _finding(
            "CAL130",
            Severity.WARNING,
            tensor,
            f"range {entry.amax:.4g} is {entry.scale / expected.scale:.0%} of the largest value {expected.amax:.4g}: larger values are clipped",
            "use max or mse for this tensor; entropy often destroys detector heads and attention like this",
        )


def _find_spelling_faults(cache: Cache, view: GraphView) -> Iterator[Finding]:
    wrong = impossible(cache, view)
    if wrong is not None:
        yield _finding(
            "CAL126",
            Severity.ERROR,
            wrong.first,
            wrong.what,
            "write amax / 127 as the scale of every tensor, as big-endian float32 in hexadecimal digits, or calibrate again",
        )


_LARGEST = frozenset({"max", "MinMaxCalibration"})
"""Methods that take the largest value of the samples as the range."""


def _methods(cache: Cache, table: CalibrationTable | None) -> dict[str, str]:
    """Return the calibration method of each entry: from calibration.json beside the cache, else from the cache's header."""
    ranges = {entry.tensor: entry for entry in table.ranges} if table is not None else {}
    written = cache.header.algorithm if cache.header is not None else ""
    methods = {}
    for name, entry in cache.by_tensor().items():
        calibrated = ranges.get(name)
        is_same = calibrated is not None and isclose(max(calibrated.amax), entry.amax, rel_tol=1e-5)
        methods[name] = calibrated.method if calibrated is not None and is_same else written
    return methods


def _widen(bound: str, method: str) -> str:
    """Return the fix for a range below `bound`, the largest output of its operator.

    The fix depends on `method`, the calibration method that chose the range.
    """
    if method in _LARGEST:
        return f"set the range to {bound}, or add samples that reach it: this range is the largest value of the samples ({method})"
    chosen = (
        f"calibrate this tensor with max instead of {method}" if method else "calibrate this tensor with max"
    )
    return f"set the range to {bound}, or {chosen}, if the samples reach it"


def _find_bound_faults(cache: Cache, view: GraphView, methods: Mapping[str, str]) -> Iterator[Finding]:
    entries = cache.by_tensor()
    for tensor, bound in sorted(bounds(view).items()):
        entry = entries.get(tensor)
        if entry is None or not entry.is_usable:
            continue
        if bound.saturates and entry.amax < CLIPPED * bound.amax:
            yield _finding(
                "CAL131",
                Severity.WARNING,
                tensor,
                f"the output of {bound.op} can be as large as {bound.amax:g}, but everything above {entry.amax:.4g} is clipped",
                _widen(f"{bound.amax:g}", methods[tensor]),
            )
        elif entry.amax > WASTED * bound.amax:
            yield _finding(
                "CAL132",
                Severity.INFO,
                tensor,
                f"{bound.op} keeps the values below {bound.amax:g}, the range is {entry.amax:.4g}: INT8 steps are wasted",
                f"set the range to {bound.amax:g}",
            )


def _beyond(cache: Cache, view: GraphView) -> Iterator[Finding]:
    """Yield findings on Relus and pools that have a wider range than their input.

    Yield none if the cache seems to store other numbers than amax / 127.
    """
    ranges = {name: entry.amax for name, entry in cache.by_tensor().items() if entry.is_usable}
    for tensor, reason, _ in _further(ranges, view) if impossible(cache, view) is None else ():
        yield _finding(
            "CAL133",
            Severity.INFO,
            tensor,
            reason,
            "nothing to do if a Concat shares the range, or if the calibrator clips (entropy clips the input more); otherwise set the range of its input",
        )


def _missing(cache: Cache, view: GraphView) -> Iterator[Finding]:
    entries = cache.by_tensor()
    again = (
        f"insert Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))}): in models with attention the builder does not calibrate tensors in regions that "
        "Myelin compiles; or merge a cache that contains the tensor"
        if next(attentions(view), None)
        else "calibrate again with this model, or merge a cache that contains the tensor"
    )
    read: dict[str, list[str]] = {}
    for node in view.nodes:
        for tensor in node.inputs[:2] if node.op in PRODUCTS else ():
            if tensor and tensor not in entries and not view.is_constant(tensor):
                read.setdefault(tensor, []).append(node.name)
    for tensor, nodes in sorted(read.items()):
        yield _finding(
            "CAL140",
            Severity.WARNING,
            tensor,
            f"no entry: {', '.join(nodes)} {'falls' if len(nodes) == 1 else 'fall'} back to float, as TensorRT says with `Missing scale and zero-point`",
            again,
        )
    results = [tensor for tensor in results_without(entries, view) if tensor not in read]
    if results:
        yield _finding("CAL143", Severity.INFO, results[0], *words_on_results(results))


def results_without(entries: Container[str], view: GraphView) -> list[str]:
    """Return the results of layers with weights for which the cache has no entry, in graph order.

    A BatchNormalization, Relu or Clip after one is part of its kernel, so that its result is that of the node.
    """
    results = (
        _follow_fusion(view, output)
        for node in view.nodes
        if node.op in PRODUCTS
        for output in node.outputs
        if output
    )
    return [tensor for tensor in dict.fromkeys(results) if tensor not in entries]


def words_on_results(results: Sequence[str]) -> tuple[str, str]:
    """Return a message about results of layers for which the cache has no entry, and the fix."""
    have = (
        "result of a weighted node has no entry"
        if len(results) == 1
        else "results of weighted nodes have no entries"
    )
    return (
        (
            f"{len(results)} {have}, the first {results[0]!r}: TensorRT prints `Missing scale and zero-point`, and it is "
            "unknown whether these nodes stay INT8 and write floats"
        ),
        "the Q/DQ cannot show this: if an engine has fewer INT8 layers than the Q/DQ model, calibrate the float model again",
    )


def _follow_fusion(view: GraphView, tensor: str) -> str:
    """Return the output of the last node that fuses into the kernel that writes `tensor`.

    If no node fuses, return `tensor`.
    """
    while len(uses := view.uses(tensor)) == 1 and not view.is_output(tensor):
        if uses[0].node.op not in CLAMPS | {"BatchNormalization"} or uses[0].index:
            break
        tensor = uses[0].node.outputs[0]
    return tensor


def _foreign(cache: Cache, view: GraphView) -> Iterator[Finding]:
    if is_shifted(cache, view):
        yield _finding(
            "CAL142",
            Severity.ERROR,
            "names",
            "the cache has one entry for every float tensor of the model, but under other names: the cache belongs to another "
            "export, and its scales apply to the wrong tensors",
            "match entries and tensors by their order: qdqtool cache retarget --model MODEL",
        )
        return
    in_model = {name for node in view.nodes for name in node.outputs} | {info.name for info in view.inputs}
    named = named_entries(cache)
    foreign = [tensor for tensor in named if tensor not in in_model and not view.is_constant(tensor)]
    if not foreign:
        return
    is_other = len(foreign) * 2 > len(named)
    yield _finding(
        "CAL141",
        Severity.ERROR if is_other else Severity.INFO,
        foreign[0],
        f"{len(foreign)} of {count_noun(len(named), 'entry names a tensor that the model does not have', 'entries name tensors that the model does not have')}"
        + (": the cache belongs to another model or export" if is_other else ""),
        "use the ONNX file that was calibrated"
        if is_other
        else "nothing to do: TensorRT ignores these entries",
    )


# --- possible values -------------------------------------------------------------------------------------------------
# Checks whether the values in a cache are possible in its model, or are not amax / 127.

_SPELLINGS: Final[dict[str, Callable[[float], float]]] = {
    "127 / amax": lambda scale: INT8_LEVELS / scale,
    "amax": lambda scale: scale,
}
"""Other spellings of a scale, each with the function from the written number to the range."""
_SHRINKING: Final = CLAMPS | MAXIMUM_POOLS | AVERAGE_POOLS
"""Operators whose result is never farther from zero than their input. (A Clip whose limits exclude 0 does not
occur in practice.)
"""
_BEYOND = 1.05
"""Ratio of the range of a result to that of its input above which steps are wasted. A larger ratio does not show that a
range is wrong: entropy reached 8 on a MobileNet, and the shared range of a Concat reached 5 on a SqueezeNet.
"""
_WIDE = 1.5
"""Ratio of a range to its tensor's bound above which the range was not measured."""
_IMAGE = 300.0
"""Range above which an image input is not plausible: 8-bit pixels end at 255."""
_CHANNELS = frozenset({1, 3, 4})
_PICTURE = 4
"""Number of dimensions of a batch of images."""
_FEWEST = 2
_SURE = 50.0
"""Excess over the possible range from which a single tensor is enough evidence; otherwise two tensors are needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Impossible:
    """Evidence that the scales of a cache are not written as amax / 127.

    Attributes:
        spelling: meaning of the scales: "127 / amax" or "amax".
        first: the first tensor of which it can be seen.
        reasons: the impossible ranges, in words.
    """

    spelling: str
    first: str
    reasons: tuple[str, ...]

    @property
    def what(self) -> str:
        """A sentence about the ranges in the cache that are impossible for the model."""
        more = len(self.reasons) - 2
        shown = "; ".join(self.reasons[:2]) + (f"; and {count_noun(more, 'more tensor')}" if more > 0 else "")
        return f"the scales are {self.spelling} instead of amax / 127: {shown}"


def impossible(cache: Cache, view: GraphView) -> Impossible | None:
    """Return evidence that a cache stores 127 / amax, or amax, instead of amax / 127.

    None if amax / 127 is possible, or if not exactly one of the other two is.
    """
    scales = {name: entry.scale for name, entry in cache.by_tensor().items() if entry.is_usable}
    written = {name: scale * INT8_LEVELS for name, scale in scales.items()}
    contradictions = list(_contradictions(written, view))
    if len(contradictions) < _FEWEST and not any(excess > _SURE for _, _, excess in contradictions):
        return None
    fits = [
        spelling
        for spelling, read in _SPELLINGS.items()
        if not any(_contradictions({name: read(scale) for name, scale in scales.items()}, view))
    ]
    if len(fits) != 1:
        return None
    reasons = tuple(dict.fromkeys(reason for _, reason, _ in contradictions))
    return Impossible(spelling=fits[0], first=contradictions[0][0], reasons=reasons)


def _contradictions(ranges: dict[str, float], view: GraphView) -> Iterator[tuple[str, str, float]]:
    """Yield tensors with an impossible range: the name, the reason, and the factor by which the range is too wide."""
    for info in view.inputs:
        shape, range_ = info.shape or (), ranges.get(info.name, 0.0)
        is_image = len(shape) == _PICTURE and not _CHANNELS.isdisjoint({shape[1], shape[-1]})
        if is_image and range_ > _IMAGE:
            yield info.name, f"the image {info.name!r} would reach {range_:.4g}", range_ / _IMAGE
    for tensor, bound in bounds(view).items():
        range_ = ranges.get(tensor, 0.0)
        if range_ > _WIDE * bound.amax:
            yield tensor, f"{bound.op} {tensor!r} would reach {range_:.4g}", range_ / bound.amax
    yield from _further(ranges, view)


def _further(ranges: Mapping[str, float], view: GraphView) -> Iterator[tuple[str, str, float]]:
    """Yield results with a wider range than their input, although the operator never increases magnitudes."""
    for node in view.nodes:
        if node.op not in _SHRINKING or not node.outputs:
            continue
        input_range, result_range = ranges.get(node.inputs[0], 0.0), ranges.get(node.outputs[0], 0.0)
        if input_range > 0 and result_range > _BEYOND * input_range:
            reason = f"{node.op} {node.outputs[0]!r} would reach {result_range:.4g}, more than its input with {input_range:.4g} that it reads"
            yield node.outputs[0], reason, result_range / input_range
