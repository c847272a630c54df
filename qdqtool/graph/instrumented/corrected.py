"""Bias correction inside the Q/DQ graph: each layer continues with the mean output that it has in the float network.

    means of the float layer (samples, C) = input
               |
               +--> difference --> shift (C,)  = output
               |                      |
    x - Q/DQ - Conv ----------------- + ------- Relu ...

The samples are fed as one batch, so the shift of a layer is known before the next layer runs. One run corrects the
whole network and returns the corrected outputs. Samples that do not fit into memory together are fed as several
batches. Each batch receives the differences of the earlier batches, and uses the shifts computed from all of them.
The shifts of the last batch are the result.

Batches that correct themselves separately give equal means only if means pass through the network linearly. With some
orders of the samples, the boxes of a YOLOv8 lost half of the gain of the correction (figures in `docs/verified.md`).
The shift is shrunk by its uncertainty over the samples, as in `pipeline.ranges.executor.shrink_means`.

`channel_means` measures the mean outputs of the float network. For a convolution it returns the means of the input,
and `Means.of` computes the mean outputs from them. For single samples, the products of all weights with these means
would take a large part of the time of the network.

A convolution is linear, so the mean of its output follows from the mean of each channel of its input, except at the
border. A kernel tap that reads padding at some positions counts with the share of the other positions, as if the
input had one value everywhere. Means of the float and the quantized network are computed in this way, so the error of
the approximation is nearly equal in both. No node has to read the output of a convolution, and onnxruntime can fuse
the next nodes into it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView, Model
from qdqtool.trt.ops import CONVOLUTIONS, result_axis

_AXES_ARE_INPUTS: Final = 18
"""First opset whose ReduceMean takes its axes as an input."""
_OF_ONE_THREAD: Final = 1 << 18
"""Most multiplications of a product that OpenBLAS computes in one thread."""
_IMAGE: Final = 3
"""Fewest dimensions of the input of a convolution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """A model with additional outputs for the mean outputs of some nodes.

    Attributes:
        model: returns its old outputs, and one array per node.
        outputs: name of that array by node, in graph order.
        taps: for each node whose array has the means of its input: the contribution of an input channel to an output
            channel, (outputs, inputs of a group). The arrays of all other nodes are mean outputs already.
    """

    model: Model
    outputs: Mapping[str, str]
    taps: Mapping[str, NDArray[np.float32]]

    def without(self, model: Model) -> Means:
        """Return a copy that refers to `model`, so that the memory of the current model can be freed."""
        return replace(self, model=model)

    def of(self, values: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[np.float32]]:
        """Return the mean outputs of each node, (samples, channels), without the biases of convolutions."""
        # Layers that read one tensor share its means.
        rows = {
            name: np.stack([_of_channels(returned[name]) for returned in values])
            for name in {*self.outputs.values()}
        }
        return {
            node: _through(rows[name], self.taps[node]) if node in self.taps else rows[name]
            for node, name in self.outputs.items()
        }


def _of_channels(means: NDArray[Any]) -> NDArray[np.float32]:
    """Return the mean of each channel, (channels,), also if a sample consists of several rows."""
    rows = means.reshape(len(means), -1) if means.ndim > 1 else means[None]
    averaged: NDArray[np.float32] = rows[0] if len(rows) == 1 else rows.mean(axis=0, dtype=np.float32)
    return averaged


def _through(means: NDArray[np.float32], taps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean outputs of a convolution, (samples, outputs), from the mean inputs, (samples, inputs)."""
    outputs, inside = taps.shape
    groups = means.shape[1] // inside
    if groups == 1:
        # In parts that are too small for BLAS to split among threads: the threads would wait longer than they work.
        size = math.gcd(outputs, 1 << max(0, (_OF_ONE_THREAD // (len(means) * inside)).bit_length() - 1))
        products: NDArray[np.float32] = taps.reshape(-1, size, inside) @ means.T
        return np.ascontiguousarray(products.reshape(outputs, len(means)).T)
    parts = means.reshape(len(means), groups, inside)
    outputs_of_groups: NDArray[np.float32] = np.einsum(
        "ngi,goi->ngo", parts, taps.reshape(groups, -1, inside)
    )
    return outputs_of_groups.reshape(len(means), outputs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The nodes that compute the bias shifts of some layers from their mean outputs.

    It is appended after the optimization of the model. Its nodes, about fifteen per layer, would be most of the
    graph, and the optimizer cannot fuse any of them.

    Attributes:
        nodes: in an order in which they can run.
        constants: that they read.
        inputs: inputs of the whole graph in addition to the inputs of the model.
        outputs: that it returns besides them.
        sources: outputs of the model that only these nodes read.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    sources: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrected:
    """A Q/DQ model that corrects its biases while it runs a batch.

    Attributes:
        model: the model, with one more output per corrected node: its shift, (channels,).
        means: name of the input that takes a node's float means, (samples, channels), by node.
        earlier: name of the input that takes the node's `differences` of batches before, (earlier samples, channels), by node.
        shifts: name of the output with the shift, by node, in graph order.
        differences: name of an output by node, the differences that the shift is the mean of, (samples, channels).
        split: name of an input that says how many samples the batch holds.
        doubt: name of an input, see `feeds`.
        tail: nodes to add after the optimized model, if some nodes are bare.
    """

    model: Model
    means: Mapping[str, str]
    earlier: Mapping[str, str]
    shifts: Mapping[str, str]
    differences: Mapping[str, str]
    split: str
    doubt: str
    tail: Tail | None = None

    def feeds(
        self,
        means: Mapping[str, NDArray[Any]],
        doubt: float,
        whole: int | None = None,
        earlier: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the values of the additional inputs of a bias-correcting model.

        Args:
            means: mean outputs of the float network by node, (samples, channels).
            doubt: a shift is used only if its square exceeds this number of squared standard errors.
            whole: number of samples whose mean has these standard errors.
            earlier: the differences that earlier batches returned.
        """
        count = len(next(iter(means.values())))
        before = {node: (earlier or {}).get(node, means[node][:0]) for node in self.means}
        total = count + len(next(iter(before.values())))
        # Squared standard error of a mean: the sum of squares of m samples over n (m - 1).
        scale = doubt / max(1, (whole or total) * (total - 1))
        return {
            self.split: np.array([count, -1, 0], np.int64),
            self.doubt: np.array(scale, np.float32),
            **{name: means[node] for node, name in self.means.items()},
            **{name: before[node] for node, name in self.earlier.items()},
        }


def channel_means(
    model: Model, nodes: Collection[str], *, free: bool, averaged: Collection[str] = ()
) -> Means:
    """Return a model that also returns the mean output of every channel of these nodes. Nodes of unknown rank are skipped.

    With `free`, the model accepts batches of any size; the caller must check its results. The caller already has the
    means of the tensors in `averaged`, and passes them to `Means.of` under the names of the tensors.
    """
    edit = Edit(model)
    build = _Builder(edit)
    outputs: dict[str, str] = {}
    taps: dict[str, NDArray[np.float32]] = {}
    pooled: dict[str, str] = {}
    for node, rank in _rank_nodes(model, edit, nodes):
        weight = model.view.constant(node.input[1]) if _is_image(node, rank) else None
        if weight is not None and weight.dtype == np.float32:
            source = node.input[0]
            if source not in pooled:
                pooled[source] = source if source in averaged else build.pool(source)
            outputs[node.name] = pooled[source]
            inside = _inside(node, model.view.info(source).shape, weight.shape)
            spatial = tuple(range(2, rank))
            taps[node.name] = (weight if inside is None else weight * inside).sum(axis=spatial)
            continue
        measured, axis = build.measured(node, model.view, rank)
        axes = [dim for dim in range(rank) if dim != axis]
        outputs[node.name] = build.reduce("ReduceMean", measured, axes)
    freed = free and _free_batch(edit)
    _return(edit.outputs, [name for name in dict.fromkeys(outputs.values()) if name not in averaged])
    return Means(model=edit.finish(retyped=freed, shapes=False), outputs=outputs, taps=taps)


def correct_nodes(model: Model, nodes: Collection[str], bare: Collection[str] = ()) -> Corrected:
    """Return the Q/DQ model, for batches of any size, with these nodes corrected.

    For nodes in `bare`, the model only returns the mean outputs. The caller computes their shifts with `tail`, and
    adds each shift at a place that breaks no fusion.
    """
    edit = Edit(model)
    build = _Builder(edit)
    _free_batch(edit)
    split, doubt = edit.fresh("corrected_split"), edit.fresh("corrected_doubt")
    _take(edit.inputs, split, onnx.TensorProto.INT64, [3])
    _take(edit.inputs, doubt, onnx.TensorProto.FLOAT, [])
    means: dict[str, str] = {}
    earlier: dict[str, str] = {}
    shifts: dict[str, str] = {}
    differences: dict[str, str] = {}
    behind = _Behind(edit)
    build_behind = _Builder(behind)
    for node, rank in _rank_nodes(model, edit, nodes):
        name, output = node.name, node.output[0]
        means[name], earlier[name] = edit.fresh(f"{name}_float_means"), edit.fresh(f"{name}_earlier")
        inputs = behind.inputs if name in bare else edit.inputs
        _take(inputs, means[name], onnx.TensorProto.FLOAT, [f"{split}_samples", f"{name}_channels"])
        _take(inputs, earlier[name], onnx.TensorProto.FLOAT, [f"{split}_earlier", f"{name}_channels"])
        statistics = (means[name], earlier[name], split, doubt)
        if name in bare:
            measured, axis = build.measured(node, model.view, rank)
            shifts[name], differences[name] = build_behind.shift(measured, (rank, axis), statistics)
            behind.sources.append(measured)
            continue
        node.output[0] = edit.fresh(f"{output}_raw")
        measured, axis = build.measured(node, model.view, rank)
        shifts[name], differences[name] = build.shift(measured, (rank, axis), statistics)
        build.add(node, rank, shifts[name], output)
    outputs = [*shifts.items(), *differences.items()]
    _return(edit.outputs, [*(tensor for name, tensor in outputs if name not in bare), *behind.sources])
    _return(behind.outputs, [tensor for name, tensor in outputs if name in bare])
    return Corrected(
        model=edit.finish(retyped=True, shapes=False),
        means=means,
        earlier=earlier,
        shifts=shifts,
        differences=differences,
        split=split,
        doubt=doubt,
        tail=behind.tail() if bare else None,
    )


def _free_batch(edit: Edit) -> bool:
    """Make every batch dimension of 1 in inputs and outputs dynamic; return True if there was one."""
    fixed = [
        dims[0]
        for value in (*edit.inputs, *edit.outputs)
        if (dims := value.type.tensor_type.shape.dim) and dims[0].dim_value == 1
    ]
    for dim in fixed:
        dim.dim_param = "batch"
    return bool(fixed)


def _is_image(node: onnx.NodeProto, rank: int) -> bool:
    return node.op_type == "Conv" and rank >= _IMAGE


def _rank_nodes(model: Model, edit: Edit, nodes: Collection[str]) -> list[tuple[onnx.NodeProto, int]]:
    ranks = ((node, _rank(model.view, node)) for node in list(edit.nodes) if node.name in nodes)
    return [(node, rank) for node, rank in ranks if rank]


def _rank(view: GraphView, node: onnx.NodeProto) -> int:
    """Return the number of dimensions of a layer's output; 0 if unknown.

    Shapes may be unknown after a Reshape to a computed shape (exports of PaddlePaddle). A convolution writes as many
    dimensions as its weights have.
    """
    sized = node.input[1] if node.op_type in CONVOLUTIONS else node.output[0]
    return len(view.info(sized).shape or view.info(node.output[0]).shape or ())


def _take(inputs: list[onnx.ValueInfoProto], name: str, kind: int, shape: Sequence[int | str]) -> None:
    inputs.append(helper.make_tensor_value_info(name, kind, shape))


def _return(outputs: list[onnx.ValueInfoProto], names: Iterable[str]) -> None:
    # The runtime infers the types, because not every part of a network is FP32.
    outputs += [onnx.ValueInfoProto(name=name) for name in names]


class _Behind:
    """Collects nodes to add after an edited model, with names that the model does not use."""

    def __init__(self, edit: Edit) -> None:
        self.opset = edit.opset
        self.fresh = edit.fresh
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.sources: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, base: str, value: NDArray[Any]) -> str:
        """Add a constant under an unused name, and return the name."""
        name = self.fresh(base)
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str, **attributes: Any
    ) -> onnx.NodeProto:
        """Add a node that follows the edited model, and return the node."""
        node: onnx.NodeProto = helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)
        self._nodes.append(node)
        return node

    def tail(self) -> Tail:
        """Return all collected nodes, constants, inputs and outputs."""
        return Tail(
            nodes=tuple(self._nodes),
            constants=tuple(self._constants),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            sources=frozenset(self.sources),
        )


class _Builder:
    """Adds nodes to an edited model, or collects them to be added after it."""

    def __init__(self, edit: Edit | _Behind) -> None:
        self._edit = edit
        self._shapes: dict[tuple[int, ...], str] = {}
        self._one = edit.constant("corrected_one", np.ones((), np.float32))
        self._zero = edit.constant("corrected_zero", np.zeros((), np.float32))
        self._tiny = edit.constant("corrected_tiny", np.array(np.finfo(np.float32).tiny))

    def measured(self, node: onnx.NodeProto, view: GraphView, rank: int) -> tuple[str, int]:
        """Return a tensor whose mean per channel is that of a node's output, and the axis of the channels."""
        if not _is_image(node, rank):
            return node.output[0], result_axis(node.op_type) % rank
        spatial = list(range(2, rank))
        pooled = self.pool(node.input[0])
        weight = node.input[1]
        shape = view.info(weight).shape or ()
        if shape[2:] != (1,) * len(spatial):
            inside = _inside(node, view.info(node.input[0]).shape, shape)
            whole = weight
            if inside is not None:
                whole = self._new("Mul", [weight, self._edit.constant(f"{weight}_inside", inside)])
            summed = self.reduce("ReduceSum", whole, spatial)
            weight = self._new("Reshape", [summed, self._shape([0, 0] + [1] * len(spatial))])
        groups = next((field.i for field in node.attribute if field.name == "group"), 1)
        return self._new("Conv", [pooled, weight], group=groups), 1

    def pool(self, image: str) -> str:
        """Return the mean of every channel of every sample."""
        return self._new("GlobalAveragePool", [image])

    def shift(
        self, measured: str, place: tuple[int, int], statistics: tuple[str, str, str, str]
    ) -> tuple[str, str]:
        """Return the bias shift for each channel, from means and target means, and their differences.

        `statistics` are the inputs with the wanted means, the differences of batches before, the split and the doubt.
        """
        target, earlier, split, doubt = statistics
        moved = self._new("Sub", [target, self._means(measured, *place, split)])
        differences = self._new("Concat", [earlier, moved], axis=0)
        mean = self.reduce("ReduceMean", differences, [0])
        apart = self._new("Sub", [differences, mean])
        squares = self.reduce("ReduceSum", self._new("Mul", [apart, apart]), [0])
        power = self._new("Max", [self._new("Mul", [mean, mean]), self._tiny])
        doubted = self._new("Div", [self._new("Mul", [squares, doubt]), power])
        share = self._new("Max", [self._new("Sub", [self._one, doubted]), self._zero])
        return self._new("Mul", [mean, share], name=f"{measured}_shift"), moved

    def add(self, node: onnx.NodeProto, rank: int, shift: str, output: str) -> None:
        """Add the shift to the node's output, under the name `output`."""
        axis = result_axis(node.op_type) % rank
        spread = self._shape([-1 if dim == axis else 1 for dim in range(rank)])
        inputs = [node.output[0], self._new("Reshape", [shift, spread])]
        self._edit.node("Add", inputs, [output], name=f"{node.name}_corrected")

    def reduce(self, op: str, tensor: str, axes: list[int]) -> str:
        """Return the tensor reduced over these axes, which are dropped."""
        if not axes:
            return self._new("Identity", [tensor])
        if op == "ReduceSum" or self._edit.opset >= _AXES_ARE_INPUTS:
            return self._new(op, [tensor, self._shape(axes)], keepdims=0)
        return self._new(op, [tensor], axes=axes, keepdims=0)

    def _means(self, tensor: str, rank: int, axis: int, split: str) -> str:
        """Return the means of channels per sample, (samples, channels).

        If the batch is a multiple of the samples (such as windows), `split` groups its rows by sample.
        """
        axes = [dim for dim in range(1, rank) if dim != axis]
        flat = self.reduce("ReduceMean", tensor, axes) if axes else tensor
        # The rows of a sample are adjacent. A 0 in `split` copies the dimension at its position, so the tensor needs
        # one more dimension.
        rows = self._new("Unsqueeze", [flat, self._shape([1])])
        return self.reduce("ReduceMean", self._new("Reshape", [rows, split]), [1])

    def _shape(self, numbers: list[int]) -> str:
        key = tuple(numbers)
        if key not in self._shapes:
            self._shapes[key] = self._edit.constant("corrected_shape", np.array(numbers, np.int64))
        return self._shapes[key]

    def _new(self, op: str, inputs: list[str], *, name: str = "", **attributes: Any) -> str:
        output = self._edit.fresh(name or f"{inputs[0]}_{op}")
        self._edit.node(op, inputs, [output], name=output, **attributes)
        return output


def _inside(
    node: onnx.NodeProto, image: Sequence[int | str] | None, weight: Sequence[int | str]
) -> NDArray[np.float32] | None:
    """Return, for each kernel tap, the share of output positions at which it reads the image and not padding.

    The shape is (1, 1, *kernel). None if all taps read the image at every position, or if the image has an
    unknown size.
    """
    attributes = {field.name: helper.get_attribute_value(field) for field in node.attribute}
    kernel = [size for size in weight[2:] if isinstance(size, int)]
    sizes = [size for size in (image or ())[2:] if isinstance(size, int)]
    dims = len(kernel)
    pads = attributes.get("pads", [0] * 2 * dims)
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or not any(pads) or len(sizes) != dims or not dims:
        return None
    shares = np.ones([1, 1, *kernel], np.float32)
    for axis, (taps, size) in enumerate(zip(kernel, sizes, strict=True)):
        stride = attributes.get("strides", [1] * dims)[axis]
        step = attributes.get("dilations", [1] * dims)[axis]
        before, after = pads[axis], pads[axis + dims]
        starts = np.arange(0, size + before + after - step * (taps - 1), stride) - before
        met = starts[:, None] + step * np.arange(taps)
        share = ((met >= 0) & (met < size)).mean(axis=0)
        shares *= share.reshape([-1 if dim == axis + 2 else 1 for dim in range(dims + 2)]).astype(np.float32)
    return shares
