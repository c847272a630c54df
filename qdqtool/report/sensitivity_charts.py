"""A sensitivity study as text and as charts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from qdqtool.core.advice import excluding
from qdqtool.core.sensitivity import CauseKind, Cure, NodeSensitivity, NoiseCause, Sensitivity
from qdqtool.core.wording import Setting, count_noun
from qdqtool.report import words
from qdqtool.report.charts import Axis, Bar, Point, axis_over, bars, scatter
from qdqtool.report.svg import Element, shorten

# Fits one screen; the JSON file has all of them.
_SHOWN = 25
_NAME, _ALONE = 35, 22
"""Widths of the name and of the noise of a node alone, in a row that fits into 80 columns."""


def lines(study: Sensitivity) -> Iterator[str]:
    """Yield the lines of the study for a terminal, the most sensitive node first."""
    yield f"{study.model}, {count_noun(study.samples, 'sample')}, with every node quantized: {words.float_set(study.whole)}  [measured]"
    yield ""
    shown = study.nodes[:_SHOWN]
    is_task = any(row.task is not None for row in shown)
    # names in a deep model have a common beginning and differ after it
    alike = _beginning([row.node for row in shown])
    if alike:
        yield f"nodes of {alike}"
    last = "  accuracy without it" if is_task else ""
    yield f"{'keep float':<{_NAME}} {'noise share':>11} {'alone dB':>{_ALONE}} {'gain dB':>8}{last}"
    for row in shown:
        gain = "" if row.gain_db is None else f"{row.gain_db:+.2f}"
        task = "" if row.task is None else f"  {words.shift(row.task)}"
        yield f"{shorten(row.node[len(alike) :], _NAME, head_share=3):<{_NAME}} {100 * row.share:>10.1f}% {_alone(row):>{_ALONE}} {gain:>8}{task}"
    if any(not row.exact for row in shown):
        few = min(row.samples for row in shown if not row.exact)
        yield f"~ is an estimate on {count_noun(few, 'sample')}, with its 95 % interval"
    if len(study.nodes) > _SHOWN:
        yield f"and {len(study.nodes) - _SHOWN} more"
    yield from _list_causes(study)
    if study.curve:
        yield ""
        yield "keeping the most sensitive ones float, one more at a time:"
    for entry in study.curve:
        yield f"  {len(entry.kept):>3} float: {words.float_set(entry)}"


def advice(study: Sensitivity) -> str:
    """Return which nodes to keep float; "" without an accuracy limit, or if no set of nodes meets it."""
    if study.advice is None:
        return ""
    if not study.advice.kept:
        return "the limit is met with every node quantized"
    return f"keep {count_noun(len(study.advice.kept), 'node')} float ({words.float_set(study.advice)}): {excluding(study.advice.kept, study.excluded)}"


def cause(noise: NoiseCause) -> str:
    """Return the reason why a node is noisy, with its figures."""
    parts = (
        ("clipping", noise.clipping),
        ("rounding of its input", noise.rounding),
        ("its weights", noise.weights),
    )
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts if share)
    return f"{noise.kind.value}: {_evidence(noise)} (of its noise: {shares})"


def _evidence(noise: NoiseCause) -> str:
    if noise.kind is CauseKind.CLIPPED:
        return f"{100 * noise.clipped_energy:.2g} % of the energy of {noise.tensor} lies above its range"
    if noise.kind is CauseKind.OUTLIER:
        return (
            f"channel {noise.channel} of {noise.tensor} is {noise.reach:.0f} times as wide as the median channel, "
            f"so the step {noise.step:.2g} is too large for the others"
        )
    if noise.kind is CauseKind.COARSE:
        if not noise.spread:
            return f"the step of {noise.tensor} is {noise.step:.2g}"
        return (
            f"the step of {noise.tensor}, {noise.step:.2g}, is {100 * noise.step / noise.spread:.2g} % of the spread "
            "of its median channel"
        )
    if noise.weight_reach is not None:
        return f"one step for all channels, although the widest is {noise.weight_reach:.1f} times as wide as the median"
    return "rounding of its weights"


def cure(change: Cure) -> str:
    """Return the gain of a change that reduces noise, and its settings."""
    settings = " ".join(str(Setting.of(setting)) for setting in change.settings)
    return f"{change.what}: {gain(change)}: {settings}"


def gain(change: Cure) -> str:
    """Return the gain of a change in dB, with its interval."""
    if change.gain_db is None:
        return "no noise is left"
    between = "" if change.gain_low is None else f" ({change.gain_low:+.2f} to {change.gain_high:+.2f})"
    return f"{change.gain_db:+.2f} dB{between}"


def _list_causes(study: Sensitivity) -> Iterator[str]:
    """Yield, for each node with a known cause of noise, the cause and the gains of the tried changes."""
    rows = [row for row in study.nodes if row.cause is not None]
    if rows:
        yield ""
        yield "causes, and the measured gain of each tried change at the outputs (95 %):"
    for row in rows:
        assert row.cause is not None
        yield f"  {row.node}: {cause(row.cause)}"
        yield from (f"    {line}" for line in _list_cures(row.cures))
    if study.cures:
        yield ""
        yield "for the whole network:"
        yield from (f"  {line}" for line in _list_cures(study.cures))


def _list_cures(cures: Collection[Cure]) -> Iterator[str]:
    """Yield the changes that reduce noise, each with its setting, and one line about the others."""
    helping = [change for change in cures if change.helps]
    yield from map(cure, helping)
    useless = [f"{change.what} ({gain(change)})" for change in cures if not change.helps]
    if useless:
        yield f"no significant gain: {', '.join(useless)}"


def bar_chart(study: Sensitivity) -> Element:
    """Draw the share of the noise by node, in the order of the study: the gain if the node stays float."""
    rows = [
        Bar(label=row.node, value=row.share, text=f"{100 * row.share:.1f} %", more=_more(row))
        for row in study.nodes[:_SHOWN]
    ]
    return bars(rows, "Share of the quantization noise by node")


def curve_chart(study: Sensitivity) -> Element | None:
    """Draw SQNR against the number of nodes kept float; None if there are fewer than two points."""
    levels = [(len(entry.kept), entry.sqnr_db, entry) for entry in (study.whole, *study.curve)]
    points = [(count, level, entry) for count, level, entry in levels if level is not None]
    if len(points) < 2:
        return None
    across = Axis(
        label="nodes kept float", low=-0.5, high=max(count for count, _, _ in points) + 0.5, whole=True
    )
    up = axis_over("SQNR, dB", [level for _, level, _ in points])
    dots = [
        Point(x=count, y=level, text=f"{count} float: {words.float_set(entry)}")
        for count, level, entry in points
    ]
    return scatter(dots, across, up, "SQNR by nodes kept float", [(dot.x, dot.y) for dot in dots])


def _more(row: NodeSensitivity) -> str:
    gain = "" if row.gain_db is None else f", keeping it float gains {row.gain_db:+.2f} dB"
    return f"{row.op}, alone {_level(row.alone_db)} dB{gain}"


def _alone(row: NodeSensitivity) -> str:
    """Return the noise of a single node as text; estimates look like `~42.6 (36.0 to 48.3)` or `~42.6 (unknown)`."""
    if row.exact:
        return _level(row.alone_db)
    ends = "unknown" if row.alone_low is None else f"{row.alone_low:.1f} to {row.alone_high:.1f}"
    return f"~{_level(row.alone_db)} ({ends})"


def _beginning(names: Sequence[str]) -> str:
    """Return the module path with which all node names begin, with its last slash; "" for one name."""
    if len(names) < 2:
        return ""
    first, last = (
        min(names),
        max(names),
    )  # if the first and the last name share a beginning, all names between them share it
    shared = next(
        (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return first[: first.rfind("/", 0, shared) + 1]


def _level(level: float | None) -> str:
    return "no noise" if level is None else f"{level:.1f}"
