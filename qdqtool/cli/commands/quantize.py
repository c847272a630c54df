"""Turn a float model and samples into a Q/DQ model, in one process, without building an engine.

    qdqtool quantize model.onnx --samples samples/ -o model.qdq.onnx
    qdqtool quantize model.onnx --samples x.npz[:200] -o model.qdq.onnx --recipe transformer-int8
    qdqtool quantize model.onnx --samples samples/ -o model.qdq.onnx --set calibrate.method=max --set calibrate.bias=keep

Places, calibrates and inserts Q/DQ. The model is read and prepared once, and the samples run once. Then the outputs
of 32 samples decide the calibrator, and biases are corrected with 32 samples, unless the recipe has other settings.
The last line above is the fastest way: one pass that records minima and maxima.

`run` does the same in steps that can be resumed, and also builds an engine, audits and compares; `insert` uses existing
ranges.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import (
    BuilderGpus,
    BuilderTarget,
    Changes,
    CustomOps,
    Device,
    FittingRecipe,
    Preset,
    for_builder,
    for_device,
    for_operators,
    for_preset,
)
from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from qdqtool.core.calibration import CalibrationTable


def quantize(
    model: Annotated[
        str,
        typer.Argument(help="Float model: ONNX file, .pt2 file, or file.py:function that returns a model."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Q/DQ model to write.")],
    samples: Annotated[
        str,
        typer.Option(
            help="Calibration samples: folder, .npz, .npy, .json, module:function, or random:16.",
            show_default=False,
        ),
    ] = "",
    recipe: FittingRecipe = None,
    preprocess: Preset = None,
    changes: Changes = None,
    target: BuilderTarget = None,
    sm: BuilderGpus = None,
    device: Device = None,
    custom_ops: CustomOps = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calibrated ranges as JSON.")] = False,
) -> None:
    """Turn a float model and samples into a Q/DQ model."""
    from functools import cache, partial
    from tempfile import TemporaryDirectory

    from qdqtool.cli.options import fitting_recipe, is_trusted
    from qdqtool.cli.placed_words import nodes_of
    from qdqtool.cli.progress import Bars
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.kinds import CALIBRATION
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.quantization import QuantizationJob
    from qdqtool.pipeline.torch_models import as_onnx
    from qdqtool.pipeline.writing import write

    with Bars() as bars, TemporaryDirectory(prefix="qdqtool-model-") as folder:
        source = as_onnx(model, Path(folder), trust=is_trusted())
        opened = cache(partial(load, source))
        _, chosen = fitting_recipe(
            recipe,
            opened,
            [
                *for_preset(preprocess),
                *(changes or []),
                *for_builder(target, sm),
                *for_device(device),
                *for_operators(custom_ops),
            ],
        )
        work = QuantizationJob(source, chosen, samples, opened=opened)
        table = work.table(bars.show)
        network = work.inserted(table, bars.show)
        write(network, out, step="quantize")
    for finding in table.findings:
        words = f"{finding.code} {finding.subject}: {finding.reason}; {finding.fix}"
        stderr().print(words, style="yellow")
    summaries = tuple(entry.words for entry in (table.equalized, table.zero_points) if entry)
    for note in (*summaries, *network.notes):
        stderr().print(f"note: {note}")
    if as_json:
        sys.stdout.write(CALIBRATION.dump(table))
        return
    line = f"wrote {out}: {nodes_of(work.model.view, work.placement)} quantized, {_methods(table)}"
    stdout().print(f"{line}, {count_noun(len(table.shifts), 'bias', 'biases')} corrected")


def _methods(table: CalibrationTable) -> str:
    """Return words on the ranges with a measured gain: number and largest gain in dB by calibrator."""
    gains: dict[str, float] = {}
    counts: dict[str, int] = {}
    for entry in table.ranges:
        if entry.gain_db is not None:
            counts[entry.method] = counts.get(entry.method, 0) + 1
            gains[entry.method] = max(gains.get(entry.method, 0.0), entry.gain_db)
    chosen = sorted(counts, key=lambda method: (-counts[method], method))
    words = (
        f"{method} for {count_noun(counts[method], 'range')} (+{gains[method]:.1f} dB at the output, before any softmax)"
        for method in chosen
    )
    return "; ".join(words) or "ranges as the recipe says"


PLUGIN = quantize
