"""A flat network with fake quantizers at the inputs that a placement chose."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.func import functional_call

from qdqtool.backends.torch_qat.fake_quant_backend import FakeQuantBackend, Start
from qdqtool.backends.torch_qat.sites import NORMS, TRANSPOSED, Site
from qdqtool.core.calibration import CalibrationTable, NodeShift, TensorRange
from qdqtool.core.placement import Placement, classes
from qdqtool.core.wording import Setting
from qdqtool.errors import InputFileError, UsageError

TRAINED = "trained"
"""Name of the calibration method for ranges that were learned in training."""


class QuantizedWeight(nn.Module):
    """A layer that computes with its fake-quantized weight.

    If a BatchNorm follows, the weight is quantized in its folded form: multiplied by gain / sqrt(variance + epsilon)
    of the running statistics, rounded, and divided again. If the graph holds the weight in another order
    (`Site.layout`), it is quantized in that order, whose channels have the scales.
    """

    def __init__(
        self,
        layer: nn.Module,
        quantizer: nn.Module,
        norm: nn.Module | None = None,
        layout: NDArray[np.int64] | None = None,
        *,
        owner: bool,
    ) -> None:
        super().__init__()
        # Not saved in checkpoints, because both follow from the layer.
        places = None if layout is None else torch.from_numpy(np.ascontiguousarray(layout))
        self.register_buffer("_places", places, persistent=False)
        back = None if places is None else torch.argsort(places.flatten(), stable=True)
        # Zeros come first, then the position of every element in the layer's order.
        back = None if back is None else back[back.numel() - layer.weight.numel() :]
        self.register_buffer("_back", back, persistent=False)
        self.layer = layer
        if owner:
            self.quantizer = quantizer
        # In tuples, so that no parameter is registered twice, which formats without pointers (safetensors) refuse.
        self._quantizer = (quantizer,)
        self._norm = (norm,)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.layer, {"weight": self.weight()}, args, kwargs)

    def weight(self) -> torch.Tensor:
        """Return the fake-quantized weight: rounded in the folded form of the engine, then divided again."""
        raw: torch.Tensor = self.layer.weight
        factor = self._factor(raw)
        if factor is None:
            return self._round_value(raw)
        return self._round_value(raw * factor) / factor

    def _round_value(self, value: torch.Tensor) -> torch.Tensor:
        if self._places is None:
            rounded: torch.Tensor = self._quantizer[0](value)
            return rounded
        there = torch.cat([value.new_zeros(1), value.flatten()])[self._places]
        return self._quantizer[0](there).flatten()[self._back].reshape(value.shape)

    def _factor(self, raw: torch.Tensor) -> torch.Tensor | None:
        norm: Any = self._norm[0]
        if norm is None:
            return None
        gain = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
        factor = gain / torch.sqrt(norm.running_var + norm.eps)
        factor = torch.where(factor.abs() < 1e-12, torch.full_like(factor, 1e-12), factor)
        if isinstance(self.layer, TRANSPOSED):
            # [inputs, outputs/group, ...]: each group has its own outputs.
            groups, inputs = self.layer.groups, raw.shape[0]
            factor = factor.reshape(groups, -1).repeat_interleave(inputs // groups, 0)
            return factor.reshape(*factor.shape, *(1 for _ in range(raw.ndim - 2)))
        return factor.reshape(-1, *(1 for _ in range(raw.ndim - 1)))


class QuantizedInput(nn.Module):
    """A layer with a fake-quantized input, inside a part of the network that cannot be traced."""

    def __init__(self, layer: nn.Module, quantizer: nn.Module, *, owner: bool) -> None:
        super().__init__()
        self.layer = layer
        if owner:
            self.quantizer = quantizer
        self._quantizer = (quantizer,)

    def forward(self, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(self._quantizer[0](value), *args, **kwargs)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantizedModel:
    """A network in training. A fake quantizer holds the range of each quantized tensor.

    Attributes:
        network: the trained network; its parameters are those of the original float network.
        quantizers: module by name.
        tensors: name of the quantizer that holds the range of an ONNX tensor.
        engine: who made the quantizers.
        learns: whether their scales are learned.
    """

    network: fx.GraphModule
    quantizers: Mapping[str, nn.Module]
    tensors: Mapping[str, str]
    engine: FakeQuantBackend
    learns: bool

    def table(self, before: CalibrationTable) -> CalibrationTable:
        """Return the calibration table `before` with the quantizers' current ranges.

        A tensor without a quantizer keeps its range in `before`.
        The table has no bias shifts, because the biases of the network include those of calibration.
        """
        return replace(before, ranges=tuple(self._range(entry) for entry in before.ranges), shifts=())

    def _range(self, entry: TensorRange) -> TensorRange:
        name = self.tensors.get(entry.tensor)
        if name is None:
            return entry
        values = self.engine.amax(self.quantizers[name]).reshape(-1).tolist()
        return replace(entry, amax=tuple(float(value) for value in values), method=TRAINED)


def make_student(
    flat: fx.GraphModule,
    sites: tuple[Site, ...],
    placement: Placement,
    table: CalibrationTable | None,
    engine: FakeQuantBackend,
    *,
    learn: bool,
) -> QuantizedModel:
    """Put fake quantizers into a new graph over the modules of `flat`. Tensors with one scale share a quantizer.

    Without a table, their ranges have no meaning until `set_ranges`.

    Raises:
        InputFileError: the table has no range for a tensor.
        UsageError: the engine cannot round to a format of the placement.
    """
    network = fx.GraphModule(flat, copy.deepcopy(flat.graph))
    group_of = _groups(placement)
    quantizers: dict[str, nn.Module] = {}
    tensors: dict[str, str] = {}
    for site in sites:
        if site.format.name not in engine.formats:
            raise UsageError(
                f"this engine cannot round {site.tensor!r} to {site.format.name}",
                fix=f"{Setting('qat.engine', 'own')}, or place one of the formats {', '.join(sorted(engine.formats))}",
                where="qat.engine",
            )
        key = group_of.get(site.tensor, site.tensor)
        name = f"quantizer_{len(quantizers)}" if key not in tensors else tensors[key]
        if name not in quantizers:
            quantizers[name] = engine.quantizer(_start(None, site, flat, learn=learn))
        tensors[key] = tensors[site.tensor] = name
        _place(network, site, name, quantizers[name], flat)
    network.graph.lint()
    network.recompile()
    # Layers that are now inside a quantized layer would appear twice in a checkpoint.
    network.delete_all_unused_submodules()
    student = QuantizedModel(
        network=network, quantizers=quantizers, tensors=tensors, engine=engine, learns=learn
    )
    if table is not None:
        set_ranges(student, sites, table, flat)
    return student


def set_ranges(
    student: QuantizedModel, sites: tuple[Site, ...], table: CalibrationTable, flat: fx.GraphModule
) -> None:
    """Set the range of every fake quantizer; the parameters remain the same objects.

    Raises:
        InputFileError: the table has no range for a tensor.
    """
    ranges = table.by_tensor()
    done: set[str] = set()
    for site in sites:
        entry = ranges.get(site.tensor)
        if entry is None:
            raise InputFileError(
                f"the calibration table has no range for tensor {site.tensor!r}",
                fix="run the calibration again for the current placement",
            )
        name = student.tensors[site.tensor]
        if name not in done:
            done.add(name)
            fresh = student.engine.quantizer(_start(entry, site, flat, learn=student.learns))
            student.quantizers[name].load_state_dict(fresh.state_dict())


def _start(entry: TensorRange | None, site: Site, flat: fx.GraphModule, *, learn: bool) -> Start:
    """Return the `Start` of a site's fake quantizer; its magnitudes are 1 without a calibrated range."""
    if site.source or site.axis is None:
        whole = (1.0,) if entry is None else (max(entry.symmetric.amax),)
        return Start(amax=whole, learn=learn, format=site.format)
    weight: Any = flat.get_submodule(site.owner).weight if site.layout is None else site.layout
    amax = (1.0,) * weight.shape[site.axis] if entry is None else entry.amax
    return Start(amax=amax, axis=site.axis, rank=weight.ndim, learn=learn, format=site.format)


def _groups(placement: Placement) -> dict[str, str]:
    """Return the first tensor, by name, of each group with a shared scale, for every tensor of the group."""
    shared = classes(tie.tensors for tie in placement.ties)
    return {name: min(group) for group in shared for name in group}


def _place(
    network: fx.GraphModule, site: Site, name: str, quantizer: nn.Module, flat: fx.GraphModule
) -> None:
    """Insert a fake quantizer at a site: before its step, around its weight, or around a layer inside it."""
    step = next(node for node in network.graph.nodes if node.name == site.step)
    path = next((path for path, module in network.named_modules() if module is quantizer), "")
    if site.layer:
        _wrap(network, f"{step.target}.{site.layer}", site, quantizer, owner=not path)
        return
    if not site.source:
        norm = flat.get_submodule(site.norm) if site.norm else None
        layer = QuantizedWeight(flat.get_submodule(site.step), quantizer, norm, site.layout, owner=not path)
        # Also the name of the step, because tied weights have one quantizer and several layers.
        step.target = f"{name}_{site.step}"
        network.add_submodule(str(step.target), layer)
        return
    if not path:
        network.add_submodule(name, quantizer)
    source = next(node for node in network.graph.nodes if node.name == site.source)
    with network.graph.inserting_before(step):
        call = network.graph.call_module(path or name, (source,))
    step.replace_input_with(source, call)


def _wrap(network: nn.Module, path: str, site: Site, quantizer: nn.Module, *, owner: bool) -> None:
    """Put a fake quantizer around a layer inside an untraceable part.

    The modules that hold the layer are copied, because the float network keeps them.

    The copies share all parameters and buffers with the original modules.
    """
    *above, name = path.split(".")
    holder = network
    for part in above:
        inner = copy.copy(holder.get_submodule(part))
        inner._modules = dict(inner._modules)  # noqa: SLF001 -- copy.copy leaves it shared with the float network
        setattr(holder, part, inner)
        holder = inner
    layer = holder.get_submodule(name)
    if site.source:
        setattr(holder, name, QuantizedInput(layer, quantizer, owner=owner))
    elif isinstance(layer, QuantizedInput):
        layer.layer = QuantizedWeight(layer.layer, quantizer, owner=owner)
    else:
        setattr(holder, name, QuantizedWeight(layer, quantizer, owner=owner))


def shift_biases(flat: fx.GraphModule, shifts: Iterable[NodeShift], owners: Mapping[str, str]) -> None:
    """Add the bias corrections of calibration, so that training starts from the calibrated network."""
    for entry in shifts:
        if entry.node not in owners:
            continue
        module: Any = flat.get_submodule(owners[entry.node])
        shift = torch.tensor(entry.shift, dtype=torch.float32)
        # In the graph, a transposed convolution or the convolution before a BatchNorm is a Conv whose channels are the
        # positions between two steps; all positions share the bias.
        outputs = getattr(module, "num_features", None) or getattr(module, "out_channels", len(shift))
        shift = shift.reshape(outputs, -1).mean(1)
        if module.bias is None:
            module.bias = nn.Parameter(torch.zeros_like(shift))
        with torch.no_grad():
            module.bias += shift.to(module.bias)


def freeze_norms(network: nn.Module) -> None:
    """Use the running statistics of BatchNorm from now on, without updating them."""
    for module in network.modules():
        if isinstance(module, NORMS):
            module.eval()


def fold_norms(flat: fx.GraphModule) -> fx.GraphModule:
    """Fold every BatchNorm into the Conv before it, if no other step reads the result of the Conv."""
    steps = {node.name: node for node in flat.graph.nodes}
    for node in list(steps.values()):
        norm = flat.get_submodule(node.name) if node.op == "call_module" else None
        if not isinstance(norm, NORMS) or norm.running_mean is None:
            continue
        before = node.all_input_nodes[0]
        layer = flat.get_submodule(before.name) if before.op == "call_module" else None
        if len(before.users) == 1 and isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            fused: nn.Module = torch.nn.utils.fusion.fuse_conv_bn_eval(layer.eval(), norm.eval())
            flat.add_submodule(before.name, fused)
            node.replace_all_uses_with(before)
            flat.graph.erase_node(node)
    flat.graph.lint()
    flat.recompile()
    flat.delete_all_unused_submodules()
    return flat
