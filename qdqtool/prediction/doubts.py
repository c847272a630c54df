"""Parts of a model for which a prediction may not hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import isnan

from qdqtool.core.commands import REPAIR, Command
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.prediction import PredictionDoubt
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FORMATS, NAMES, first_sm
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.constant_blocks import in_sums
from qdqtool.matching.losses import violations
from qdqtool.matching.registry import stopping
from qdqtool.matching.small import has_free_batch, is_folded
from qdqtool.trt.ops import QDQ


def doubts(model: Model, flow: Flow, target: Target) -> Iterator[PredictionDoubt]:
    """Yields pairs that the parser refuses, formats that a GPU lacks, bodies of control flow, and precisions that depend on the batch."""
    for what, named in (
        ("scales that are not positive numbers", [pair for pair in flow.pairs if _is_sick(pair)]),
        ("zero points other than 0", [pair for pair in flow.pairs if _is_shifted(pair)]),
        ("numbers of scales that do not fit", [pair for pair in flow.pairs if _is_odd(flow, pair)]),
    ):
        if named:
            reason = (
                f"{counted(len(named), 'pair has', 'pairs have')} {what}, the first {_name(named[0])!r}: the parser refuses them, and "
                f"the prediction holds once they are fixed; {Command('lint')} names each"
            )
            yield PredictionDoubt(reason=reason, nodes=tuple(map(_name, named)))
    yield from _stopped(flow, target)
    yield from _beyond(flow, target)
    yield from _bodies(model)
    if target.is_rtx:
        yield from _refused_blocks(flow)
        yield from _of_one_sample(flow)


def _stopped(flow: Flow, target: Target) -> Iterator[PredictionDoubt]:
    """Yields the nodes whose form no builder takes."""
    found = [wrong for _, wrong in violations(flow, target, stopping()) if wrong.severity is Severity.ERROR]
    if found:
        nodes = tuple(dict.fromkeys(wrong.node for wrong in found))
        first = found[0]
        reason = (
            f"nothing is built: {counted(len(nodes), 'node is', 'nodes are')} refused, the first {first.node!r}: {first.reason}; the "
            f"prediction holds once they are fixed; {Command('lint')} names each"
        )
        yield PredictionDoubt(reason=reason, nodes=nodes)


def _bodies(model: Model) -> Iterator[PredictionDoubt]:
    """Yields control flow: the nodes in its bodies are not part of the graph that is judged."""
    named = [node for node in model.view.nodes if model.view.body_ops(node)]
    if not named:
        return
    inside = [name for node in named for name in model.view.body_names(node)]
    quantized = [node for node in named if QDQ & set(model.view.body_ops(node))]
    first = (quantized or named)[0]
    reason = (
        f"{counted(len(named), 'node')} of control flow, the first {first.op} {first.name!r}: nothing is said about the "
        f"{counted(len(inside), 'node')} in their bodies{', Q/DQ included' if quantized else ''}"
    )
    yield PredictionDoubt(reason=reason, nodes=(*(node.name for node in named), *inside))


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
            f"fails, and the prediction holds from SM{first_sm(FORMATS[name], rtx=True)} on"
        )
        yield PredictionDoubt(reason=reason, nodes=tuple(nodes))


def _refused_blocks(flow: Flow) -> Iterator[PredictionDoubt]:
    """Yields NVFP4 activations with constant block scales that the builder refuses."""
    stopped = [_name(pair) for pair, _ in in_sums(flow)]
    if stopped:
        reason = (
            f"{counted(len(stopped), 'quantization')} to FP4 with constant block scales, the first {stopped[0]!r}, would share "
            "the kernel of a sum along the blocks: the build fails, and the prediction holds once their scales are "
            f"computed; {REPAIR} does that"
        )
        yield PredictionDoubt(reason=reason, nodes=tuple(stopped))


def _of_one_sample(flow: Flow) -> Iterator[PredictionDoubt]:
    """Yields convolutions that are float in an engine for one sample and INT8 in one for several."""
    named = [
        node
        for node in flow.products()
        if is_folded(flow.view, node)
        and has_free_batch(flow.view, node)
        and all(flow.origin(node, index) for index in (0, 1))
    ]
    if named:
        reason = (
            f"{counted(len(named), 'convolution')} of one value of few channels, the first {named[0].name!r}, are predicted as float, "
            "as in an engine for one sample; in an engine for several samples each is an INT8 kernel"
        )
        yield PredictionDoubt(reason=reason, nodes=tuple(node.name for node in named))


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
