"""More networks that no rule of prediction was learned from, drawn after the rules had been corrected with those of heldout.

    regnet, repvgg, hourglass, gpt, csp, wavenet, poolformer

`benchmarks/prediction.py` measures on them, and tells what was right at first contact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from families import classifier, doubled, joined, silu
from networks import Drawing
from onnx import TensorProto


def regnet(side: int = 64) -> onnx.ModelProto:
    """Residual bottlenecks of grouped convolutions."""
    d = Drawing()
    x, inside = d.node("Relu", d.conv("x", (3, 16), 3, 2)), 16
    for outside, stride in ((32, 2), (32, 1), (64, 2)):
        y = d.node("Relu", d.conv(x, (inside, outside), 1))
        y = d.node("Relu", d.conv(y, (outside, outside), 3, stride, outside // 8))
        y = d.conv(y, (outside, outside), 1)
        if stride == 2 or inside != outside:
            x = d.conv(x, (inside, outside), 1, stride)
        x, inside = d.node("Relu", d.node("Add", x, y)), outside
    return classifier(d, x, inside, side)


def repvgg(side: int = 64) -> onnx.ModelProto:
    """Blocks with three branches that are summed, as they are trained."""
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, 24), 3, 2))
    for _ in range(3):
        wide, narrow = d.conv(x, (24, 24), 3), d.conv(x, (24, 24), 1)
        x = d.node("Relu", d.node("Add", d.node("Add", wide, narrow), x))
    return classifier(d, x, 24, side)


def hourglass(side: int = 64) -> onnx.ModelProto:
    """Down by pools, up by nearest Resize, each level added to what it was; a heat map at the end."""
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, 32), 3, 2))
    levels = []
    for _ in range(2):
        levels.append(d.node("Relu", d.conv(x, (32, 32), 3)))
        x = d.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = d.node("Relu", d.conv(x, (32, 32), 3))
    for level in reversed(levels):
        x = d.node("Add", doubled(d, d.node("Relu", d.conv(x, (32, 32), 3))), level)
    return d.model(("x", [1, 3, side, side], TensorProto.FLOAT), d.conv(x, (32, 16), 1))


def gpt(tokens: int = 32) -> onnx.ModelProto:
    """Two decoder blocks: the norm in front, one product for query, key and value, a causal mask."""
    d = Drawing()
    width, heads = 64, 4
    x = d.node(
        "Add", d.node("Gather", d.weight(500, width, fan_in=width), "x"), d.weight(1, tokens, width, fan_in=9)
    )
    mask = d.constant(np.triu(np.full((1, 1, tokens, tokens), -1e4, np.float32), 1))
    split, merge = d.shape(0, tokens, heads, width // heads), d.shape(0, tokens, width)
    for _ in range(2):
        qkv = d.dense(d.norm(x, width), width, 3 * width)
        parts = [
            d.node("Slice", qkv, d.shape(low), d.shape(low + width), d.shape(2))
            for low in (0, width, 2 * width)
        ]
        q, k, v = (d.node("Transpose", d.node("Reshape", part, split), perm=[0, 2, 1, 3]) for part in parts)
        y = d.node("MatMul", q, d.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = d.node("Add", d.node("Mul", y, d.scalar((width // heads) ** -0.5)), mask)
        y = d.node("MatMul", d.node("Softmax", y, axis=-1), v)
        y = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), merge)
        x = d.node("Add", x, d.dense(y, width, width))
        y = d.dense(d.norm(x, width), width, 4 * width)
        y = d.node("Mul", y, d.node("Sigmoid", d.node("Mul", y, d.scalar(1.702))))
        x = d.node("Add", x, d.dense(y, 4 * width, width))
    y = d.node("MatMul", d.norm(x, width), d.weight(width, 500, fan_in=width))
    return d.model(("x", [1, tokens], TensorProto.INT64), y)


def csp(side: int = 64) -> onnx.ModelProto:
    """Cross-stage blocks: half of the channels pass through residual blocks, both halves are joined."""
    d = Drawing()
    x = silu(d, d.conv("x", (3, 32), 3, 2))
    for _ in range(2):
        left, right = silu(d, d.conv(x, (32, 16), 1)), silu(d, d.conv(x, (32, 16), 1))
        for _ in range(2):
            y = silu(d, d.conv(left, (16, 16), 1))
            left = d.node("Add", left, silu(d, d.conv(y, (16, 16), 3)))
        x = silu(d, d.conv(joined(d, left, right), (32, 32), 1))
    return classifier(d, x, 32, side)


def wavenet(length: int = 256) -> onnx.ModelProto:
    """Dilated 1-D convolutions with a tanh and a sigmoid gate, residual and skip sums."""
    d = Drawing()
    x = d.node("Conv", "x", d.weight(32, 1, 1, fan_in=1), kernel_shape=[1])
    skips = []
    for dilation in (1, 2, 4):
        shape = {"kernel_shape": [3], "pads": [dilation] * 2, "dilations": [dilation]}
        value, gate = (d.node("Conv", x, d.weight(32, 32, 3, fan_in=96), **shape) for _ in range(2))
        y = d.node("Mul", d.node("Tanh", value), d.node("Sigmoid", gate))
        skips.append(d.node("Conv", y, d.weight(48, 32, 1, fan_in=32), kernel_shape=[1]))
        x = d.node("Add", x, d.node("Conv", y, d.weight(32, 32, 1, fan_in=32), kernel_shape=[1]))
    y = d.node("Relu", d.node("Add", d.node("Add", skips[0], skips[1]), skips[2]))
    y = d.node("Conv", y, d.weight(64, 48, 1, fan_in=48), kernel_shape=[1])
    return d.model(("x", [1, 1, length], TensorProto.FLOAT), y)


def poolformer(side: int = 64) -> onnx.ModelProto:
    """Token mixing by an average pool minus its input, then two convolutions of one pixel with GELU between."""
    d = Drawing()
    x = d.conv("x", (3, 32), 7, 4)
    for _ in range(2):
        pooled = d.node("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        x = d.node("Add", x, d.node("Mul", d.node("Sub", pooled, x), d.weight(32, 1, 1, fan_in=4)))
        y = d.conv(x, (32, 64), 1)
        gate = d.node("Add", d.node("Erf", d.node("Div", y, d.scalar(2**0.5))), d.scalar(1))
        y = d.conv(d.node("Mul", d.node("Mul", y, gate), d.scalar(0.5)), (64, 32), 1)
        x = d.node("Add", x, y)
    return classifier(d, x, 32, side)


FRESH: dict[str, Callable[[], onnx.ModelProto]] = {
    "regnet": regnet,
    "repvgg": repvgg,
    "hourglass": hourglass,
    "gpt": gpt,
    "csp": csp,
    "wavenet": wavenet,
    "poolformer": poolformer,
}
