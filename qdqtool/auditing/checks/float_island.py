"""A float node between low-precision nodes.

Its input is converted from INT8 (or FP8, FP4) to float before it and back after it, so the tensors on both sides are
two or four times larger than necessary, in addition to the slower arithmetic. One missing Q/DQ pair often adds three
kernels. If placement kept the node float on purpose, the finding is for information only. Without a model the engine's
layers are checked: a float kernel between two low-precision kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.engine import Role
from qdqtool.core.findings import NodeVerdict, Severity
from qdqtool.graph.view import GraphView, Node


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per float node with low-precision nodes before and after it."""
    return _nodes(context, context.view) if context.view else _layers(context)


def _nodes(context: AuditContext, view: GraphView) -> Iterator[Draft]:
    by_node = {verdict.node: verdict for verdict in context.verdicts}
    for case in context.cases:
        verdict = by_node[case.node.name]
        if not verdict.precision.is_float:
            continue
        before = _nearest(case.node, lambda node: _above(view, node), by_node)
        after = _nearest(case.node, lambda node: _below(view, node), by_node)
        if before and after and all(found.precision.is_quantized for found in (*before, *after)):
            layers = case.holders.compute
            sizes = [tensor.bytes for layer in layers for tensor in (*layer.inputs[:1], *layer.outputs)]
            known = [size for size in sizes if size is not None]
            yield Draft(
                subject=case.node.name,
                reason=f"{case.node.op} runs {verdict.precision} between {before[0].node} and {after[0].node}, "
                f"which run {before[0].precision.value.upper()}",
                fix=verdict.fix,
                severity=Severity.INFO if case.decisions and not verdict.requested else None,
                bytes=sum(known) if len(known) == len(sizes) else None,
                evidence=(
                    context.at_node(case.node.name),
                    *(context.at_layer(layer.name) for layer in layers),
                ),
            )


def _layers(context: AuditContext) -> Iterator[Draft]:
    for layer in context.kernels:
        if layer.role is not Role.COMPUTE or not layer.precision.is_float:
            continue
        before, after = context.wiring.compute_before(layer), context.wiring.compute_after(layer)
        if before and after and all(found.precision.is_quantized for found in (*before, *after)):
            yield Draft(
                subject=layer.name,
                reason=f"runs {layer.precision} between {before[0].name} and {after[0].name}, which run {before[0].precision.value.upper()}",
                fix="put Q/DQ on its input and its weight",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


def _above(view: GraphView, node: Node) -> list[Node]:
    producers = (view.producer(name) for name in node.inputs)
    return [producer for producer in producers if producer is not None]


def _below(view: GraphView, node: Node) -> list[Node]:
    return [use.node for output in node.outputs for use in view.uses(output)]


def _nearest(
    start: Node, step: Callable[[Node], list[Node]], verdicts: dict[str, NodeVerdict]
) -> tuple[NodeVerdict, ...]:
    """Return the verdicts on the first compute nodes on every path from `start`."""
    found: list[NodeVerdict] = []
    seen = {start.name}
    waiting = step(start)
    while waiting:
        node = waiting.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.name in verdicts:
            found.append(verdicts[node.name])
        else:
            waiting.extend(step(node))
    return tuple(sorted(found, key=lambda verdict: verdict.node))


PLUGIN = Check(code="QDQ204", severity=Severity.WARNING, find=find, says=Says.IS_FLOAT)
