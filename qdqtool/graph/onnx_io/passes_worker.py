"""The process in which onnx's native passes run; `qdqtool.graph.onnx_io.passes` starts it and talks to it.

Requests come on standard input, answers go to standard output: a line of JSON with the size of what follows it. The
process ends when its standard input does. Native code may print: descriptor 1 is turned away before it is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import IO, Any

from qdqtool.platform import lift_limits, limit_further


def main() -> None:
    """Serve requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    passes = _passes()
    while line := requests.readline():
        request = json.loads(line)
        content = requests.read(request["size"])
        limit_further(memory=request["memory"], seconds=request["seconds"])
        try:
            body, head = passes[request["pass"]](content, **request["arguments"]), {}
        except MemoryError:
            body, head = b"", {"exceeded": "took more memory than a model of its size may take"}
        except Exception as error:  # noqa: BLE001 -- onnx raises a dozen classes; each is a verdict on the model
            body, head = b"", {"refused": str(error).strip() or type(error).__name__}
        lift_limits()
        _answer(answers, head, body)
        if "exceeded" in head:
            return


def _answer(answers: IO[bytes], head: dict[str, Any], body: bytes) -> None:
    answers.write(json.dumps({**head, "size": len(body)}).encode() + b"\n" + body)
    answers.flush()


def _passes() -> dict[str, Callable[..., bytes]]:
    import onnx
    from onnx import checker, inliner, shape_inference, version_converter

    def infer(content: bytes) -> bytes:
        return bytes(shape_inference.infer_shapes(content, data_prop=True).SerializeToString())

    def judge(content: bytes) -> bytes:
        shape_inference.infer_shapes(content, check_type=True, strict_mode=True, data_prop=True)
        return b""

    def resolve(content: bytes, opset: int) -> bytes:
        from qdqtool.graph.canonical.symbols import resolve

        found = resolve(onnx.ModelProto.FromString(content), opset)
        return bytes(onnx.GraphProto(value_info=found.values()).SerializeToString())

    def convert(content: bytes, target: int) -> bytes:
        converted = version_converter.convert_version(onnx.ModelProto.FromString(content), target)
        return bytes(converted.SerializeToString())

    def inline(content: bytes) -> bytes:
        from qdqtool.graph.canonical.functions import with_defaults

        inlined = inliner.inline_local_functions(with_defaults(onnx.ModelProto.FromString(content)))
        return bytes(inlined.SerializeToString())

    def check(content: bytes) -> bytes:
        checker.check_model(content)
        return b""

    return {
        "infer": infer,
        "judge": judge,
        "resolve": resolve,
        "convert": convert,
        "inline": inline,
        "check": check,
    }
