"""Verdicts on number formats against what the layer dump of a real build says.

    python benchmarks/formats.py [--quick] [--only NAME ...]

Small graphs are written in every format, some so that TensorRT for RTX silently computes them in float. Each is built
for its architecture; what its kernels multiply is read from the dump by the parser in this file, which shares nothing
with qdqtool's; and the audit's words for what was asked and what was realised are compared with it. `--quick` builds
every graph for one architecture instead of all that take it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.auditing.run import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.build import BuildRequest
from qdqtool.core.findings import NodeVerdict
from qdqtool.engine import read
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load

_WORDS = {"Int8": "int8", "Int4": "int4", "FP8": "fp8", "FP4E2M1": "nvfp4"}
_STORED = {
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "fp8": ml_dtypes.float8_e4m3fn,
    "nvfp4": ml_dtypes.float4_e2m1fn,
}
_FLOAT = np.float16
_RANDOM = np.random.default_rng(0)


@dataclass
class Graph:
    """A graph under construction; everything float is FP16."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, name: str = "", count: int = 1, **attributes: Any) -> str:
        outputs = [f"t{len(self.nodes)}_{number}" for number in range(count)]
        name = name or f"n{len(self.nodes)}"
        domain = "trt" if op.startswith("TRT_") else ""
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=name, domain=domain, **attributes))
        return outputs[0]

    def pair(self, tensor: str, format_: str, shape: tuple[int, ...] = (), axis: int = 1) -> str:
        """Q and DQ with made-up scales."""
        scale, zero = (
            self.constant(np.full(shape, 0.05, _FLOAT)),
            self.constant(np.zeros(shape, _STORED[format_])),
        )
        stored = self.node("QuantizeLinear", tensor, scale, zero, axis=axis)
        return self.node("DequantizeLinear", stored, scale, zero, axis=axis)

    def weight(
        self, format_: str, shape: tuple[int, ...], scales: tuple[int, ...] = (), axis: int = 1
    ) -> str:
        """A stored weight behind a DequantizeLinear."""
        value = self.constant(_RANDOM.integers(-3, 4, shape).astype(_STORED[format_]))
        more = {"block_size": shape[axis] // scales[axis]} if len(scales) > 1 else {}
        scale = self.constant(np.full(scales, 0.02, _FLOAT))
        return self.node("DequantizeLinear", value, scale, axis=axis, **more)

    def weight4(self, shape: tuple[int, int]) -> str:
        """NVFP4: scales of two levels along axis 0."""
        value = self.constant(_RANDOM.integers(-3, 4, shape).astype(_STORED["nvfp4"]))
        low = self.constant(np.full((shape[0] // 16, shape[1]), 2.0, _STORED["fp8"]))
        scale = self.node("DequantizeLinear", low, self.constant(_FLOAT(0.01)))
        return self.node("DequantizeLinear", value, scale, axis=0, block_size=16)

    def computed4(self, tensor: str) -> str:
        """NVFP4 with computed block scales."""
        level, index = self.constant(_FLOAT(0.01)), len(self.nodes)
        values = self.node(
            "TRT_FP4DynamicQuantize", tensor, level, count=2, axis=-1, block_size=16, scale_type=17
        )
        scale = self.node("DequantizeLinear", f"t{index}_1", level)
        return self.node("DequantizeLinear", values, scale, axis=1, block_size=16)

    def constant4(self, tensor: str, rows: int, depth: int) -> str:
        """NVFP4 with constant block scales."""
        low = self.constant(np.full((rows, depth // 16), 2.0, _STORED["fp8"]))
        scale = self.node("DequantizeLinear", low, self.constant(_FLOAT(0.01)))
        stored = self.node(
            "QuantizeLinear", tensor, scale, axis=1, block_size=16, output_dtype=TensorProto.FLOAT4E2M1
        )
        return self.node("DequantizeLinear", stored, scale, axis=1, block_size=16)

    def done(self, result: str) -> onnx.ModelProto:
        self.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT16, None))
        graph = helper.make_graph(self.nodes, "formats", self.inputs, self.outputs, self.constants)
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


Make = Callable[[], onnx.ModelProto]


def product(
    activation: Callable[[Graph, str], str], weight: Callable[[Graph], str], rows: int = 64, depth: int = 256
) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        x = g.node("Relu", g.input(rows, depth))
        return g.done(g.node("MatMul", activation(g, x), weight(g), name="core"))

    return make


def convolution(
    activation: Callable[[Graph, str], str], weight: Callable[[Graph], str], taps: int = 3
) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        x = g.node("Relu", g.input(1, 64, 32, 32))
        return g.done(g.node("Conv", activation(g, x), weight(g), name="core", pads=[taps // 2] * 4))

    return make


def shared() -> onnx.ModelProto:
    g = Graph()
    weight = g.weight("int4", (256, 256), (4, 256), 0)
    one = g.node("MatMul", g.node("Relu", g.input(64, 256)), weight, name="core")
    return g.done(g.node("MatMul", g.node("Relu", one), weight, name="core2"))


def attention(format_: str, heads: int = 4) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        q, k, v = (g.pair(g.node("Relu", g.input(2, heads, 128, 64)), format_) for _ in range(3))
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]), name="core")
        shares = g.pair(g.node("Softmax", scores, axis=-1), format_)
        return g.done(g.pair(g.node("MatMul", shares, v, name="core2"), format_))

    return make


def chain() -> onnx.ModelProto:
    g = Graph()
    x = g.node("Relu", g.input(64, 256))
    one = g.node("MatMul", g.pair(x, "int8"), g.weight("int8", (256, 256), (256,)), name="core")
    two = g.node(
        "MatMul", g.pair(g.node("Relu", one), "fp8"), g.weight("fp8", (256, 256), (256,)), name="core2"
    )
    return g.done(two)


def microscaled() -> onnx.ModelProto:
    g = Graph()
    x, shared_ = g.node("Relu", g.input(64, 256)), {"block_size": 32, "axis": -1}
    index = len(g.nodes)
    values = g.node("TRT_MXFP8DynamicQuantize", x, count=2, output_dtype=TensorProto.FLOAT8E4M3FN, **shared_)
    typed = {"output_dtype": TensorProto.FLOAT16}
    left = g.node("TRT_MXFP8DequantizeLinear", values, f"t{index}_1", **shared_, **typed)
    weight = g.constant(_RANDOM.integers(-3, 4, (256, 256)).astype(_STORED["fp8"]))
    scales = g.constant(np.full((8, 256), 127, np.uint8))
    right = g.node("TRT_MXFP8DequantizeLinear", weight, scales, block_size=32, axis=0, **typed)
    return g.done(g.node("MatMul", left, right, name="core"))


def bare(_graph: Graph, tensor: str) -> str:
    return tensor


def q(format_: str, *shape: int) -> Callable[[Graph, str], str]:
    return lambda g, tensor: g.pair(tensor, format_, shape)


def w(
    format_: str, shape: tuple[int, ...], scales: tuple[int, ...] = (), axis: int = 1
) -> Callable[[Graph], str]:
    return lambda g: g.weight(format_, shape, scales, axis)


def plain(*shape: int) -> Callable[[Graph], str]:
    return lambda g: g.constant(_RANDOM.standard_normal(shape).astype(_FLOAT))


SQUARE, KERNEL = (256, 256), (64, 64, 3, 3)
NEW, ALL = ("89", "120"), ("86", "89", "120")
CASES: dict[str, tuple[Make, str, tuple[str, ...]]] = {
    "int8 matmul": (product(q("int8"), w("int8", SQUARE, (256,))), "int8", ALL),
    "int8 conv": (convolution(q("int8"), w("int8", KERNEL, (64,), 0)), "int8", ALL),
    "int8 conv for sm75": (convolution(q("int8"), w("int8", KERNEL, (64,), 0)), "int8", ("75",)),
    "int8 attention": (attention("int8"), "int8", ALL),
    "int8 matmul, activation alone": (product(q("int8"), plain(*SQUARE)), "int8-activations", ALL),
    "fp8 matmul": (product(q("fp8"), w("fp8", SQUARE, (256,))), "fp8", NEW),
    "fp8 matmul, one row": (product(q("fp8"), w("fp8", SQUARE, (256,)), 1), "fp8", NEW),
    "fp8 matmul, per tensor": (product(q("fp8"), w("fp8", SQUARE)), "fp8", NEW),
    "fp8 matmul, activation per channel": (product(q("fp8", 256), w("fp8", SQUARE, (256,))), "fp8", NEW),
    "fp8 matmul, weight scales along K": (product(q("fp8"), w("fp8", SQUARE, (256,), 0)), "fp8", NEW),
    "fp8 conv": (convolution(q("fp8"), w("fp8", KERNEL, (64,), 0)), "fp8", NEW),
    "fp8 conv of 49 taps": (convolution(q("fp8"), w("fp8", (64, 64, 7, 7), (64,), 0), 7), "fp8", NEW),
    "fp8 conv, scale of shape [1]": (convolution(q("fp8", 1), w("fp8", KERNEL, (64,), 0)), "fp8", NEW),
    "fp8 attention": (attention("fp8"), "fp8", NEW),
    "fp8 weights": (product(bare, w("fp8", SQUARE, (256,))), "fp8-weights", NEW),
    "fp8 activation alone": (product(q("fp8"), plain(*SQUARE)), "fp8-activations", NEW),
    "int8 then fp8": (chain, "int8", NEW),
    "int4 blocks of 64": (product(bare, w("int4", SQUARE, (4, 256), 0)), "int4-weights", ALL),
    "int4 blocks, one row": (product(bare, w("int4", SQUARE, (4, 256), 0), 1), "int4-weights", ALL),
    "int4 blocks, one row, large": (
        product(bare, w("int4", (1024, 1024), (8, 1024), 0), 1, 1024),
        "int4-weights",
        ALL,
    ),
    "int4 in one block": (product(bare, w("int4", SQUARE, (1, 256), 0)), "int4-weights", ALL),
    "int4 per channel": (product(bare, w("int4", SQUARE, (256,))), "int4-weights", ALL),
    "int4, odd columns": (product(bare, w("int4", (256, 255), (4, 255), 0)), "int4-weights", ALL),
    "int4, one weight for two": (shared, "int4-weights", ALL),
    "int4 conv": (convolution(bare, w("int4", KERNEL, (64,), 0)), "int4-weights", ALL),
    "int8 weights": (product(bare, w("int8", SQUARE, (256,))), "int8-weights", ALL),
    "int8 weights in blocks": (product(bare, w("int8", SQUARE, (4, 256), 0)), "int8-weights", ALL),
    "int8 weights, one row, large": (
        product(bare, w("int8", (512, 512), (512,)), 1, 512),
        "int8-weights",
        ALL,
    ),
    "int8 weights per tensor, one row": (product(bare, w("int8", (512, 512)), 1, 512), "int8-weights", ALL),
    "int8 weights, odd columns": (product(bare, w("int8", (256, 255), (255,))), "int8-weights", ALL),
    "int8 weights of a conv": (convolution(bare, w("int8", KERNEL, (64,), 0)), "int8-weights", ALL),
    "nvfp4, computed scales": (product(Graph.computed4, lambda g: g.weight4(SQUARE)), "nvfp4", ("120",)),
    "nvfp4, constant scales": (
        product(lambda g, x: g.constant4(x, 64, 256), lambda g: g.weight4(SQUARE)),
        "nvfp4",
        ("120",),
    ),
    "nvfp4, fewer weights than scales": (
        product(Graph.computed4, lambda g: g.weight4((48, 10)), 1, 48),
        "nvfp4",
        ("120",),
    ),
    "nvfp4 weights": (product(bare, lambda g: g.weight4(SQUARE)), "nvfp4-weights", ("120",)),
    "fp4 with scales of one level": (
        product(Graph.computed4, w("nvfp4", SQUARE, (16, 256), 0)),
        "nvfp4",
        ("120",),
    ),
    "mxfp8": (microscaled, "mxfp8", NEW),
}


@dataclass(frozen=True)
class Record:
    """One line of the dump: names and (type, shape) of its tensors."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    constants: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]


def records(text: str) -> Iterator[Record]:
    """The layers of a dump, by its plain words."""
    for line in text.splitlines():
        head = re.match(r"Name: (.*?), LayerType: (\w+), ", line)
        if head is None:
            continue
        parts = re.split(r", (?=(?:Inputs|Constants|Outputs|TacticName|Metadata): )", line)
        fields = {part.partition(": ")[0]: part.partition(": ")[2] for part in parts}
        yield Record(
            name=head[1],
            kind=head[2],
            nodes=tuple(re.findall(r"\[ONNX Layer: (.*?)\]", fields.get("Metadata", ""))),
            inputs=tuple(_tensors(fields.get("Inputs", ""))),
            constants=tuple(_tensors(fields.get("Constants", ""))),
            outputs=tuple(name for name, _, _ in _tensors(fields.get("Outputs", ""))),
        )


def _tensors(text: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for name, dims, word in re.findall(r"Name: (\S+?), .*?Dimensions: \[([^\]]*)\].*?Datatype: (\w+)", text):
        yield name, word, tuple(int(size) for size in dims.split(",") if size)


def truth(text: str, node: str, asked: str = "") -> str:
    """What the kernel of `node` multiplies; a dump calls the values of MXFP8 what they are by themselves, E4M3."""
    seen = _seen(text, node)
    return seen.replace("fp8-weights", "mxfp8-weights") if asked == "mxfp8" else seen


def _seen(text: str, node: str) -> str:
    known = list(records(text))
    cores = [record for record in known if node in record.nodes and _is_core(record)]
    if not cores:
        return "unknown"
    core = cores[0]
    stored = [(prod(shape), word) for _, word, shape in core.constants if _is_weight(word, shape)]
    stored = [entry for entry in stored if entry[1] == "FP4E2M1"] or stored
    factors = [word for _, word, shape in core.inputs if len(shape) > 1]
    second = max(stored)[1] if stored else [*factors, "", ""][1]
    if (
        factors
        and factors[0] in _WORDS
        and factors[0] == second
        and core.kind != "runtime_fusion"
        and "MulSum" not in core.name
    ):
        return _WORDS[second]
    if stored:
        return f"{_WORDS[max(stored)[1]]}-weights"
    read_ = {name for name, _, _ in core.inputs}
    for record in known:
        held = [(prod(shape), word) for _, word, shape in record.constants if _is_weight(word, shape)]
        if not record.inputs and held and read_ & set(record.outputs):
            return f"{_WORDS[max(held)[1]]}-weights dequantized before the kernel"
    return "float"


def _is_core(record: Record) -> bool:
    words = re.sub(r"_myl\d+_\d+$", "", record.name)
    return (
        record.kind in {"correlation", "gemm", "deconv"}
        or "_gemm_mha" in words
        or words.endswith(("Fc", "ReshMulSum"))
        or (record.kind == "runtime_fusion" and "Fc" in words)
    )


def _is_weight(word: str, shape: tuple[int, ...]) -> bool:
    return word in _WORDS and sum(size != 1 for size in shape) > 1


def judge(name: str, sm: str) -> tuple[str, NodeVerdict, str] | str:
    """The dump's truth beside the audit's verdict; words where the build failed."""
    make, asked, _ = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "model.onnx"
        onnx.save(make(), path)
        try:
            result, _ = RTX.build(
                BuildRequest(model=path, folder=folder, targets=(f"sm{sm}",), timeout_s=300)
            )
        except QdqError as error:
            return error.what
        assert result.layers is not None
        dump = folder / result.layers
        found = {
            told.node: told for told in audit(load(path).view, read(dump), targets=(f"sm{sm}",)).verdicts
        }
        return truth(dump.read_text("utf-8"), "core", asked), found["core"], sm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    chosen = parser.parse_args()
    right, cases, formats = 0, 0, defaultdict(lambda: {"cases": 0, "right": 0})
    for name, (_, asked, targets) in CASES.items():
        if chosen.only and name not in chosen.only:
            continue
        for sm in targets[-1:] if chosen.quick else targets:
            cases += 1
            formats[asked]["cases"] += 1
            found = judge(name, sm)
            if isinstance(found, str):
                print(f"{name:36} sm{sm:4} not built: {found}")
                continue
            wanted, told, _ = found
            good = (told.asked, told.realised) == (asked, wanted)
            right += good
            formats[asked]["right"] += good
            mark = "" if good else f"   WRONG: audit says {told.asked} -> {told.realised}"
            print(f"{name:36} sm{sm:4} {asked} -> {wanted}{mark}")
            if told.reason and wanted != asked:
                print(f"{'':42} {told.reason}; fix: {told.fix}")
    print(json.dumps({"cases": cases, "verdicts_right": right, "formats": dict(sorted(formats.items()))}))


if __name__ == "__main__":
    main()
