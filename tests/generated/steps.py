"""Steps of generated networks: each reads one tensor of a draft, adds a few nodes and returns the tensor they end in.

A step need not know where it fits: onnxruntime runs every node as it is added, and a step with a refused node is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.generated.draft import Draft, Step, Unfit


def convolution(draft: Draft, x: str) -> str:
    channels, size = _image(draft, x)
    group = draft.chosen.choice([1, 1, 1, 2, channels])
    made = group * draft.chosen.choice([1, 2]) if group > 1 else draft.chosen.choice([4, 6, 8])
    kernel = draft.chosen.choice([1, 2, 3, 3])
    if channels % group or kernel > size:
        raise Unfit("Conv")
    weight = draft.weight(made, channels // group, kernel, kernel)
    border = draft.chosen.choice(["pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    return draft.node(
        "Conv",
        *[x, weight, *_bias(draft, made)],
        group=group,
        strides=[draft.chosen.choice([1, 1, 2])] * 2,
        kernel_shape=draft.chosen.choice([[kernel, kernel], None]),
        pads=[draft.chosen.randint(0, 1) for _ in range(4)] if border == "pads" else None,
        auto_pad=None if border == "pads" else border,
        dilations=[draft.chosen.choice([1, 1, 2])] * 2 if border == "pads" else None,
    )


def transposed_convolution(draft: Draft, x: str) -> str:
    channels, _ = _image(draft, x)
    group = draft.chosen.choice([1, 1, 2, channels])
    made = draft.chosen.choice([1, 2, 4])
    kernel = [draft.chosen.choice([1, 2, 3, 4]) for _ in range(2)]
    if channels % group:
        raise Unfit("ConvTranspose")
    weight = draft.weight(channels, made, *kernel, scale=0.4)
    return draft.node(
        "ConvTranspose",
        *[x, weight, *_bias(draft, made * group)],
        group=group,
        strides=[draft.chosen.choice([1, 2, 2, 3]) for _ in range(2)],
        pads=[draft.chosen.randint(0, 1) for _ in range(4)],
        output_padding=draft.chosen.choice([None, None, [1, 0]]),
    )


def batch_normalization(draft: Draft, x: str) -> str:
    """One BatchNormalization, or two in a row."""
    for _ in range(draft.chosen.choice([1, 1, 2])):
        channels = draft.shape(x)[1]
        gain, shift, mean = (draft.weight(channels, scale=0.3, around=about) for about in (1, 1e-3, 1e-3))
        var = draft.constant(np.abs(draft.noise.standard_normal(channels)) + 0.1)
        epsilon = draft.chosen.choice([None, 1e-3])
        x = draft.node("BatchNormalization", x, gain, shift, mean, var, epsilon=epsilon)
    return x


def gemm(draft: Draft, x: str) -> str:
    if len(draft.shape(x)) != 2:
        x = draft.node("Flatten", x)
    depth, width = draft.shape(x)[1], draft.chosen.choice([4, 8, 16])
    turned = draft.chosen.randint(0, 1)
    weight = draft.weight(*((width, depth) if turned else (depth, width)), scale=depth**-0.5)
    shapes = [(width,), (1, width), (1,)] + [None] * (draft.opset >= 11)
    shape = draft.chosen.choice(shapes)
    bias = [] if shape is None else [draft.weight(*shape, scale=0.5)]
    factors = {"alpha": draft.chosen.choice([None, 0.5]), "beta": draft.chosen.choice([None, 2.0])}
    y = draft.node("Gemm", x, weight, *bias, transB=turned, **factors)
    return batch_normalization(draft, y) if draft.chosen.random() < 0.3 else y


def matmul(draft: Draft, x: str) -> str:
    width, depth = draft.chosen.choice([4, 8]), draft.shape(x)[-1]
    y = draft.node("MatMul", x, draft.weight(depth, width, scale=depth**-0.5))
    return draft.node("Add", y, draft.weight(width, scale=0.5)) if draft.chosen.random() < 0.6 else y


def einsum(draft: Draft, x: str) -> str:
    shape = draft.shape(x)
    depth, letters = shape[-1], "abcd"[: len(shape) - 1]
    kind = draft.chosen.choice(["right", "left", "heads"])
    if kind == "right":
        return draft.node("Einsum", x, draft.weight(depth, 4), equation=f"{letters}k,kn->{letters}n")
    if kind == "left":
        equation = f"nk,{letters}k->{letters[0]}n{letters[1:]}"
        return draft.node("Einsum", draft.weight(4, depth), x, equation=equation)
    return draft.node("Einsum", x, draft.weight(depth, 2, 4), equation=f"{letters}k,khn->{letters}hn")


def attention(draft: Draft, x: str) -> str:
    """Self-attention of products and Softmax, or, from opset 23 on, the operator."""
    shape = draft.shape(x)
    if len(shape) != 3:
        raise Unfit("attention")
    if draft.opset >= 23 and draft.chosen.random() < 0.5:
        causal = draft.chosen.randint(0, 1)
        return draft.node("Attention", x, x, x, q_num_heads=2, kv_num_heads=2, is_causal=causal)
    keys = draft.node("Transpose", x, perm=[0, 2, 1])
    scores = draft.node("Mul", draft.node("MatMul", x, keys), draft.constant(shape[-1] ** -0.5))
    return draft.node("MatMul", draft.node("Softmax", scores, axis=2), x)


def recurrent(draft: Draft, x: str) -> str:
    if len(draft.shape(x)) != 3:
        raise Unfit("recurrent")
    op, gates = draft.chosen.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = draft.chosen.choice(["forward", "reverse", "bidirectional"])
    ways, hidden = 1 + (direction == "bidirectional"), 4
    first = draft.node("Transpose", x, perm=[1, 0, 2])
    weights = [
        draft.weight(ways, gates * hidden, depth, scale=0.4) for depth in (draft.shape(first)[2], hidden)
    ]
    bias = [draft.weight(ways, 2 * gates * hidden, scale=0.3)] if draft.chosen.random() < 0.6 else []
    settings = {"clip": draft.chosen.choice([None, None, 0.5])}
    if op == "GRU":
        settings["linear_before_reset"] = draft.chosen.randint(0, 1)
    y = draft.node(op, first, *weights, *bias, hidden_size=hidden, direction=direction, **settings)
    y = draft.node("Transpose", y, perm=[2, 0, 1, 3])
    return draft.node("Reshape", y, draft.integers(0, 0, -1))


def normalization(draft: Draft, x: str) -> str:
    """One of the normalizations of this opset, or LayerNormalization in pieces."""
    shape = draft.shape(x)
    last = draft.weight(shape[-1], scale=0.2, around=1), draft.weight(shape[-1], scale=0.2)
    by_channel = draft.weight(shape[1], scale=0.2, around=1), draft.weight(shape[1], scale=0.2)
    kinds = ["pieces", "InstanceNormalization", "LRN"]
    kinds += ["LayerNormalization"] * 2 * (draft.opset >= 17) + ["GroupNormalization"] * (draft.opset >= 21)
    kinds += ["RMSNormalization"] * 2 * (draft.opset >= 23)
    kind = draft.chosen.choice(kinds)
    if kind == "LRN":
        return draft.node(kind, x, size=draft.chosen.choice([3, 4]))
    if kind == "InstanceNormalization":
        return draft.node(kind, x, *by_channel)
    if kind == "GroupNormalization":
        return draft.node(kind, x, *by_channel, num_groups=2)
    if kind == "LayerNormalization":
        return draft.node(kind, x, *last, axis=-1)
    if kind == "RMSNormalization":
        return draft.node(kind, x, last[0], axis=-1)
    centred = draft.node("Sub", x, _mean(draft, x))
    spread = _mean(draft, draft.node("Mul", centred, centred))
    return draft.node(
        "Div", centred, draft.node("Sqrt", draft.node("Add", spread, draft.constant(np.float32(1e-3))))
    )


def activation(draft: Draft, x: str) -> str:
    op = draft.chosen.choice(list(ACTIVATIONS))
    if draft.opset < ACTIVATIONS[op]:
        raise Unfit(op)
    if op == "PRelu":
        slopes = (draft.shape(x)[1], *[1] * (len(draft.shape(x)) - 2))
        return draft.node(op, x, draft.weight(*slopes, scale=0.2))
    if op == "Clip" and draft.opset < 11:
        return draft.node(op, x, min=-1.0, max=2.0)
    if op == "Clip":
        low = draft.constant(-1.0) if draft.chosen.random() < 0.7 else ""
        return draft.node(op, x, low, draft.constant(2.0))
    if op in {"Softmax", "LogSoftmax", "Hardmax"}:
        return draft.node(op, x, axis=draft.chosen.choice([None, 1, len(draft.shape(x)) - 1]))
    if op == "Swish":
        return draft.node("Mul", x, draft.node("Sigmoid", x))
    return draft.node(op, x)


ACTIVATIONS = dict.fromkeys(
    ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "PRelu", "Softplus", "HardSigmoid", "Abs", "Selu", "Neg"], 7
) | {
    "Clip": 7, "Softmax": 7, "LogSoftmax": 7, "Hardmax": 7, "Swish": 7, "Identity": 7, "Dropout": 7,
    "Erf": 9, "HardSwish": 14, "Mish": 18, "Gelu": 20,
}  # fmt: skip
"""Operators of one input, with the first opset that has them (an own word for what takes two nodes)."""


def pooling(draft: Draft, x: str) -> str:
    _image(draft, x)
    op = draft.chosen.choice(["MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "LpPool"])
    if op == "GlobalAveragePool":
        return draft.node(op, x)
    border = draft.chosen.choice([{}, {"pads": [1, 1, 0, 0]}, {"auto_pad": "SAME_LOWER"}])
    rounds_up = op != "LpPool" and draft.opset >= {"MaxPool": 10, "AveragePool": 19}[op]
    return draft.node(
        op,
        x,
        kernel_shape=[2, 2],
        strides=[draft.chosen.choice([1, 2])] * 2,
        ceil_mode=draft.chosen.choice([None, 1]) if rounds_up and not border else None,
        **border,
    )


def arithmetic(draft: Draft, x: str) -> str:
    """Two tensors of one shape, or a tensor and a constant."""
    shape = draft.shape(x)
    others = [name for name in draft.ends if draft.shape(name) == shape and name != x]
    op = draft.chosen.choice(["Add", "Add", "Mul", "Sub", "Max", "Min", "Sum", "Concat"])
    if others and draft.chosen.random() < 0.7:
        other = draft.chosen.choice(others)
    elif op == "Concat":
        raise Unfit(op)
    else:
        other = draft.weight(*draft.chosen.choice([shape[-1:], (1, *shape[1:2], *[1] * (len(shape) - 2))]))
    if op == "Concat":
        return draft.node(op, x, other, axis=1)
    difference = np.abs(draft.values[x] - draft.values[other]).max()
    if op == "Sub" and difference < 0.1 * np.abs(draft.values[x]).max():
        raise Unfit(op)  # a difference of equals is nothing but their rounding
    return draft.node(op, *((x, other) if draft.chosen.random() < 0.7 else (other, x)))


def movement(draft: Draft, x: str) -> str:
    """One operator that moves values or picks some of them, in the form of this opset."""
    return draft.chosen.choice([_transpose, _pad, _slice, _gather, _split, _rank, _reshape, _repeat, _space])(
        draft, x
    )


def _transpose(draft: Draft, x: str) -> str:
    order = list(range(1, len(draft.shape(x))))
    draft.chosen.shuffle(order)
    return draft.node("Transpose", x, perm=[0, *order])


def _pad(draft: Draft, x: str) -> str:
    inner = len(draft.shape(x)) - 2
    pads = [0, 0, *(draft.chosen.randint(0, 1) for _ in range(inner))] * 2
    mode = draft.chosen.choice(["constant", "reflect", "edge"])
    if draft.opset < 11:
        return draft.node("Pad", x, pads=pads, mode=mode)
    filled = [draft.constant(0.5)] if mode == "constant" and draft.chosen.random() < 0.6 else []
    return draft.node("Pad", x, draft.integers(*pads), *filled, mode=mode)


def _slice(draft: Draft, x: str) -> str:
    axis = draft.chosen.randrange(1, len(draft.shape(x)))
    if draft.opset < 10:
        return draft.node("Slice", x, axes=[axis], starts=[1], ends=[draft.shape(x)[axis]])
    start, end, step = draft.chosen.choice([(-1, -100000, -1), (0, 10000, 2), (1, 10000, 1), (0, -1, 1)])
    return draft.node("Slice", x, *(draft.integers(number) for number in (start, end, axis, step)))


def _gather(draft: Draft, x: str) -> str:
    axis = draft.chosen.randrange(1, len(draft.shape(x)))
    most = draft.shape(x)[axis]
    places = [draft.chosen.randrange(most) for _ in range(draft.chosen.choice([2, 3, most]))]
    return draft.node("Gather", x, draft.integers(*places), axis=axis)


def _split(draft: Draft, x: str) -> str:
    half, odd = divmod(draft.shape(x)[1], 2)
    if odd:
        raise Unfit("Split")
    parts = [draft.integers(half, half)] if 13 <= draft.opset < 18 else []
    count = 2 if draft.opset >= 18 else None
    first, second = draft.outputs("Split", [x, *parts], 2, axis=1, num_outputs=count)
    draft.ends.append(second)
    return first


def _rank(draft: Draft, x: str) -> str:
    """A dimension of length 1 less, or one more."""
    shape = draft.shape(x)
    ones = [axis for axis in range(1, len(shape)) if shape[axis] == 1 and len(shape) > 2]
    op, axis = ("Squeeze", ones[0]) if ones else ("Unsqueeze", 1)
    if op == "Unsqueeze" and len(shape) > 3:
        raise Unfit(op)
    if draft.opset >= 13:
        return draft.node(op, x, draft.integers(axis))
    return draft.node(op, x, axes=[axis])


def _reshape(draft: Draft, x: str) -> str:
    """To three or two dimensions, by a constant or by arithmetic on the shape."""
    shape = draft.shape(x)
    if len(shape) < 3:
        raise Unfit("Reshape")
    if draft.chosen.random() < 0.4:
        batch = draft.node("Gather", draft.node("Shape", x), draft.integers(0), axis=0)
        return draft.node("Reshape", x, draft.node("Concat", batch, draft.integers(-1), axis=0))
    return draft.node("Reshape", x, draft.integers(0, shape[1], -1))


def _repeat(draft: Draft, x: str) -> str:
    ones = [1] * (len(draft.shape(x)) - 1)
    if draft.chosen.random() < 0.5:
        return draft.node("Tile", x, draft.integers(*ones, 2))
    if draft.opset < 8:
        raise Unfit("Expand")
    return draft.node("Expand", x, draft.integers(1, *ones))


def _space(draft: Draft, x: str) -> str:
    if draft.chosen.random() < 0.5:
        return draft.node("SpaceToDepth", x, blocksize=2)
    mode = draft.chosen.choice(["DCR", "CRD"]) if draft.opset >= 11 else None
    return draft.node("DepthToSpace", x, blocksize=2, mode=mode)


def resize(draft: Draft, x: str) -> str:
    shape = draft.shape(x)
    _image(draft, x)
    scales, mode = [1.0, 1.0, 2.0, 1.5], draft.chosen.choice(["nearest", "linear"])
    if draft.opset < 9:
        return draft.node("Upsample", x, scales=scales, mode=mode)
    if draft.opset < 11:
        return draft.node("Upsample" if draft.opset == 9 else "Resize", x, draft.constant(scales), mode=mode)
    roi = "" if draft.opset >= 13 else draft.constant([])
    place = draft.chosen.choice(["half_pixel", "asymmetric", "align_corners"])
    settings = {"mode": mode, "coordinate_transformation_mode": place}
    if draft.chosen.random() < 0.5:
        return draft.node("Resize", x, roi, draft.constant(scales), **settings)
    no_scales = "" if draft.opset >= 13 else draft.constant([])
    sizes = draft.integers(*shape[:2], shape[2] * 2, shape[3] + 3)
    return draft.node("Resize", x, roi, no_scales, sizes, **settings)


def reduction(draft: Draft, x: str) -> str:
    op = draft.chosen.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ArgMax", "TopK", "CumSum"])
    shape = draft.shape(x)
    axis = draft.chosen.randrange(1, len(shape))
    if op == "ArgMax":
        return draft.node("Cast", draft.node(op, x, axis=axis, keepdims=1), to=TensorProto.FLOAT)
    if op == "TopK":
        count = min(3, shape[axis])
        if draft.opset < 10:
            return draft.outputs(op, [x], 2, k=count, axis=axis)[0]
        return draft.outputs(op, [x, draft.integers(count)], 2, axis=axis)[0]
    if op == "CumSum":
        if draft.opset < 11:
            raise Unfit(op)
        return draft.node(op, x, draft.constant(axis, np.int64), reverse=draft.chosen.randint(0, 1))
    return _reduced(draft, op, x, axis, keep=len(shape) < 3 or draft.chosen.random() < 0.5)


def other_type(draft: Draft, x: str) -> str:
    """A part in FP16, BF16 or double between two Casts."""
    kind = draft.chosen.choice([TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
    if kind == TensorProto.BFLOAT16:  # numpy cannot hold the tensor between the two
        if draft.opset < 13:
            raise Unfit("BFLOAT16")
        inner, result = draft.name("bfloat"), draft.name("cast")
        there = helper.make_node("Cast", [x], [inner], to=kind)
        draft.append([there, helper.make_node("Cast", [inner], [result], to=TensorProto.FLOAT)], [result])
        return result
    dtype, depth = helper.tensor_dtype_to_np_dtype(kind), draft.shape(x)[-1]
    y = draft.node("Cast", x, to=kind)
    y = draft.node("MatMul", y, draft.constant(draft.noise.standard_normal((depth, 4)) * depth**-0.5, dtype))
    y = draft.node("Add", y, draft.constant(draft.noise.standard_normal(4), dtype))
    return draft.node("Cast", y, to=TensorProto.FLOAT)


def constants(draft: Draft, x: str) -> str:
    """A weight that operators compute from constants: resized position embeddings, initial states, scaled weights."""
    shape = draft.shape(x)
    if len(shape) == 4 and draft.opset >= 13 and draft.chosen.random() < 0.7:
        return draft.node("Add", x, _table(draft, shape))
    if len(shape) == 3 and draft.chosen.random() < 0.5:
        weights = (
            draft.weight(1, 4 * shape[2], 3, scale=0.4),
            draft.weight(1, 4 * shape[2], shape[2], scale=0.4),
        )
        first, lengths = draft.constant(draft.noise.standard_normal((5, 1, 3))), draft.constant([3], np.int32)
        bias = draft.weight(1, 8 * shape[2], scale=0.3)
        settings = draft.chosen.choice([{}, {"clip": 0.3}, {"activations": ["Sigmoid", "Relu", "Tanh"]}])
        made = draft.outputs("LSTM", [first, *weights, bias, lengths], 2, hidden_size=shape[2], **settings)[1]
        return draft.node("Add", x, made)
    scaled = draft.node("Mul", draft.weight(4, shape[-1]), draft.constant(0.5))
    return draft.node("MatMul", x, draft.node("Transpose", scaled, perm=[1, 0]))


def _table(draft: Draft, shape: tuple[int, ...]) -> str:
    """A constant that images of this shape can be added to."""
    op = draft.chosen.choice(["Resize", "Resize", "MaxPool", "LRN", "LpNormalization"])
    if op == "Resize":
        mode, place = (
            draft.chosen.choice(["linear", "cubic"]),
            draft.chosen.choice(["half_pixel", "align_corners"]),
        )
        table, sizes = draft.weight(1, shape[1], 3, 5), draft.integers(1, shape[1], *shape[2:])
        return draft.node(op, table, "", "", sizes, mode=mode, coordinate_transformation_mode=place)
    if op == "MaxPool":
        twice = draft.weight(1, shape[1], 2 * shape[2], 2 * shape[3] - 1, scale=0.5)
        border = draft.chosen.choice(["SAME_UPPER", "SAME_LOWER"])
        return draft.node(op, twice, kernel_shape=[3, 2], strides=[2, 2], auto_pad=border)
    table = draft.weight(1, *shape[1:], scale=0.5)
    if op == "LRN":
        return draft.node(op, table, size=3, alpha=0.1, bias=2.0)
    return draft.node(op, table, axis=draft.chosen.choice([1, 3]), p=draft.chosen.choice([1, 2]))


def condition(draft: Draft, x: str) -> str:
    """An If whose branches read a tensor and a weight of the graph around them."""
    if draft.opset < 11:
        raise Unfit("If")
    weight = _spread(draft, x)
    added, scaled, result = (draft.name("branch") for _ in range(3))
    then_branch = _body([helper.make_node("Add", [x, weight], [added])], [], [_any(added)])
    products = [
        helper.make_node("Mul", [x, weight], [scaled]),
        helper.make_node("Relu", [scaled], [result]),
    ]
    else_branch = _body(products, [], [_any(result)])
    if draft.chosen.random() < 0.5:
        decided = draft.constant(draft.chosen.random() < 0.5, bool)
    else:
        decided = draft.node("Greater", draft.node("ReduceMax", x, keepdims=0), draft.constant(1.0))
    return draft.node("If", decided, then_branch=then_branch, else_branch=else_branch)


def loop(draft: Draft, x: str) -> str:
    if draft.opset < 11:
        raise Unfit("Loop")
    weight = _spread(draft, x)
    count, going, before, scaled, again, after = (draft.name("loop") for _ in range(6))
    nodes = [
        helper.make_node("Mul", [before, weight], [scaled]),
        helper.make_node("Tanh", [scaled], [after]),
        helper.make_node("Identity", [going], [again]),
    ]
    dims = [None] * len(draft.shape(x))
    taken = [_any(count, TensorProto.INT64, []), _any(going, TensorProto.BOOL, []), _any(before, shape=dims)]
    body = _body(nodes, taken, [_any(again, TensorProto.BOOL, []), _any(after, shape=dims)])
    limit = draft.constant(3, np.int64)
    return draft.node("Loop", limit, draft.chosen.choice(["", draft.constant(True, bool)]), x, body=body)


def scan(draft: Draft, x: str) -> str:
    shape = draft.shape(x)
    if draft.opset < 11 or len(shape) < 3:
        raise Unfit("Scan")
    # the first state of each sample is zero: a sum over nothing of it keeps a free batch
    start = draft.node("Mul", _reduced(draft, "ReduceSum", x, 1, keep=False), draft.constant(0.0))
    state, entry, total, made = (draft.name("scan") for _ in range(4))
    nodes = [helper.make_node("Add", [state, entry], [total]), helper.make_node("Tanh", [total], [made])]
    dims = [None] * (len(shape) - 1)
    body = _body(
        nodes, *([_any(name, shape=dims) for name in names] for names in ((state, entry), (total, made)))
    )
    axes = {"scan_input_axes": [1], "scan_output_axes": [1]}
    return draft.outputs("Scan", [start, x], 2, body=body, num_scan_inputs=1, **axes)[1]


def _image(draft: Draft, x: str) -> tuple[int, int]:
    """Channels and the shorter side."""
    shape = draft.shape(x)
    if len(shape) != 4 or min(shape[2:]) < 2:
        raise Unfit("image")
    return shape[1], min(shape[2:])


def _bias(draft: Draft, channels: int) -> list[str]:
    return [draft.weight(channels, scale=0.5)] if draft.chosen.random() < 0.5 else []


def _mean(draft: Draft, x: str) -> str:
    return _reduced(draft, "ReduceMean", x, len(draft.shape(x)) - 1, keep=True)


def _reduced(draft: Draft, op: str, x: str, axis: int, *, keep: bool) -> str:
    if draft.opset >= 18 or (op == "ReduceSum" and draft.opset >= 13):
        return draft.node(op, x, draft.integers(axis), keepdims=int(keep))
    return draft.node(op, x, axes=[axis], keepdims=int(keep))


def _spread(draft: Draft, x: str) -> str:
    shape = draft.shape(x)
    return draft.weight(1, shape[1], *[1] * (len(shape) - 2), scale=0.5)


def _any(name: str, kind: int = TensorProto.FLOAT, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _body(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


STEPS: tuple[Step, ...] = (
    convolution, transposed_convolution, batch_normalization, gemm, matmul, einsum, attention, recurrent,
    normalization, activation, pooling, arithmetic, movement, resize, reduction, other_type, constants,
    condition, loop, scan,
)  # fmt: skip
"""All steps."""
OFTEN: tuple[Step, ...] = (
    convolution,
    convolution,
    batch_normalization,
    activation,
    arithmetic,
    movement,
    matmul,
)
"""Steps that networks mostly consist of."""
JUMPS = frozenset({"ArgMax", "TopK", "Hardmax", "If", "Greater"})
"""Operators whose result can change much where their input changes little."""
