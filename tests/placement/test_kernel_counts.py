"""As many kernels are predicted as the builder makes: what a fix says of kernels stands on that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.audit.graphs import Quantized
from tests.placement.building import build
from tests.placement.qdq import GRAPHS

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = [pytest.mark.rtx, pytest.mark.slow]


def chain(words: str, width: int = 64, batch: int | str = 1) -> onnx.ModelProto:
    """A row of floats through MatMul (M32), Gemm with a bias (G32), Add of a constant (A) and activations."""
    s = Quantized()
    x = s.input("x", [batch, width])
    for index, word in enumerate(words.split()):
        if word[0] in "MG" and word[1:].isdigit():
            out = int(word[1:])
            more = [s.weight(f"b{index}", out)] if word[0] == "G" else []
            op = "Gemm" if word[0] == "G" else "MatMul"
            x, width = s.node(op, [x, s.weight(f"w{index}", width, out), *more], f"n{index}"), out
        elif word == "A":
            x = s.node("Add", [x, s.weight(f"a{index}", width)], f"n{index}")
        else:
            x = s.node(word, [x], f"n{index}")
    s.output(x, [batch, width])
    return s.model()


def attention(batch: int, heads: int, tokens: int, size: int) -> onnx.ModelProto:
    """Projections, an INT8 attention, and a product that reads its result."""
    s = Quantized()
    x = s.input("x", [batch, tokens, heads * size])
    width = heads * size

    def headed(name: str, order: list[int]) -> str:
        y = s.qmatmul(name, x, shape=(width, width))
        y = s.node(
            "Reshape",
            [y, s.constant(f"{name}/shape", np.array([batch, tokens, heads, size]))],
            f"{name}/heads",
        )
        return s.node("Transpose", [y], f"{name}/turned", perm=order)

    scores = s.node(
        "MatMul",
        [s.qdq("q/in", headed("q", [0, 2, 1, 3])), s.qdq("k/in", headed("k", [0, 2, 3, 1]))],
        "scores",
    )
    shares = s.qdq("shares/in", s.node("Softmax", [scores], "softmax", axis=-1))
    y = s.node("MatMul", [shares, s.qdq("v/in", headed("v", [0, 2, 1, 3]))], "values")
    y = s.node("Transpose", [y], "back", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("flat", np.array([batch, tokens, width]))], "joined")
    s.output(s.relu("end", s.qmatmul("last", y, shape=(width, 64))), [batch, tokens, 64])
    return s.model()


def last_product(bias: bool, rows: int) -> onnx.ModelProto:
    """An INT8 product whose result leaves the network."""
    s = Quantized()
    y = s.qmatmul("mm", s.input("x", [rows, 64]), shape=(64, 48))
    s.output(s.node("Add", [y, s.weight("b", 48)], "biased") if bias else y, [rows, 48])
    return s.model()


def several_pools() -> onnx.ModelProto:
    """Three pools that each have Q and DQ of their own on one INT8 tensor."""
    s = Quantized()
    x = s.relu("relu", s.qconv("c0", s.input("x", [1, 16, 16, 16]), channels=(16, 16)))
    pools = [
        s.node(
            "MaxPool", [s.qdq(f"p{k}/in", x)], f"p{k}", kernel_shape=[k, k], strides=[1, 1], pads=[k // 2] * 4
        )
        for k in (3, 5, 7)
    ]
    x = s.node("Concat", pools, "joined", axis=1)
    s.output(s.relu("end", s.qconv("c1", x, channels=(48, 16))), [1, 16, 16, 16])
    return s.model()


def normalized_head(quantized: bool) -> onnx.ModelProto:
    """A pooled picture, normalized with its channels last, as ConvNeXt ends; both Transposes move axes of size 1 only."""
    s = Quantized()
    x = s.relu("relu", s.qconv("c0", s.input("x", [1, 16, 8, 8]), channels=(16, 64)))
    x = s.node("GlobalAveragePool", [x], "pool")
    x = s.node("Transpose", [x], "last", perm=[0, 2, 3, 1])
    x = s.node("LayerNormalization", [x, s.weight("gain", 64), s.weight("shift", 64)], "norm", axis=-1)
    x = s.node("Flatten", [s.node("Transpose", [x], "first", perm=[0, 3, 1, 2])], "flat")
    if quantized:
        y = s.node("Add", [s.qmatmul("mm", x, shape=(64, 100)), s.weight("b", 100)], "biased")
    else:
        y = s.node("Gemm", [x, s.weight("w", 64, 100), s.weight("b", 100)], "gemm")
    s.output(y, [1, 100])
    return s.model()


def gate(channels: int) -> onnx.ModelProto:
    """A squeeze-and-excite gate in INT8 whose second convolution reads a few channels of one value each."""
    s = Quantized()
    x = s.relu("relu", s.qconv("c0", s.input("x", [1, 16, 8, 8]), channels=(16, 32)))
    y = s.qconv("reduce", s.node("GlobalAveragePool", [x], "pool"), channels=(32, channels), kernel=1)
    y = s.qconv("expand", s.node("Relu", [y], "act"), channels=(channels, 32), kernel=1)
    x = s.node("Mul", [x, s.node("Sigmoid", [y], "gate")], "gated")
    s.output(s.relu("end", s.qconv("c1", x, channels=(32, 16))), [1, 16, 8, 8])
    return s.model()


CHAINS = (
    "M64 A Relu", "M64 A", "M64", "M64 Relu", "Relu M64 A", "Tanh M64 A Relu", "Tanh M64 M64 A", "M64 A M64 A Tanh",
    "M64 A Tanh M64 A", "G64 Relu G1000", "G64 Sigmoid G1000 Softmax", "Tanh M64 A Relu M10 A", "Tanh M64 A M10 A",
    "M64 A Relu M64 A Relu M64 A Relu M64 A", "M64 Relu M64 Relu M64 A", "Relu M64 Relu", "M64 Sigmoid",
    "M600 A Relu M400 A Relu M8", "M64 HardSwish M64",
)  # fmt: skip
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    **{words: lambda words=words: chain(words) for words in CHAINS},
    **{
        f"{width}: {words}": lambda words=words, width=width: chain(words, width)
        for width, words in ((384, "M10 A"), (448, "M10 A"), (512, "A Relu M10 A Sigmoid"), (1024, "M1000 A"))
    },
    **{
        f"attention {sizes}": lambda sizes=sizes: attention(*sizes)
        for sizes in ((1, 4, 64, 32), (1, 4, 64, 24), (1, 2, 49, 16), (1, 1, 64, 32))
    },
    "an INT8 product at the end": lambda: last_product(False, 16),
    "with a bias": lambda: last_product(True, 16),
    "of one row": lambda: last_product(True, 1),
    "several pools": several_pools,
    **{f"a gate of {count} channels": lambda count=count: gate(count) for count in (2, 4, 8)},
    "a normalized head": lambda: normalized_head(False),
    "a normalized head in INT8": lambda: normalized_head(True),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_as_many_kernels_are_built_as_predicted(name: str, tmp_path: Path) -> None:
    proto = CASES[name]()
    made = predict(load(models.save(proto, tmp_path)))
    built = build(proto)
    assert not built.error
    assert made.kernels == len(built.kernels), [layer.name for layer in built.kernels]


EXACT = frozenset(
    {
        "chain_ok",
        "residual_bare",
        "residual_both",
        "shared_pair",
        "concat_same_scale",
        "silu",
        "depthwise",
        "batchnorm",
    }
)
"""Graphs of which the number must be told as exact, so that the law below says something."""


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_an_exact_number_of_kernels_is_that_of_the_engine(name: str, tmp_path: Path) -> None:
    proto = GRAPHS[name]()
    made = predict(load(models.save(proto, tmp_path)))
    assert made.exact or name not in EXACT
    if made.exact:
        built = build(proto)
        assert built.error or made.kernels == len(built.kernels), [layer.name for layer in built.kernels]


def turned_rows(rows: int, readers: int) -> onnx.ModelProto:
    """INT8 products of what a Transpose made rows of."""
    s = Quantized()
    x = s.node("Relu", [s.input("x", [1, 32, rows])], "front_y", name="front")
    x = s.qdq("pair", s.node("Transpose", [x], "turned_y", name="turned", perm=[0, 2, 1]))
    for index in range(readers):
        weight = s.qdq(f"w{index}", s.weight(f"w{index}", 32, 16), np.full(16, 0.01), 1)
        y = s.node("MatMul", [x, weight], f"mm{index}_y", name=f"mm{index}")
        s.output(s.relu(f"end{index}", y), [1, rows, 16])
    return s.model()


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("rows", [5, 6, 13])
def test_an_odd_number_of_turned_rows_is_padded(rows: int, readers: int, tmp_path: Path) -> None:
    proto = turned_rows(rows, readers)
    made = predict(load(models.save(proto, tmp_path)))
    assert made.kernels == len(build(proto).kernels)


def recurrence(op: str, steps: int | str, *, both: bool = False, batch: int = 1) -> onnx.ModelProto:
    """A recurrence whose result loses its directions."""
    s, gates, ways = models.Sketch(), {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + both
    weights = [
        s.weight("w", ways, gates * 24, 16),
        s.weight("r", ways, gates * 24, 24),
        s.weight("b", ways, gates * 48),
    ]
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    way = "bidirectional" if both else "forward"
    x = s.input("x", [steps, batch, 16])
    y = s.node(op, [x, *weights], "y", name="steps", hidden_size=24, direction=way, **more)
    y = s.node("Transpose", [y], "t", name="turned", perm=[0, 2, 1, 3])
    s.output(s.node("Reshape", [y, s.constant("shape", np.array([0, 0, -1]))], "z", name="flat"))
    return s.model()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 8, 12, 15])
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_steps_that_are_written_out_are_counted(op: str, steps: int, both: bool, tmp_path: Path) -> None:
    proto = recurrence(op, steps, both=both)
    made = predict(load(models.save(proto, tmp_path)))
    assert made.kernels is not None
    assert not made.exact
    assert abs(made.kernels - len(build(proto).kernels)) <= 2


@pytest.mark.parametrize(("op", "steps"), [("LSTM", 16), ("GRU", 200), ("RNN", 4), ("LSTM", "steps")])
def test_of_loops_no_number_is_told(op: str, steps: int | str, tmp_path: Path) -> None:
    made = predict(load(models.save(recurrence(op, steps), tmp_path)))
    assert made.kernels is None
    assert "'steps' is follows from what stands around it" in " ".join(made.notes)


@pytest.mark.parametrize("words", CHAINS)
def test_a_free_batch_is_predicted_as_one_sample(words: str, tmp_path: Path) -> None:
    one, free = (predict(load(models.save(chain(words, 64, batch), tmp_path))) for batch in (1, "batch"))
    assert [layer.nodes for layer in free.layers] == [layer.nodes for layer in one.layers]
