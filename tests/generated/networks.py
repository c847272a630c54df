"""Valid float networks by number: the same number makes the same network."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generated.draft import FREE, Array, Draft, Network, Unfit, model, run
from tests.generated.steps import OFTEN, STEPS

OPSETS = (7, 8, 9, 10, 11, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 21, 22, 23, 24, 25)
SHAPES = ((3, 8, 10), (4, 9, 8), (8, 12, 10), (4, 8, 8), (8, 9, 9), (6, 8), (8, 12), (16,))
"""Inputs without their first dimension: images, sequences, vectors."""
TRIES = 8
"""Tries at a step for each that a network shall have."""


def network(seed: int, most: int | None = None) -> Network:
    """The network of this number; with `most`, the same network without the steps that come after so many."""
    plan = random.Random(seed)
    draft = Draft(seed, plan.choice(OPSETS))
    shape, free, batch = plan.choice(SHAPES), plan.random() < 0.4, plan.choice([1, 2])
    wanted = plan.randint(3, 10)
    inputs = ["in:0", "second/in"][: plan.choice([1, 1, 2])]
    samples = [
        {name: (draft.noise.standard_normal((batch, *shape)) * 1.5).astype(np.float32) for name in inputs}
        for _ in range(3)
    ]
    draft.values |= samples[0]
    draft.ends += inputs
    steps: list[str] = []
    last = inputs[0]
    for _ in range(TRIES * wanted):
        if len(steps) == min(wanted, wanted if most is None else most):
            break
        step = draft.chosen.choice([*STEPS, *OFTEN])
        start = last if draft.chosen.random() < 0.75 else draft.chosen.choice(draft.ends)
        if len(draft.shape(start)) > 1 and draft.attempt(step, start):
            steps.append(step.__name__)
            last = draft.ends[-1]
    state = plan.getstate()
    proto = _written(draft, inputs, FREE if free else batch, plan)
    if free and not _takes_rows(proto, samples[0]):
        plan.setstate(state)
        proto = _written(draft, inputs, batch, plan)
    operators = frozenset(node.op_type for node in _all_nodes(proto.graph))
    return Network(seed, tuple(steps), proto, tuple(samples), operators)


def _takes_rows(proto: onnx.ModelProto, sample: dict[str, Array]) -> bool:
    """Whether a network runs on each row of a sample alone: a free batch dimension promises that, sizes in a node may break it."""
    try:
        run(proto, {name: value[:1] for name, value in sample.items()})
    except Unfit:
        return False
    return True


def _written(draft: Draft, inputs: list[str], first: int | str, plan: random.Random) -> onnx.ModelProto:
    """The model: outputs are the tensors that no node reads, now and then one that a node reads, and a copied input."""
    read = {name for node in draft.nodes for name in _reads(node)}
    made = [name for name in dict.fromkeys(draft.ends) if name not in inputs]
    outputs = [name for name in made if name not in read] or made[-1:]
    inner = [name for name in made if name in read and name not in outputs]
    if inner and plan.random() < 0.4:
        outputs.append(plan.choice(inner))
    nodes = list(draft.nodes)
    if not outputs or plan.random() < 0.15:
        nodes.append(helper.make_node("Identity", [inputs[0]], ["echo"]))
        draft.values["echo"] = draft.values[inputs[0]]
        outputs.append("echo")
    declares = plan.random() < 0.7
    graph = helper.make_graph(
        nodes,
        "generated",
        [_declared(name, draft.values[name], first) for name in inputs],
        [
            _declared(name, draft.values[name], first)
            if declares
            else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in outputs
        ],
        [numpy_helper.from_array(value, name) for name, value in draft.constants.items()],
        doc_string="a generated network",
    )
    proto = model(graph, draft.opset)
    if proto.ir_version < 4:
        proto.graph.input.extend(_declared(name, value, None) for name, value in draft.constants.items())
    proto.metadata_props.add(key="author", value="tests")
    return proto


def _declared(name: str, value: Array, first: int | str | None) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    shape = value.shape if first is None else (first, *value.shape[1:])
    return helper.make_tensor_value_info(name, kind, shape)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(entry.g)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.GRAPH:
            for inner in entry.g.node:
                yield from _reads(inner)
