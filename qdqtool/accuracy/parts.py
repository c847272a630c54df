"""Makes two forms of a model return what their outputs are made of and hide, so that each part is compared by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qdqtool.graph.endings import Reading, endings, is_chosen, quantities, returning_too, scores
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPart:
    """One quantity that an output holds, or was chosen from.

    Attributes:
        output: the output's name.
        names: what both models return it as, from each feature map; none of an output that no layer computes, or of which
            the parts of others tell everything.
        tensors: the tensors in the reference.
        chosen: the output holds some of its values only, in another order.
    """

    output: str
    names: tuple[str, ...]
    tensors: tuple[str, ...]
    chosen: bool


def with_parts(reference: Model, candidate: Model) -> tuple[Model, Model, tuple[OutputPart, ...]]:
    """Both models made to return the parts of their outputs too, and these; as they are where no output has any.

    The candidate is the reference with Q/DQ: what it calls by another name is found by the node that reads it.
    """
    view = reference.view
    ends = {
        output: read
        for output, read in endings(view, softmax=False).items()
        if all(_has(candidate.view, view, one) for one in read)
    }
    if not ends:
        return reference, candidate, ()
    mine, theirs = scores(view, ends), scores(candidate.view, ends)
    kept = {name: tensor for name, tensor in mine.items() if not view.is_output(name) or tensor != name}
    # an output that was chosen from one tensor alone has the output's own name there
    names = {name: f"{name}[0]" if view.is_output(name) else name for name in kept}
    silent = [output for output, read in ends.items() if not read]
    parts = tuple(
        OutputPart(
            output=output,
            names=tuple(names[name] for name in found if name in names),
            tensors=tuple(kept[name] for name in found if name in kept),
            chosen=is_chosen(view, output),
        )
        for found in quantities(view, ends)
        if (output := _output(found[0], ends)) in ends
    )
    parts += tuple(OutputPart(output=output, names=(), tensors=(), chosen=False) for output in silent)
    first, second = (
        returning_too(model, {names[name]: tensors[name] for name in kept})
        for model, tensors in ((reference, mine), (candidate, theirs))
    )
    return first, second, parts


def measured(
    outputs: Iterable[str], parts: Sequence[OutputPart], only: str = ""
) -> tuple[tuple[str, ...], ...]:
    """What a model returns, each group a quantity that is measured: parts in the place of the outputs that have some.

    Of `only` one output, where it is named.
    """
    names = {name for part in parts for name in part.names}
    hidden = {part.output for part in parts}
    found: list[tuple[str, tuple[str, ...]]] = [
        (name, (name,)) for name in outputs if name not in names and name not in hidden
    ]
    found += [(part.output, part.names) for part in parts if part.names]
    return tuple(group for output, group in found if only in {"", output})


def _output(name: str, ends: Mapping[str, tuple[Reading, ...]]) -> str:
    """The output that something judged belongs to."""
    return name if name in ends else name.rpartition("[")[0]


def _has(theirs: GraphView, mine: GraphView, reading: Reading) -> bool:
    """Whether the candidate has the same node, which reads as many tensors."""
    node, index = reading
    found = theirs.by_name.get(node)
    return found is not None and found.op == mine.by_name[node].op and len(found.inputs) > index
