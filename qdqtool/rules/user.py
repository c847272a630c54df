"""What the user keeps float: nodes by name, operator types, or all but some nodes, and what a limit of accuracy took.

    place:
      exclude: ["*/head/*"]        these nodes stay float
      kept_float: [/head/Gemm]     these too, since `qdqtool run --max-drop` found that the limit takes them
      exclude_ops: [MatMul]        these operator types stay float
      only: ["backbone.*"]         all other nodes stay float
      ops: [Conv, Gemm, ...]       operator types that may be quantized

Patterns are globs on node names (`qdqtool place MODEL` prints them), case-sensitive; `*` also matches slashes. A
pattern that matches nothing is an error, unless the recipe lists it under `optional`. `kept_float` holds names as they are. It is a list of its own, so that
no fix and no `--set place.exclude=[...]` undoes the limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase

from qdqtool.core.advice import setting
from qdqtool.core.placement import Opinion, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import LISTED_AS, PRODUCTS


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto every slot that could be quantized on the nodes that the user keeps float."""
    for node in view.nodes:
        op = LISTED_AS.get(node.op, node.op)
        if not _quantizable(view, node, op):
            continue
        for reason, fix in _objections(node, op, options):
            for index in range(min(2, len(node.inputs))):
                yield Opinion(
                    slot=Slot(node=node.name, index=index),
                    stance=Stance.VETO,
                    reason=reason,
                    fix=fix,
                )


def _quantizable(view: GraphView, node: Node, op: str) -> bool:
    if op == "Add":
        return not any(view.is_constant(tensor) for tensor in node.inputs)
    return op in PRODUCTS or op == "AveragePool"


def _objections(node: Node, op: str, options: PlacementOptions) -> Iterator[tuple[str, str]]:
    if node.name in options.kept_float:
        yield "the limit of accuracy keeps it float", "nothing to do: in few bits it would break the limit"
    for pattern in options.exclude:
        if fnmatchcase(node.name, pattern):
            others = [other for other in options.exclude if other != pattern]
            yield f"place.exclude lists {pattern!r}", setting("place.exclude", map(json.dumps, others))
    if options.only and not any(fnmatchcase(node.name, pattern) for pattern in options.only):
        patterns = map(json.dumps, (*options.only, node.name))
        yield "no pattern of place.only matches it", setting("place.only", patterns)
    if {op, node.op} & set(options.exclude_ops):
        others = [other for other in options.exclude_ops if other not in {op, node.op}]
        yield f"place.exclude_ops lists {node.op}", setting("place.exclude_ops", others)
    if op not in options.ops:
        listed = op if op == node.op else f"{op}, which stands for {node.op} too"
        yield f"place.ops does not list {listed}", setting("place.ops", (*options.ops, op))


PLUGIN = Rule(code="QDQ181", place=place)
