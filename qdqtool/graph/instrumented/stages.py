"""A Q/DQ model in stages, each of which can be built with any of its nodes quantized and the others float.

    x -> Q -> DQ -> Conv         node off        x -> Conv

A stage is a separate model. Its inputs are the tensors that are needed at its start, and its outputs are the tensors
that later stages need. A run of one subset of quantized nodes can continue from another run that had equal nodes
quantized up to this stage. Weights stay constants in every form: onnxruntime folds and packs them as it does in the
whole model. (With a `Where` between both forms of each weight, onnxruntime folds and packs nothing, and a run takes
several times as long.)

Every node that reads dequantized values can be switched. A bias that was corrected for the quantization of its node
is switched together with the node. The bias of a node that stays float was corrected for earlier nodes; it is
switched with the nearest earlier node that can be switched. If all nodes are off, the result is the float network.
Cuts are only before compute nodes. Other cuts would separate nodes that onnxruntime fuses, and change the last bit of
results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from qdqtool.core.calibration import NodeShift
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.cut import wide_bytes
from qdqtool.graph.instrumented.tunable import folded_weights
from qdqtool.graph.onnx_io.deferred import array, whole
from qdqtool.graph.onnx_io.save import store_weights
from qdqtool.graph.onnx_io.walk import copy_fields, copy_message, declaration, is_heavy, reads
from qdqtool.graph.qdq.changes import BIAS
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.typed.emulate import EXACT_FORM, widened
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import DYNAMIC_TYPES, PRODUCTS

STAGES: Final = 128
"""Most stages of a model: a scan of n nodes costs about n (1 + 1 / stages) / 2 inferences."""
_PER_ELEMENT: Final = 16
"""Number of multiplications that take as long as writing one element."""
_HANDED_ON: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT64, DType.INT32, DType.UINT8, DType.BOOL}
)
"""Types that NumPy and onnxruntime share; only their tensors are passed between stages."""
_QUANTIZERS: Final = frozenset({QUANTIZE, *DYNAMIC_TYPES})
_PAIRS: Final = frozenset({*_QUANTIZERS, DEQUANTIZE})
_TABLE_FIX: Final = "keep the calibration table with the model that was written with it"
_NONE: Final[Mapping[str, onnx.TensorProto]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphStage:
    """A stage of a model: consecutive nodes in graph order.

    Attributes:
        switchable: its nodes that can be switched, and nodes whose bias can be.
        inputs: tensors from outside that its nodes read.
        outputs: tensors that it makes for later stages and for the caller.
        alive: tensors that later stages need, made in this stage or before.
    """

    switchable: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    alive: frozenset[str]


class StagedModel:
    """The stages of a Q/DQ model. It makes models in which any of their nodes are quantized and the others are float.

    Attributes:
        nodes: names of the nodes that can be switched, in graph order.
        stuck: nodes with weights of which only the stored codes are there, so that only their activations can be switched.
        stages: in graph order.
    """

    def __init__(
        self,
        model: Model,
        shifts: Iterable[NodeShift] = (),
        *,
        plain: Model | None = None,
        most: int = STAGES,
    ) -> None:
        """Cut the model into at most `most` stages.

        `shifts` are the bias corrections that it holds. `plain` is the model without Q/DQ: a node that is off reads its
        weights, which the Q/DQ model may hold as integers, or rounded otherwise than to the nearest.

        Raises:
            InputFileError: a shift is of another model.
        """
        self._model = model
        graph = model.proto.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output if name}
        outputs = {value.name for value in graph.output}
        # A Q/DQ pair is written again before each of its readers; a pair that the model returns stays in place.
        self._core = [
            node for node in graph.node if node.op_type not in _PAIRS or outputs.intersection(node.output)
        ]
        self._sources: dict[str, dict[int, str]] = {}
        self._unrounded: dict[str, str] = {}
        plain_nodes = {node.name: node for node in plain.proto.graph.node} if plain else {}
        plain_constants = {tensor.name: tensor for tensor in plain.proto.graph.initializer} if plain else {}
        stuck: dict[str, None] = {}
        for node in self._core:
            for index, name in enumerate(node.input):
                back = self._pair_end(node, name)
                if back is None:
                    continue
                forth, before = self._makers.get(back.input[0]), plain_nodes.get(node.name)
                source = forth.input[0] if forth is not None and forth.op_type in _QUANTIZERS else ""
                held = self._constants.get(source or back.input[0])
                if held is not None and before is not None and index < len(before.input):
                    source = self._original(held, plain_constants.get(before.input[index]), name) or source
                if not source:
                    stuck[node.name] = None
                    continue
                self._sources.setdefault(node.name, {})[index] = source
        self.nodes = tuple(self._sources)
        self.stuck = tuple(stuck)
        shifts = tuple(shifts)
        named = {node.name: node for node in self._core}
        if foreign := next((entry.node for entry in shifts if entry.node not in named), None):
            raise InputFileError(
                f"the calibration table corrects the bias of layer {foreign!r}, which the model does not have",
                fix=_TABLE_FIX,
            )
        self._followed = {entry.node: self._in_front(named[entry.node]) for entry in shifts if self.nodes}
        self._plain_biases = dict(self._plain_bias(entry) for entry in shifts if entry.node in self._followed)
        self._pieces = self._cut(most)
        self.stages = tuple(self._stages(outputs))

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs of the staged model."""
        return self._model.view.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model outputs."""
        return tuple(value.name for value in self._model.proto.graph.output)

    def sizes(self, fed: Mapping[str, tuple[int, ...]]) -> dict[str, int] | None:
        """Return the bytes of every tensor that one stage passes to a later one, for inputs of these shapes; None if unknown.

        Shape inference often stops before the outputs. Their tensors count as much as the largest tensor of known
        size.
        """
        unknown: list[str] = []
        bound: dict[int | str, int] = {
            dim: size
            for info in self.inputs
            for dim, size in zip(info.shape or (), fed.get(info.name, ()), strict=False)
            if isinstance(dim, str) and dim != "?"
        }
        sizes: dict[str, int] = {}
        for name in {name for stage in self.stages for name in stage.alive}:
            info = self._model.view.info(name)
            bits = info.dtype.bits
            dims = [bound.get(dim, dim) for dim in info.shape or ()]
            if info.shape is None or bits is None or any(isinstance(dim, str) for dim in dims):
                if name not in self.outputs:
                    return None
                unknown.append(name)
                continue
            sizes[name] = prod(dim for dim in dims if isinstance(dim, int)) * max(1, bits // 8)
        return sizes | dict.fromkeys(unknown, max(sizes.values(), default=0))

    def inputs_of(self, part: range) -> tuple[str, ...]:
        """Return the tensors that these consecutive stages read from outside."""
        written = {name for number in part for name in self.stages[number].outputs}
        read = {name for number in part for name in self.stages[number].inputs}
        return tuple(sorted(read - written))

    def outputs_of(self, part: range) -> tuple[str, ...]:
        """Return the tensors that these stages make for later stages or as model outputs."""
        alive = self.stages[part[-1]].alive
        return tuple(name for number in part for name in self.stages[number].outputs if name in alive)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the staged model as FP32."""
        return sum(wide_bytes(tensor) for tensor in self._model.proto.graph.initializer)

    def stored(self, folder: Path) -> dict[str, onnx.TensorProto]:
        """Write the heavy weights to a file in `folder`; return the references to them by constant name.

        Results of weight pairs are written too, and FP16 and BF16 as FP32: onnxruntime would compute both for each session.
        """
        heavy = (tensor for tensor in self._constants.values() if is_heavy(tensor))
        folded = (tensor for tensor in folded_weights(self._model) if tensor.name not in self._handed_on)
        stubs = store_weights(map(widened, chain(heavy, folded)), folder / "stages.data")
        return {stub.name.removesuffix(EXACT_FORM): stub for stub in stubs}

    def variant(
        self,
        part: range,
        quantized: Collection[str],
        stored: Mapping[str, onnx.TensorProto] = _NONE,
    ) -> bytes:
        """Return consecutive stages as the bytes of an ONNX file, with these nodes quantized and the others float.

        If weights are `stored`, the file must be beside them.
        """
        nodes = [self._form(node, node.name in quantized) for number in part for node in self._pieces[number]]
        needed = self._with_pairs(nodes, stored)
        used = {name for node in needed for name in reads(node)}
        old = self._model.proto
        proto = onnx.ModelProto()
        copy_fields(old, proto, skip={"graph"})
        proto.graph.name = f"stages {part[0]} to {part[-1]}"
        proto.graph.input.extend(self._declared[name] for name in self.inputs_of(part))
        proto.graph.output.extend(self._declared[name] for name in self.outputs_of(part))
        constants = {**self._constants, **stored}
        held = {name: tensor for name, tensor in constants.items() if name in used}
        proto.graph.initializer.extend(held.values())
        narrow = {name: tensor.name for name, tensor in held.items() if tensor.name != name}
        proto.graph.node.extend(
            onnx.helper.make_node("Cast", [wide], [name], to=self._kind(name))
            for name, wide in narrow.items()
        )
        proto.graph.node.extend(needed)
        own = {value.name for value in (*proto.graph.input, *proto.graph.output)}
        computed = {name for node in needed for name in node.output} - own
        proto.graph.value_info.extend(value for value in old.graph.value_info if value.name in computed)
        return bytes(whole(proto).SerializeToString())

    def _kind(self, name: str) -> int:
        """Return the number of a tensor's type."""
        held = self._constants.get(name)
        if held is not None:
            return int(held.data_type)
        return int(declaration(self._model.proto, name).type.tensor_type.elem_type)

    @cached_property
    def _declared(self) -> dict[str, onnx.ValueInfoProto]:
        names = {name for stage in self.stages for name in (*stage.inputs, *stage.outputs)}
        return {name: declaration(self._model.proto, name) for name in names}

    def _pair_end(self, node: onnx.NodeProto, name: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear that makes this input of a compute node; None if there is none."""
        back = self._makers.get(name)
        is_pair = back is not None and back.op_type == DEQUANTIZE
        return back if is_pair and node.op_type not in _PAIRS else None

    def _form(self, node: onnx.NodeProto, quantized: bool) -> onnx.NodeProto:
        if quantized or not self._is_switched(node):
            return node
        plain: onnx.NodeProto = copy_message(node)
        for index, source in self._sources.get(node.name, {}).items():
            plain.input[index] = source
        if node.name in self._plain_biases:
            plain.input[BIAS] = self._plain_biases[node.name]
        return plain

    def with_followers(self, nodes: frozenset[str]) -> frozenset[str]:
        """Return these nodes, and all nodes whose corrected bias is switched together with one of these nodes."""
        return nodes | {node for node, front in self._followed.items() if front in nodes}

    def _is_switched(self, node: onnx.NodeProto) -> bool:
        return node.name in self._sources or node.name in self._followed

    def _in_front(self, node: onnx.NodeProto) -> str:
        """Return the nearest switchable node at or before `node`; if there is none, the first switchable node."""
        left, visited = [node], {node.name}
        while left:
            here = left.pop(0)
            if here.name in self._sources:
                return str(here.name)
            makers = [self._makers[name] for name in here.input if name in self._makers]
            fresh = {maker.name: maker for maker in makers if maker.name not in visited}
            visited |= fresh.keys()
            left += fresh.values()
        return self.nodes[0]

    def _original(self, held: onnx.TensorProto, before: onnx.TensorProto | None, name: str) -> str:
        """Return the constant with the unrounded values of the stored weight `held`; "" if there is none."""
        if before is None or list(before.dims) != list(held.dims):
            return ""
        if held.name not in self._unrounded:
            kind = declaration(self._model.proto, name).type.tensor_type.elem_type
            original = array(before).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
            source = held.name
            if held.data_type != kind or not np.array_equal(array(held), original):
                source = self._fresh(f"{held.name}_plain")
                self._constants[source] = numpy_helper.from_array(original, source)
            self._unrounded[held.name] = source
        return self._unrounded[held.name]

    def _fresh(self, name: str) -> str:
        while name in self._constants or name in self._makers:
            name += "_"
        return name

    def _plain_bias(self, entry: NodeShift) -> tuple[str, str]:
        """Add the bias before correction as a constant; return the node and the name of the constant."""
        node = next(node for node in self._core if node.name == entry.node)
        stored = self._constants.get(node.input[BIAS]) if len(node.input) > BIAS else None
        corrected = None if stored is None else array(stored)
        if corrected is None or corrected.size != len(entry.shift):
            raise InputFileError(
                f"layer {entry.node!r} has no constant bias with {count_noun(len(entry.shift), 'value')}, the size of its bias correction",
                fix=_TABLE_FIX,
            )
        plain = (corrected.astype(np.float32) - np.asarray(entry.shift, np.float32)).astype(corrected.dtype)
        name = self._fresh(f"{node.name}_plain_bias")
        self._constants[name] = numpy_helper.from_array(plain, name)
        return entry.node, name

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        """The outputs of all nodes except Q/DQ, which stages may pass on."""
        return frozenset(name for node in self._core for name in node.output)

    def _with_pairs(
        self, nodes: Iterable[onnx.NodeProto], stored: Mapping[str, onnx.TensorProto] = _NONE
    ) -> list[onnx.NodeProto]:
        """Return the nodes in order, each after the Q/DQ of its inputs; skip Q/DQ with a result in `stored`."""
        ordered: list[onnx.NodeProto] = []
        computed: set[str] = set()

        def take(name: str) -> None:
            maker = self._makers.get(name)
            if maker is None or name in self._handed_on or name in computed or name in stored:
                return
            for before in reads(maker):
                take(before)
            computed.update(maker.output)
            ordered.append(maker)

        for node in nodes:
            for name in reads(node):
                take(name)
            ordered.append(node)
        return ordered

    def _needs(self, nodes: Iterable[onnx.NodeProto]) -> set[str]:
        """Return the tensors from outside that these nodes read, whether they are quantized or float."""
        both = [form for node in nodes for form in (self._form(node, True), self._form(node, False))]
        pieces = self._with_pairs(both)
        computed = {name for node in pieces for name in node.output}
        return {name for node in pieces for name in reads(node)} - computed - set(self._constants)

    def _cut(self, most: int) -> list[list[onnx.NodeProto]]:
        """Divide the nodes without Q/DQ into groups of consecutive nodes with about equal work."""
        view = self._model.view
        nodes = view.by_name
        prices = np.array([_price(view, nodes[node.name]) for node in self._core], np.float64)
        alive = self._alive_before()
        places = [
            place
            for place, node in enumerate(self._core)
            if place and node.op_type in PRODUCTS and all(_is_known(view, name) for name in alive[place])
        ]
        cuts = places if len(places) < most else self._even(places, prices, alive, most)
        edges = [0, *sorted(cuts), len(self._core)]
        return [self._core[first:last] for first, last in pairwise(edges)]

    def _even(
        self, places: Sequence[int], prices: NDArray[np.float64], alive: Sequence[frozenset[str]], most: int
    ) -> list[int]:
        """Choose cut positions so that the work between them is about equal, and few bytes pass each cut."""
        view = self._model.view
        spent = np.cumsum(prices)
        step = spent[-1] / most
        cuts: list[int] = []
        for number in range(1, most):
            near = [
                place
                for place in places
                if abs(spent[place - 1] - number * step) <= step / 2 and place not in cuts
            ]
            if near:
                # At the end of a block of the network, few tensors and few bytes pass to the next stage.
                best = min(near, key=lambda place: (len(alive[place]), _bytes(view, alive[place]), place))
                cuts.append(best)
        return cuts

    def _alive_before(self) -> list[frozenset[str]]:
        """Return, for each node, the earlier tensors that the node or a later node reads."""
        outputs = {value.name for value in self._model.proto.graph.output}
        needed = [self._needs([node]) for node in self._core]
        behind: set[str] = set(outputs)
        alive = []
        for node, names in zip(reversed(self._core), reversed(needed), strict=True):
            behind = (behind - set(node.output)) | names
            alive.append(frozenset(behind))
        return alive[::-1]

    def _stages(self, outputs: set[str]) -> Iterator[GraphStage]:
        needs = [self._needs(piece) for piece in self._pieces]
        before = {info.name for info in self.inputs}
        for number, piece in enumerate(self._pieces):
            later = set(outputs).union(*needs[number + 1 :])
            computed = [name for node in piece for name in node.output if name in later]
            before |= set(computed)
            switchable = tuple(node.name for node in piece if self._is_switched(node))
            yield GraphStage(
                switchable=switchable,
                inputs=tuple(sorted(needs[number])),
                outputs=tuple(computed),
                alive=frozenset(later & before),
            )


def _price(view: GraphView, node: Node) -> float:
    """Estimate the cost of a node as a number of multiplications; unknown sizes count as 1."""
    shapes = [view.info(name).shape or () for name in (*node.inputs[:2], *node.outputs[:1])]
    sizes = [prod(size for size in shape if isinstance(size, int)) for shape in shapes]
    price = float(_PER_ELEMENT * sizes[-1])
    if node.op in PRODUCTS and len(shapes) == 3:
        weight = [size for size in shapes[1] if isinstance(size, int)]
        columns = weight[0] if node.op == "Conv" else weight[-1] if weight else 1
        price += sizes[-1] * sizes[1] / max(1, columns)
    return price


def _is_known(view: GraphView, name: str) -> bool:
    """Return True if NumPy has the type of this tensor, so that stages can pass the tensor on."""
    return view.info(name).dtype in _HANDED_ON


def _bytes(view: GraphView, names: Collection[str]) -> int:
    shapes: Mapping[str, tuple[int | str, ...]] = {name: view.info(name).shape or () for name in names}
    return sum(prod(size for size in shape if isinstance(size, int)) for shape in shapes.values())
