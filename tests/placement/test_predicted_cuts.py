"""Where the compiler cuts stretches between products, as predicted and as built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests.audit.graphs import Quantized
from tests.models import Sketch, save
from tests.placement import qdq
from tests.placement.building import between_products, build

pytestmark = pytest.mark.slow  # an engine for every case

ROWS, WIDTH = 32, 64


def normalized(s: Quantized, x: str, width: int = WIDTH) -> str:
    return s.node(
        "LayerNormalization", [x, s.weight("g", width), s.weight("b", width)], "ln_y", name="ln", axis=-1
    )


def softmax(s: Quantized, x: str) -> str:
    return s.node("Softmax", [x], "sm_y", name="sm", axis=-1)


def length(s: Quantized, x: str) -> str:
    y = s.node("ReduceL2", [x], "l2_y", name="l2", axes=[-1], keepdims=1)
    return s.node("Div", [x, y], "div_y", name="div")


def mean_square(s: Quantized, x: str) -> str:
    y = s.node(
        "ReduceMean", [s.node("Mul", [x, x], "sq_y", name="sq")], "mean_y", name="mean", axes=[-1], keepdims=1
    )
    return s.node("Div", [x, y], "div_y", name="div")


def plain(s: Quantized, x: str) -> tuple[str, list[int]]:
    return x, [1, ROWS, WIDTH]


def turned(s: Quantized, x: str) -> tuple[str, list[int]]:
    y = s.node(
        "Reshape", [x, s.constant("heads", np.array([1, ROWS, 4, WIDTH // 4]))], "heads_y", name="heads"
    )
    return s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 1, 3]), [1, 4, ROWS, WIDTH // 4]


def first_half(s: Quantized, x: str) -> tuple[str, list[int]]:
    ends = [s.constant(name, np.array([value])) for name, value in (("s0", 0), ("s1", ROWS // 2), ("s2", 1))]
    return s.node("Slice", [x, *ends], "slice_y", name="slice"), [1, ROWS // 2, WIDTH]


def joined(s: Quantized, x: str) -> tuple[str, list[int]]:
    return s.node("Concat", [x, s.input("z", [1, ROWS, WIDTH])], "cat_y", name="cat", axis=1), [
        1,
        2 * ROWS,
        WIDTH,
    ]


def stretch(total: Callable[..., str], tail: Callable[..., tuple[str, list[int]]]) -> Quantized:
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.weight("bias_w", WIDTH)], "bias_y", name="bias")
    y, shape = tail(s, total(s, y))
    s.output(s.qmatmul("last", y, shape=(shape[-1], WIDTH)), [*shape[:-1], WIDTH])
    return s


def turned_before(size: int) -> Quantized:
    """A convolution, its channels put last, and their normalization."""
    s = Quantized()
    y = s.qconv("first", s.input("x", [1, 32, 1, size]), channels=(32, 32))
    y = s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 3, 1])
    s.output(s.qmatmul("last", normalized(s, y, 32), shape=(32, 32)), [1, 1, size, 32])
    return s


def long_row(size: int) -> Quantized:
    s = Quantized()
    y = s.node("Mul", [s.input("x", [1, 8, size]), s.weight("factor", size)], "mul_y", name="mul")
    s.output(normalized(s, y, size), [1, 8, size])
    return s


def one_product(*, bias: bool = True, tanh: bool = False) -> Quantized:
    """Queries, keys and values of one matrix product."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, 3 * WIDTH))
    y = s.node("Add", [y, s.weight("bias_w", 3 * WIDTH)], "bias_y", name="bias") if bias else y
    y = s.node("Reshape", [y, s.constant("parts", np.array([1, ROWS, 3, 4, 16]))], "parts_y", name="parts")
    y = s.node("Transpose", [y], "t_y", name="t", perm=[2, 0, 3, 1, 4])
    q, k, v = (
        s.node("Gather", [y, s.constant(f"i{i}", np.array(i))], f"pick{i}_y", name=f"pick{i}", axis=0)
        for i in range(3)
    )
    q = s.node("Tanh", [q], "tanh_y", name="tanh") if tanh else q
    k = s.node("Transpose", [k], "k_t", name="k_turn", perm=[0, 1, 3, 2])
    y = s.node("MatMul", [s.qdq("q", q, 0.05), s.qdq("k", k, 0.06)], "scores_y", name="scores")
    y = s.qdq("p", s.node("Softmax", [y], "probs", name="softmax", axis=-1), 0.0079)
    y = s.node("MatMul", [y, s.qdq("v", v, 0.07)], "values_y", name="values")
    y = s.node("Transpose", [y], "back_y", name="back", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("merge", np.array([1, ROWS, WIDTH]))], "merge_y", name="merge")
    s.output(s.qmatmul("last", y, shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def pooled(size: int) -> Quantized:
    s = Quantized()
    y = s.qdq("pool_x", s.qconv("first", s.input("x", [1, 8, 16, 16])), 0.03)
    pads = [size // 2] * 4
    y = s.node("AveragePool", [y], "pool_y", name="pool", kernel_shape=[size] * 2, strides=[1, 1], pads=pads)
    s.output(s.qconv("last", y), [1, 8, 16, 16])
    return s


def integers(s: Quantized, name: str, *values: int) -> str:
    return s.constant(name, np.array(values, np.int64))


def convolved(size: int = 8, channels: int = 32) -> tuple[Quantized, str]:
    """A quantized convolution of `size` x `size` pixels and its result."""
    s = Quantized()
    return s, s.qconv("first", s.input("x", [1, channels, size, size]), channels=(channels, channels))


def mean_of_pixels(size: int, op: str = "ReduceMean", last: str = "conv") -> Quantized:
    s, y = convolved(size)
    y = s.node("Relu", [y], "act_y", name="act")
    y = s.node(op, [y], "mean_y", name="mean", **({"axes": [2, 3]} if op.startswith("Reduce") else {}))
    if last == "conv":
        s.output(s.qconv("last", y, channels=(32, 32), kernel=1), [1, 32, 1, 1])
    else:
        y = s.node("Flatten", [y], "flat_y", name="flat")
        s.output(s.qmatmul("last", y, shape=(32, 32)), [1, 32])
    return s


def lengths(size: int, channels: int) -> Quantized:
    """The global response normalization of ConvNeXt V2."""
    s, y = convolved(size, channels)
    y = s.node("Erf", [y], "act_y", name="act")
    length = s.node("ReduceL2", [y], "l2_y", name="l2", axes=[2, 3])
    mean = s.node("ReduceMean", [length], "mean_y", name="mean", axes=[1])
    y = s.node("Mul", [y, s.node("Div", [length, mean], "div_y", name="div")], "mul_y", name="mul")
    s.output(s.qconv("last", y, channels=(channels, channels)), [1, channels, size, size])
    return s


def sliced(rows: int, taken: int) -> Quantized:
    """A few rows of a result are normalized, and all of it is read."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, rows, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.input("r", [1, rows, WIDTH])], "sum", name="add")
    ends = [integers(s, name, value) for name, value in (("s0", 0), ("s1", taken), ("s2", 1))]
    some = normalized(s, s.node("Slice", [y, *ends], "slice_y", name="slice"))
    s.output(s.qmatmul("last", some, shape=(WIDTH, WIDTH)), [1, taken, WIDTH])
    s.output(
        s.qmatmul("other", s.node("Exp", [y], "exp_y", name="exp"), shape=(WIDTH, WIDTH)), [1, rows, WIDTH]
    )
    return s


def picked_again() -> Quantized:
    """Part of a result is read by a later kernel: the kernel that makes it writes that part too."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.input("r", [1, ROWS, WIDTH])], "sum", name="add")
    ends = [integers(s, name, value) for name, value in (("s0", 0), ("s1", ROWS // 2), ("s2", 1))]
    half = s.node("Slice", [y, *ends], "slice_y", name="slice")
    y = s.qmatmul("second", s.node("Exp", [y], "exp_y", name="exp"), shape=(WIDTH, WIDTH))
    y = s.node("Concat", [y, half], "cat_y", name="cat", axis=1)
    s.output(s.qmatmul("last", normalized(s, y), shape=(WIDTH, WIDTH)), [1, ROWS + ROWS // 2, WIDTH])
    return s


def between_channels(rows: int, width: int, heads: int, *, split: bool) -> Quantized:
    """Cross-covariance attention: queries and keys of length one, scores between channels."""
    s, size = Quantized(), width // heads
    y = s.qmatmul("first", s.input("x", [1, rows, width]), shape=(width, 3 * width))
    y = s.node("Add", [y, s.weight("bias_w", 3 * width)], "bias_y", name="bias")
    y = s.node("Reshape", [y, integers(s, "parts", 1, rows, 3, heads, size)], "parts_y", name="parts")
    y = s.node("Transpose", [y], "t_y", name="t", perm=[2, 0, 3, 4, 1])
    if split:
        s.nodes.append(helper.make_node("Split", [y], ["p0", "p1", "p2"], name="split", axis=0))
        zero = integers(s, "zero", 0)
        q, k, v = (s.node("Squeeze", [f"p{i}", zero], f"pick{i}_y", name=f"pick{i}") for i in range(3))
    else:
        q, k, v = (
            s.node("Gather", [y, s.constant(f"i{i}", np.array(i))], f"pick{i}_y", name=f"pick{i}", axis=0)
            for i in range(3)
        )
    q, k = (
        s.node(
            "Div", [x, s.node("ReduceL2", [x], f"l2{i}_y", name=f"l2{i}", axes=[-1])], f"d{i}_y", name=f"d{i}"
        )
        for i, x in enumerate((q, k))
    )
    k = s.node("Transpose", [k], "k_t", name="k_turn", perm=[0, 1, 3, 2])
    y = s.node("MatMul", [s.qdq("q", q, 0.05), s.qdq("k", k, 0.06)], "scores_y", name="scores")
    y = s.qdq("p", s.node("Softmax", [y], "probs", name="softmax", axis=-1), 0.0079)
    y = s.node("MatMul", [y, s.qdq("v", v, 0.07)], "values_y", name="values")
    y = s.node("Transpose", [y], "back_y", name="back", perm=[0, 3, 1, 2])
    y = s.node("Reshape", [y, integers(s, "merge", 1, rows, width)], "merge_y", name="merge")
    s.output(s.qmatmul("last", y, shape=(width, WIDTH)), [1, rows, WIDTH])
    return s


def written_out(*, turned_behind: bool) -> Quantized:
    """A LayerNormalization in single operators, whose input is read again by a later sum."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    x = s.node("Add", [y, s.input("r", [1, ROWS, WIDTH])], "sum", name="add")
    mean = s.node("ReduceMean", [x], "mean_y", name="mean", axes=[-1])
    y = s.node("Sub", [x, mean], "sub_y", name="sub")
    square = s.node("Mul", [y, y], "square_y", name="square")
    deviation = s.node(
        "Sqrt", [s.node("ReduceMean", [square], "var_y", name="var", axes=[-1])], "sqrt_y", name="sqrt"
    )
    y = s.node("Div", [y, deviation], "div_y", name="div")
    if turned_behind:
        y = s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 1])
        s.output(s.qmatmul("last", y, shape=(ROWS, WIDTH)), [1, WIDTH, WIDTH])
        return s
    y = s.node("Add", [s.qmatmul("last", y, shape=(WIDTH, WIDTH)), x], "again_y", name="again")
    s.output(s.qmatmul("end", y, shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def split_product() -> Quantized:
    """The parts of one result, each quantized for a product of its own."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, 2 * WIDTH))
    s.nodes.append(helper.make_node("Split", [y], ["p0", "p1"], name="split", axis=2))
    for i in range(2):
        s.output(s.qmatmul(f"last{i}", f"p{i}", shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def two_readers() -> Quantized:
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    for op in ("Sigmoid", "Tanh"):
        z = s.node(op, [y], f"{op}_y", name=op)
        s.output(s.qmatmul(f"last_{op}", z, shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def tokens(size: int) -> Quantized:
    """Pixels of a convolution become tokens, are added to others and normalized."""
    s, y = convolved(size, 64)
    y = s.node("Reshape", [y, integers(s, "flat", 1, 64, size * size)], "flat_y", name="flat")
    y = s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 1])
    y = s.node("Add", [y, s.input("r", [1, size * size, WIDTH])], "sum", name="add")
    s.output(s.qmatmul("last", normalized(s, y), shape=(WIDTH, WIDTH)), [1, size * size, WIDTH])
    return s


def operator(op: str, **attributes: int) -> Quantized:
    s, y = convolved()
    y = s.node("Sigmoid", [y], "act_y", name="act")
    if op == "CumSum":
        y = s.node(op, [y, s.constant("axis", np.array(3))], "op_y", name="op")
    elif op == "ScatterElements":
        places = s.constant("places", np.zeros((1, 32, 1, 8), np.int64))
        y = s.node(op, [y, places, s.weight("news", 1, 32, 1, 8)], "op_y", name="op", axis=2)
    else:
        whole = s.node(op, [y], "op_y", name="op", **attributes)
        y = s.node("Mul", [y, s.node("Cast", [whole], "cast_y", name="cast", to=1)], "mul_y", name="mul")
    y = s.node("Exp", [y], "exp_y", name="exp")
    s.output(s.qconv("last", y, channels=(32, 32)), [1, 32, 8, 8])
    return s


def grouped() -> Quantized:
    """The operator GroupNormalization, with an activation behind it."""
    s, y = convolved()
    y = s.node(
        "GroupNormalization",
        [y, s.weight("gain", 32), s.weight("shift", 32)],
        "norm_y",
        name="norm",
        num_groups=8,
    )
    s.output(s.qconv("last", s.node("Tanh", [y], "act_y", name="act"), channels=(32, 32)), [1, 32, 8, 8])
    return s


def of_one_group(s: Quantized, x: str, channels: int, size: int) -> str:
    """All values of a picture normalized together, with factors per channel."""
    one, zero = s.constant("one", np.ones(1, np.float32)), s.constant("zero", np.zeros(1, np.float32))
    y = s.node("Reshape", [x, integers(s, "flat", 1, 1, -1)], "flat_y", name="flatten")
    y = s.node("InstanceNormalization", [y, one, zero], "norm_y", name="norm")
    y = s.node("Reshape", [y, integers(s, "back", 1, channels, size, size)], "back_y", name="unflatten")
    y = s.node("Mul", [y, s.weight("gain", channels, 1, 1)], "gain_y", name="mul")
    return s.node("Add", [y, s.weight("shift", channels, 1, 1)], "shift_y", name="add")


def one_group(channels: int, group: int = 1) -> Quantized:
    s, y = convolved(channels=channels)
    y = of_one_group(s, y, channels, 8)
    s.output(s.qconv("last", y, channels=(channels, channels), group=group), [1, channels, 8, 8])
    return s


def part_normalized(part: int, channels: int = 128) -> Quantized:
    """The first channels are normalized, and both parts are convolved."""
    s, y = convolved(channels=channels)
    parts = ["first_part", "rest"]
    s.nodes.append(
        helper.make_node(
            "Split", [y, integers(s, "sizes", part, channels - part)], parts, name="split", axis=1
        )
    )
    y = of_one_group(s, "first_part", part, 8)
    s.output(s.qconv("last", y, channels=(part, 16), kernel=1), [1, 16, 8, 8])
    s.output(s.qconv("other", "rest", channels=(channels - part, 16), kernel=1), [1, 16, 8, 8])
    return s


def resized(middle: str, total: str) -> Quantized:
    """A picture is made larger, perhaps added to another one, and summed up."""
    s, y = convolved(size=4)
    scales = s.constant("scales", np.array([1, 1, 2, 2], np.float32))
    y = s.node("Resize", [y, "", scales], "large", name="resize", mode="nearest")
    if middle:
        others = [s.input("other", [1, 32, 8, 8])] if middle == "Add" else []
        y = s.node(middle, [y, *others], "middle_y", name="middle")
    if total == "group":
        y = of_one_group(s, y, 32, 8)
    elif total == "Softmax":
        y = s.node("Softmax", [y], "probs", name="softmax", axis=1)
    else:
        y = s.node("Reshape", [y, integers(s, "pixels", 1, 32, 64)], "pixels_y", name="to_pixels")
        y = s.node("Transpose", [y], "turned_y", name="turn", perm=[0, 2, 1])
        y = normalized(s, y, 32)
        y = s.node("Transpose", [y], "returned_y", name="return", perm=[0, 2, 1])
        y = s.node("Reshape", [y, integers(s, "picture", 1, 32, 8, 8)], "picture_y", name="to_picture")
    s.output(s.qconv("last", y, channels=(32, 32), kernel=1), [1, 32, 8, 8])
    return s


def groups(count: int) -> Quantized:
    """GroupNormalization as exporters write it; 0 for an InstanceNormalization of all channels."""
    s, y = convolved()
    number = count or 32
    ones, zeros = (
        s.constant("ones", np.ones(number, np.float32)),
        s.constant("zeros", np.zeros(number, np.float32)),
    )
    y = s.node("Reshape", [y, integers(s, "apart", 1, count, -1)], "apart_y", name="apart") if count else y
    y = s.node("InstanceNormalization", [y, ones, zeros], "norm_y", name="norm")
    if count:
        y = s.node("Reshape", [y, integers(s, "joined", 1, 32, 8, 8)], "joined_y", name="joined")
        y = s.node("Mul", [y, s.weight("gain", 32, 1, 1)], "gain_y", name="mul")
        y = s.node("Add", [y, s.weight("shift", 32, 1, 1)], "shift_y", name="add")
    y = s.node("Mul", [y, s.node("Sigmoid", [y], "gate_y", name="gate")], "swish_y", name="swish")
    s.output(s.qconv("last", y, channels=(32, 32)), [1, 32, 8, 8])
    return s


def shuffled(units: int, op: str) -> Quantized:
    """A stage of ShuffleNet: half of the channels pass each unit, and all of them are shuffled behind it."""
    half, size = 16, 8
    s = Quantized()
    left, right = (
        s.relu(
            side, s.qconv(f"{side}_conv", s.input(f"{side}_x", [1, half, size, size]), channels=(half, half))
        )
        for side in ("left", "right")
    )
    shapes = [
        integers(s, "apart", 1, 2, half, size, size), integers(s, "together", 1, 2 * half, size, size),
        integers(s, "halves", half, half),
    ]  # fmt: skip
    for unit in range(1, units + 1):
        y = s.node("Concat", [left, right], f"cat{unit}_y", name=f"cat{unit}", axis=1)
        y = s.node("Reshape", [y, shapes[0]], f"apart{unit}_y", name=f"apart{unit}")
        y = s.node("Transpose", [y], f"turn{unit}_y", name=f"turn{unit}", perm=[0, 2, 1, 3, 4])
        y = s.node("Reshape", [y, shapes[1]], f"shuffled{unit}", name=f"together{unit}")
        if unit == units:
            break
        if op == "Split":
            left, right = f"left{unit}_y", f"right{unit}_y"
            halves = helper.make_node("Split", [y, shapes[2]], [left, right], name=f"split{unit}", axis=1)
            s.nodes.append(halves)
        elif op == "Slice":
            edges = [
                integers(s, f"{name}{unit}", value)
                for name, value in (("from", 0), ("mid", half), ("to", 2 * half))
            ]
            s.node("Shape", [y], f"shape{unit}", name=f"shape{unit}")
            left, right = (
                s.node(
                    "Slice",
                    [y, *edges[index : index + 2], integers(s, f"{side}{unit}_a", 1)],
                    f"{side}{unit}_y",
                    name=f"{side}{unit}",
                )
                for index, side in enumerate(("left", "right"))
            )
        else:
            y = s.node("Reshape", [y, shapes[0]], f"pairs{unit}_y", name=f"pairs{unit}")
            left, right = (
                s.node("Gather", [y, s.constant(f"{side}{unit}_i", np.array(index))], f"{side}{unit}_y",
                       name=f"{side}{unit}", axis=1)
                for index, side in enumerate(("left", "right"))
            )  # fmt: skip
        right = s.qconv(f"unit{unit}", right, channels=(half, half), act=0.05 + 0.01 * unit)
        right = s.relu(f"act{unit}", right)
    s.output(s.qconv("last", y, channels=(2 * half, 2 * half), act=0.04), [1, 2 * half, size, size])
    return s


def shared_mean(behind: str, end: str) -> Quantized:
    """A mean of pixels that a second convolution reads too, and what is computed of it for a product or an output."""
    s, y = convolved()
    y = s.node("Tanh", [y], "act_y", name="act")
    x = s.node("GlobalAveragePool", [y], "mean_y", name="mean")
    half, root, one = (s.constant(f"c{value}", np.array(value, np.float32)) for value in (0.5, 0.7071, 1.0))
    if behind == "Gelu in five":
        curve = s.node("Erf", [s.node("Mul", [x, root], "root_y", name="root")], "erf_y", name="erf")
        x = s.node("Mul", [x, s.node("Add", [curve, one], "one_y", name="one")], "gelu_y", name="gelu")
        x = s.node("Mul", [x, half], "half_y", name="half")
    elif behind == "Swish":
        x = s.node("Mul", [x, s.node("Sigmoid", [x], "gate_y", name="gate")], "swish_y", name="swish")
    elif behind == "square, Relu":
        x = s.node("Relu", [s.node("Mul", [x, x], "square_y", name="square")], "relu_y", name="relu")
    elif behind == "Relu, square":
        x = s.node("Relu", [x], "relu_y", name="relu")
        x = s.node("Mul", [x, x], "square_y", name="square")
    else:
        x = s.node(behind, [x], "behind_y", name="behind")
    y = s.qconv("second", y, channels=(32, 32))
    if end == "product":
        y = s.node("Mul", [y, x], "scaled_y", name="scaled")
    elif end == "Q":
        s.output(s.qconv("small", x, channels=(32, 32), kernel=1), [1, 32, 1, 1])
    else:
        s.output(x, [1, 32, 1, 1])
    s.output(s.qconv("last", y, channels=(32, 32)), [1, 32, 8, 8])
    return s


def mean_of_tokens(total: Callable[..., str] | None, axis: int) -> Quantized:
    """The mean of all tokens or of each, perhaps of normalized ones."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [4, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Relu", [y], "act_y", name="act")
    y = total(s, y) if total else y
    y = s.node("ReduceMean", [y], "all_y", name="all", axes=[axis], keepdims=0)
    size = ROWS if axis == 2 else WIDTH
    s.output(s.qmatmul("last", y, shape=(size, WIDTH)), [4, WIDTH])
    return s


def windows(inner: int) -> Quantized:
    """Many rows in pieces of `inner` values find another order, and are normalized."""
    s, rows = Quantized(), 2304
    y = s.qmatmul("first", s.input("x", [1, rows, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.weight("bias_w", WIDTH)], "bias_y", name="bias")
    y = s.node(
        "Reshape", [y, integers(s, "pieces", 1, rows, WIDTH // inner, inner)], "pieces_y", name="apart"
    )
    y = s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, integers(s, "rows", 1, rows, WIDTH)], "rows_y", name="together")
    s.output(s.qmatmul("last", normalized(s, y), shape=(WIDTH, WIDTH)), [1, rows, WIDTH])
    return s


def rolled(taken: int) -> Quantized:
    """The first rows come behind all others, and all are normalized."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, 64, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.input("r", [1, 64, WIDTH])], "sum", name="add")
    zero, middle, end, axis = (integers(s, f"i{value}", value) for value in (0, taken, 64, 1))
    parts = [
        s.node("Slice", [y, *ends, axis], f"{name}_y", name=name)
        for name, ends in (("rest", (middle, end)), ("few", (zero, middle)))
    ]
    y = s.node("Concat", parts, "cat_y", name="cat", axis=1)
    s.output(s.qmatmul("last", normalized(s, y), shape=(WIDTH, WIDTH)), [1, 64, WIDTH])
    return s


def biased(own: bool, behind: str) -> Quantized:
    """A float convolution, a constant added behind it, and one operator more."""
    s, y = convolved()
    y = s.node("Tanh", [y], "act_y", name="act")
    bias = [s.weight("own_b", 32)] if own else []
    y = s.node("Conv", [y, s.weight("own_w", 32, 32, 1, 1), *bias], "conv_y", name="conv")
    y = s.node("Add", [y, s.weight("more", 1, 32, 1, 1)], "add_y", name="add")
    s.output(
        s.qconv("last", s.node(behind, [y], "behind_y", name="behind"), channels=(32, 32)), [1, 32, 8, 8]
    )
    return s


def turned_scores(total: Callable[..., str]) -> Quantized:
    """Normalized scores that the second product of two computed factors reads turned."""
    s, count = Quantized(), 16
    factors = [
        s.qdq(name, s.input(name, shape), 0.05)
        for name, shape in (("q", [1, 2, count, 32]), ("k", [1, 2, 32, count]), ("v", [1, 2, count, 32]))
    ]
    y = s.node("MatMul", factors[:2], "scores_y", name="scores")
    y = total(s, s.node("Relu", [y], "act_y", name="act"))
    y = s.qdq("p", s.node("Transpose", [y], "t_y", name="t", perm=[0, 1, 3, 2]), 0.0079)
    y = s.node("MatMul", [y, factors[2]], "values_y", name="values")
    s.output(s.node("Tanh", [y], "tanh_y", name="tanh"), [1, 2, count, 32])
    return s


def grouped_heads() -> Quantized:
    """Keys and values of one head for two, as language models write them, in an INT8 attention."""
    s, heads = Quantized(), []
    for name, count in (("q", 4), ("k", 2), ("v", 2)):
        y = s.input(f"{name}_in", [1, count, ROWS, 16])
        y = s.node("Tanh", [y], f"{name}_act_y", name=f"{name}_act")
        if count == 2:
            sizes = [
                integers(s, f"{name}_{i}", *v)
                for i, v in enumerate(((2,), (1, 2, 2, ROWS, 16), (1, 4, ROWS, 16)))
            ]
            for op, size in zip(("Unsqueeze", "Expand", "Reshape"), sizes, strict=True):
                y = s.node(op, [y, size], f"{name}_{op}_y", name=f"{name}_{op}")
        heads.append(y)
    k = s.node("Transpose", [heads[1]], "keys_t", name="keys_turn", perm=[0, 1, 3, 2])
    y = s.node("MatMul", [s.qdq("qs", heads[0], 0.05), s.qdq("ks", k, 0.06)], "scores_y", name="scores")
    y = s.qdq("p", s.node("Softmax", [y], "probs", name="softmax", axis=-1), 0.0079)
    y = s.node("MatMul", [y, s.qdq("vs", heads[2], 0.07)], "values_y", name="values")
    y = s.node("Transpose", [y], "back_y", name="back", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, integers(s, "merge", 1, ROWS, WIDTH)], "merge_y", name="merge")
    s.output(s.qmatmul("last", y, shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def part_joined_later() -> Quantized:
    """One half of a picture is convolved, and joined with the other one in front of a Q."""
    s, y = convolved(channels=64)
    y = s.node("Tanh", [y], "act_y", name="act")
    s.nodes.append(helper.make_node("Split", [y], ["half0", "half1"], name="split", axis=1))
    z = s.node("Sigmoid", [s.qconv("second", "half1", channels=(32, 32))], "gate_y", name="gate")
    y = s.node("Concat", ["half0", z], "cat_y", name="cat", axis=1)
    s.output(s.qconv("last", y, channels=(64, 64), act=0.04), [1, 64, 8, 8])
    return s


CASES = {
    **{
        f"float convolution {'with' if own else 'without'} a bias, a constant, {behind}": biased(own, behind)
        for own in (True, False)
        for behind in ("Relu", "Exp", "HardSigmoid")
    },
    "turned scores": turned_scores(softmax),
    "heads for several others": grouped_heads(),
    "part joined later": part_joined_later(),
    **{
        f"mean along {axis} {'behind ' + total.__name__ if total else 'alone'}": mean_of_tokens(total, axis)
        for axis in (1, 2)
        for total in (None, normalized, softmax, length)
    },
    **{f"windows of {inner}": windows(inner) for inner in (1, 32)},
    "rolled by a 21st": rolled(3),
    **{
        f"mean read twice, {behind}, {end}": shared_mean(behind, end)
        for behind in ("Relu", "Gelu in five", "Swish", "square, Relu", "Relu, square", "Gelu", "Mish")
        for end in ("product", "Q", "output")
    },
    **{f"shuffled {units} times, Split": shuffled(units, "Split") for units in (2, 4, 5, 8)},
    "shuffled 6 times, Gather": shuffled(6, "Gather"),
    "shuffled 8 times, Slice": shuffled(8, "Slice"),
    "mean of pixels for a convolution": mean_of_pixels(7, "GlobalAveragePool"),
    "mean of pixels for a matrix product": mean_of_pixels(7, last="product"),
    "mean of 16384 pixels": mean_of_pixels(128, last="product"),
    "48 lengths of 7x7": lengths(7, 48),
    "768 lengths of 8x8": lengths(8, 768),
    "16th of the rows": sliced(64, 4),
    "8th of the rows": sliced(64, 8),
    "part for a later kernel": picked_again(),
    "small attention between channels, Gather": between_channels(16, 96, 4, split=False),
    "large attention between channels, Gather": between_channels(196, 384, 8, split=False),
    "small attention between channels, Split": between_channels(16, 96, 4, split=True),
    "large attention between channels, Split": between_channels(196, 384, 8, split=True),
    "normalization in single operators": written_out(turned_behind=False),
    "normalization in single operators, then a Transpose": written_out(turned_behind=True),
    "two readers of one product": two_readers(),
    "two parts of one product": split_product(),
    "few tokens of pixels": tokens(16),
    "many tokens of pixels": tokens(48),
    "CumSum": operator("CumSum"),
    "ScatterElements": operator("ScatterElements"),
    "ArgMax": operator("ArgMax", axis=1),
    "no groups": groups(0),
    "8 groups, one operator": grouped(),
    "one group": groups(1),
    "4 groups": groups(4),
    **{f"one group of {count} channels": one_group(count) for count in (20, 66, 96)},
    "one group for a depthwise convolution": one_group(64, group=64),
    **{f"one group of the first {part} of 128": part_normalized(part) for part in (32, 64, 66)},
    **{
        f"resized, {middle or 'then'} {total}": resized(middle, total)
        for middle in ("", "Relu", "Add")
        for total in ("group", "Softmax", "LayerNormalization")
    },
    **{
        f"{total.__name__} {tail.__name__}": stretch(total, tail)
        for total in (normalized, softmax, length, mean_square)
        for tail in (plain, turned, first_half, joined)
    },
    "small Transpose in front": turned_before(2303),
    "large Transpose in front": turned_before(2304),
    "row of 8192": long_row(8192),
    "row of 16384": long_row(16384),
    "one product for all three": one_product(),
    "one product without bias": one_product(bias=False),
    "one product with Tanh": one_product(tanh=True),
    "average of 3x3": pooled(3),
    "average of 5x5": pooled(5),
}

NEWER = {name for name in CASES if name == "8 groups, one operator" or "Gelu," in name or "Mish," in name}


def shortcut_of_the_input(*, shared: bool = False) -> Sketch:
    """LayerNormalization, an INT8 product, and the INT8 input added to its result; or the product reads that input."""
    s = qdq.Quantized()
    x = s.input("x", [2, 128, 256])
    short = s.pair(x, "x")
    norm = (
        ""
        if shared
        else s.node("LayerNormalization", [x, s.weight("g", 256), s.weight("b", 256)], "n", name="norm")
    )
    y = s.node(
        "MatMul", [s.pair(norm, "y") if norm else short, s.weights("mm_w", 256, 256, axis=1)], "m", name="mm"
    )
    s.output(s.node("Relu", [s.node("Add", [y, short], "sum", name="add")], "z", name="relu"))
    return s


CASES |= {
    "INT8 shortcut from the input": shortcut_of_the_input(),
    "INT8 input for a product and a shortcut": shortcut_of_the_input(shared=True),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_kernels_between_products_are_predicted_as_the_compiler_makes_them(tmp_path, name: str):
    built, predicted = between_products(CASES[name].model(opset=21 if name in NEWER else 17), tmp_path)
    assert built <= predicted


@pytest.mark.parametrize(
    ("op", "count"),
    [
        ("ReduceSum", 2), ("ReduceSum", 6), ("ReduceSum", 7), ("ReduceMean", 4), ("ReduceMean", 5), ("ReduceMax", 4),
        ("ReduceMax", 5), ("ReduceL2", 6), ("Softmax", 2), ("Softmax", 4), ("Softmax", 8),
    ],
)  # fmt: skip
def test_a_sum_of_few_values_shares_a_kernel_with_sums_along_other_axes(
    op: str, count: int, tmp_path: Path
) -> None:
    s = Sketch()
    x = s.node("Relu", [s.input("x", [1, count, 64, 12, 12])], "relu_y", name="relu")
    if op == "Softmax":
        shares = s.node("Softmax", [x], "shares", name="softmax", axis=1)
        x, op = s.node("Mul", [shares, x], "weighed", name="weigh"), "ReduceSum"
    if op == "ReduceSum":
        y = s.node(op, [x, s.constant("axis", np.array([1]))], "total", name="reduce", keepdims=0)
    else:
        y = s.node(op, [x], "total", name="reduce", axes=[1], keepdims=0)
    s.output(s.node("ReduceMean", [y], "mean_y", name="mean", axes=[2, 3], keepdims=0))
    proto = s.model()
    made = len(build(proto).kernels)
    assert len(predict(load(save(proto, tmp_path))).layers) == made
