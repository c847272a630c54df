"""Networks that no rule of prediction was learned from: one drawing per architecture, random weights, small maps.

`benchmarks/prediction.py` measures on them how well the rules carry over.
"""

from __future__ import annotations

from collections.abc import Callable

import networks
import numpy as np
import onnx
from families import classifier, doubled, joined, silu
from networks import Drawing
from onnx import TensorProto


def shufflenet(side: int = 64) -> onnx.ModelProto:
    """ShuffleNet v2 units: split, depthwise branch, Concat, channel shuffle."""
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, 32), 3, 2))
    x = d.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width, extent = 32, side // 4
    for stride in (2, 1, 1):
        half = width // 2 if stride == 1 else width
        if stride == 1:
            kept, y = (d.node("Slice", x, d.shape(low), d.shape(low + half), d.shape(1)) for low in (0, half))
        else:
            y, extent = x, extent // 2
            kept = d.conv(x, (width, width), 3, 2, width)
            kept = d.node("Relu", d.conv(kept, (width, width), 1))
        y = d.node("Relu", d.conv(y, (half, half), 1))
        y = d.node("Relu", d.conv(d.conv(y, (half, half), 3, stride, half), (half, half), 1))
        x, width = joined(d, kept, y), 2 * half
        x = d.node("Reshape", x, d.shape(0, 2, half, extent, extent))
        x = d.node("Transpose", x, perm=[0, 2, 1, 3, 4])
        x = d.node("Reshape", x, d.shape(0, width, extent, extent))
    return classifier(d, d.node("Relu", d.conv(x, (width, 128), 1)), 128, side)


def ghostnet(side: int = 64) -> onnx.ModelProto:
    """Ghost modules: half of the maps are made from the other half by a cheap depthwise convolution."""
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, 16), 3, 2))

    def ghost(x: str, channels: tuple[int, int], *, active: bool) -> str:
        half = channels[1] // 2
        first = d.conv(x, (channels[0], half), 1)
        first = d.node("Relu", first) if active else first
        cheap = d.conv(first, (half, half), 3, 1, half)
        return joined(d, first, d.node("Relu", cheap) if active else cheap)

    for middle, outside, stride in ((32, 16, 1), (48, 24, 2), (72, 24, 1)):
        inside = 16 if outside == 16 or stride == 2 else 24
        y = ghost(x, (inside, middle), active=True)
        y = d.conv(y, (middle, middle), 3, 2, middle) if stride == 2 else y
        y = ghost(y, (middle, outside), active=False)
        if stride == 2 or inside != outside:
            x = d.conv(d.conv(x, (inside, inside), 3, stride, inside), (inside, outside), 1)
        x = d.node("Add", y, x)
    return classifier(d, d.node("Relu", d.conv(x, (24, 96), 1)), 96, side)


def convnext(side: int = 64) -> onnx.ModelProto:
    """ConvNeXt blocks: depthwise 7x7, LayerNormalization over channels, two dense layers with GELU, scaled sum."""
    d = Drawing()
    x = d.node("Conv", "x", d.weight(32, 3, 4, 4, fan_in=48), kernel_shape=[4, 4], strides=[4, 4])
    for _ in range(3):
        y = d.node("Transpose", d.conv(x, (32, 32), 7, 1, 32), perm=[0, 2, 3, 1])
        y = d.dense(_gelu(d, d.dense(d.norm(y, 32), 32, 128)), 128, 32)
        y = d.node("Mul", y, d.weight(32, fan_in=32))
        x = d.node("Add", x, d.node("Transpose", y, perm=[0, 3, 1, 2]))
    pooled = d.node("Flatten", d.node("GlobalAveragePool", x))
    y = d.dense(d.norm(pooled, 32), 32, 100)
    return d.model(("x", [1, 3, side, side], TensorProto.FLOAT), y)


def swin(side: int = 32) -> onnx.ModelProto:
    """Two Swin blocks: windows of 4 x 4 cut out by reshapes, attention with a position bias, patch merging."""
    d = Drawing()
    width, heads, window = 32, 2, 4
    extent = side // 4
    x = d.node("Conv", "x", d.weight(width, 3, 4, 4, fan_in=48), kernel_shape=[4, 4], strides=[4, 4])
    x = d.node("Transpose", x, perm=[0, 2, 3, 1])
    count = (extent // window) ** 2
    cut = d.shape(1, extent // window, window, extent // window, window, width)
    for _ in range(2):
        y = d.node("Transpose", d.node("Reshape", d.norm(x, width), cut), perm=[0, 1, 3, 2, 4, 5])
        y = d.node("Reshape", y, d.shape(count, window * window, width))
        qkv = d.dense(y, width, 3 * width)
        qkv = d.node("Reshape", qkv, d.shape(count, window * window, 3, heads, width // heads))
        qkv = d.node("Transpose", qkv, perm=[2, 0, 3, 1, 4])
        q, k, v = (d.node("Gather", qkv, d.constant(np.int64(index)), axis=0) for index in range(3))
        q = d.node("Mul", q, d.scalar((width // heads) ** -0.5))
        y = d.node("MatMul", q, d.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = d.node("Add", y, d.weight(1, heads, window * window, window * window, fan_in=8))
        y = d.node("MatMul", d.node("Softmax", y, axis=-1), v)
        y = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), d.shape(count, -1, width))
        y = d.dense(y, width, width)
        y = d.node("Reshape", y, d.shape(1, extent // window, extent // window, window, window, width))
        y = d.node(
            "Reshape", d.node("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), d.shape(1, extent, extent, width)
        )
        x = d.node("Add", x, y)
        y = d.dense(_gelu(d, d.dense(d.norm(x, width), width, 4 * width)), 4 * width, width)
        x = d.node("Add", x, y)
    x = d.node("Reshape", x, d.shape(1, extent // 2, 2, extent // 2, 2, width))
    x = d.node("Reshape", d.node("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), d.shape(1, -1, 4 * width))
    x = d.dense(d.norm(x, 4 * width), 4 * width, 2 * width)
    y = d.dense(d.node("ReduceMean", x, axes=[1], keepdims=0), 2 * width, 100)
    return d.model(("x", [1, 3, side, side], TensorProto.FLOAT), y)


def post_norm_bert() -> onnx.ModelProto:
    """Two blocks as BERT has them: the norm behind the sum, an attention mask, the tanh form of GELU."""
    d = Drawing()
    width, heads, tokens = 64, 4, 32
    x = d.norm(d.node("Gather", d.weight(500, width, fan_in=width), "x"), width)
    split, merge = d.shape(0, tokens, heads, width // heads), d.shape(0, tokens, width)
    mask = d.constant(np.where(np.arange(tokens) < 28, 0, -1e4).astype(np.float32).reshape(1, 1, 1, -1))
    for _ in range(2):
        q, k, v = (
            d.node("Transpose", d.node("Reshape", d.dense(x, width, width), split), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        scores = d.node("MatMul", q, d.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = d.node("Add", d.node("Div", scores, d.scalar((width // heads) ** 0.5)), mask)
        y = d.node("MatMul", d.node("Softmax", scores, axis=-1), v)
        y = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), merge)
        x = d.norm(d.node("Add", d.dense(y, width, width), x), width)
        y = d.dense(x, width, 4 * width)
        cube = d.node("Mul", d.node("Pow", y, d.scalar(3)), d.scalar(0.044715))
        gate = d.node("Tanh", d.node("Mul", d.node("Add", y, cube), d.scalar(0.79788)))
        y = d.node("Mul", d.node("Mul", y, d.scalar(0.5)), d.node("Add", gate, d.scalar(1)))
        x = d.norm(d.node("Add", d.dense(y, 4 * width, width), x), width)
    first = d.node("Gather", x, d.constant(np.int64(0)), axis=1)
    y = d.dense(d.node("Tanh", d.dense(first, width, width)), width, 3)
    return d.model(("x", [1, tokens], TensorProto.INT64), y)


def crnn(side: int = 64) -> onnx.ModelProto:
    """Convolutions, an LSTM along the width, and a dense layer, as readers of text have them."""
    d = Drawing()
    x, inside = "x", 1
    for outside in (16, 32, 32):
        x = d.node("Relu", d.conv(x, (inside, outside), 3))
        x, inside = d.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), outside
    x = d.node("Reshape", x, d.shape(1, 32 * 4, side // 8))
    x = d.node("Transpose", x, perm=[2, 0, 1])
    weights = d.weight(1, 4 * 32, 128, fan_in=128), d.weight(1, 4 * 32, 32, fan_in=32)
    y = d.node("LSTM", x, *weights, hidden_size=32)
    y = d.node("Reshape", y, d.shape(side // 8, 1, 32))
    return d.model(("x", [1, 1, 32, side], TensorProto.FLOAT), d.dense(y, 32, 40))


def conformer(tokens: int = 64) -> onnx.ModelProto:
    """A block of a speech encoder: strided convolutions, attention, and a gated 1-D depthwise convolution."""
    d = Drawing()
    width, short = 48, tokens // 4
    x = d.node("Relu", d.conv("x", (1, 16), 3, 2))
    x = d.node("Relu", d.conv(x, (16, 16), 3, 2))
    x = d.node("Reshape", d.node("Transpose", x, perm=[0, 2, 1, 3]), d.shape(1, short, 16 * 8))
    x = d.dense(x, 128, width)
    x = networks.encoder(d, x, 1, width, 4, short)
    y = d.node("Transpose", d.norm(x, width), perm=[0, 2, 1])
    y = d.node("Conv", y, d.weight(2 * width, width, 1, fan_in=width), kernel_shape=[1])
    left, right = (d.node("Slice", y, d.shape(low), d.shape(low + width), d.shape(1)) for low in (0, width))
    y = d.node("Mul", left, d.node("Sigmoid", right))
    y = d.node("Conv", y, d.weight(width, 1, 7, fan_in=7), kernel_shape=[7], pads=[3, 3], group=width)
    y = d.node("Conv", silu(d, y), d.weight(width, width, 1, fan_in=width), kernel_shape=[1])
    x = d.node("Add", x, d.node("Transpose", y, perm=[0, 2, 1]))
    return d.model(("x", [1, 1, tokens, 32], TensorProto.FLOAT), d.dense(x, width, 30))


def densenet(side: int = 64) -> onnx.ModelProto:
    """Dense blocks: every layer reads all maps before it; average pools between."""
    d = Drawing()
    x, width = d.node("Relu", d.conv("x", (3, 16), 3, 2)), 16
    for block in range(2):
        for _ in range(3):
            y = d.node("Relu", d.conv(x, (width, 32), 1))
            x, width = joined(d, x, d.node("Relu", d.conv(y, (32, 8), 3))), width + 8
        if not block:
            x, width = d.node("Relu", d.conv(x, (width, 16), 1)), 16
            x = d.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return classifier(d, x, width, side)


def inception(side: int = 64) -> onnx.ModelProto:
    """Two inception modules: four branches, one of them pooled, joined."""
    d = Drawing()
    x, width = d.node("Relu", d.conv("x", (3, 32), 3, 2)), 32
    for _ in range(2):
        one = d.node("Relu", d.conv(x, (width, 16), 1))
        three = d.node("Relu", d.conv(d.node("Relu", d.conv(x, (width, 16), 1)), (16, 24), 3))
        five = d.node("Relu", d.conv(d.node("Relu", d.conv(x, (width, 8), 1)), (8, 16), 5))
        pool = d.node("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        x, width = joined(d, one, three, five, d.node("Relu", d.conv(pool, (width, 8), 1))), 64
    return classifier(d, x, width, side)


def fpn(side: int = 64) -> onnx.ModelProto:
    """A feature pyramid: lateral convolutions added to doubled maps, and one head per level."""
    d = Drawing()
    x, inside, levels = "x", 3, []
    for outside in (16, 32, 64):
        x, inside = d.node("Relu", d.conv(x, (inside, outside), 3, 2)), outside
        levels.append((x, outside))
    top, maps = "", []
    for level, outside in reversed(levels):
        side_way = d.conv(level, (outside, 32), 1)
        top = d.node("Add", doubled(d, top), side_way) if top else side_way
        maps.append(d.conv(top, (32, 32), 3))
    heads = [d.node("Sigmoid", d.conv(d.node("Relu", m), (32, 8), 3)) for m in maps]
    flat = [d.node("Reshape", head, d.shape(1, 8, -1)) for head in heads]
    return d.model(("x", [1, 3, side, side], TensorProto.FLOAT), d.node("Concat", *flat, axis=2))


def spatial_pyramid(side: int = 64) -> onnx.ModelProto:
    """Three parallel pools of one map, joined, as in YOLOX; LeakyRelu."""
    d = Drawing()
    x = d.node("LeakyRelu", d.conv("x", (3, 32), 3, 2), alpha=0.1)
    x = d.node("LeakyRelu", d.conv(x, (32, 16), 1), alpha=0.1)
    pools = [d.node("MaxPool", x, kernel_shape=[k, k], pads=[k // 2] * 4, strides=[1, 1]) for k in (5, 9, 13)]
    x = d.node("LeakyRelu", d.conv(joined(d, x, *pools), (64, 32), 1), alpha=0.1)
    return classifier(d, x, 32, side)


def mobilenet_v3(side: int = 64) -> onnx.ModelProto:
    """Inverted residuals with hard swishes and hard sigmoid gates."""
    d = Drawing()
    x, inside = d.node("HardSwish", d.conv("x", (3, 16), 3, 2)), 16
    for middle, outside, stride, gated in (
        (16, 16, 2, True),
        (72, 24, 2, False),
        (88, 24, 1, False),
        (96, 40, 2, True),
    ):
        y = d.node("HardSwish", d.conv(x, (inside, middle), 1))
        y = d.node("HardSwish", d.conv(y, (middle, middle), 3, stride, middle))
        if gated:
            gate = d.node("Relu", d.conv(d.node("GlobalAveragePool", y), (middle, 8), 1))
            y = d.node("Mul", y, d.node("HardSigmoid", d.conv(gate, (8, middle), 1), alpha=1 / 6))
        y = d.conv(y, (middle, outside), 1)
        x, inside = d.node("Add", x, y) if stride == 1 and inside == outside else y, outside
    return classifier(d, d.node("HardSwish", d.conv(x, (40, 96), 1)), 96, side)


def mlp_mixer() -> onnx.ModelProto:
    """Two mixer blocks: dense layers along tokens and along channels."""
    d = Drawing()
    x = d.node("Conv", "x", d.weight(32, 3, 8, 8, fan_in=192), kernel_shape=[8, 8], strides=[8, 8])
    x = d.node("Transpose", d.node("Reshape", x, d.shape(1, 32, 64)), perm=[0, 2, 1])
    for _ in range(2):
        y = d.node("Transpose", d.norm(x, 32), perm=[0, 2, 1])
        y = d.dense(_gelu(d, d.dense(y, 64, 128)), 128, 64)
        x = d.node("Add", x, d.node("Transpose", y, perm=[0, 2, 1]))
        x = d.node("Add", x, d.dense(_gelu(d, d.dense(d.norm(x, 32), 32, 128)), 128, 32))
    y = d.dense(d.node("ReduceMean", d.norm(x, 32), axes=[1], keepdims=0), 32, 100)
    return d.model(("x", [1, 3, 64, 64], TensorProto.FLOAT), y)


def autoencoder(side: int = 64) -> onnx.ModelProto:
    """Down with strided convolutions, up with transposed ones and with pixel shuffle."""
    d = Drawing()
    x = d.node("Relu", d.conv(d.node("Relu", d.conv("x", (3, 16), 3, 2)), (16, 32), 3, 2))
    x = d.node(
        "ConvTranspose",
        x,
        d.weight(32, 16, 4, 4, fan_in=128),
        kernel_shape=[4, 4],
        strides=[2, 2],
        pads=[1] * 4,
    )
    x = d.node("DepthToSpace", d.conv(d.node("Relu", x), (16, 32), 3), blocksize=2)
    return d.model(("x", [1, 3, side, side], TensorProto.FLOAT), d.node("Tanh", d.conv(x, (8, 3), 3)))


def _gelu(d: Drawing, x: str) -> str:
    gate = d.node("Add", d.node("Erf", d.node("Div", x, d.scalar(2**0.5))), d.scalar(1))
    return d.node("Mul", d.node("Mul", x, gate), d.scalar(0.5))


HELD_OUT: dict[str, Callable[[], onnx.ModelProto]] = {
    "shufflenet": shufflenet,
    "ghostnet": ghostnet,
    "convnext": convnext,
    "swin": swin,
    "post_norm_bert": post_norm_bert,
    "crnn": crnn,
    "conformer": conformer,
    "densenet": densenet,
    "inception": inception,
    "fpn": fpn,
    "spatial_pyramid": spatial_pyramid,
    "mobilenet_v3": mobilenet_v3,
    "mlp_mixer": mlp_mixer,
    "autoencoder": autoencoder,
}
