"""Files about engines that the engine command reads and writes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qdqtool.auditing.noop import ExtraEvidence, really_int8
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.audit_material import build
from qdqtool.core.findings import NoOpReport, NoOpVerdict
from qdqtool.core.wording import computing_in, count_noun
from qdqtool.engine.about import same_outputs
from qdqtool.engine.diff import Explored
from qdqtool.engine.layer_info import read
from qdqtool.engine.layer_table import dot, node_facts
from qdqtool.engine.profile_forms import read_profile
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.picture import annotate, picture
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.io.files import unreadable, write_text
from qdqtool.pipeline.writing import write
from qdqtool.report import svg
from qdqtool.report.drawing import LARGEST, draw, network
from qdqtool.report.rows import layer_rows
from qdqtool.report.svg import write_picture
from qdqtool.runtime.runner import open_runner

# --- files -----------------------------------------------------------------------------------------------------------


def draw_engine(explored: Explored, out: Path) -> None:
    """Write the engine graph as .svg, .png or .dot, or as an .onnx file with one node per layer.

    Raises:
        UsageError: another ending, or too many layers for a picture.
    """
    match out.suffix:
        case ".dot":
            write_text(out, dot(explored.view, svg.COLOURS))
        case ".onnx":
            save(picture(explored.view), out)
        case ".svg" | ".png":
            if len(explored.engine.layers) > LARGEST:
                # Only the first layers of a larger engine were read, so the number of all layers is unknown.
                raise UsageError(
                    f"this engine has more layers than a picture shows ({LARGEST:,})",
                    fix="write .dot or .onnx",
                    where=str(out),
                )
            drawing = draw(network(layer_rows(explored.engine, explored.view)))
            write_picture(out, drawing)
        case suffix:
            raise UsageError(
                f"cannot draw a {suffix!r} file", fix="choose .svg, .png, .dot or .onnx", where=str(out)
            )


def annotate_model(explored: Explored, model: Path, out: Path) -> None:
    """Write the ONNX model, with facts about the engine layer of each node in the node's metadata.

    Raises:
        UsageError: `out` is not an .onnx file, or no layer names a node of the model.
    """
    if out.suffix.lower() != ".onnx":
        raise UsageError("an annotated model is an .onnx file", fix="pass --out FILE.onnx", where=str(out))
    opened = load(model)
    facts = node_facts(explored.engine, explored.view, frozenset(node.name for node in opened.view.nodes))
    if not facts:
        raise UsageError(
            "no layer names a node of this model",
            fix="pass the model that the engine was built from",
            where=str(model),
        )
    write(annotate(opened, facts), out, step="engine graph")


def besides(
    plans: list[Path] | None, outputs: list[Path] | None, profiles: list[Path] | None
) -> ExtraEvidence:
    """Read further evidence on two engines: each list has one file for the INT8 and one for the float engine.

    Raises:
        UsageError: a list has another length.
        InputFileError: a file cannot be read.
    """
    plan, out, times = (
        _pair(files, name)
        for files, name in ((plans, "--plan"), (outputs, "--outputs"), (profiles, "--profile"))
    )
    return ExtraEvidence(
        plan_bytes=(_size(plan[0]), _size(plan[1])) if plan else None,
        ms=(read_profile(times[0]).total_ms, read_profile(times[1]).total_ms) if times else None,
        outputs_equal=same_outputs(*out) if out else None,
    )


def list_missed(report: NoOpReport, least: float) -> list[str]:
    """Return the messages for an engine that is not INT8, or that is less INT8 than the user wants."""
    if report.verdict is NoOpVerdict.NO_OP:
        return ["this engine is not INT8"]
    if report.verdict is NoOpVerdict.OTHER:
        kinds = " and ".join(f"{count} {computing_in(name)}" for name, count in report.others.items())
        return [f"this engine is not INT8: {kinds}, of {count_noun(report.compute, 'compute kernel')}"]
    if report.verdict is NoOpVerdict.UNKNOWN:
        return ["no evidence shows that this engine is INT8"]
    share = report.int8 / report.compute
    return [f"{share:.0%} of the compute kernels are INT8, required: {least:.0%}"] if share < least else []


def _pair(files: list[Path] | None, option: str) -> tuple[Path, Path] | None:
    if not files:
        return None
    if len(files) != 2:
        raise UsageError(
            "the comparison needs one file for each of the two engines",
            fix=f"pass {option} twice: the INT8 engine first, then the float engine",
            where=option,
        )
    return files[0], files[1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


# --- is an engine really INT8? ---------------------------------------------------------------------------------------
# The input of is-int8: layer information of two engines, or a model that is built unchanged and in float.

_PLAN = "engine.plan"


def judge_recorded(layers: Path, reference: Path | None, besides: ExtraEvidence) -> NoOpReport:
    """Check from layer information whether an engine computes in INT8.

    Raises:
        InputFileError: a file cannot be read.
    """
    rival = None if reference is None else read(_layers(reference))
    return really_int8(read(_layers(layers)), rival, besides)


def _layers(path: Path) -> Path:
    """Return the path of the layer information: `path`, or a file in the run folder `path`.

    Raises:
        InputFileError: the folder holds none.
    """
    if not path.is_dir():
        return path
    file = next((path / name for name in ("layers.txt", "layers.json") if (path / name).is_file()), None)
    if file is None:
        raise InputFileError(
            "the folder holds no layers.txt or layers.json",
            fix="pass a finished run folder, layer information, or a Q/DQ model",
            where=str(path),
        )
    return file


def build_both(model: Path, plain: Path | None, sm: str) -> NoOpReport:
    """Build a Q/DQ model and its float form, and compare kernels, bytes, size and outputs.

    Args:
        model: the model that is called INT8.
        plain: its float model; None takes all Q/DQ out of `model`.
        sm: architecture to build for, as "86".

    Raises:
        UsageError: dimensions besides the batch are free.
        BuildError: the builder refuses one of the two.
        MissingPackage: the builder is not installed.
    """
    with TemporaryDirectory() as place:
        ours, theirs = Path(place) / "int8", Path(place) / "float"
        for folder in (ours, theirs):
            folder.mkdir()
        if plain is None:
            plain = theirs / "model.onnx"
            opened = load(model)
            write(float_graph(opened), plain, step="noop")
        layers = [build(model, ours, sm), build(plain, theirs, sm)]
        sizes = [(folder / _PLAN).stat().st_size for folder in (ours, theirs) if (folder / _PLAN).is_file()]
        besides = ExtraEvidence(
            plan_bytes=(sizes[0], sizes[1]) if len(sizes) == len(layers) else None,
            outputs_equal=_same_outputs(model, plain),
            outputs_of="model, both on onnxruntime",
        )
        return really_int8(read(layers[0]), read(layers[1]), besides)


def _same_outputs(model: Path, plain: Path) -> bool | None:
    """Return True if both models give bit-identical outputs on one random sample; None if a model does not run."""
    sample = next(iter(open_samples("random:1", load(model).view.inputs)))
    try:
        results = [open_runner(path, description=path.name).run(sample.feeds) for path in (model, plain)]
    except InputFileError:
        return None
    first, second = results
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f") for name in first
    )
