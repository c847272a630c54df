"""Measures how often `qdqtool predict --no-build` is right, against engines that were really built.

    python benchmarks/prediction.py [--shared ../shared] [--quick]

RTX: every small graph of the tests, the networks of this folder and the models of DIR/models, quantized by our own
placement and built for SM86; compared are the precisions of compute nodes, where the engine shows them.
Classic: the Q/DQ graphs rebuilt from the 8.5.2 and 8.6.0 logs of DIR/corpus against their own engine layers, and the
recorded ResNet-18 and MobileNetV2 engines against graphs of the same export; compared are the precisions of compute
nodes, and the layers: a layer is right if exactly the same named nodes are predicted to be together.

The classic rules were learned from these logs and engines, so their figures say how well the rules describe them. How well
rules carry over is measured apart: on the networks of heldout.py and fresh.py, quantized by our placement, by it without
its refusals, and with every third product left float, and on an engine of MobileNetV2 that no rule was learned from.

Misses are printed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import exported
import numpy as np
import onnx
from checkout import ROOT
from engines import quantized_graphs
from fresh import FRESH
from heldout import HELD_OUT
from onnx import helper, numpy_helper

from qdqtool import buildlog
from qdqtool.core.buildlog import LogRun
from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import End
from qdqtool.core.prediction import Prediction
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.prediction.predict import predict
from qdqtool.trt.names import parts
from qdqtool.trt.ops import PRODUCTS
from tests.placement.building import build, quantized

TREX = "NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__"
LOGS = {
    "8.5.2 ResNet-YOLO": TREX + "src__notebooks__trt.out.xz",
    "8.6.0 BEVFusion camera": "cn-hezhu__BEVFusion-TensorRT-ROS__src__object_detection__model__resnet50int8__build__"
    "camera.backbone.log.xz",
}
ENGINES = {
    "ResNet-18 qat": (
        "examples__pytorch__resnet__A100__qat__resnet-qat.onnx.engine.graph.json",
        lambda: exported.resnet18(residual_pairs=False),
    ),
    "ResNet-18 qat-residual": (
        "examples__pytorch__resnet__A100__qat-residual__resnet-qat-residual.onnx.engine.graph.json",
        lambda: exported.resnet18(residual_pairs=True),
    ),
    "MobileNetV2 qat": ("tests__inputs__mobilenet.qat.onnx.engine.graph.json", exported.mobilenet_v2),
}
HELD_OUT_ENGINES = {
    "MobileNetV2 qat, another build": (
        "tests__inputs__mobilenet.qat.onnx.engine.graph.json.v2",
        exported.mobilenet_v2,
    )
}
REFUSALS = ("attention", "commuting", "concat", "fan_out", "gemv", "narrow", "residual_add", "squeeze_excite")
_UNTOLD = ("Constant", "DeviceToShapeHost", "Myelin", "NMS", "NoOp", "TrainStation")


@dataclass
class Score:
    """How many predictions were right, and the others in words."""

    right: int = 0
    misses: list[str] = field(default_factory=list)
    untold: int = 0

    @property
    def total(self) -> int:
        return self.right + len(self.misses)

    def add(self, other: Score) -> None:
        self.right += other.right
        self.misses += other.misses
        self.untold += other.untold

    def share(self) -> float | None:
        return round(self.right / self.total, 4) if self.total else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how often predictions are right.")
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="folder of models/ and corpus/"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="every 16th small graph and network, one placement, no recorded logs",
    )
    options = parser.parse_args()
    step = 16 if options.quick else 1
    graphs = quantized_graphs(options.shared / "models", quick=options.quick)
    rtx = measure_rtx(islice(graphs, 0, None, step))
    held = measure_rtx(held_out_graphs(HELD_OUT, quick=options.quick))
    fresh = measure_rtx(held_out_graphs(FRESH, quick=options.quick))
    precision, layers, older, older_layers = Score(), Score(), Score(), Score()
    if not options.quick:
        precision, layers = measure_classic(options.shared / "corpus")
        measure_engines(options.shared / "corpus", HELD_OUT_ENGINES, older, older_layers)
    for title, score in (
        ("RTX precision", rtx),
        ("RTX precision, held out", held),
        ("RTX precision, fresh", fresh),
        ("classic precision", precision),
        ("classic layers", layers),
        ("classic precision, held out", older),
        ("classic layers, held out", older_layers),
    ):
        print(f"{title}: {score.right} of {score.total} right, {score.untold} not told by the engine")
        print("".join(f"  missed {miss}\n" for miss in score.misses), end="")
    print(
        json.dumps(
            {
                "rtx_precision_accuracy": rtx.share(),
                "classic_precision_accuracy": precision.share(),
                "classic_layer_accuracy": layers.share(),
                "rtx_nodes": rtx.total,
                "classic_nodes": precision.total,
                "classic_layers": layers.total,
                "held_out": {
                    "rtx_precision_accuracy": held.share(),
                    "classic_precision_accuracy": older.share(),
                    "classic_layer_accuracy": older_layers.share(),
                    "rtx_nodes": held.total,
                    "classic_nodes": older.total,
                    "classic_layers": older_layers.total,
                },
                "fresh": {"rtx_precision_accuracy": fresh.share(), "rtx_nodes": fresh.total},
            }
        )
    )
    return 0


def held_out_graphs(
    networks: dict[str, Callable[[], onnx.ModelProto]], *, quick: bool
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Networks that no rule was learned from, quantized in several ways; one way where it has to be quick."""
    for name, make in islice(networks.items(), 0, None, 16 if quick else 1):
        yield f"{name} fp32", quantized(make())[0].proto
        if quick:
            continue
        products = [node.name for node in make().graph.node if node.op_type in PRODUCTS]
        yield f"{name} fp16", quantized(make(), "fp16")[0].proto
        yield f"{name} third excluded", quantized(make(), exclude=tuple(products[1::3]))[0].proto
        yield f"{name} unrefused", quantized(make(), skip_rules=REFUSALS)[0].proto


def measure_rtx(graphs: Iterable[tuple[str, onnx.ModelProto]]) -> Score:
    """Precision of compute nodes in engines of TensorRT for RTX."""
    precision = Score()
    for name, proto in graphs:
        built = build(proto)
        if built.error:
            continue
        with (
            tempfile.TemporaryDirectory() as folder
        ):  # large weights are read from there while the model is used
            path = Path(folder) / "model.onnx"
            onnx.save(proto, path)
            one = compare(name, load(path), dict(built.precision), Target())
        precision.add(one)
        print(f"{name}: precision {one.right} of {one.total}", file=sys.stderr)
    return precision


def compare(name: str, model: Model, actual: dict[str, str], target: Target) -> Score:
    """Predicted against real precisions ("int8" or "float"; other words count as untold)."""
    score = Score()
    for node in predict(model, target).nodes:
        if node.compute:
            _count(score, name, node.node, _word(node.precision), actual.get(node.node, ""))
    return score


def measure_classic(corpus: Path) -> tuple[Score, Score]:
    """Precision of compute nodes and layers, over logs and recorded engines."""
    precision, layers = Score(), Score()
    for name, file in LOGS.items():
        path = corpus / "verbose_log" / file
        if path.is_file():
            run = buildlog.read(path).runs[0]
            _judge(name, rebuilt(run), run.engine_layers, precision, layers)
    measure_engines(corpus, ENGINES, precision, layers)
    return precision, layers


def measure_engines(
    corpus: Path,
    engines: dict[str, tuple[str, Callable[[], onnx.ModelProto]]],
    precision: Score,
    layers: Score,
) -> None:
    """Add recorded engines, each against a graph of the same export."""
    for name, (file, make) in engines.items():
        path = corpus / "layer_info" / (TREX + file)
        if path.is_file():
            proto = onnx.shape_inference.infer_shapes(make())
            _judge(name, Model(proto=proto, path=path), read(path).layers, precision, layers)


def rebuilt(run: LogRun) -> Model:
    """The Q/DQ graph that a verbose log prints; weights are zeros and scales ones, attributes are not printed."""
    tensors: dict[str, int] = {}
    nodes, known, constants = [], {info.name for info in run.network.inputs}, {}
    values = {info.name: info for node in run.network.nodes for info in (*node.inputs, *node.outputs)}
    for node in run.network.nodes:
        if node.op == "Constant":
            continue
        inputs = [info.name if "not set" not in info.name else "" for info in node.inputs]
        nodes.append(helper.make_node(node.op, inputs, [info.name for info in node.outputs], name=node.name))
        known.update(info.name for info in node.outputs)
    for node in nodes:
        for index, name in enumerate(node.input):
            if name and name not in known:
                constants.setdefault(name, _constant(values[name], node.op_type, index))
        if node.op_type == "QuantizeLinear":
            # Values are not printed: pairs of one tensor get one scale, others get others.
            tensors.setdefault(node.input[0], len(tensors) + 1)
            step = constants.get(node.input[1])
            if step is not None:
                scales = np.full(tuple(step.dims), tensors[node.input[0]], np.float32)
                constants[node.input[1]] = numpy_helper.from_array(scales, node.input[1])
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            # Attributes are not printed: scales go along the first axis of their length.
            dims, steps = values[node.input[0]].shape or (), values[node.input[1]].shape or ()
            if steps and steps[0] in dims:
                node.attribute.append(helper.make_attribute("axis", dims.index(steps[0])))
    infos = [_value(info) for name, info in values.items() if name not in constants]
    inputs = [_value(info) for info in run.network.inputs]
    used = {name for node in nodes for name in node.input}
    outputs = [_value(values[name]) for node in nodes for name in node.output if name not in used]
    graph = helper.make_graph(nodes, "rebuilt", inputs, outputs, list(constants.values()), value_info=infos)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    return Model(proto=proto, path=Path("rebuilt.onnx"))


def _constant(info, op: str, index: int) -> onnx.TensorProto:
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape or ())
    if op in {"QuantizeLinear", "DequantizeLinear"} and index:
        values = np.ones(shape, np.float32) if index == 1 else np.zeros(shape, np.int8)
    else:
        values = np.zeros(shape, np.float32)
    return numpy_helper.from_array(values, info.name)


def _value(info) -> onnx.ValueInfoProto:
    shape = None if info.shape is None else [dim if isinstance(dim, int) else None for dim in info.shape]
    return helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, shape)


def _judge(
    name: str, model: Model, layers: Iterable[EngineLayer], precision: Score, partition: Score
) -> None:
    layers = tuple(layers)
    actual = {}
    for layer in layers:
        for node in parts(layer.name):
            if layer.inputs and not layer.name.startswith("Reformatting"):
                actual[node] = "int8" if layer.inputs[0].dtype is DType.INT8 else "float"
    one = compare(name, model, actual, Target.parse("10"))
    precision.add(one)
    two = _partition(name, model, predict(model, Target.parse("10")), layers)
    partition.add(two)
    print(f"{name}: precision {one.right} of {one.total}, layers {two.right} of {two.total}", file=sys.stderr)


def _partition(name: str, model: Model, prediction: Prediction, layers: Iterable[EngineLayer]) -> Score:
    """Engine layers whose named nodes are exactly those of one predicted layer, other nodes left out.

    A Q or DQ that is predicted to be a layer and is none is a miss too.
    """
    names = {node.name for node in model.view.nodes}
    real = {members for layer in layers if (members := frozenset(_members(layer, model, names)))}
    named = frozenset().union(*real)
    predicted = {
        frozenset(_canonical(node, model) for node in layer.nodes) & named for layer in prediction.layers
    }
    score = Score(right=len(real & predicted))
    score.misses = [
        f"{name}: {' + '.join(sorted(members))}" for members in sorted(real - predicted, key=sorted)
    ]
    alone = {_canonical(row.node, model) for row in prediction.ledger if row.end is End.COPY}
    score.misses += [
        f"{name}: {node} is no layer" for node in sorted(alone) if not any(node in layer for layer in real)
    ]
    return score


def _members(layer: EngineLayer, model: Model, names: set[str]) -> Iterator[str]:
    """The nodes that a layer's name speaks of; none for layers without nodes of the model."""
    if (layer.kind in _UNTOLD and not layer.onnx_nodes) or layer.name.startswith(
        ("Reformatting", "{ForeignNode")
    ):
        return
    if layer.name.endswith(" copy"):
        concats = (node.name for node in model.view.nodes if node.op == "Concat")
        yield max((name for name in concats if layer.name.startswith(f"{name}_")), key=len)
        return
    for part in parts(layer.name):
        base = part.partition("_clone_")[0]
        if part in names or base in names:
            yield _canonical(part, model)


def _canonical(name: str, model: Model) -> str:
    """Twins have one name: a Q of an activation is named after its tensor, a clone after tensor and number."""
    base, clone, number = name.partition("_clone_")
    node = model.view.by_name.get(base)
    if node is None or node.op != "QuantizeLinear" or model.view.is_constant(node.inputs[0]):
        return name
    return f"Q of {node.inputs[0]}{clone}{number}"


def _count(score: Score, name: str, node: str, predicted: str, actual: str) -> None:
    if actual not in {"int8", "float"}:
        score.untold += 1
    elif predicted == actual:
        score.right += 1
    else:
        score.misses.append(f"{name}: {node} predicted {predicted}, is {actual}")


def _word(dtype: DType) -> str:
    return "float" if dtype.is_float else str(dtype)


if __name__ == "__main__":
    sys.exit(main())
