"""Well-known networks with random weights, written as ONNX node by node: only their shapes matter for speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Drawing:
    """Collects nodes and weights; every method returns the name of the tensor it makes."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=f"node_{name}", **attributes))
        return name

    def constant(self, values: Any) -> str:
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        return self.constant((self._random.standard_normal(shape) * (2.0 / fan_in) ** 0.5).astype(np.float32))

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1) -> str:
        inside = channels[0] // group
        weight = self.weight(channels[1], inside, kernel, kernel, fan_in=inside * kernel * kernel)
        bias = self.constant(np.zeros(channels[1], np.float32))
        pads = [kernel // 2] * 4
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group
        )

    def dense(self, x: str, inside: int, outside: int) -> str:
        y = self.node("MatMul", x, self.weight(inside, outside, fan_in=2 * inside))
        return self.node("Add", y, self.constant(np.zeros(outside, np.float32)))

    def norm(self, x: str, width: int) -> str:
        ones, zeros = self.constant(np.ones(width, np.float32)), self.constant(np.zeros(width, np.float32))
        return self.node("LayerNormalization", x, ones, zeros, axis=-1)

    def shape(self, *dims: int) -> str:
        return self.constant(np.array(dims, np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def model(self, x: tuple[str, Sequence[int | str], int], y: str) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(x[0], x[2], x[1])]
        outputs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["N", None])]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, initializer=self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet(blocks: Sequence[int], side: int = 224, width: int = 64) -> onnx.ModelProto:
    """Bottleneck residual network; (3, 4, 6, 3) is ResNet-50."""
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, width), 7, 2))
    x = d.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inside = width
    for stage, count in enumerate(blocks):
        middle, outside = width << stage, width << stage + 2
        for number in range(count):
            stride = 2 if stage and not number else 1
            y = d.node("Relu", d.conv(x, (inside, middle), 1))
            y = d.node("Relu", d.conv(y, (middle, middle), 3, stride))
            y = d.conv(y, (middle, outside), 1)
            shortcut = x if number else d.conv(x, (inside, outside), 1, stride)
            x = d.node("Relu", d.node("Add", y, shortcut))
            inside = outside
    return _classified(d, x, inside, side)


def mobilenet_v2(side: int = 224) -> onnx.ModelProto:
    """Inverted residuals with depthwise convolutions and ReLU6."""
    d = Drawing()
    low, high = d.scalar(0), d.scalar(6)

    def unit(x: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1) -> str:
        return d.node("Clip", d.conv(x, channels, kernel, stride, group), low, high)

    x, inside = unit("x", (3, 32), 3, 2), 32
    plan = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, outside, count, first_stride in plan:
        for number in range(count):
            stride, middle = (first_stride if not number else 1), inside * expansion
            y = unit(x, (inside, middle), 1) if expansion > 1 else x
            y = d.conv(unit(y, (middle, middle), 3, stride, middle), (middle, outside), 1)
            x = d.node("Add", x, y) if stride == 1 and inside == outside else y
            inside = outside
    return _classified(d, unit(x, (inside, 1280), 1), 1280, side)


def vit_small() -> onnx.ModelProto:
    """ViT-S/16 at 224 x 224: 12 blocks, width 384, 6 heads, 196 tokens."""
    d = Drawing()
    weight = d.weight(384, 3, 16, 16, fan_in=768)
    x = d.node("Conv", "x", weight, kernel_shape=[16, 16], strides=[16, 16])
    x = d.node("Transpose", d.node("Reshape", x, d.shape(0, 384, 196)), perm=[0, 2, 1])
    x = encoder(d, x, 12, 384, 6, 196)
    y = d.dense(d.node("ReduceMean", x, axes=[1], keepdims=0), 384, 1000)
    return d.model(("x", ["N", 3, 224, 224], TensorProto.FLOAT), y)


def bert_base() -> onnx.ModelProto:
    """BERT-base with 128 tokens: 12 blocks, width 768, 12 heads; the input is a row of token numbers."""
    d = Drawing()
    x = d.norm(d.node("Gather", d.weight(30522, 768, fan_in=768), "x"), 768)
    x = encoder(d, x, 12, 768, 12, 128)
    return d.model(("x", ["N", 128], TensorProto.INT64), d.dense(x, 768, 2))


def encoder(d: Drawing, x: str, blocks: int, width: int, heads: int, tokens: int) -> str:
    split, merge = d.shape(0, tokens, heads, width // heads), d.shape(0, tokens, width)
    factor = d.scalar((width // heads) ** -0.5)
    root, one, half = d.scalar(2**0.5), d.scalar(1), d.scalar(0.5)
    for _ in range(blocks):
        h = d.norm(x, width)
        q, k, v = (d.node("Reshape", d.dense(h, width, width), split) for _ in range(3))
        q, v = (d.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = d.node("MatMul", q, d.node("Transpose", k, perm=[0, 2, 3, 1]))
        y = d.node("MatMul", d.node("Softmax", d.node("Mul", scores, factor), axis=-1), v)
        y = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), merge)
        x = d.node("Add", x, d.dense(y, width, width))
        y = d.dense(d.norm(x, width), width, 4 * width)
        gate = d.node("Mul", d.node("Add", d.node("Erf", d.node("Div", y, root)), one), half)
        x = d.node("Add", x, d.dense(d.node("Mul", y, gate), 4 * width, width))
    return d.norm(x, width)


def _classified(d: Drawing, x: str, channels: int, side: int) -> onnx.ModelProto:
    pooled = d.node("Flatten", d.node("GlobalAveragePool", x))
    weight, bias = d.weight(channels, 1000, fan_in=channels), d.constant(np.zeros(1000, np.float32))
    return d.model(("x", ["N", 3, side, side], TensorProto.FLOAT), d.node("Gemm", pooled, weight, bias))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": lambda: resnet((3, 4, 6, 3)),
    "mobilenet_v2": mobilenet_v2,
    "vit_small": vit_small,
    "bert_base": bert_base,
    "resnet_small": lambda: resnet((1, 1, 1, 1), 160, 48),
}


def write(name: str, folder: Path, samples: int) -> tuple[Path, Path]:
    """The model and an .npz of random samples; written once, found again later."""
    model, data = folder / f"{name}.onnx", folder / f"{name}-{samples}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        onnx.save(NETWORKS[name](), model)
    if not data.exists():
        random = np.random.default_rng(1)
        side = 160 if name == "resnet_small" else 224
        values = (
            random.integers(0, 30522, (samples, 128))
            if name == "bert_base"
            else random.standard_normal((samples, 3, side, side), np.float32)
        )
        np.savez(data, x=values)
    return model, data
