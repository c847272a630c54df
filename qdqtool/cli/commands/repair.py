"""Change a Q/DQ model of any tool so that TensorRT accepts it and runs it fast.

Reads models of onnxruntime (Q/DQ, QOperator and dynamic), tf2onnx, quark, PyTorch exporters, modelopt and
pytorch-quantization: uint8 and zero points, integers that are clipped or moved, INT32 biases, scales of shape [1] or
per channel on activations, shared and doubled pairs, pairs between a Conv and its activation, weights after a Transpose
or with scales along the wrong axis, Concat with different scales, Casts to FP16, integer operators, integer inputs and
outputs with a zero point. Every change is listed with its reason, and the outputs before and after are compared on
onnxruntime. The original file stays unchanged. The exit code is 1 if `lint` still finds an error in the written model.

Some findings of `lint` need your decision, per node: `--float NODE` for a layer that is better float, `--int8 NODE` for
weights to quantize again.

    qdqtool repair theirs.onnx --out repaired.onnx --samples inputs.npz
    qdqtool repair theirs.onnx --out repaired.onnx --float /head/Gemm --int8 /conv1/Conv
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import TARGET_HELP, Changes, ComparingRecipe
from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from qdqtool.core.fixes import Change, RepairReport

_SHOWN = 3
"""Number of changes of one kind that the summary shows."""


def repair(
    model: Annotated[Path, typer.Argument(help="ONNX model with Q/DQ or integer operators.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Repaired model to write.")],
    samples: Annotated[
        str,
        typer.Option(
            help="Samples for the comparison, and for ranges that the model lacks: .npz, .npy, folder, "
            "Polygraphy .json, module:function, random:8; 'none' compares nothing."
        ),
    ] = "random:8",
    labels: Annotated[str | None, typer.Option(help="Class indices of the samples.")] = None,
    recipe: ComparingRecipe = None,
    changes: Changes = None,
    to_float: Annotated[
        list[str] | None,
        typer.Option(
            "--float",
            help="Node whose inputs lose their Q/DQ, or Q/DQ node to remove. A code such as QDQ131 stands for all nodes for which "
            "`lint` advises this.",
        ),
    ] = None,
    to_int8: Annotated[
        list[str] | None,
        typer.Option(
            "--int8",
            help="Node whose weights are quantized again, per channel; with --samples DATA also its activation. A code such as "
            "QDQ144 stands for all nodes for which `lint` advises this.",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help=f"{TARGET_HELP} Default: the recipe's target.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the repair as JSON instead of a summary.")
    ] = False,
) -> int:
    """Change a Q/DQ model of any tool so that TensorRT accepts it and runs it fast."""
    from qdqtool.cli.options import for_builder, load_recipe
    from qdqtool.cli.progress import progress
    from qdqtool.cli.screen import stderr
    from qdqtool.cli.verdict import accuracy_missed, print_missed
    from qdqtool.core.kinds import REPAIR
    from qdqtool.pipeline.repair import RepairRequest, repair_file

    chosen = load_recipe(recipe, [*(changes or ()), *for_builder(target, None)], labels=labels)
    source = "" if samples == "none" else samples
    request = RepairRequest(
        model=model,
        out=out,
        samples=source,
        labels=labels,
        recipe=chosen,
        to_float=tuple(to_float or ()),
        to_int8=tuple(to_int8 or ()),
    )
    with progress() as bars:
        bar = bars.add_task("compare")
        result = repair_file(request, lambda done, total: bars.update(bar, completed=done, total=total))
    stderr().print(f"wrote {out}")
    if as_json:
        sys.stdout.write(REPAIR.dump(result))
    else:
        _show(result)
    refused = [left for left in result.remaining if left.refused]
    for left in refused:
        line = f"error: TensorRT refuses the written model at {left.subject!r}: {left.what}"
        stderr().print(line, style="bold red")
    return print_missed(accuracy_missed(result.comparison, chosen.compare.max_drop)) or int(bool(refused))


def _show(result: RepairReport) -> None:
    from qdqtool.cli.placed_words import slot_lines
    from qdqtool.cli.screen import readable, stdout
    from qdqtool.report import terminal

    def say(line: str, style: str = "") -> None:
        stdout().print(readable(line), style=style)

    for name, group in groupby(result.changes, key=lambda change: change.rule):
        changes = tuple(group)
        say(f"{name}, {count_noun(len(changes), 'time')}: {changes[0].reason}", style="bold")
        for change in changes[:_SHOWN]:
            say(f"    {change.subject}: {change.what}{_error(change)}")
        if len(changes) > _SHOWN:
            say(f"    and {len(changes) - _SHOWN} more; --json lists them all")
    for line in slot_lines(result.slots):
        say(line)
    for note in result.notes:
        say(f"note: {note}")
    for left in result.remaining:
        say(f"not repaired: {left.subject}: {left.what}", style="yellow")
        say(f"    fix: {left.fix}")
    if result.comparison is not None:
        terminal.render_comparison(result.comparison, stdout())
    by = f", in a model quantized by {result.origin}" if result.origin else ""
    say(
        f"{count_noun(len(result.changes), 'change')}{by}" if result.changes else f"nothing to repair{by}",
        style="bold",
    )


def _error(change: Change) -> str:
    if change.error is None:
        return ""
    return (
        " (exact)"
        if change.error == 0
        else f" (largest error {100 * change.error:.2g} % of the largest value)"
    )


PLUGIN = repair
