"""Files about engines that the engine command reads and writes."""

from __future__ import annotations

from pathlib import Path

from qdqtool.auditing.noop import ExtraEvidence
from qdqtool.core.noop import NoOpReport, NoOpVerdict
from qdqtool.core.wording import computing_in, counted
from qdqtool.engine.about import same_outputs
from qdqtool.engine.diff import Explored
from qdqtool.engine.dot import dot
from qdqtool.engine.layer_table import node_facts
from qdqtool.engine.profiles import read_profile
from qdqtool.errors import UsageError
from qdqtool.graph.annotate import annotate
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.picture import picture
from qdqtool.io.files import unreadable, write_text
from qdqtool.pipeline.writing import write
from qdqtool.report import palette
from qdqtool.report.drawing import LARGEST, draw, network
from qdqtool.report.picture import write_picture
from qdqtool.report.rows import layer_rows


def drawn(explored: Explored, out: Path) -> None:
    """The engine graph as .svg, .png or .dot, or as an .onnx file with one node per layer.

    Raises:
        UsageError: another ending, or too many layers for a picture.
    """
    match out.suffix:
        case ".dot":
            write_text(out, dot(explored.view, palette.COLOURS))
        case ".onnx":
            save(picture(explored.view), out)
        case ".svg" | ".png":
            if len(explored.engine.layers) > LARGEST:
                # Of a larger engine the first layers were read, so that their number is not that of its layers.
                raise UsageError(
                    f"this engine has more layers than a picture shows ({LARGEST:,})",
                    fix="write .dot or .onnx",
                    where=str(out),
                )
            drawing = draw(network(layer_rows(explored.engine, explored.view)))
            write_picture(out, drawing)
        case other:
            raise UsageError(
                f"cannot draw a {other!r} file", fix="choose .svg, .png, .dot or .onnx", where=str(out)
            )


def annotated(explored: Explored, model: Path, out: Path) -> None:
    """The ONNX model with what the engine says of each node in the node's metadata.

    Raises:
        UsageError: `out` is no .onnx file, or no layer names a node of the model.
    """
    if out.suffix != ".onnx":
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
    """What is known of two engines besides their layers; each list holds a file of the INT8 and of the float one.

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


def missed(found: NoOpReport, least: float) -> list[str]:
    """What to say where an engine is not INT8, or less so than the user wants."""
    if found.verdict is NoOpVerdict.NO_OP:
        return ["this engine is not INT8"]
    if found.verdict is NoOpVerdict.OTHER:
        kinds = " and ".join(f"{count} {computing_in(name)}" for name, count in found.others.items())
        return [f"this engine is not INT8: {kinds}, of {counted(found.compute, 'compute kernel')}"]
    if found.verdict is NoOpVerdict.UNKNOWN:
        return ["nothing shows that this engine is INT8"]
    share = found.int8 / found.compute
    return [f"{share:.0%} of the compute kernels are INT8, wanted are {least:.0%}"] if share < least else []


def _pair(files: list[Path] | None, option: str) -> tuple[Path, Path] | None:
    if not files:
        return None
    if len(files) != 2:
        raise UsageError("two engines need two files", fix=f"pass {option} twice, INT8 first", where=option)
    return files[0], files[1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
