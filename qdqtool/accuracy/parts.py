"""Adds outputs to two models: the parts of an output, or inner tensors that both models have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from qdqtool.core.tensors import DType
from qdqtool.errors import UsageError
from qdqtool.graph.endings import Reading, endings, is_chosen, quantities, returning_too, scores
from qdqtool.graph.instrumented.probe import Probe, probe, within
from qdqtool.graph.view import GraphView, Model

# --- parts of outputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPart:
    """A measured part of an output, such as the boxes or the scores of a detector.

    Attributes:
        output: the output's name.
        names: name of the part in both models, for each feature map; () if no layer computes the output, or if the
            parts of other outputs cover it.
        tensors: the tensors in the reference.
        chosen: the output holds some of its values only, in another order.
    """

    output: str
    names: tuple[str, ...]
    tensors: tuple[str, ...]
    chosen: bool


def with_parts(reference: Model, candidate: Model) -> tuple[Model, Model, tuple[OutputPart, ...]]:
    """Return both models with the parts of their outputs as additional outputs, and the parts. Without parts, nothing changes.

    The candidate is the reference with Q/DQ. A tensor that has another name there is found by the node that reads it.
    """
    view = reference.view
    readings = endings(view, softmax=False)
    theirs = {
        output: tuple(_in_candidate(candidate.view, view, reading) for reading in read)
        for output, read in readings.items()
    }
    ends = {output: read for output, read in readings.items() if all(theirs[output])}
    if not ends:
        return reference, candidate, ()
    mine = scores(view, ends)
    # if an output comes from a single tensor, that tensor has the name of the output
    judged = {
        name: f"{name}[0]" if view.is_output(name) else name for name in mine if _output(name, ends) in ends
    }
    theirs_by_name = dict(zip(judged, (name for output in ends for name in theirs[output]), strict=True))
    parts = tuple(
        OutputPart(
            output=output,
            names=tuple(judged[name] for name in names),
            tensors=tuple(mine[name] for name in names),
            chosen=is_chosen(view, output),
        )
        for names in quantities(view, ends)
        if (output := _output(names[0], ends)) in ends
    )
    parts += tuple(
        OutputPart(output=output, names=(), tensors=(), chosen=False)
        for output, read in ends.items()
        if not read
    )
    first, second = (
        returning_too(model, {judged[name]: tensors[name] for name in judged})
        for model, tensors in ((reference, mine), (candidate, theirs_by_name))
    )
    return first, second, parts


def group_outputs(
    outputs: Iterable[str], parts: Sequence[OutputPart], only: str = ""
) -> tuple[tuple[str, ...], ...]:
    """Return the outputs to measure as groups of names: one group per output, or per part of an output that has parts.

    With `only`, return the groups of this output.
    """
    names = {name for part in parts for name in part.names}
    hidden = {part.output for part in parts}
    groups: list[tuple[str, tuple[str, ...]]] = [
        (name, (name,)) for name in outputs if name not in names and name not in hidden
    ]
    groups += [(part.output, part.names) for part in parts if part.names]
    return tuple(group for output, group in groups if only in {"", output})


def _output(name: str, ends: Mapping[str, tuple[Reading, ...]]) -> str:
    """Return the output to which a measured part belongs."""
    return name if name in ends else name.rpartition("[")[0]


def _in_candidate(theirs: GraphView, mine: GraphView, reading: Reading) -> str:
    """Return the tensor of the candidate that corresponds to a tensor of the reference; "" if there is none."""
    node, index = reading
    namesake = theirs.by_name.get(node)
    if namesake is not None and namesake.op == mine.by_name[node].op and len(namesake.inputs) > index:
        return namesake.inputs[index]
    tensor = mine.by_name[node].inputs[index]
    return tensor if theirs.producer(tensor) is not None else ""


# --- inner tensors ---------------------------------------------------------------------------------------------------
# Makes two models return their common inner tensors, so that a comparison can show where they begin to differ.


def shared_tensors(first: Model, second: Model) -> tuple[str, ...]:
    """Return the float tensors that nodes of both models make, without the outputs, in the order of the first model."""
    theirs = {name for node in second.view.nodes for name in node.outputs}
    return tuple(
        name
        for node in first.view.nodes
        for name in node.outputs
        if name in theirs
        and not first.view.is_output(name)
        and _is_float(first, name)
        and _is_float(second, name)
    )


def turns(models: tuple[Model, Model], room: int) -> int:
    """Return how often `watch_inside` must run each sample: once for each group of inner tensors."""
    return sum(1 for _ in within(models[0], shared_tensors(*models), room))


def watch_inside(
    models: tuple[Model, Model], folder: Path, *, room: int
) -> Iterator[tuple[Probe, Probe, frozenset[str]]]:
    """Yield both models, cut so that some of their common tensors are the outputs, and the names of these tensors.

    Each run returns as many tensors as fit into `room` bytes on each side, until every tensor was returned. The
    models are written to `folder`, and removed with the next step of the iteration.

    Raises:
        UsageError: they have no inner tensor in common.
    """
    inner = shared_tensors(*models)
    if not inner:
        raise UsageError(
            "the two models have no inner float tensor of the same name",
            fix="compare the float model that was prepared for insertion (model.prepared.onnx) with the Q/DQ model",
        )
    for names in within(models[0], inner, room):
        with TemporaryDirectory(dir=folder) as left, TemporaryDirectory(dir=folder) as right:
            first, second = (
                probe(model, names, Path(place)) for model, place in zip(models, (left, right), strict=True)
            )
            yield first, second, frozenset(names)


def _is_float(model: Model, name: str) -> bool:
    return model.view.info(name).dtype in {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16}
