"""What a page shows of a build log: how often each pass ran and worked, and what shows the precision of each node."""

from __future__ import annotations

from typing import Any

from qdqtool.core.buildlog import LogRun

Rows = dict[str, list[list[Any]]]


def log_rows(run: LogRun) -> Rows:
    """Rows as plain JSON values: `passes` (name, attempts, effects, line) and `nodes` (node, op, precision, why, lines)."""
    passes = sorted(run.passes.items(), key=lambda item: item[1].first_line)
    return {
        "passes": [[name, count.attempts, count.effects, count.first_line] for name, count in passes],
        "nodes": [
            [node.node, node.op, node.precision, node.contradiction or node.reason, list(node.lines)]
            for node in run.compute
        ],
    }
