"""Give the float part of a model the type FP16 or BF16, as --fp16 and --bf16 did before TensorRT 11.

    qdqtool convert model.onnx -o model.fp16.onnx
    qdqtool convert model.qdq.onnx -o model.fp16.onnx --keep '/head/*' --samples samples/
    qdqtool convert model.onnx -o model.fp16.onnx --samples samples/

In strongly typed networks, the only kind in TensorRT 11, the types are in the model. The model may have Q/DQ; INT8
stays INT8. No Cast is written after a DQ, where it would keep the next node from INT8: pairs and their scales get the
type of their reader, which needs opset 19 (BF16: 22).

These stay FP32, and each is reported with its reason:
- nodes that match --keep or whose operator is in --keep-op (default: operators that turn small values into large ones,
  such as Pow, Exp and ReduceSum), and the nodes after them until the values are small again, as in a decomposed norm:
  TensorRT for RTX fuses the Casts around it into existing kernels, so this costs nothing;
- nodes that lose their result in the narrow type: indices, lengths and angles computed in float (FP16 cannot store
  2049, BF16 cannot store 257), the spectrogram before a logarithm, squares before their root;
- with samples: nodes that read or write a tensor with values beyond 65504, or below 0.00006, which lose digits; with
  insert.overflow=name such tensors are only reported;
- operators that ONNX defines in FP32 only, operators of other domains, bodies of If, Loop and Scan;
- inputs and outputs, unless --half-io.

Constants beyond 65504 (masks of -1e9) are clipped and reported. Check the result: qdqtool compare model.onnx
model.fp16.onnx --samples ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import Changes, RecipeName
from qdqtool.core.wording import count_noun

# Half a terminal; --json names them all.
_SHOWN = 12


def convert(
    model: Annotated[Path, typer.Argument(help="ONNX model, with or without Q/DQ.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Model to write.")],
    types: Annotated[
        str | None, typer.Option(help="Type: fp16 or bf16; default: the recipe's type, or fp16.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Nodes that stay FP32: name or glob pattern.")
    ] = None,
    keep_op: Annotated[
        list[str] | None, typer.Option(help="Operator type that stays FP32; replaces the default list.")
    ] = None,
    samples: Annotated[str, typer.Option(help="Samples that show which nodes overflow.")] = "",
    half_io: Annotated[
        bool, typer.Option("--half-io", help="Convert the inputs and outputs of the model too.")
    ] = False,
    recipe: RecipeName = None,
    changes: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert the float part of a model to FP16 or BF16, with or without Q/DQ in the model."""
    import json

    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import progress
    from qdqtool.cli.screen import stdout
    from qdqtool.core.kinds import CONVERSION
    from qdqtool.pipeline.conversion import convert_file

    settings = list(changes or [])
    if types is not None:
        settings.append(f"insert.types={types}")
    elif load_recipe(recipe, settings).insert.types == "fp32":
        settings.append("insert.types=fp16")
    settings += [f"insert.keep_nodes={json.dumps(keep)}"] if keep else []
    settings += [f"insert.keep_ops={json.dumps(keep_op)}"] if keep_op else []
    settings += ["insert.keep_io=false"] if half_io else []
    chosen = load_recipe(recipe, settings)
    with progress() as bars:
        bar = bars.add_task("samples", total=None, visible=bool(samples))
        conversion = convert_file(
            model,
            out,
            chosen,
            samples,
            lambda done, total: bars.update(bar, completed=done, total=total),
        )
    if as_json:
        sys.stdout.write(CONVERSION.dump(conversion))
        return
    console = stdout()

    def say(line: str) -> None:
        console.print(line)

    say(
        f"wrote {out}: {count_noun(conversion.narrowed, 'node')} in {conversion.dtype}, {len(conversion.kept)} in fp32, {count_noun(conversion.casts, 'cast')}"
    )
    for node in conversion.kept[:_SHOWN]:
        say(f"  fp32: {node.node} ({node.op}): {node.reason}")
    if len(conversion.kept) > _SHOWN:
        say(f"  and {len(conversion.kept) - _SHOWN} more: --json names them all")
    for note in conversion.notes:
        say(f"note: {note}")


PLUGIN = convert
