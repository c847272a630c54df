"""Expands scaled_dot_product_attention into its two MatMuls, so that both are trained and exported in the same way.

As one step torch would run it in float, and the slots of its products would have no quantizer. The scale multiplies the
scores and not the queries: then the pairs of Q and DQ sit directly after the projections.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional

_CALLS = {functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default}
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def expand(traced: fx.GraphModule) -> None:
    """Replace attentions that have no dropout, causal mask or shared heads, in place."""
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target in _CALLS:
            given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
            if not (given.get("dropout_p") or given.get("is_causal") or given.get("enable_gqa")):
                with traced.graph.inserting_before(node):
                    made = _products(traced.graph, given)
                node.replace_all_uses_with(made)
                traced.graph.erase_node(node)


def _products(graph: fx.Graph, given: dict[str, Any]) -> fx.Node:
    keys = graph.call_function(torch.transpose, (given["key"], -2, -1))
    scores = graph.call_function(torch.matmul, (given["query"], keys))
    scores = graph.call_function(_scaled, (scores, given["query"], given.get("scale")))
    if given.get("attn_mask") is not None:
        scores = graph.call_function(_masked, (scores, given["attn_mask"]))
    weights = graph.call_function(torch.softmax, (scores, -1))
    return graph.call_function(torch.matmul, (weights, given["value"]))


def _scaled(scores: torch.Tensor, query: torch.Tensor, scale: float | None) -> torch.Tensor:
    return scores * (query.shape[-1] ** -0.5 if scale is None else scale)


def _masked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # The smallest float and not -Inf: a row that is masked whole would become NaN.
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask
