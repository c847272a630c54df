"""Try the fixes of an audit by building engines, and keep the fixes that improve the engine.

For every fallback, every float node, shortcut and attention, and every needless kernel, it applies the edit that a rule
proposes, and builds the model. It keeps the edit only if the node runs INT8, or if there are fewer kernels or bytes,
and the accuracy loss is within --max-drop. It also builds the settings from the report with which placement would
quantize a float node (`--set place.last_layer=int8`), and keeps them if the sum of kernels and bytes does not grow;
nodes that a recipe keeps float by name stay float. If the float part of a run is FP32 (QDQ212), it tries FP16. Edits are
tried in groups, so a useful group needs one build. The result is a new run folder with the table of all trials and the inputs
that changed; the old folder stays unchanged. With random samples it can compare kernels and bytes, but it keeps no
range that was measured on them.

With `--on ssh://user@host` (or `--on local`) measured time decides instead of kernels and bytes. On that machine, trtexec
builds the engines before and after an edit, and times both in alternation. The edit is kept only if the engine is faster
beyond the 95 % interval. If kernel launches are the bottleneck, no engine is called faster. `--dry-run` prints the commands.

If it is stopped, the same command continues with the engines that it already built, and with the times that it measured.

    qdqtool fix runs/mine --samples calibration/
    qdqtool fix model.qdq.onnx --samples random:8 --budget 10 --out runs/fixed
    qdqtool fix runs/mine --samples calibration/ --on ssh://me@orin
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import (
    BuildCache,
    Changes,
    CustomOps,
    Device,
    DryRun,
    On,
    Plugins,
    Trtexec,
    for_builder,
    for_device,
    for_operators,
)
from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from qdqtool.core.fixes import FixReport, Metrics


def fix(
    subject: Annotated[Path, typer.Argument(help="Run folder or Q/DQ model.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New run folder; default: SUBJECT-fixed.")
    ] = None,
    samples: Annotated[
        str,
        typer.Option(help="Samples for accuracy and missing ranges; 'none': do not measure accuracy."),
    ] = "random:8",
    labels: Annotated[str | None, typer.Option(help="Class indices of the samples.")] = None,
    max_drop: Annotated[
        float,
        typer.Option(
            help="Largest allowed loss of accuracy: in points with --labels, otherwise in dB of SQNR.",
            min=0.0,
        ),
    ] = 1.0,
    budget: Annotated[int, typer.Option(help="Largest number of engine builds.", min=0)] = 20,
    time_budget: Annotated[
        float | None, typer.Option(help="Time limit in seconds: after it, no new trial starts.", min=0.0)
    ] = None,
    build_cache: BuildCache = None,
    sm: Annotated[
        str, typer.Option(help="GPU architectures to build for: 86,89; default: the recipe's.")
    ] = "",
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Accept the findings of a check, and say why, as in QDQ210=known and measured."),
    ] = None,
    changes: Changes = None,
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 if a finding has this severity or a higher one: error, warning, info, never."
        ),
    ] = "never",
    device: Device = None,
    custom_ops: CustomOps = None,
    plugins: Plugins = None,
    on: On = "",
    trtexec: Trtexec = "",
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print fixes.json instead of the table.")] = False,
) -> int:
    """Try the fixes of an audit by building engines, and keep the fixes that improve the engine."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import Bars
    from qdqtool.cli.screen import show_plan, stderr
    from qdqtool.cli.verdict import check_limit, findings_missed, print_missed
    from qdqtool.core.kinds import FIXES
    from qdqtool.pipeline.autofix.run import BUILDS, FixRequest, is_unfinished, recipe_of
    from qdqtool.pipeline.autofix.run import fix as search
    from qdqtool.pipeline.autofix.search import Bounds
    from qdqtool.pipeline.sweep.elsewhere import plan

    check_limit(fail_on)
    typed = [*for_builder(None, sm), *for_device(device), *for_operators(custom_ops, plugins)]
    typed += [f"audit.ignore={json.dumps(ignore)}"] if ignore else []
    if subject.name in {"", ".."}:  # the name of the folder is part of the new name
        subject = subject.resolve()
    method = recipe_of(subject)
    folder = out or subject.with_name(f"{subject.name.removesuffix('.onnx')}-fixed")
    if dry_run:
        show_plan(
            "build and audit the engine in this process; apply the next edits, and build and audit again",
            plan([on] if on else [], folder / BUILDS / "DIGEST", 2, trtexec),
            "keep the edits if the engine is faster beyond the interval, and continue with the next ones",
        )
        return 0
    request = FixRequest(
        subject=subject,
        out=folder,
        recipe=load_recipe(
            None if method is None else str(method), [*(changes or ()), *typed], labels=labels
        ),
        samples="" if samples == "none" else samples,
        labels=labels,
        bounds=Bounds(builds=budget, seconds=time_budget, max_drop=max_drop),
        cache=build_cache,
        on=on,
        trtexec=trtexec,
    )
    if is_unfinished(folder):
        note = f"continues an earlier search in {folder}"
        stderr().print(note)
    with Bars() as bars:
        report, findings = search(request, lambda done, total: bars.show("build", done, total))
    stderr().print(f"wrote {folder}")
    if as_json:
        sys.stdout.write(FIXES.dump(report))
    else:
        _show(report)
    return print_missed(findings_missed(findings, fail_on))


def _show(report: FixReport) -> None:
    from qdqtool.cli.placed_words import slot_lines
    from qdqtool.cli.screen import show_journal, stdout

    if report.trials:
        show_journal(report.journal.search, report.journal.objective, report.journal.rows)
    lines = (
        "" if report.trials else "nothing to fix",
        f"before: {_format_metrics(report.before, report.metric)}",
        f"after:  {_format_metrics(report.after, report.metric)}",
        _describe_count(report),
        *slot_lines(report.slots),
        *(f"note: {note}" for note in report.notes),
    )
    for line in filter(None, lines):
        stdout().print(line)


def _describe_count(report: FixReport) -> str:
    from qdqtool.core.fixes import FixOutcome

    kept, undone, left = (report.count(outcome) for outcome in FixOutcome)
    return (
        f"{kept + undone} tried: {kept} kept, {undone} undone; {left} not tried; "
        f"{report.builds} of {count_noun(report.budget, 'build')} used"
    )


def _format_metrics(standing: Metrics, metric: str) -> str:
    size = "unknown" if standing.activation_bytes is None else f"{standing.activation_bytes:,}"
    accuracy = "" if standing.accuracy is None else f", {metric} {standing.accuracy:.4g}"
    return (
        f"{standing.int8} of {count_noun(standing.compute, 'compute node')} quantized, {count_noun(standing.kernels, 'kernel')}, "
        f"{standing.conversions} of them conversions, {size} activation bytes{accuracy}"
    )


PLUGIN = fix
