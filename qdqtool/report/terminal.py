"""The report on a terminal, verdict first and short enough for ten seconds; and the table of FP32, PTQ and QAT."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.core.advice import explain_placeholders, with_files
from qdqtool.core.comparison import Comparison
from qdqtool.core.qat import QatResult, QatRow
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.wording import count_noun
from qdqtool.io.escaping import printable
from qdqtool.report import sensitivity_charts, words
from qdqtool.report.section import Entry, guarded_blocks, guarded_rows, sections
from qdqtool.report.words import accuracy_rows, input_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_ENTRIES_SHOWN = 8
"""Number of list entries that are shown; the others are counted."""
_LABEL = re.compile(r" +(?:[A-Z][a-z]* ?[a-z]*: +(?:(?:yes|no|unknown) +)?|[A-Za-z/]+ {2,})?|\S[^ ]* {2,}")
"""Pattern of the start of a line before its text: an indentation, or a label of the summary."""
_COPIED = re.compile(r" *(?:fix:|Settle it:|next:|qdqtool |pip )")
"""Pattern of the start of a line with a command."""
_COLOURS = {"good": "bold green", "doubtful": "bold yellow", "bad": "bold red"}
Measured = Mapping[str, Mapping[str, float]]
"""Cost of each step on this machine: `seconds`, and `peak_mib` if known."""


def render(
    report: Report, console: Console, measured: Measured | None = None, *, model: str = "", run: str = ""
) -> None:
    """Print the summary of a report. Names are never interpreted as markup.

    Args:
        report: the report.
        console: where it is printed.
        measured: costs of the steps.
        model: the model of the run, for printed commands; "" if unknown.
        run: its folder, for printed commands; "" if unknown.
    """
    summary = report.summary
    # an audit answers one question in its first line
    judged = words.judgement(summary.verdict) if report.comparison is not None else ()
    for number, line in enumerate(judged):
        _say(console, line, style=None if number else _COLOURS.get(report.verdict, "bold"))
    _say(console, words.verdict(summary), style="bold")
    _say(console, " -> ".join(part for part in (summary.model, summary.builder) if part))
    _say(console, "")
    for section_name, section in sections():
        for name, text in guarded_rows(section_name, section, report):
            _say(console, f"{name:<12} {text}")
    source = next(iter(Path(run).glob("model.prepared.onnx")), "") if run else ""
    fixes = []
    for section_name, section in sections():
        for block in guarded_blocks(section_name, section, report):
            entries = [
                (text, with_files(fix, model, run=run, float_model=str(source)), style)
                for text, fix, style in block.entries
            ]
            fixes += [fix for _, fix, _ in entries]
            _list(console, block.title, entries)
    if placeholders := explain_placeholders("\n".join(fixes)):
        _say(console, placeholders)
    _list(console, "Notes", [(note, "", None) for note in report.notes])
    if measured:
        _costs(console, measured)


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print the difference between two models, and the samples with the largest differences."""
    _say(
        console,
        f"{comparison.reference} -> {comparison.candidate}, {count_noun(comparison.samples, 'sample')}",
        style="bold",
    )
    for name, text in (*accuracy_rows(comparison), *input_rows(comparison.assumptions)):
        _say(console, f"{name:<12} {text}")
    for explanation in comparison.explanations:
        _say(console, f"{'Why':<12} {explanation.output}: {words.cause(explanation)}")
    noisy = sorted(
        (level, entry.output) for entry in comparison.tensors if (level := words.sqnr(entry)) is not None
    )
    _list(
        console,
        "Noisiest tensors inside",
        [(f"{name}: SQNR {level:.1f} dB", "", None) for level, name in noisy],
    )
    worst = [
        (f"{entry.sample}: SQNR {entry.sqnr_db:.1f} dB in {entry.output}", "", None)
        for entry in comparison.worst
    ]
    _list(console, "Worst samples", worst)
    _list(console, "Notes", [(note, "", None) for note in comparison.notes])


def render_sensitivity(study: Sensitivity, console: Console) -> None:
    """Print the nodes that cost most accuracy, and the nodes to keep float."""
    if not study.meaningful:
        _say(console, "random samples: these figures mean nothing", style="yellow")
    for line in sensitivity_charts.lines(study):
        _say(console, line)
    advice = sensitivity_charts.advice(study)
    if advice:
        _say(console, "")
        _say(console, advice, style="bold")
    _list(console, "Notes", [(note, "", None) for note in study.notes])


def _list(console: Console, title: str, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    _say(console, "")
    _say(console, f"{title}:", style="bold")
    for text, fix, style in entries[:_ENTRIES_SHOWN]:
        _say(console, f"  {text}", style=style)
        if fix:
            _say(console, f"    fix: {fix}")
    if len(entries) > _ENTRIES_SHOWN:
        _say(console, f"  and {len(entries) - _ENTRIES_SHOWN} more")


def _costs(console: Console, measured: Measured) -> None:
    _say(console, "")
    _say(console, "Cost of the steps here  [measured]", style="bold")
    for step, cost in measured.items():
        peak = f", peak {cost['peak_mib']:.0f} MiB" if "peak_mib" in cost else ""
        seconds = f"{cost['seconds']:.1f} s" if "seconds" in cost else words.UNKNOWN
        _say(console, f"  {step:<12} {seconds}{peak}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print one line, with control characters in names as escapes."""
    text = printable(text)
    if console.is_terminal:
        text = wrap_lines(text, console.width)
    console.print(text, style=style, markup=False, highlight=False, emoji=False)


def wrap_lines(text: str, width: int) -> str:
    """Wrap lines at words, below the first word after the label. Lines with a command to copy are not wrapped."""
    return "\n".join(line if _COPIED.match(line) else _wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    label = _LABEL.match(line)
    lines = textwrap.wrap(
        line,
        max(width, 40),
        subsequent_indent=" " * (label.end() if label else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


# --- training table --------------------------------------------------------------------------------------------------
# The table FP32, PTQ, QAT on a terminal.


_UNTRAINED_SHOWN = 5


def table(result: QatResult) -> Table:
    """Return a table of FP32, PTQ and QAT with the metric and its intervals."""
    from rich.table import Table
    from rich.text import Text

    shown = Table("model", box=None)
    for title in (f"{result.metric} {result.unit} [measured]", "95 % interval", "change", "INT8 nodes"):
        shown.add_column(Text(printable(title)), justify="right")
    for row in result.rows:
        shown.add_row(
            Text(printable(row.name)),
            "unknown" if row.value is None else f"{row.value:.2f}",
            _interval(row.low, row.high),
            _change(row),
            _nodes(row),
        )
    return shown


def notes(result: QatResult) -> list[str]:
    """Return the notes for reading the table of FP32, PTQ and QAT."""
    trained = f"{result.quantizers} tensors with a quantizer of {result.engine}, on {result.device}"
    best = f"epoch {result.best_epoch} of {len(result.epochs) - 1} was kept: it has the best validation score"
    return [
        f"{count_noun(result.samples, 'test sample')}; {best}; {trained}",
        *(f"not trained: {entry.slot}: {entry.reason}" for entry in result.untrained[:_UNTRAINED_SHOWN]),
        *(
            [f"... and {len(result.untrained) - _UNTRAINED_SHOWN} more"]
            if len(result.untrained) > _UNTRAINED_SHOWN
            else []
        ),
        *result.notes,
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _change(row: QatRow) -> str:
    if row.change is None:
        return ""
    interval = _interval(row.change_low, row.change_high)
    return f"{row.change:+.2f}" + (f" ({interval})" if interval else "")


def _nodes(row: QatRow) -> str:
    return "" if row.nodes_total is None else f"{row.nodes_int8} of {row.nodes_total}"
