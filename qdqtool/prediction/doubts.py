"""What in a model a prediction does not hold for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.prediction import PredictionDoubt
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FORMATS, NAMES, first_sm
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.constant_blocks import in_sums
from qdqtool.matching.losses import violations
from qdqtool.matching.patterns import attentions, is_alone
from qdqtool.matching.registry import stopping
from qdqtool.matching.small import has_free_batch, is_folded
from qdqtool.prediction.block_scales import are_open
from qdqtool.prediction.normalizations import normalizations
from qdqtool.prediction.recurrences import kernels
from qdqtool.prediction.sums import is_row, is_scalar_product, is_written_out
from qdqtool.trt.ops import OWN_KERNELS, PRODUCTS, QDQ, RECURRENT, REDUCTIONS, RESAMPLING, WRITTEN_AS

_HEADS = 3
"""Where the heads of an attention stand, from the back."""
_AROUND = 12
"""Nodes on each side of a kernel that is not foreseen whose own kernels may be others: no stretch that was seen has more."""


def doubts(model: Model, flow: Flow, target: Target) -> Iterator[PredictionDoubt]:
    """Pairs that the parser will refuse, bodies of control flow, and kernels that are not foreseen."""
    for what, named in (
        ("scales that are not positive numbers", [pair for pair in flow.pairs if _is_sick(pair)]),
        ("zero points other than 0", [pair for pair in flow.pairs if _is_shifted(pair)]),
        ("numbers of scales that do not fit", [pair for pair in flow.pairs if _is_odd(flow, pair)]),
    ):
        if named:
            reason = (
                f"{counted(len(named), 'pair has', 'pairs have')} {what}, the first {_name(named[0])!r}: the parser refuses them, and what is "
                "said here holds once they are fixed; `qdqtool lint` tells each"
            )
            yield PredictionDoubt(reason=reason, nodes=tuple(map(_name, named)))
    yield from _stopped(flow, target)
    yield from _beyond(flow, target)
    yield from _bodies(model)
    if target.is_rtx:
        yield from _unforeseen(model)
        yield from _written_out(flow)
        yield from _whole(flow)
        yield from _resized_together(flow.view)
        yield from _blocks(flow)
        yield from _of_one_sample(flow)
        yield from _of_one_head(flow)


def _stopped(flow: Flow, target: Target) -> Iterator[PredictionDoubt]:
    """Nodes whose form no builder takes."""
    found = [wrong for _, wrong in violations(flow, target, stopping()) if wrong.severity is Severity.ERROR]
    if found:
        nodes = tuple(dict.fromkeys(wrong.node for wrong in found))
        first = found[0]
        reason = (
            f"nothing is built: {counted(len(nodes), 'node is', 'nodes are')} refused, the first {first.node!r}: {first.reason}; what is said "
            "here holds once they are fixed; `qdqtool lint` tells each"
        )
        yield PredictionDoubt(reason=reason, nodes=nodes)


def _of_one_head(flow: Flow) -> Iterator[PredictionDoubt]:
    """Quantized attentions of one head for several samples: of seven sizes built, two were one kernel, for no reason that was found."""
    named = []
    for plain in attentions(flow.plain):
        scores = flow.view.by_name[plain[0].name]
        shape = flow.plain.info(plain[0].outputs[0]).shape or ()
        quantized = flow.origin(scores, 0) is not None and flow.origin(scores, 1) is not None
        if (
            quantized
            and len(shape) > _HEADS
            and shape[-_HEADS] == 1
            and not is_alone(flow.plain, plain[0], free=1)
        ):
            named.append(scores)
    if named:
        reason = (
            f"{counted(len(named), 'attention')} of one head, the first {named[0].name!r}, are shown as one kernel each; for "
            "several samples some are, and some are two products and what is between them"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(flow.view, named))


def _bodies(model: Model) -> Iterator[PredictionDoubt]:
    """Control flow: what is inside is no part of the graph that is looked at."""
    named = [node for node in model.view.nodes if model.view.body_ops(node)]
    for node in named:
        if QDQ & set(model.view.body_ops(node)):
            reason = f"{node.op} {node.name!r} has Q/DQ inside its body, which is not looked into"
            yield PredictionDoubt(
                reason=reason, nodes=(node.name, *model.view.body_names(node)), countless=True
            )
    if named:
        count = sum(len(model.view.body_names(node)) for node in named)
        inside = [name for node in named for name in model.view.body_names(node)]
        reason = (
            f"{counted(len(named), 'node')} of control flow, the first {named[0].op} {named[0].name!r}, are shown as one kernel each: "
            f"the {counted(count, 'node of their bodies runs', 'nodes of their bodies run')} in kernels of their own, with what computes the condition"
        )
        yield PredictionDoubt(reason=reason, nodes=(*_around(model.view, named), *inside), countless=True)


def _unforeseen(model: Model) -> Iterator[PredictionDoubt]:
    """Nodes that TensorRT for RTX makes into kernels of which the graph does not tell how many."""
    nodes = model.view.nodes
    recurrent = [node for node in nodes if node.op in RECURRENT]
    if recurrent:
        open_ones = [node for node in recurrent if kernels(model.view, node) is None]
        many = sum(kernels(model.view, node) or 0 for node in recurrent)
        told = (
            f"how many kernels {open_ones[0].op} {open_ones[0].name!r} is follows from what stands around it"
            if open_ones
            else f"together they are about {counted(many, 'kernel')}"
        )
        reason = (
            f"{counted(len(recurrent), 'recurrence')}, the first {recurrent[0].name!r}, are shown as one layer each: the compiler "
            f"writes their steps out, or runs eight at a time in a loop; {told}"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(model.view, recurrent), countless=bool(open_ones))
    grouped = [found.nodes[0] for found in normalizations(model.view) if not found.foreseen]
    if grouped:
        reason = (
            f"{counted(len(grouped), 'normalization')} of several groups, the first {grouped[0].name!r}, are kernels of their own; which of "
            "the kernels around them does what belongs to them is not foreseen where each channel is a group and where sizes are free"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(model.view, grouped))


def _beyond(flow: Flow, target: Target) -> Iterator[PredictionDoubt]:
    """Formats that one of the GPUs does not have: the build fails."""
    if not target.is_rtx or not target.sm:
        return
    oldest = min(map(int, target.sm))
    named: dict[str, list[str]] = defaultdict(list)
    for pair in flow.pairs:
        name = NAMES.get(pair.dtype, "")
        if name in FORMATS and first_sm(FORMATS[name], rtx=True) > oldest:
            named[name].append(_name(pair))
    for name, nodes in named.items():
        reason = (
            f"SM{oldest} has no {name.upper()}, which {counted(len(nodes), 'pair holds', 'pairs hold')}, the first {nodes[0]!r}: the build "
            f"fails, and what is said here holds from SM{first_sm(FORMATS[name], rtx=True)} on"
        )
        yield PredictionDoubt(reason=reason, nodes=tuple(nodes))


def _blocks(flow: Flow) -> Iterator[PredictionDoubt]:
    """NVFP4 activations whose scales are not built, or are brought into order by kernels of which no number is known."""
    stopped = [_name(pair) for pair, _ in in_sums(flow)]
    if stopped:
        reason = (
            f"{counted(len(stopped), 'quantization')} to FP4 with constant block scales, the first {stopped[0]!r}, would share "
            "the kernel of a sum along the blocks: the build fails, and what is said here holds once their scales are "
            "computed; `qdqtool repair` does that"
        )
        yield PredictionDoubt(reason=reason, nodes=tuple(stopped))
    named = [node for node in flow.products() if are_open(flow, node)]
    if named:
        reason = (
            f"{counted(len(named), 'FP4 product')} with free dimensions, the first {named[0].name!r}: how many kernels order "
            "their block scales, none to two for each, follows from the shapes"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(flow.view, named))


def _whole(flow: Flow) -> Iterator[PredictionDoubt]:
    """Maxima and sums of whole samples: some are a kernel of their own, others take what stands before them along."""
    named = [node for node in flow.view.nodes if node.op in REDUCTIONS and _is_whole(flow.view, node)]
    if named:
        reason = (
            f"{counted(len(named), 'reduction')} of all values of a sample, the first {named[0].name!r}: in one step or in two, and in which "
            "kernel the operators before and behind are, follows from the shapes"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(flow.view, named))


def _resized_together(view: GraphView) -> Iterator[PredictionDoubt]:
    """Pictures that are made larger, each by itself, and joined: the one that is ready last is joined where it is made larger."""
    named = [
        node for node in view.nodes if node.op == "Concat" and sum(map(_is_resized, _makers(view, node))) > 1
    ]
    if named:
        reason = (
            f"{counted(len(named), 'Concat')} of several resized tensors, the first {named[0].name!r}: a kernel resizes once, and which one "
            "joins them follows from the order in which the branches are computed"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(view, named))


def _makers(view: GraphView, node: Node) -> list[Node]:
    return [maker for tensor in node.inputs if (maker := view.producer(tensor)) is not None]


def _is_resized(node: Node) -> bool:
    return node.op in RESAMPLING


def _is_whole(view: GraphView, node: Node) -> bool:
    """Whether a reduction leaves one value of a sample of several dimensions."""
    before, after = (view.info(name).shape for name in (node.inputs[0], node.outputs[0]))
    if before is None or after is None:
        return not any(node.inputs[1:]) and not node.attribute("axes", ())
    return sum(dim != 1 for dim in before[1:]) > 1 and all(dim == 1 for dim in after[1:])


def _of_one_sample(flow: Flow) -> Iterator[PredictionDoubt]:
    """Convolutions that are float in an engine for one sample and INT8 in one for several."""
    named = [
        node
        for node in flow.products()
        if is_folded(flow.view, node)
        and has_free_batch(flow.view, node)
        and all(flow.origin(node, index) for index in (0, 1))
    ]
    if named:
        reason = (
            f"{counted(len(named), 'convolution')} of one value of few channels, the first {named[0].name!r}, are float in an engine for "
            "one sample, which is what is shown; in one that is built for several samples each is an INT8 kernel"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(flow.view, named))


def _written_out(flow: Flow) -> Iterator[PredictionDoubt]:
    """Operators that the compiler writes as several others, which find their kernels by themselves."""
    for op, words in WRITTEN_AS.items():
        named = [node for node in flow.view.nodes if node.op == op]
        if named:
            reason = f"{counted(len(named), f'{op} node')}, the first {named[0].name!r}, are shown as part of one kernel each: {words}"
            yield PredictionDoubt(reason=reason, nodes=_around(flow.view, named))
    rows = [
        node
        for node in flow.products()
        if is_row(flow.view, node)
        and flow.source(node, 0) is None
        and flow.view.is_constant(node.inputs[1])
        and not is_scalar_product(flow.view, node)
        and not is_written_out(flow.view, node)
    ]
    if rows:
        reason = (
            f"{counted(len(rows), 'float product')} of one row, the first {rows[0].name!r}, are shown with what mostly shares their kernel: "
            "the compiler writes them as multiply and sum, and weighs what each takes along"
        )
        yield PredictionDoubt(reason=reason, nodes=_around(flow.view, rows))


def _around(view: GraphView, named: Sequence[Node]) -> tuple[str, ...]:
    """The nodes and what stands before and behind each as far as the next product: it may be in their kernels."""
    found = dict.fromkeys(node.name for node in named)
    for node in named:
        waiting = [node]
        seen = {node.name}
        while waiting and len(seen) <= 2 * _AROUND:
            here = waiting.pop(0)
            makers = [maker for tensor in here.inputs if (maker := view.producer(tensor)) is not None]
            users = [use.node for tensor in here.outputs for use in view.uses(tensor)]
            for other in (*makers, *users):
                if other.name not in seen and other.op not in PRODUCTS | OWN_KERNELS:
                    seen.add(other.name)
                    waiting.append(other)
        found.update(dict.fromkeys(sorted(seen)))
    return tuple(found)


def _name(pair: QdqPair) -> str:
    return pair.dequantize or pair.quantize or ""


def _is_sick(pair: QdqPair) -> bool:
    """Whether the parser refuses a scale; infinity is built, and INT4 takes any (QDQ103)."""
    return pair.dtype is not DType.INT4 and any(isnan(scale) or scale <= 0 for scale in pair.scale)


def _is_shifted(pair: QdqPair) -> bool:
    return any(pair.zero_point)


def _is_odd(flow: Flow, pair: QdqPair) -> bool:
    """Whether a pair has no scale, or not one for each channel of a known shape."""
    if pair.scale_shape is None or len(pair.scale_shape) > 1:
        return False
    shape = flow.view.info(pair.tensor).shape
    if len(pair.scale) == 1 or shape is None:
        return not pair.scale
    axis = pair.axis if pair.axis is not None else 1
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    return size is None or (isinstance(size, int) and size != len(pair.scale))
