"""A network that is written node by node, each of which onnxruntime runs at once, so that every step stays valid."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as native

Array = NDArray[Any]

FREE = "batch"
"""Name of the free first dimension."""
REFUSED = (
    native.Fail,
    native.InvalidArgument,
    native.InvalidGraph,
    native.NotImplemented,
    native.RuntimeException,
    native.EPFail,
)
"""Errors of onnxruntime about a model."""


class Unfit(Exception):  # noqa: N818 -- no error: the step is left out
    """A step does not fit the tensor that it was given."""


class NoKernel(Unfit):
    """onnxruntime does not know an operator, or not for these types."""


@dataclass(frozen=True)
class Network:
    """A valid float network.

    Attributes:
        seed: number that makes the network again.
        steps: names of its steps, in order.
        proto: the model.
        samples: feeds of the model.
        operators: types of its nodes, those of bodies included.
    """

    seed: int
    steps: tuple[str, ...]
    proto: onnx.ModelProto
    samples: tuple[dict[str, Array], ...]
    operators: frozenset[str]

    @property
    def opset(self) -> int:
        return int(self.proto.opset_import[0].version)

    def __str__(self) -> str:
        return f"network {self.seed} (opset {self.opset}): {' - '.join(self.steps)}"


class Draft:
    """A network in the making.

    Attributes:
        chosen: random choices.
        noise: random weights.
        opset: version of the operators.
        values: value of every tensor so far, for the first sample.
        ends: tensors with a free first dimension that a step may read.
    """

    def __init__(self, seed: int, opset: int) -> None:
        self.chosen = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.opset = opset
        self.values: dict[str, Array] = {}
        self.ends: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.weights: list[str] = []
        self._count = 0

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.values[tensor].shape

    def name(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"

    def constant(self, value: object, dtype: Any = np.float32) -> str:
        """A constant, as initializer or, now and then, as a Constant node."""
        name = self.name("c")
        array = np.asarray(value, dtype)
        self.values[name] = array
        if self.chosen.random() < 0.15:
            tensor = numpy_helper.from_array(array, f"{name}_value")
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.constants[name] = array
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def weight(self, *shape: int, scale: float | None = None, around: float = 0.0) -> str:
        """Random float weights; often ones of this shape that another node reads as well."""
        alike = [name for name in self.weights if self.shape(name) == shape]
        if not around and alike and self.chosen.random() < 0.3:
            return self.chosen.choice(alike)
        spread = scale or max(1, int(np.prod(shape[1:]))) ** -0.5
        name = self.constant(self.noise.standard_normal(shape) * spread + around)
        if not around:
            self.weights.append(name)
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node with one."""
        return self.outputs(op, inputs, 1, **attributes)[0]

    def outputs(self, op: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """The outputs of a new node.

        Raises:
            Unfit: onnxruntime refuses the node, or an output is empty, large or not finite.
        """
        names = [self.name(op.lower()) for _ in range(count)]
        given = {key: value for key, value in attributes.items() if value is not None}
        title = self.name(op) if self.chosen.random() < 0.8 else ""
        self.append([helper.make_node(op, list(inputs), names, name=title, **given)], names)
        return names

    def append(self, nodes: Sequence[onnx.NodeProto], results: Sequence[str]) -> None:
        """Add nodes that were made elsewhere; only `results` can be read by later steps.

        Raises:
            Unfit: as for `outputs`.
        """
        read = [name for node in nodes for name in (*node.input, *_captured(node))]
        known = {name: self.values[name] for name in read if name in self.values}
        graph = helper.make_graph(
            nodes,
            "step",
            [_described(name, value) for name, value in known.items()],
            [onnx.ValueInfoProto(name=name) for name in results],
        )
        made = run(model(graph, self.opset), known)
        for value in made.values():
            finite = value.dtype.kind != "f" or bool(np.isfinite(value).all())
            if not finite or not 0 < value.size <= MOST_ELEMENTS:
                raise Unfit(nodes[-1].op_type)
        self.values.update(made)
        self.nodes.extend(nodes)

    def attempt(self, step: Step, tensor: str) -> bool:
        """Append a step that reads `tensor`; False, and nothing appended, if it does not fit."""
        before = len(self.nodes), dict(self.constants), list(self.weights), list(self.ends)
        try:
            made = step(self, tensor)
        except Unfit:
            del self.nodes[before[0] :]
            self.constants, self.weights, self.ends = before[1:]
            return False
        self.ends.append(made)
        return True


Step = Callable[[Draft, str], str]
MOST_ELEMENTS = 1 << 14


def _captured(node: onnx.NodeProto) -> list[str]:
    """Tensors that the bodies of a node read, those of the bodies included."""
    bodies = [entry.g for entry in node.attribute if entry.type == onnx.AttributeProto.GRAPH]
    return [name for body in bodies for inner in body.node for name in inner.input]


def _described(name: str, value: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """A model of this opset, as old as its exporter would have written it."""
    version = 4 if opset < 9 else 8 if opset < 19 else 10 if opset < 24 else 11
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs as onnxruntime computes them without optimizing.

    Raises:
        Unfit: onnxruntime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return dict(
            zip((value.name for value in session.get_outputs()), session.run(None, dict(feeds)), strict=True)
        )
    except native.NotImplemented as error:
        raise NoKernel(str(error)) from error
    except REFUSED as error:
        if "is not a registered function/op" in str(error):
            raise NoKernel(str(error)) from error
        raise Unfit(str(error)) from error
