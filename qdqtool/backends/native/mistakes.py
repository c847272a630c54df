"""The ONNX parser's errors as plain values."""

from __future__ import annotations

from typing import Any

# A parser may repeat one mistake for every node; two hundred tell what is wrong.
_MOST = 200


def mistakes_of(parser: Any) -> list[dict[str, str]]:
    """Return at most 200 errors of the parser; releases before 9 give a node's number but not its name."""
    found = (parser.get_error(index) for index in range(min(parser.num_errors, _MOST)))
    return [
        {
            "code": error.code().name,
            "node": error.node_name() if hasattr(error, "node_name") else _number(error.node()),
            "op": error.node_operator() if hasattr(error, "node_operator") else "",
            "text": error.desc(),
        }
        for error in found
    ]


def _number(index: int) -> str:
    return f"number {index}" if index >= 0 else ""
