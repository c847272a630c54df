"""Everything the command line does, in a few typed calls.

    import qdqtool

    report = qdqtool.run("model.onnx", samples="calibration/", out="runs/first")
    report.summary.nodes_int8, report.fallbacks

or step by step:

    qdqtool.quantize("model.onnx", "calibration/", "model.qdq.onnx")
    qdqtool.convert("model.qdq.onnx", "model.fp16.onnx", samples="calibration/")
    built = qdqtool.build("model.fp16.onnx", "engine")
    audit = qdqtool.audit("model.fp16.onnx", "engine/layers.txt", log="engine/build.log")
    log = qdqtool.parse_log("engine/build.log")
    comparison = qdqtool.compare("model.onnx", "model.fp16.onnx", "evaluation/", labels="labels.npy")

A result left on the last line of a notebook cell shows itself as tables. Each call reads and writes the same files as the command of its name. Mistakes raise `qdqtool.errors.QdqError` with
what is wrong, where, and how to mend it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from qdqtool.auditing.context import AuditContext, stage
from qdqtool.auditing.run import examine
from qdqtool.backends import BUILDERS
from qdqtool.backends.building.retry import build_with_retries
from qdqtool.backends.flags import split_flags
from qdqtool.backends.shapes import parse_shapes, profiles
from qdqtool.buildlog import read as read_log
from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.audit import Audit
from qdqtool.core.build import BuildRequest, BuildResult
from qdqtool.core.buildlog import BuildLog
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.comparison import Comparison
from qdqtool.core.conversion import Conversion
from qdqtool.core.kinds import BUILD, PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Builder
from qdqtool.core.report import Report
from qdqtool.engine.read import read as read_layers
from qdqtool.graph.insert import insert, refuse_quantized
from qdqtool.graph.load import load
from qdqtool.graph.prepare import prepare
from qdqtool.graph.save import save
from qdqtool.pipeline import recipes, runner
from qdqtool.pipeline.bias import correct_biases
from qdqtool.pipeline.comparing import Match, compare_match
from qdqtool.pipeline.conversion import convert_file
from qdqtool.pipeline.dynamic_range import reach_for
from qdqtool.pipeline.request import RunRequest
from qdqtool.placement.decide import decide

AnyPath = str | PathLike[str]


def run(
    model: AnyPath,
    samples: str,
    out: AnyPath,
    *,
    recipe: str = "conv-int8",
    settings: Sequence[str] = (),
    trust: bool = False,
    evaluation: tuple[str, str | None] | None = None,
) -> Report:
    """The whole line: a float model and samples in, an audited INT8 engine and a report out.

    Args:
        model: float ONNX file.
        samples: calibration samples as on the command line ("calibration/", "x.npz[:100]", "random:16").
        out: run folder; finished steps in it are not repeated.
        recipe: a shipped recipe or a .yaml file.
        settings: changes of the recipe ("place.first_layer=float").
        trust: whether a recipe file may name Python functions, which are imported and run.
        evaluation: evaluation samples and their labels file (or None); default: compare on `samples`.
    """
    on, labels = evaluation or (None, None)
    order = RunRequest(
        model=Path(model),
        recipe=recipes.load(recipe, settings, trust=trust),
        samples=samples,
        eval_samples=on,
        labels=labels,
        out=Path(out),
    )
    return runner.run(order)


def place(
    model: AnyPath, *, recipe: str = "conv-int8", settings: Sequence[str] = (), trust: bool = False
) -> Placement:
    """Which inputs of which nodes would be quantized, with every reason; nothing is changed."""
    chosen = recipes.load(recipe, settings, trust=trust)
    return decide(prepare(load(Path(model)), chosen.prepare).view, chosen.placing)


def quantize(
    model: AnyPath,
    samples: str,
    out: AnyPath,
    *,
    recipe: str = "conv-int8",
    settings: Sequence[str] = (),
    trust: bool = False,
) -> CalibrationTable:
    """Write the Q/DQ model of `model` to the file `out` and return the ranges that were chosen."""
    chosen = recipes.load(recipe, settings, trust=trust)
    original = load(Path(model))
    refuse_quantized(original)
    ready = prepare(original, chosen.prepare)
    placement = decide(ready.view, chosen.placing)
    source = open_samples(samples, ready.view.inputs, chosen.samples.preprocess, limit=chosen.samples.limit)
    histograms = collect(ready, placement, source)
    table = make_table(histograms, placement, ready.view, chosen.calibrate)
    if chosen.calibrate.bias == "correct":
        table = correct_biases(ready, placement, table, source)
    reach = reach_for(ready, chosen.insert, source)
    save(insert(ready, placement, table, chosen.insert, reach), Path(out))
    return table


def convert(
    model: AnyPath,
    out: AnyPath,
    types: Literal["fp16", "bf16"] = "fp16",
    *,
    keep: Sequence[str] = (),
    samples: str = "",
    settings: Sequence[str] = (),
) -> Conversion:
    """Write `model` with its float part in FP16 or BF16 to the file `out`, around Q/DQ if there are any.

    Args:
        model: ONNX file.
        out: the file to write.
        types: the new type.
        keep: globs of nodes that stay FP32.
        samples: with them, tensors that overflow are named, or kept FP32 (`insert.overflow=keep`).
        settings: changes of the recipe ("insert.keep_io=false").
    """
    kept = [f"insert.keep_nodes={json.dumps(list(keep))}"] if keep else []
    chosen = recipes.load(None, [*settings, f"insert.types={types}", *kept])
    return convert_file(Path(model), Path(out), chosen, samples)


def build(
    model: AnyPath,
    out: AnyPath,
    *,
    builder: str = "rtx",
    sm: Sequence[str] = ("86",),
    shapes: tuple[str, str, str] = ("", "", ""),
    flags: str = "",
) -> BuildResult:
    """Build an engine in the folder `out`: engine.plan, build.log and layers.txt.

    Args:
        model: Q/DQ or float ONNX file.
        out: folder for the results.
        builder: a name on the shelf of backends.
        sm: GPU architectures ("86" is SM86).
        shapes: smallest, usual and largest shapes of dynamic inputs, as "input:1x3x224x224".
        flags: further wishes in trtexec's spelling, as "--builderOptimizationLevel=5".
    """
    low, opt, high = (parse_shapes(text) for text in shapes)
    found, notes = profiles(load(Path(model)).view.inputs, low, opt, high, {})
    plugin: Builder = BUILDERS.load(builder)
    request = BuildRequest(
        model=Path(model),
        folder=Path(out),
        targets=tuple(f"sm{number.removeprefix('sm')}" for number in sm),
        profiles=found,
        flags=split_flags(flags),
    )
    result, _ = build_with_retries(plugin, request)
    result = replace(result, notes=(*result.notes, *notes))
    BUILD.write(Path(out) / "build.json", result)
    return result


def audit(
    model: AnyPath,
    layers: AnyPath | None = None,
    *,
    placement: AnyPath | None = None,
    log: AnyPath | None = None,
) -> Audit:
    """What became of every compute node of the Q/DQ `model` in the engine that `layers` describes, and why.

    Without `layers` an engine is built with TensorRT for RTX, looked at and thrown away. With the verbose `log` of the
    build, findings point to its lines.
    """
    wished = None if placement is None else PLACEMENT.read(Path(placement))
    view = load(Path(model)).view
    if layers is not None:
        scene = stage(read_layers(Path(layers)), view, wished)
        return examine(_with_log(replace(scene, layers_file=Path(layers).name), log))
    with TemporaryDirectory(prefix="qdqtool-audit-") as folder:
        made = build(model, folder)
        scene = stage(read_layers(Path(folder) / (made.layers or "")), view, wished, targets=made.targets)
        return examine(_with_log(scene, log))


def _with_log(scene: AuditContext, log: AnyPath | None) -> AuditContext:
    """The scene with the last run of a log."""
    return scene if log is None else replace(scene, log=read_log(Path(log)).runs[-1], log_file=Path(log).name)


def parse_log(log: AnyPath) -> BuildLog:
    """Everything a TensorRT log of any version and front end tells."""
    return read_log(Path(log))


def compare(
    reference: AnyPath,
    candidate: AnyPath,
    samples: str,
    *,
    labels: str | None = None,
    recipe: str = "conv-int8",
    settings: Sequence[str] = (),
    trust: bool = False,
) -> Comparison:
    """How far two models are apart on the same samples: ONNX files, run by onnxruntime, or stored outputs."""
    return compare_match(
        Match(
            reference=str(reference),
            candidate=str(candidate),
            samples=samples,
            labels=labels,
            recipe=recipes.load(recipe, settings, trust=trust),
        )
    )
