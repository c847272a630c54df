"""Runs a model of one node on a device, in a separate process, for `doctor`: `python -m qdqtool.runtime.trial cuda`.

The exit code is 0 if the device ran the model; otherwise the last line has the reason and the fix, with a tab between
them.
"""

from __future__ import annotations

import sys

import numpy as np
from onnx import TensorProto, helper

from qdqtool.errors import QdqError
from qdqtool.runtime.runner import open_runner
from qdqtool.runtime.session import computing_on


def main(word: str) -> int:
    """Run a model of one node on a device."""
    image, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4, 4]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 1, 1], [1.0])
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "trial", [image], [result], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        with computing_on(word):
            runner = open_runner(model.SerializeToString(), description="one node")
            runner.run({"x": np.zeros((1, 1, 4, 4), np.float32)})
    except QdqError as error:
        sys.stdout.write(f"{' '.join(error.what.split())}\t{' '.join(error.fix.split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
