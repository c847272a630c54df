"""Finds the quantized inputs of a placement in a traced PyTorch network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import fx, nn

from qdqtool.backends.torch_qat.flat import LAYERS
from qdqtool.core.calibration import NodeShift
from qdqtool.core.placement import Decision, Placement, Slot, SlotKind
from qdqtool.core.tensors import INT8, QuantFormat
from qdqtool.graph.preparation.convolutions import as_convolution
from qdqtool.graph.view import GraphView, Node

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The place in a PyTorch network that corresponds to one quantized input of the ONNX model.

    Attributes:
        slot: input of an ONNX node.
        tensor: the ONNX tensor whose range counts.
        step: the step that reads it.
        source: the step whose result is quantized before `step` reads it; "" for the weight of `step`.
        axis: channel axis of the weight in torch; None for one scale per tensor.
        format: format of the rounding.
        norm: a BatchNorm step that is folded into this weight when the model is prepared; "" if there is none.
        layer: path of a layer inside `step`, if `step` is a part that cannot be traced. The quantizer is then at this
            layer: at its input if there is a `source`, else at its weight. "" for a whole step.
        layout: if the graph stores the weight in another order (a transposed convolution as a Conv): for every
            element there, the number of the layer's own element, counted from 1; 0 for a zero. None if both are in
            one order.
    """

    slot: Slot
    tensor: str
    step: str
    source: str = ""
    axis: int | None = None
    format: QuantFormat = INT8
    norm: str = ""
    layer: str = ""
    layout: NDArray[np.int64] | None = None

    @property
    def owner(self) -> str:
        """Path of the module whose weight or input is quantized."""
        return f"{self.step}.{self.layer}" if self.layer else self.step


@dataclass(frozen=True, kw_only=True, slots=True)
class Sites:
    """The quantized inputs of a placement: those with a place in the torch network, and those without, with the reason."""

    placed: tuple[Site, ...]
    lost: tuple[tuple[Slot, str], ...]


def locate(placement: Placement, view: GraphView, flat: fx.GraphModule) -> Sites:
    """Find the places of all quantized inputs in a torch network; `view` is the prepared graph of the exported `flat`."""
    finder = _Finder(view, flat)
    sites: list[Site] = []
    lost: list[tuple[Slot, str]] = []
    for decision in placement.quantized:
        site = finder.site(decision)
        if isinstance(site, Site):
            sites.append(site)
        else:
            lost.append((decision.slot, site))
    return Sites(placed=tuple(sites), lost=tuple(lost))


def bias_owners(shifts: Iterable[NodeShift], view: GraphView, flat: fx.GraphModule) -> dict[str, str]:
    """Return, for each ONNX node, the step that holds its bias: a folded BatchNorm, or the layer itself.

    Nodes whose bias belongs to no single step are omitted.
    """
    finder = _Finder(view, flat)
    owners = {entry.node: finder.bias_owner(view.by_name[entry.node]) for entry in shifts}
    return {node: step for node, step in owners.items() if step}


def _site(decision: Decision, step: str, **place: Any) -> Site:
    """Return the `Site` of a quantized input at the step `step`; `place` has its remaining fields."""
    chosen = INT8 if decision.spec is None else decision.spec.format
    return Site(slot=decision.slot, tensor=decision.tensor, step=step, format=chosen, **place)


def _layout(node: Node, layer: nn.Module) -> NDArray[np.int64] | None:
    """Return how preparation reordered the weight of a layer when it wrote the layer as `node`."""
    if node.op != "Conv" or not isinstance(layer, TRANSPOSED):
        return None
    numbers = np.arange(1, layer.weight.numel() + 1, dtype=np.int64).reshape(tuple(layer.weight.shape))
    pads = tuple(int(size) for size in layer.padding) * 2
    return as_convolution(numbers, layer.stride, pads, layer.output_padding, layer.groups)


class _Finder:
    def __init__(self, view: GraphView, flat: fx.GraphModule) -> None:
        self._view = view
        self._modules = dict(flat.named_modules())
        self._steps: Mapping[str, fx.Node] = {node.name: node for node in flat.graph.nodes}
        self._inputs = {info.name for info in view.inputs}
        self._step_names = {self._step_of(node) for node in view.nodes} | self._inputs

    def site(self, decision: Decision) -> Site | str:
        """Return the place of a quantized input in the torch network, or the reason why it has none."""
        node = self._view.by_name[decision.slot.node]
        step = self._step_of(node)
        if not step:
            return "the exporter wrote no step name"
        if decision.spec is not None and decision.spec.block is not None:
            return "values with block scales are not trained"
        layer = self._layer_in(node, step)
        if layer:
            return self._inside(decision, node, step, layer)
        if decision.kind is SlotKind.WEIGHT:
            return self._weight(decision, node, step)
        producer = self._view.producer(decision.tensor)
        origin = decision.tensor if producer is None else self._step_of(producer)
        if origin == step:
            return f"inside {step}, which torch runs as one step"
        source = self._source(self._steps[step], origin)
        if not source:
            return f"{step} does not read {origin or decision.tensor} directly"
        return _site(decision, step, source=source)

    def _weight(self, decision: Decision, node: Node, step: str) -> Site | str:
        weight = getattr(self._modules.get(step), "weight", None)
        shape = self._view.constant_shape(decision.tensor)
        if weight is None or shape is None:
            return f"{step} has no weight"
        layout = _layout(node, self._modules[step])
        own = tuple(weight.shape) if layout is None else layout.shape
        axis = decision.spec.axis if decision.spec else None
        if node.op == "MatMul" and own == shape[::-1]:
            axis = None if axis is None else 1 - axis
        elif own != shape:
            return f"the weight of {step} has shape {own}, the model has {shape}"
        return _site(decision, step, axis=axis, norm=self._norm_after(step), layout=layout)

    def _layer_in(self, node: Node, step: str) -> str:
        """Return the path of a node's layer inside a step; "" if the step does not contain the layer."""
        path = ".".join(node.name.split("/")[2:-1])
        return path if path and isinstance(self._modules.get(f"{step}.{path}"), LAYERS) else ""

    def _inside(self, decision: Decision, node: Node, step: str, layer: str) -> Site | str:
        """Return the place of a layer inside a part that cannot be traced, or the reason why it has none."""
        name = f"{step}.{layer}"
        if decision.kind is not SlotKind.WEIGHT:
            if decision.slot.index:
                return f"inside {step}, which torch runs as one step"
            return _site(decision, step, source=name, layer=layer)
        own: NDArray[Any] = self._modules[name].weight.detach().cpu().float().numpy()
        stored = self._view.constant(decision.tensor)
        axis = decision.spec.axis if decision.spec else None
        if stored is not None and node.op == "MatMul" and own.shape == stored.shape[::-1]:
            stored, axis = stored.T, None if axis is None else 1 - axis
        if stored is None or stored.shape != own.shape or not np.allclose(stored, own, rtol=1e-4, atol=1e-6):
            return f"the weight of {name} is changed when the model is prepared, by a BatchNorm in a part that is not traced"
        return _site(decision, step, axis=axis, layer=layer)

    def bias_owner(self, node: Node) -> str:
        """Return the step that adds the bias of a layer; "" if no step does."""
        step = self._step_of(node)
        layer = self._layer_in(node, step) if step else ""
        if layer:
            return f"{step}.{layer}"
        owner = self._norm_after(step) or step if step else ""
        return owner if hasattr(self._modules.get(owner), "bias") else ""

    def _norm_after(self, step: str) -> str:
        readers = list(self._steps[step].users)
        if len(readers) == 1 and readers[0].name not in self._step_names:
            module = self._modules.get(readers[0].name)
            return readers[0].name if isinstance(module, NORMS) else ""
        return ""

    def _source(self, step: fx.Node, origin: str) -> str:
        """Return the input of `step` that `origin` feeds, directly or through steps without an ONNX node."""
        for direct in step.all_input_nodes:
            above: fx.Node | None = direct
            while above is not None:
                if above.name == origin:
                    return direct.name
                inputs = above.all_input_nodes
                passed = above.name not in self._step_names and inputs
                above = inputs[0] if passed else None
        return ""

    def _step_of(self, node: Node) -> str:
        parts = node.name.split("/")
        return parts[1] if len(parts) > 2 and parts[1] in self._steps else ""
