"""Small graphs for placement, beside those of `tests.models`."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from qdqtool.graph.view import GraphView
from tests.models import Sketch


def view(proto: onnx.ModelProto) -> GraphView:
    """Questions about a hand-made model, with shapes."""
    return GraphView(onnx.shape_inference.infer_shapes(proto))


def excite() -> onnx.ModelProto:
    """stem -> SiLU -> x; x * sigmoid(expand(SiLU(squeeze(pool(x))))) -> tail."""
    s = Sketch(20)

    def silu(name: str, x: str) -> str:
        gate = s.node("Sigmoid", [x], f"{name}_gate", name=f"{name}_sigmoid")
        return s.node("Mul", [x, gate], f"{name}_act", name=f"{name}_mul")

    x = silu("stem", s.conv("stem", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.node("GlobalAveragePool", [x], "pool_y", name="pool")
    y = silu("squeeze", s.conv("squeeze", y, (8, 4), kernel=1))
    y = s.node("Sigmoid", [s.conv("expand", y, (4, 8), kernel=1)], "gate_y", name="gate")
    y = s.node("Mul", [x, y], "excited", name="excite")
    s.output(s.conv("tail", y, (8, 8), kernel=1), [1, 8, 16, 16])
    return s.model()


def pyramid() -> onnx.ModelProto:
    """conv1 -> a; conv2 (stride 2) -> b; concat(resize(b), a) -> conv3; b -> conv4."""
    s = Sketch(21)
    a = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))
    b = s.relu("relu2", s.conv("conv2", a, (8, 8), stride=2))
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    up = s.node(
        "Resize",
        [b, "", factors],
        "up_y",
        name="up",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = s.node("Concat", [up, a], "concat_y", name="concat", axis=1)
    s.output(s.conv("conv3", y, (16, 8)), [1, 8, 16, 16])
    s.output(s.conv("conv4", b, (8, 8)), [1, 8, 8, 8])
    return s.model()


def float_concat() -> onnx.ModelProto:
    """Two maps that convolutions read, and a Concat of both that only leaves the model."""
    s = Sketch(22)
    a = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 8, 8]), (8, 8)))
    b = s.relu("relu2", s.conv("conv2", a, (8, 8)))
    s.output(s.node("Concat", [a, b], "both", name="concat", axis=1), [1, 16, 8, 8])
    s.output(s.conv("conv3", b, (8, 8)), [1, 8, 8, 8])
    return s.model()


def strided_shortcut() -> onnx.ModelProto:
    """A residual block whose shortcut is a strided Slice and a zero Pad, as CIFAR ResNets have it."""
    s = Sketch(23)
    stem = s.relu("stem_relu", s.conv("stem", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.relu("relu1", s.conv("conv1", stem, (8, 16), stride=2))
    y = s.conv("conv2", y, (16, 16))
    bounds = [
        s.constant(name, np.array(value))
        for name, value in (("starts", [0, 0]), ("ends", [2**31, 2**31]), ("axes", [2, 3]), ("steps", [2, 2]))
    ]
    short = s.node("Slice", [stem, *bounds], "slice_y", name="slice")
    pads = s.constant("pads", np.array([0, 4, 0, 0, 0, 4, 0, 0]))
    short = s.node("Pad", [short, pads], "pad_y", name="pad")
    y = s.node("Relu", [s.node("Add", [y, short], "add_y", name="add")], "relu_y", name="relu")
    s.output(s.conv("tail", y, (16, 8)), [1, 8, 8, 8])
    return s.model()


def shared_weight() -> onnx.ModelProto:
    """One square matrix used by a Gemm with transB and by one without."""
    s = Sketch(24)
    weight = s.weight("w", 16, 16)
    y = s.node("Gemm", [s.input("x", [4, 16]), weight], "fc1_y", name="fc1", transB=1)
    s.output(s.node("Gemm", [y, weight], "fc2_y", name="fc2"), [4, 16])
    return s.model()


def computed_weight() -> onnx.ModelProto:
    """A Conv whose weights are a model input."""
    s = Sketch(25)
    inputs = [s.input("x", [1, 8, 8, 8]), s.input("w", [8, 8, 3, 3])]
    s.output(s.node("Conv", inputs, "y", name="conv", kernel_shape=[3, 3], pads=[1] * 4), [1, 8, 8, 8])
    return s.model()


def recurrent() -> onnx.ModelProto:
    """An LSTM in front of a Gemm."""
    s = Sketch(26)
    inputs = [s.input("x", [5, 1, 4]), s.weight("w", 1, 32, 4), s.weight("r", 1, 32, 8)]
    y = s.node("LSTM", inputs, "lstm_y", name="lstm", hidden_size=8)
    y = s.node("Reshape", [y, s.constant("shape", np.array([5, 8]))], "flat", name="reshape")
    s.output(s.node("Gemm", [y, s.weight("fc_w", 8, 3)], "fc_y", name="fc"), [5, 3])
    return s.model()


def pooled() -> onnx.ModelProto:
    """conv1 -> AveragePool -> conv2 -> GlobalAveragePool -> output."""
    s = Sketch(27)
    x = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))
    x = s.node("AveragePool", [x], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    x = s.node("GlobalAveragePool", [s.conv("conv2", x, (8, 8))], "gap_y", name="gap")
    s.output(x, [1, 8, 1, 1])
    return s.model()


def long_chain(length: int) -> onnx.ModelProto:
    """`length` nodes: convolutions, pools, concats and adds in turns."""
    s = Sketch(28)
    x = s.input("x", [1, 4, 8, 8])
    weight = s.weight("w", 4, 4, 1, 1)
    for step in range(length // 5):
        y = s.node("Conv", [x, weight], f"c{step}", name=f"conv{step}", kernel_shape=[1, 1])
        y = s.node("Relu", [y], f"r{step}", name=f"relu{step}")
        y = s.node("Add", [y, x], f"a{step}", name=f"add{step}")
        y = s.node("Identity", [y], f"i{step}", name=f"identity{step}")
        x = s.node("Reshape", [y, "shape"], f"s{step}", name=f"reshape{step}")
    s.constant("shape", np.array([1, 4, 8, 8]))
    s.output(x, [1, 4, 8, 8])
    return s.model()


def downsampling() -> onnx.ModelProto:
    """A ResNet block whose shortcut is a convolution of its own."""
    s = Sketch(29)
    x = s.relu("stem_relu", s.conv("stem", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.relu("relu1", s.conv("conv1", x, (8, 16), stride=2))
    y = s.node(
        "Add",
        [s.conv("conv2", y, (16, 16)), s.conv("short", x, (8, 16), kernel=1, stride=2)],
        "sum",
        name="add",
    )
    s.output(s.conv("tail", s.relu("relu2", y), (16, 8)), [1, 8, 8, 8])
    return s.model()


def inverted() -> onnx.ModelProto:
    """Two MobileNetV2 blocks: expand, depthwise, project, add."""
    s = Sketch(30)
    x = s.conv("stem", s.input("x", [1, 16, 16, 16]), (16, 16))
    for block in ("a", "b"):
        y = s.relu(f"{block}_relu1", s.conv(f"{block}_expand", x, (16, 32), kernel=1))
        y = s.relu(f"{block}_relu2", s.conv(f"{block}_depthwise", y, (32, 32), group=32))
        y = s.conv(f"{block}_project", y, (32, 16), kernel=1)
        x = s.node("Add", [x, y], f"{block}_sum", name=f"{block}_add")
    s.output(s.conv("tail", x, (16, 8)), [1, 8, 16, 16])
    return s.model()


def inverted_swish() -> onnx.ModelProto:
    """expand -> dw (depthwise) -> project, a Swish behind the first two."""
    s = Sketch(31)
    x = s.input("x", [1, 16, 16, 16])
    for name, widths, group in (("expand", (16, 32), 1), ("dw", (32, 32), 32)):
        y = s.conv(name, x, widths, group=group)
        x = s.node("Mul", [y, s.node("Sigmoid", [y], f"{name}_gate")], f"{name}_swish")
    s.output(s.conv("project", x, (32, 16), kernel=1), [1, 16, 16, 16])
    return s.model()


def cut_attention() -> onnx.ModelProto:
    """Query, key and value cut out of one product by Split, an attention, and a projection."""
    s = Sketch(31)
    y = s.node("MatMul", [s.input("x", [1, 16, 32]), s.weight("qkv_w", 32, 96)], "qkv_y", name="qkv")
    sizes = s.constant("sizes", np.array([32, 32, 32]))
    s.nodes.append(onnx.helper.make_node("Split", [y, sizes], ["q", "k", "v"], name="split", axis=2))
    k = s.node("Transpose", ["k"], "k_t", name="turn", perm=[0, 2, 1])
    y = s.node("Softmax", [s.node("MatMul", ["q", k], "scores", name="qk")], "p", name="softmax", axis=-1)
    y = s.node("MatMul", [y, "v"], "context", name="av")
    s.output(s.node("MatMul", [y, s.weight("proj_w", 32, 32)], "y", name="proj"), [1, 16, 32])
    return s.model()


def pool_chain() -> onnx.ModelProto:
    """conv1 -> x; x, pool(x) and pool(pool(x)) joined -> conv2, as in spatial pyramid pooling."""
    s = Sketch(32)
    pieces = [s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))]
    for number in (1, 2):
        y = s.node(
            "MaxPool",
            pieces[-1:],
            f"pool{number}_y",
            name=f"pool{number}",
            kernel_shape=[3, 3],
            pads=[1] * 4,
            strides=[1, 1],
        )
        pieces.append(y)
    y = s.node("Concat", pieces, "concat_y", name="concat", axis=1)
    s.output(s.conv("conv2", y, (24, 8), kernel=1), [1, 8, 16, 16])
    return s.model()


def pool_beside_conv() -> onnx.ModelProto:
    """conv1 -> x; conv2(x) and pool(x) joined -> conv3, as networks halve their maps."""
    s = Sketch(37)
    x = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.relu("relu2", s.conv("conv2", x, (8, 8)))
    z = s.node("MaxPool", [x], "pool_y", name="pool", kernel_shape=[3, 3], pads=[1] * 4)
    y = s.node("Concat", [y, z], "concat_y", name="concat", axis=1)
    s.output(s.conv("conv3", y, (16, 8)), [1, 8, 16, 16])
    return s.model()


def averaged_branch(kernel: int = 3) -> onnx.ModelProto:
    """conv1 -> x; conv2(x) and conv3(AveragePool(x)) joined -> conv4 -> GlobalAveragePool, as in inception modules."""
    s = Sketch(38)
    x = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.relu("relu2", s.conv("conv2", x, (8, 8), kernel=1))
    z = s.node("AveragePool", [x], "pool_y", name="pool", kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
    z = s.relu("relu3", s.conv("conv3", z, (8, 8), kernel=1))
    y = s.node("Concat", [y, z], "concat_y", name="concat", axis=1)
    y = s.conv("conv4", y, (16, 8))
    s.output(s.node("GlobalAveragePool", [y], "gap_y", name="gap"), [1, 8, 1, 1])
    return s.model()


def gated() -> onnx.ModelProto:
    """conv1 -> x; x * sigmoid(conv2(x)) -> conv3."""
    s = Sketch(39)
    x = s.relu("relu1", s.conv("conv1", s.input("x", [1, 8, 16, 16]), (8, 8)))
    mask = s.node("Sigmoid", [s.conv("conv2", x, (8, 8))], "mask", name="sigmoid")
    y = s.node("Mul", [x, mask], "masked", name="gate")
    s.output(s.conv("conv3", y, (8, 8)), [1, 8, 16, 16])
    return s.model()


def pooled_head(outputs: int) -> onnx.ModelProto:
    """A residual convolution -> its global average -> a Gemm."""
    s = Sketch(35)
    x = s.input("x", [1, 64, 16, 16])
    y = s.node("Add", [s.conv("conv1", x, (64, 64)), x], "sum", name="add")
    y = s.relu("relu1", y)
    y = s.node("GlobalAveragePool", [y], "pool_y", name="pool")
    y = s.node("Flatten", [y], "flat", name="flatten")
    s.output(s.node("Gemm", [y, s.weight("fc_w", 64, outputs)], "y", name="fc"), [1, outputs])
    return s.model()


def heads(size: int, tokens: int, count: int = 2) -> onnx.ModelProto:
    """An attention of two heads or another `count`, and the product behind it."""
    s = Sketch(36)
    width = count * size
    split, merge = (
        s.constant(f"{name}_shape", np.array(dims))
        for name, dims in (("split", [1, tokens, count, size]), ("merge", [1, tokens, width]))
    )
    x, parts = s.input("x", [1, tokens, width]), {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = s.node("MatMul", [x, s.weight(f"{part}_w", width, width)], f"{part}_y", name=part)
        y = s.node("Reshape", [y, split], f"{part}_split", name=f"{part}_reshape")
        parts[part] = s.node("Transpose", [y], f"{part}_heads", name=f"{part}_turn", perm=order)
    y = s.node("MatMul", [parts["q"], parts["k"]], "scores", name="qk")
    y = s.node("MatMul", [s.node("Softmax", [y], "p", name="softmax"), parts["v"]], "context", name="av")
    y = s.node("Transpose", [y], "context_t", name="context_turn", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, merge], "merged", name="merge")
    s.output(s.node("MatMul", [y, s.weight("proj_w", width, width)], "y", name="proj"), [1, tokens, width])
    return s.model()


def steps(cell: str, units: int, batch: int | str, count: int = 6) -> onnx.ModelProto:
    """An LSTM, GRU or RNN as an exporter unrolls it: each step has a Gemm of its input and a Gemm of the state before it."""
    s = Sketch(37)
    gates, size = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell], 64
    x = s.node("Relu", [s.input("x", [count, batch, size])], "x_y", name="relu")
    input_w, state_w = s.weight("input_w", gates * units, size), s.weight("state_w", gates * units, units)
    bias = s.weight("b", gates * units)
    state = s.input("state", [batch, units])
    memory = s.input("memory", [batch, units]) if cell == "LSTM" else ""
    for step in range(count):
        part = s.node("Gather", [x, s.constant(f"index_{step}", np.int64(step))], f"x_{step}", axis=0)
        fresh = s.node("Gemm", [part, input_w, bias], f"input_{step}", transB=1)
        past = s.node("Gemm", [state, state_w, bias], f"past_{step}", transB=1)
        if cell == "GRU":
            reset, update, new = _gates(s, fresh, units, gates, f"fresh_{step}")
            past_reset, past_update, past_new = _gates(s, past, units, gates, f"kept_{step}")
            update = s.node("Sigmoid", [s.node("Add", [update, past_update], f"u_{step}")], f"update_{step}")
            reset = s.node("Sigmoid", [s.node("Add", [reset, past_reset], f"r_{step}")], f"reset_{step}")
            past_new = s.node("Mul", [reset, past_new], f"n_{step}")
            new = s.node("Tanh", [s.node("Add", [new, past_new], f"sum_{step}")], f"new_{step}")
            less = s.node("Mul", [update, s.node("Sub", [state, new], f"less_{step}")], f"share_{step}")
            state = s.node("Add", [new, less], f"state_{step}")
            continue
        whole = s.node("Add", [fresh, past], f"sum_{step}")
        if cell == "RNN":
            state = s.node("Tanh", [whole], f"state_{step}")
            continue
        *switches, value = _gates(s, whole, units, gates, f"gate_{step}")
        enter, keep, leave = (s.node("Sigmoid", [gate], f"{gate}_y") for gate in switches)
        value = s.node("Mul", [enter, s.node("Tanh", [value], f"value_{step}")], f"entered_{step}")
        memory = s.node("Add", [s.node("Mul", [keep, memory], f"kept_{step}"), value], f"memory_{step}")
        state = s.node("Mul", [leave, s.node("Tanh", [memory], f"shown_{step}")], f"state_{step}")
    s.output(state, [batch, units])
    return s.model()


def _gates(s: Sketch, tensor: str, units: int, parts: int, name: str) -> list[str]:
    """The gates of a step, as slices of equal size."""
    axis = s.constant(f"{name}_axis", np.array([1]))
    edges = [s.constant(f"{name}_edge_{part}", np.array([part * units])) for part in range(parts + 1)]
    return [
        s.node("Slice", [tensor, edges[part], edges[part + 1], axis], f"{name}_{part}")
        for part in range(parts)
    ]


def head(rows: int | str, outputs: int) -> onnx.ModelProto:
    """A Gemm of 64 inputs."""
    s = Sketch(33)
    y = s.node("Gemm", [s.input("x", [rows, 64]), s.weight("fc_w", 64, outputs)], "y", name="fc")
    s.output(y, [rows, outputs])
    return s.model()


def neck() -> onnx.ModelProto:
    """x is doubled and joined with a skip, and joined again with what a strided convolution makes of that."""
    s = Sketch(34)
    image = s.input("image", [1, 8, 32, 32])
    skip = s.relu("relu1", s.conv("conv1", image, (8, 8)))
    x = s.relu("relu2", s.conv("conv2", skip, (8, 8), stride=2))
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    up = s.node(
        "Resize",
        [x, "", factors],
        "up_y",
        name="up",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    wide = s.relu("relu3", s.conv("conv3", s.node("Concat", [up, skip], "top", name="cat1", axis=1), (16, 8)))
    down = s.relu("relu4", s.conv("conv4", wide, (8, 8), stride=2))
    y = s.node("Concat", [down, x], "bottom", name="cat2", axis=1)
    s.output(s.conv("conv5", y, (16, 8)), [1, 8, 16, 16])
    return s.model()


def decoder(queries: int = 1, layers: int = 2, form: str = "concat") -> onnx.ModelProto:
    """Decoder layers with keys and values of eight tokens as inputs and outputs: 4 heads of 16.

    New ones come behind them ("concat"), are written into fixed places ("scatter"), or push the oldest out ("window").
    """
    s = Sketch(24)
    heads, size, past = 4, 16, 8
    width = heads * size
    x = s.input("x", [1, queries, width])
    for layer in range(layers):

        def dense(name: str, value: str, layer: int = layer) -> str:
            return s.node(
                "MatMul",
                [value, s.weight(f"{name}{layer}_w", width, width)],
                f"{name}{layer}_y",
                name=f"{name}{layer}",
            )

        def split(name: str, value: str, layer: int = layer) -> str:
            shape = s.constant(f"{name}{layer}_shape", np.array([1, queries, heads, size]))
            rows = s.node("Reshape", [value, shape], f"{name}{layer}_rows")
            return s.node("Transpose", [rows], f"{name}{layer}_heads", perm=[0, 2, 1, 3])

        def cached(name: str, value: str, layer: int = layer) -> str:
            before = s.input(f"past_{name}{layer}", [1, heads, past, size])
            kept = f"present_{name}{layer}"
            if form == "scatter":
                places = np.broadcast_to(np.arange(queries).reshape(1, 1, -1, 1), (1, heads, queries, size))
                index = s.constant(f"{name}{layer}_places", np.array(places))
                s.node("ScatterElements", [before, index, value], kept, axis=2)
            elif form == "window":
                both = s.node("Concat", [before, value], f"{name}{layer}_both", axis=2)
                bounds = [
                    s.constant(f"{name}{layer}_{word}", np.array([number]))
                    for word, number in (("from", queries), ("to", 2**31), ("axis", 2))
                ]
                s.node("Slice", [both, *bounds], kept)
            else:
                s.node("Concat", [before, value], kept, axis=2)
            return s.output(kept, [1, heads, past + (queries if form == "concat" else 0), size])

        q, k, v = (split(name, dense(name, x)) for name in "qkv")
        turned = s.node("Transpose", [cached("k", k)], f"turned{layer}", perm=[0, 1, 3, 2])
        factor = s.constant(f"factor{layer}", np.float32(size**-0.5))
        scores = s.node("Mul", [s.node("MatMul", [q, turned], f"scores{layer}"), factor], f"scaled{layer}")
        shares = s.node("Softmax", [scores], f"shares{layer}", axis=-1)
        y = s.node("MatMul", [shares, cached("v", v)], f"values{layer}")
        y = s.node("Transpose", [y], f"rows{layer}", perm=[0, 2, 1, 3])
        y = s.node(
            "Reshape", [y, s.constant(f"shape{layer}", np.array([1, queries, width]))], f"joined{layer}"
        )
        x = s.node("Add", [x, dense("out", y)], f"x{layer}", name=f"add{layer}")
    s.output(x, [1, queries, width])
    return s.model()


def two_gates() -> onnx.ModelProto:
    """Two convolutions, each with a squeeze-and-excite gate behind it, as RegNets have."""
    s = Sketch(25)
    x = s.input("x", [1, 8, 16, 16])
    for number in (1, 2):
        x = s.relu(f"relu{number}", s.conv(f"conv{number}", x, (8, 8)))
        y = s.node("GlobalAveragePool", [x], f"pool{number}_y", name=f"pool{number}")
        y = s.relu(f"inner{number}", s.conv(f"squeeze{number}", y, (8, 8), kernel=1))
        y = s.node(
            "Sigmoid",
            [s.conv(f"expand{number}", y, (8, 8), kernel=1)],
            f"gate{number}_y",
            name=f"gate{number}",
        )
        x = s.node("Mul", [x, y], f"excited{number}", name=f"excite{number}")
    s.output(s.conv("tail", x, (8, 8)), [1, 8, 16, 16])
    return s.model()


def normalized_stream(written_out: bool = False) -> onnx.ModelProto:
    """Two residual products behind a LayerNormalization each, as BERT has them; or the norms as older exporters write them."""
    s, width = Sketch(26), 32
    y = s.input("x", [1, 16, width])

    def norm(name: str, x: str) -> str:
        gain, shift = s.weight(f"{name}_g", width), s.weight(f"{name}_b", width)
        if not written_out:
            return s.node("LayerNormalization", [x, gain, shift], f"{name}_y", name=name, axis=-1)
        mean = s.node("ReduceMean", [x], f"{name}_mean", axes=[-1])
        centered = s.node("Sub", [x, mean], f"{name}_centered")
        square = s.node("Mul", [centered, centered], f"{name}_square")
        spread = s.node(
            "Sqrt", [s.node("ReduceMean", [square], f"{name}_variance", axes=[-1])], f"{name}_spread"
        )
        scaled = s.node("Mul", [s.node("Div", [centered, spread], f"{name}_unit"), gain], f"{name}_scaled")
        return s.node("Add", [scaled, shift], f"{name}_y")

    y = norm("norm0", y)
    for block in (1, 2):
        z = s.node("MatMul", [y, s.weight(f"mm{block}_w", width, width)], f"mm{block}_y", name=f"mm{block}")
        y = norm(f"norm{block}", s.node("Add", [z, y], f"sum{block}", name=f"add{block}"))
    s.output(y, [1, 16, width])
    return s.model()


def spectrogram(between: str = "", *, early: bool = False) -> onnx.ModelProto:
    """frames -> Fourier tables that the model computes -> squares -> mel -> Log -> conv1 -> ReLU -> conv2.

    `between`, if any, stands in front of the Log, or, where it is `early`, of the mel filters.
    """
    s = Sketch(60)
    x = s.input("x", [1, 24, 64])
    turns = s.constant(
        "turns", np.outer(np.arange(64), np.arange(32)).astype(np.float32) * np.float32(np.pi / 32)
    )
    squares = []
    for part in ("Cos", "Sin"):
        table = s.node(part, [turns], f"{part}_table")
        y = s.node("MatMul", [x, table], f"{part}_y", name=f"{part}_mm")
        squares.append(s.node("Mul", [y, y], f"{part}_square"))
    power = s.node("Add", squares, "power")
    if between and early:
        power = s.node(between, [power], "early_y", name="early")
    mel = s.node(
        "MatMul", [power, s.constant("filters", np.eye(32, 16, dtype=np.float32))], "mel", name="mel_mm"
    )
    if between and not early:
        mel = s.node(between, [mel], "between_y", name="between")
    log = s.node(
        "Log", [s.node("Add", [mel, s.constant("floor", np.float32(1e-5))], "floored")], "log_y", name="log"
    )
    y = s.node("Transpose", [log], "bands", perm=[0, 2, 1])
    for number in (1, 2):
        y = s.node(
            "Conv", [y, s.weight(f"conv{number}_w", 16, 16, 3)], f"conv{number}_y", name=f"conv{number}"
        )
        y = s.relu(f"relu{number}", y)
    s.output(s.node("Softmax", [y], "y", axis=1))
    return s.model()


def behind_plugin() -> onnx.ModelProto:
    """No sample reaches the second convolution: no library computes the operator before it."""
    s = Sketch()
    x = s.conv("c1", s.input("x", [1, 4, 8, 8]), (4, 4))
    s.nodes.append(helper.make_node("Swirl", [x], ["swirl_y"], name="swirl", domain="acme"))
    s.output(s.conv("c2", "swirl_y", (4, 4)), [1, 4, 8, 8])
    return s.model(domains=["acme"])


def joint(cut: str, *, scaled: str = "scores", turned: bool = False) -> onnx.ModelProto:
    """An attention of four heads whose queries, keys and values are one product, and the product behind it.

    Args:
        cut: "Gather" of heads that are made of the whole product; "Split" or "Slice" of the product itself.
        scaled: what the scale multiplies: "scores", "q", or "qk" for both.
        turned: queries and keys are multiplied with constants, as a rotation does.
    """
    s = Sketch(37)
    heads, size, tokens = 4, 32, 64
    width = heads * size
    y = s.node(
        "MatMul", [s.input("x", [1, tokens, width]), s.weight("qkv_w", width, 3 * width)], "qkv_y", name="qkv"
    )
    y = s.node("Add", [y, s.weight("qkv_b", 3 * width)], "qkv_sum", name="qkv_bias")
    if cut == "Gather":
        shape = s.constant("heads", np.array([1, tokens, 3, heads, size]))
        y = s.node("Reshape", [y, shape], "qkv_heads", name="qkv_reshape")
        y = s.node("Transpose", [y], "qkv_turned", name="qkv_turn", perm=[2, 0, 3, 1, 4])
        parts = {
            part: s.node("Gather", [y, s.constant(f"{part}_at", np.array(index))], f"{part}_heads", name=f"{part}_cut", axis=0)
            for index, part in enumerate("qkv")
        }  # fmt: skip
        parts["k"] = s.node("Transpose", [parts["k"]], "k_turned", name="k_turn", perm=[0, 1, 3, 2])
    else:
        cuts = _cut(s, y, cut, width)
        shape = s.constant("heads", np.array([1, tokens, heads, size]))
        parts = {}
        for part, tensor in cuts.items():
            order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
            made = s.node("Reshape", [tensor, shape], f"{part}_split", name=f"{part}_reshape")
            parts[part] = s.node("Transpose", [made], f"{part}_heads", name=f"{part}_turn", perm=order)
    factor = s.constant("factor", np.array(size**-0.5, np.float32))
    for part in "qk" if turned else "":
        angles = s.weight(f"{part}_angles", *((size, tokens) if part == "k" else (tokens, size)))
        parts[part] = s.node("Mul", [parts[part], angles], f"{part}_rotated", name=f"{part}_rotate")
    for part in scaled if scaled != "scores" else "":
        parts[part] = s.node("Mul", [parts[part], factor], f"{part}_scaled", name=f"{part}_scale")
    y = s.node("MatMul", [parts["q"], parts["k"]], "scores", name="qk")
    if scaled == "scores":
        y = s.node("Mul", [y, factor], "scaled", name="scale")
    y = s.node("MatMul", [s.node("Softmax", [y], "p", name="softmax"), parts["v"]], "context", name="av")
    y = s.node("Transpose", [y], "context_t", name="context_turn", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("merge", np.array([1, tokens, width]))], "merged", name="merge")
    s.output(s.node("MatMul", [y, s.weight("proj_w", width, width)], "y", name="proj"), [1, tokens, width])
    return s.model()


def _cut(s: Sketch, tensor: str, op: str, width: int) -> dict[str, str]:
    names = {part: f"{part}_part" for part in "qkv"}
    if op == "Split":
        lengths = s.constant("lengths", np.array([width] * 3))
        s.nodes.append(helper.make_node("Split", [tensor, lengths], list(names.values()), name="cut", axis=2))
        return names
    axis = s.constant("axis", np.array([2]))
    for index, (part, name) in enumerate(names.items()):
        ends = [
            s.constant(f"{part}_{end}", np.array([(index + step) * width]))
            for end, step in (("from", 0), ("to", 1))
        ]
        s.node("Slice", [tensor, *ends, axis], name, name=f"{part}_cut")
    return names
