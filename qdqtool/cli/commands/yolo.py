"""Quantize a YOLO model: pictures and boxes of its data file, mAP before and after, heads float, the rest in FP16.

    qdqtool yolo yolo11n.pt --data coco8.yaml
    qdqtool yolo best.onnx --data mine.yaml --target 11

The model is a checkpoint, or the ONNX file of `yolo export format=onnx`. Ultralytics exports a checkpoint in a
separate process (pip install 'qdqtool[yolo]'). A checkpoint may hold code; it runs only with --trust.

Pictures of `train` give the ranges. Pictures of `val` with their boxes give the accuracy. Without labels, the boxes of
the float model count as correct. Pictures are not downloaded. The rest is `qdqtool run`.

For a segmentation or pose model, there are mAP of the boxes, and mAP of the masks (intersection over union) or of the keypoints
(object keypoint similarity, OKS). Without outlines or keypoints in the labels, those of the float model count as correct. For
rotated boxes (OBB) there is no mAP.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import TARGET_HELP, Changes, Device


def yolo(
    model: Annotated[str, typer.Argument(help="Checkpoint (.pt) or its ONNX export.")],
    data: Annotated[str, typer.Option(help="Data set file of Ultralytics, such as coco8.yaml.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/NAME of the model.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option("--imgsz", help="Input size in pixels for a checkpoint; default: the training size."),
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="Largest number of pictures for calibration.")] = 300,
    eval_pictures: Annotated[
        int, typer.Option(min=1, help="Largest number of pictures for the evaluation.")
    ] = 256,
    target: Annotated[str | None, typer.Option(help=TARGET_HELP)] = None,
    sm: Annotated[str | None, typer.Option(help="GPU architectures to build for: 86,89.")] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Largest allowed loss of mAP50, in points: keeps as few nodes float as this limit allows."
        ),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 at this verdict or a worse one: bad, doubtful.")
    ] = None,
    changes: Changes = None,
    device: Device = None,
    trust: Annotated[bool, typer.Option("--trust", help="Trust the checkpoint: code in it may run.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of the summary.")
    ] = False,
) -> int:
    """Quantize a YOLO model with the pictures of its data set, and measure mAP before and after."""
    from qdqtool.cli.app import COMMANDS
    from qdqtool.cli.screen import stderr
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.torch_models import Published, as_onnx, name_of
    from qdqtool.pipeline.yolo_data import are_flat, arrange, classes_of, extra_values, read_data

    data_file = read_data(data)
    folder = out or Path("runs") / name_of(model)
    checkpoint = Published.named(model)
    if checkpoint is not None:
        stderr().print(f"exporting {model} with {checkpoint.library}")
        source = checkpoint.exported(folder, trust=trust, size=size)
    else:
        source = as_onnx(model, folder, trust=trust)
    network = load(source)
    task = network.metadata.get("task", "")
    samples = arrange(
        data_file,
        folder / "pictures",
        calibration=pictures,
        evaluation=eval_pictures,
        model_classes=classes_of(network.metadata),
        is_flat=are_flat(network.metadata),
    )
    is_rotated = task == "obb"
    rotated = ("there is no metric for rotated boxes: SQNR compares the outputs",) if is_rotated else ()
    for note in (*samples.notes, *rotated):
        stderr().print(f"note: {note}")
    code: int = COMMANDS.load("run")(
        str(source),
        str(samples.calibration),
        folder,
        eval_samples=str(samples.evaluation),
        labels=None if samples.labels is None or is_rotated else str(samples.labels),
        changes=[
            "insert.types=fp16",
            f"samples.limit={pictures}",
            f"compare.extra_columns={extra_values(network.metadata, network.view.outputs)}",
            *(("compare.task=none",) if is_rotated else ()),
            *(changes or ()),
        ],
        target=target,
        sm=sm,
        max_drop=max_drop,
        fail_on=fail_on,
        device=device,
        as_json=as_json,
    )
    return code


PLUGIN = yolo
