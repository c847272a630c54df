"""The digest of a log as text: one block per run; names are safe for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from qdqtool.buildlog import ReadingProgress
from qdqtool.buildlog.answer import sentence, unsaid
from qdqtool.core.advice import explain_placeholders
from qdqtool.core.buildlog import LayerTuning, Memory, Performance, RunDigest, Unread
from qdqtool.core.causes import GENERAL
from qdqtool.core.difference import LogDiff, TimeChange
from qdqtool.core.events import LogRecord
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.io.escaping import printable

# The longest heading of the digest.
_WIDTH = 12
SHOWN = 5
"""Number of list entries shown without --all."""
# Two lines of a terminal.
_LONGEST = 160
_MIB = 1 << 20


def digest_words(run: RunDigest, *, shown: int = SHOWN, cache: Collection[str] | None = None) -> str:
    """Return the summary of one run of a log as text.

    Args:
        run: the run.
        shown: how many entries of each list.
        cache: the tensors of a calibration cache, to be compared with those that have no scale.
    """
    blocks = (
        _answer(run),
        _identity(run),
        _failure(run),
        _graph(run),
        _quantization(run, shown),
        _without_scale(run, shown, cache),
        _constraints(run, shown),
        _tuning(run, shown),
        _engine(run, shown),
        _accuracy(run, shown),
        _performance(run.performance),
        _profile(run, shown),
        _records("warning", run.warnings, shown),
        _records("error", run.errors, shown),
        _unread(run.unread_lines[:shown]),
    )
    return _printable_lines([_title(run), *(f"  {line}" for block in blocks for line in block)])


def brief_words(run: RunDigest) -> str:
    """Return one line about a run, for a log with many runs."""
    summary = run.ledger_summary
    qdq = f", {summary.accounted} of {summary.q + summary.dq} Q/DQ accounted for" if summary else ""
    return _printable_lines([f"{_title(run)}{qdq}"])


class Wordings:
    """Unrecognized lines of several runs: their number, the first line number, and one example."""

    def __init__(self) -> None:
        self._known: dict[str, Unread] = {}

    def add(self, lines: tuple[Unread, ...]) -> None:
        """Count the unrecognized lines of one more run."""
        for line in lines:
            counted_before = self._known.get(line.text)
            count = line.count + (counted_before.count if counted_before else 0)
            self._known[line.text] = Unread(
                text=line.text, count=count, line=counted_before.line if counted_before else line.line
            )

    def words(self) -> str:
        """Return the unrecognized lines, the most frequent first."""
        lines = sorted(self._known.values(), key=lambda line: (-line.count, line.line))
        return "".join(f"{line.count:>8} {line.line:>10}  {clean(line.text)}\n" for line in lines)


def progress_words(progress: ReadingProgress) -> str:
    """Return the builder's current step, as far as its log has been read."""
    from rich.markup import escape

    layer = f": {clean(progress.layer, 80)}" if progress.layer and progress.phase == "autotuning" else ""
    best = f", best {progress.best_ms:.4g} ms" if layer and progress.best_ms is not None else ""
    return escape(
        f"{progress.phase or 'reading'}{layer}{best} ({count_noun(progress.lines, 'line', grouped=True)})"
    )


def clean(text: str, longest: int = _LONGEST) -> str:
    """Return text for a terminal: control characters as escapes, cut to `longest` characters."""
    plain = printable(text[: longest + 1])
    return plain if len(plain) <= longest else plain[: longest - 3] + "..."


def _printable_lines(lines: Iterable[str]) -> str:
    return "".join(f"{printable(line)}\n" for line in lines)


def _title(run: RunDigest) -> str:
    version = f", TensorRT {'.'.join(map(str, run.version))}" if run.version else ""
    return (
        f"run {run.number}: {run.front_end}{version}, {run.status}; line {run.first_line:,} and {count_noun(run.lines, 'line', grouped=True)} "
        f"({run.blank:,} blank, {run.foreign:,} of other programs, {run.unread:,} unread)"
    )


def _row(title: str, text: str) -> str:
    return f"{title:<{_WIDTH}}{clean(text)}"


def _whole(title: str, text: str) -> str:
    """Return a table row whose text is not cut, because the reason of an error is often at its end."""
    return f"{title:<{_WIDTH}}{printable(text)}"


def _answer(run: RunDigest) -> Iterator[str]:
    """Yield the main answers: whether the build succeeded, its precision, why not INT8, what to do."""
    answer = run.answer
    if answer is None or not (answer.built is not None or answer.precision or answer.why_not):
        return
    lines = f" ({', '.join(f'line {line:,}' for line in answer.evidence)})" if answer.evidence else ""
    yield _whole("answer", f"{sentence(answer)}{lines}")
    if answer.fix:
        yield _whole("", f"fix: {answer.fix}")
        if placeholders := explain_placeholders(answer.fix):
            yield _whole("", placeholders)
    if answer.degree in GENERAL:
        yield _whole("", GENERAL[answer.degree])


def _identity(run: RunDigest) -> Iterator[str]:
    if run.carrier:
        yield _row("carrier", run.carrier)
    if run.process:
        yield _row("process", run.process)
    if run.argv:
        yield _row("command", " ".join(run.argv))
    device = run.options.get("Device", {})
    precision = run.options.get("Build", {}).get("Precision", "")
    if device or precision:
        name = device.get("Selected Device", "unknown device")
        yield _row("device", f"{name}, precision {precision}" if precision else name)
    if "INT8" in precision and "FP16" not in precision and "BF16" not in precision:
        yield _row("", "unquantized layers run in FP32 here: consider --fp16 as well")
    if run.onnx is not None:
        producer = f"{run.onnx.producer} {run.onnx.producer_version}".strip()
        yield _row(
            "model",
            f"{run.onnx.file or '?'}, opset {run.onnx.opset or '?'}, {producer or 'unknown producer'}",
        )
    if run.nodes:
        yield _row("", f"{count_noun(run.nodes, 'node', grouped=True)} in the log")
    if run.clipped:
        yield _row(
            "",
            f"{count_noun(run.clipped, 'record was', 'records were', grouped=True)} counted but not kept: the run is larger than its memory limit",
        )


def _failure(run: RunDigest) -> Iterator[str]:
    if run.failure is None:
        return
    yield _whole("failed", f"line {run.failure.line:,}: {run.failure.text}")


def _graph(run: RunDigest) -> Iterator[str]:
    steps = [step for at, step in enumerate(run.funnel) if not at or step.layers != run.funnel[at - 1].layers]
    if steps:
        yield _row("layers", " > ".join(f"{step.layers} {step.stage}" for step in steps))
    stated = [phase for phase in run.phases if phase.stated]
    measured = [phase for phase in run.phases if not phase.stated]
    if stated:
        yield _row("time", ", ".join(f"{phase.name} {phase.seconds:.3g} s" for phase in stated))
    if measured:
        yield _row(
            "", "by time stamps: " + ", ".join(f"{phase.name} {phase.seconds:.0f} s" for phase in measured)
        )
    for at, (name, count) in enumerate(run.passes.items()):
        yield _row(
            "" if at else "passes", f"{name:<32}{count.attempts:>6} attempts {count.effects:>6} effects"
        )


def _quantization(run: RunDigest, shown: int) -> Iterator[str]:
    summary = run.ledger_summary
    if summary is None:
        yield from _implicit(run, shown)
        return
    whole = summary.q + summary.dq
    yield _row(
        "Q/DQ",
        f"{summary.q} Q, {summary.dq} DQ, {count_noun(summary.clones, 'clone')}; {summary.accounted} of {whole} accounted for",
    )
    yield _row("", ", ".join(f"{end} {count}" for end, count in summary.ends.items()))
    if run.kernels_left:
        yield _row("", f"separate kernels: {', '.join(run.kernels_left)}")
    if run.precisions:
        yield _row(
            "compute", ", ".join(f"{count} {precision}" for precision, count in run.precisions.items())
        )
    for node in run.not_quantized[:shown]:
        yield _row("", f"{node.node} ({node.op}): {node.precision}: {node.reason}")
    # The digest holds only the first of them.
    left = sum(
        count for precision, count in run.precisions.items() if not DType.parse(precision).is_quantized
    )
    yield from _more(left, len(run.not_quantized[:shown]))
    for node in run.contradictions[:shown]:
        yield _row("contradicts", f"{node.node}: {node.contradiction}")


def _implicit(run: RunDigest, shown: int) -> Iterator[str]:
    """Yield the precisions of engine layers for a model without Q/DQ, and the layers that were refused in INT8."""
    int8_set = "INT8" in run.options.get("Build", {}).get("Precision", "")
    if run.layer_precisions:
        counts = ", ".join(f"{count} {precision}" for precision, count in run.layer_precisions.items())
        yield _row("compute", f"engine layers without Q/DQ in the model: {counts}")
    has_int8 = bool(int8_set or run.int8_refused or run.without_scale or "int8" in run.layer_precisions)
    if has_int8 and run.float_layers:
        for at, layer in enumerate(run.float_layers[:shown]):
            yield _row("" if at else "not int8", layer)
        yield from _more(len(run.float_layers), shown)
    for at, (layer, tensor) in enumerate(list(run.int8_refused.items())[:shown]):
        yield _row("" if at else "refused", f"{layer}: INT8 kernels need a scale of tensor {tensor}")
    yield from _more(len(run.int8_refused), shown)
    if not run.layer_kinds and (run.options or has_int8):
        yield _row("formats", unsaid(run)[-1])


def _without_scale(run: RunDigest, shown: int, cache: Collection[str] | None) -> Iterator[str]:
    """Yield tensors without a scale, their nodes, whether the given calibration cache has them, and the fix."""
    tensors = run.without_scale or {tensor: (layer,) for layer, tensor in run.int8_refused.items()}
    if not tensors:
        return
    missing = tensors if cache is None else {name: tensors[name] for name in tensors if name not in cache}
    for at, (tensor, nodes) in enumerate(list(missing.items())[:shown]):
        around = f" ({', '.join(nodes)})" if nodes else ""
        yield _row("" if at else "no scale", f"{tensor}{around}")
    yield from _more(len(missing), shown)
    held = len(tensors) - len(missing)
    if held:
        yield _row(
            "cache",
            f"{held} of {count_noun(len(tensors), 'tensor without a scale is', 'tensors without a scale are')} in the calibration cache: this build did not use it "
            "(trtexec --calib=FILE)",
        )
    if missing:
        neither = "" if cache is None else " in the build or the cache"
        yield _row(
            "fix",
            f"{count_noun(len(missing), 'tensor has', 'tensors have')} no scale{neither}: calibrate with data that reaches them, pass a calibration "
            "cache that holds them, or insert Q/DQ (qdqtool run)",
        )


def _constraints(run: RunDigest, shown: int) -> Iterator[str]:
    """Yield requests that the builder did not follow: layers on DLA, precisions of layers."""
    for at, (layer, reason) in enumerate(list(run.dla_refused.items())[:shown]):
        yield _row("" if at else "not on DLA", f"{layer}: {reason}")
    yield from _more(len(run.dla_refused), shown)
    for at, layer in enumerate(run.unobeyed[:shown]):
        yield _row("" if at else "unobeyed", f"{layer}: no kernel has the requested precision")
    yield from _more(len(run.unobeyed), shown)
    for at, layer in enumerate(run.overruled[:shown]):
        yield _row(
            "" if at else "overruled", f"{layer}: a kernel of a different precision than requested was faster"
        )
    yield from _more(len(run.overruled), shown)


def _accuracy(run: RunDigest, shown: int) -> Iterator[str]:
    for at, result in enumerate(run.accuracy[:shown]):
        failed = (
            f", fails: threshold {result.failed_threshold:.6g}" if result.failed_threshold is not None else ""
        )
        loss = f"{result.loss:.6g}" if result.loss is not None else "not finite"
        yield _row("" if at else "accuracy", f"{result.tensor}: loss {loss} ({result.algorithm}){failed}")
    yield from _more(len(run.accuracy), shown)


def _more(count: int, shown: int) -> Iterator[str]:
    """Yield a note if a list has more entries than are shown."""
    if count > shown:
        yield _row("", f"and {count - shown} more: --all")


def _tuning(run: RunDigest, shown: int) -> Iterator[str]:
    if not run.tuned_layers and not run.myelin:
        return
    yield _row(
        "tuning",
        f"{count_noun(run.tuned_layers, 'layer')}, {count_noun(run.candidates, 'kernel', grouped=True)} timed",
    )
    for row in run.slowest[:shown]:
        yield _row("", _describe_tuning(row))
    for op in run.myelin[:shown]:
        fastest = f"fastest {op.fastest_ms:.4g} ms" if op.fastest_ms is not None else "no time"
        yield _row("", f"{op.candidates:>5} kernels, {fastest}: {op.op} (Myelin)")


def _describe_tuning(row: LayerTuning) -> str:
    seconds = f"{row.seconds:.3g} s, " if row.seconds is not None else ""
    fastest = (
        f"fastest {row.fastest_ms:.4g} ms ({row.runner})"
        if row.fastest_ms is not None
        else "no kernel could run"
    )
    chosen = f", chosen {row.chosen_ms:.4g} ms" if row.chosen_ms is not None else ""
    return f"{row.candidates:>5} kernels, {seconds}{fastest}{chosen}: {row.layer}"


def _engine(run: RunDigest, shown: int) -> Iterator[str]:
    if run.layer_kinds:
        kinds = sorted(run.layer_kinds.items(), key=lambda item: (-item[1], item[0]))
        whole = sum(run.layer_kinds.values())
        yield _row(
            "engine", f"{whole} layers: " + ", ".join(f"{count} {kind or 'unnamed'}" for kind, count in kinds)
        )
    if run.placement:
        yield _row("placement", ", ".join(f"{count} on {device}" for device, count in run.placement.items()))
    for at, (region, nodes) in enumerate(list(run.foreign_nodes.items())[:shown]):
        yield _row("" if at else "Myelin", f"{region}: {count_noun(len(nodes), 'node')}: {', '.join(nodes)}")
    yield from _more(len(run.foreign_nodes), shown)
    memory = _memory(run.memory)
    if memory:
        yield _row("memory", ", ".join(memory))
    yield from _workspace(run.memory)


def _workspace(memory: Memory) -> Iterator[str]:
    """Yield kernels that were skipped for lack of memory, and what to do."""
    limit, most = memory.workspace_limit, memory.skipped_most
    if not memory.skipped or most is None:
        return
    words = (
        f"{count_noun(memory.skipped, 'kernel was', 'kernels were')} skipped for lack of memory, from line {memory.skipped_line:,}; "
        f"the largest asked for {most:,} bytes"
    )
    if limit is None or limit >= most:
        yield _whole(
            "workspace",
            f"{words}: the GPU had less free memory; close other programs, or build for smaller shapes",
        )
        return
    yield _whole("workspace", f"{words}, and the limit was {limit:,} bytes")
    yield _whole(
        "",
        f"fix: --memPoolSize=workspace:{max(1024, -(-most // _MIB))} (a number of MiB; trtexec 10 reads the last letter as the unit, "
        "so that 1024MiB is 1024 bytes)",
    )


def _memory(memory: Memory) -> list[str]:
    sizes = (
        ("activations", memory.activation),
        ("weights", memory.weights),
        ("scratch", memory.scratch),
        ("device persistent", memory.device_persistent),
        ("host persistent", memory.host_persistent),
    )
    words = [f"{name} {size / _MIB:.1f} MiB" for name, size in sizes if size]
    peaks = (
        ("peak CPU", memory.peak_cpu_mib),
        ("peak CPU while building", memory.peak_building_cpu_mib),
        ("peak GPU", memory.peak_gpu_mib),
        ("engine", memory.engine_mib),
    )
    return words + [f"{name} {size} MiB" for name, size in peaks if size is not None]


def _performance(performance: Performance | None) -> Iterator[str]:
    if performance is None:
        return
    if performance.throughput_qps is not None:
        yield _row("speed", f"{performance.throughput_qps:.6g} queries per second")
    for at, (name, times) in enumerate(performance.metrics.items()):
        tails = "".join(f", {percent} %: {value:.4g}" for percent, value in times.percentiles.items())
        middle = f"median {times.median:.4g} ms" if times.median is not None else "no median"
        title = "" if at or performance.throughput_qps is not None else "speed"
        yield _row(title, f"{name}: {middle}{tails}")
    for words in performance.diagnosis:
        yield _whole("", f"- {words}")


def _profile(run: RunDigest, shown: int) -> Iterator[str]:
    for at, row in enumerate(run.profile[:shown]):
        yield _row("" if at else "hot layers", f"{row.percent:5.1f} % {row.average_ms:8.4f} ms  {row.layer}")


def _records(title: str, records: tuple[LogRecord, ...], shown: int) -> Iterator[str]:
    for at, record in enumerate(records[:shown]):
        times = f" ({count_noun(record.count, 'time')})" if record.count > 1 else ""
        yield _whole("" if at else title + "s", f"line {record.line:,}{times}: {record.text}")
    yield from _more(len(records), shown)


def _unread(lines: tuple[Unread, ...]) -> Iterator[str]:
    for at, line in enumerate(lines):
        yield _row(
            "" if at else "unread", f"{count_noun(line.count, 'time')}, first line {line.line:,}: {line.text}"
        )


def _release(version: str) -> str:
    return "release unknown" if version == "?" else f"TensorRT {version}"


def diff_words(diff: LogDiff) -> str:
    """Return the comparison of two logs as text."""
    lines = [
        (
            f"{'':<{_WIDTH}}first: {_release(diff.versions[0])}, {_count(diff.layers[0])} layers; "
            f"second: {_release(diff.versions[1])}, {_count(diff.layers[1])} layers"
        )
    ]
    lines += [
        _row("" if at else "passes", f"{row.name:<32}{row.first:>6} effects, then {row.second}")
        for at, row in enumerate(diff.passes)
    ]
    if diff.parting is not None:
        ours, theirs = (
            event and f"line {event.line:,}: {event.kind} {event.pass_name} {' + '.join(event.nodes)}"
            for event in diff.parting
        )
        lines += [
            _row("they part", f"first:  {ours or 'ends here'}"),
            _row("", f"second: {theirs or 'ends here'}"),
        ]
    for title, events in (("only first", diff.only_first), ("only second", diff.only_second)):
        shown = events[: 4 * SHOWN]
        lines += [
            _row(
                "" if at else title,
                f"line {event.line:,}: {event.kind} {event.pass_name} {' + '.join(event.nodes)}",
            )
            for at, event in enumerate(shown)
        ]
        lines += [_row("", f"and {len(events) - len(shown)} more")] if len(events) > len(shown) else []
    for title, changes in (("precision", diff.precisions), ("Q/DQ", diff.ledger)):
        shown_changes = changes[: 4 * SHOWN]
        lines += [
            _row("" if at else title, f"{row.node}: {row.first or 'absent'} -> {row.second or 'absent'}")
            for at, row in enumerate(shown_changes)
        ]
        lines += (
            [_row("", f"and {len(changes) - len(shown_changes)} more")]
            if len(changes) > len(shown_changes)
            else []
        )
    lines += [_row("" if at else "times", _time(row)) for at, row in enumerate(diff.times[: 4 * SHOWN])]
    if len(lines) == 1:
        lines.append(_row("", "no difference in fusions, precision or times"))
    return _printable_lines(lines)


def _time(change: TimeChange) -> str:
    ratio = (
        f" ({change.second / change.first - 1:+.0%})" if change.first and change.second is not None else ""
    )
    return f"{change.what}: {_count(change.first)} -> {_count(change.second)}{ratio}"


def _count(number: float | None) -> str:
    return "?" if number is None else f"{number:.6g}"
