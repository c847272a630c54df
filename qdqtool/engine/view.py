"""Joins layers with costs, times and a device's roofline."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.core.buildlog import Histories, LogNetwork, LogNode, LogRun
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.explore import Cost, CostModel, Device, EngineView, LayerView, Profile, ProfileRow
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.engine.costs import RESULT, about, at_optimum, cost
from qdqtool.engine.layer_info import read
from qdqtool.engine.layer_text import MOST_LAYERS, layer_from
from qdqtool.engine.profile_forms import read_profile
from qdqtool.engine.roles import copies
from qdqtool.errors import InputFileError
from qdqtool.trt.histories import histories
from qdqtool.trt.names import normalize_name, probable_nodes
from qdqtool.trt.ops import PRODUCTS

# --- alone -----------------------------------------------------------------------------------------------------------
# Engines known only by a profile: layer names, and their shares of the time.


ALONE = "profile"
"""Form of an engine that only a profile describes."""
_MORE = (
    "a profile holds names and times only: types, formats and costs need the layer information of the same engine "
    "(trtexec --exportLayerInfo, with --profilingVerbosity=detailed); pass it as FILE, and this file as --profile"
)


def read_timed(path: Path) -> tuple[Engine, Profile | None]:
    """Return the layers in a file, and their times. If the file is only a profile, its rows become layers without tensors.

    Raises:
        InputFileError: the file holds neither layers nor times of layers.
    """
    try:
        return read(path), None
    except InputFileError as error:
        try:
            profile = read_profile(path)
        except InputFileError:
            raise error from None
        return engine_of(profile), profile


def engine_of(profile: Profile) -> Engine:
    """Return the rows of a profile as layers without tensors."""
    return Engine(
        layers=tuple(_named_layer(row.name) for row in profile.rows[:MOST_LAYERS]),
        form=ALONE,
        notes=(_MORE, *_share(profile)),
    )


def _named_layer(name: str) -> EngineLayer:
    """Make a layer from the name in a profile row: a copy or a compute layer if the name says so."""
    if copies(name):
        return layer_from({"Name": name, "LayerType": "Reformat"})
    layer = layer_from({"Name": name, "LayerType": ""})
    computes = any(_operator(node) in PRODUCTS for node in probable_nodes(name))
    return replace(layer, role=Role.COMPUTE) if computes else layer


def _operator(node: str) -> str:
    """Return the operator in an exporter's node name: /model.0/conv/Conv, Conv_12."""
    return node.rpartition("/")[2].partition("_")[0]


def _share(profile: Profile) -> tuple[str, ...]:
    """Return a note on the share of copies and reformats in the total time; () if there are none."""
    copying = [row for row in profile.rows if copies(row.name)]
    total = sum(row.average_ms for row in profile.rows)
    if not copying or not total:
        return ()
    spent = sum(row.average_ms for row in copying)
    return (
        f"copies and reformats: {len(copying)} of {count_noun(len(profile.rows), 'layer')}, {spent / total:.1%} of the time",
    )


# --- layers with costs and times -------------------------------------------------------------------------------------


def view(
    engine: Engine,
    *,
    profile: Profile | None = None,
    cost_model: CostModel = CostModel.EXACT,
    device: Device | None = None,
    log: LogRun | None = None,
) -> EngineView:
    """Return every layer of `engine` with its cost, time and limit, if they are known.

    With the log of the build, each layer also has its history, and weights that the layer information omits.
    """
    collected = histories(engine, log) if log else Histories()
    engine = with_weights(engine, log.network) if log else engine
    timed = join_times(engine, profile) if profile else None
    rows = timed.rows if timed else (None,) * len(engine.layers)
    stories = collected.layers or (None,) * len(engine.layers)
    tuned = at_optimum(engine)
    layers = tuple(
        replace(_layer(layer, cost(sized, cost_model), row, device), history=history)
        for layer, sized, row, history in zip(engine.layers, tuned.layers, rows, stories, strict=True)
    )
    return EngineView(
        layers=layers,
        bindings=engine.bindings,
        form=engine.form,
        cost_model=cost_model,
        unknown_formats=engine.unknown_formats,
        unread=engine.unread,
        total_ms=profile.total_ms if profile else None,
        matched=timed.matched if timed else None,
        unmatched_rows=tuple(row.name for row in timed.unmatched) if timed else (),
        device=device.name if device else "",
        ledger=log.ledger if log else (),
        unplaced=collected.unplaced,
        notes=(*engine.notes, *about(engine), *(timed.notes if timed else ()), *collected.notes),
    )


def _layer(layer: EngineLayer, costs: Cost, row: ProfileRow | None, device: Device | None) -> LayerView:
    ms = row.average_ms if row else None
    layer_view = LayerView(
        name=layer.name,
        kind=layer.kind,
        role=layer.role,
        inputs=layer.inputs,
        constants=layer.constants,
        outputs=layer.outputs,
        precision=layer.precision,
        certainty=layer.precision_certainty,
        tactic=layer.tactic,
        onnx_nodes=layer.onnx_nodes,
        ms=ms,
        elided=row is not None and row.elided,
        bytes=costs.bytes,
        input_bytes=costs.input_bytes,
        weight_bytes=costs.weight_bytes,
        output_bytes=costs.output_bytes,
        macs=costs.macs,
        gemm=costs.gemm,
        intensity=costs.intensity,
        tflops=2 * costs.macs / ms / 1e9 if ms and costs.macs else None,
        gbs=costs.bytes / ms / 1e6 if ms and costs.bytes else None,
    )
    return replace(layer_view, bound=find_bound(layer_view, device)) if device else layer_view


def find_bound(layer: LayerView, device: Device) -> str | None:
    """Return the limit of `device` that the layer reaches first: "compute" (arithmetic rate) or "memory" (bandwidth)."""
    peak = device.peak(layer.precision)
    if peak is None or layer.intensity is None or layer.role is not Role.COMPUTE:
        return None
    ridge = peak * 1e12 / (device.bandwidth_gbs * 1e9) / 2
    return "compute" if layer.intensity >= ridge else "memory"


# --- rows of a profile -----------------------------------------------------------------------------------------------
# Assigns the rows of a profile to layers: by normalized name, and by order if names repeat.

_FOREIGN = 0.5
"""Share of matched rows below which the profile is taken for a profile of another engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """Engine layers with their measured times from a profile.

    Attributes:
        rows: the row of every layer, or None, in the order of the layers.
        unmatched: rows that belong to no layer.
        matched: share of the rows that match.
        notes: remarks for a reader.
    """

    rows: tuple[ProfileRow | None, ...]
    unmatched: tuple[ProfileRow, ...]
    matched: float
    notes: tuple[str, ...] = ()


def join_times(engine: Engine, profile: Profile) -> Timed:
    """Give every layer the first profile row with its name that no earlier layer has."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for index, row in enumerate(profile.rows):
        waiting[normalize_name(row.name)].append(index)
    taken: list[int | None] = []
    for layer in engine.layers:
        candidates = waiting[normalize_name(layer.name)]
        taken.append(candidates.popleft() if candidates else None)
    used = {index for index in taken if index is not None}
    unmatched = tuple(row for index, row in enumerate(profile.rows) if index not in used)
    matched = len(used) / len(profile.rows) if profile.rows else 0.0
    return Timed(
        rows=tuple(None if index is None else profile.rows[index] for index in taken),
        unmatched=unmatched,
        matched=matched,
        notes=(*profile.notes, *_notes(matched, unmatched)),
    )


def _notes(matched: float, unmatched: tuple[ProfileRow, ...]) -> list[str]:
    if matched < _FOREIGN:
        return [
            f"the profile belongs to another engine: only {matched:.0%} of its rows name a layer of this engine"
        ]
    return (
        [
            f"{count_noun(len(unmatched), 'row of the profile names', 'rows of the profile name')} no layer, first {unmatched[0].name!r}"
        ]
        if unmatched
        else []
    )


# --- weights from the log --------------------------------------------------------------------------------------------
# Weights that layer information omits, from the model's graph in the build log.
#
# `Layer(...)` lines name the tensors of a layer but not its weights, so their bytes and the layer's multiplications
# are unknown. The parser's lines in the same log show every node with the shape of its weight. The type of a weight is
# not printed; it is the type of the layer's arithmetic.

FORMAT = "from the log"


def with_weights(engine: Engine, network: LogNetwork) -> Engine:
    """Return the engine; compute layers without listed weights get weight and bias from the log's graph.

    A layer of several compute nodes is skipped.
    """
    nodes = {node.name: node for node in network.nodes if node.op in PRODUCTS and len(node.inputs) > 1}
    running = _running(network)
    return replace(engine, layers=tuple(_complete_layer(layer, nodes, running) for layer in engine.layers))


def _running(network: LogNetwork) -> set[str]:
    """Return the names of tensors that change at run time: the inputs, and all tensors computed from them."""
    running = {tensor.name for tensor in network.inputs}
    for node in network.nodes:
        if any(tensor.name in running for tensor in node.inputs):
            running.update(tensor.name for tensor in node.outputs)
    return running


def _complete_layer(layer: EngineLayer, nodes: dict[str, LogNode], running: set[str]) -> EngineLayer:
    held = [nodes[name] for name in layer.onnx_nodes if name in nodes]
    if layer.role is not Role.COMPUTE or layer.constants or len(held) != 1:
        return layer
    weight, *biases = held[0].inputs[1:]
    if weight.name in running:
        return layer
    constants = [_constant("weights", weight, layer.precision)]
    constants += [_constant("bias", bias, bias.dtype) for bias in biases[:1]]
    result = _constant("", held[0].outputs[0], layer.precision) if held[0].outputs else None
    shape = ((RESULT, str(list(result.shape))),) if result and result.shape else ()
    return replace(
        layer,
        constants=tuple(tensor for tensor in constants if tensor is not None),
        attributes=tuple(sorted((*layer.attributes, *shape))),
    )


def _constant(name: str, info: TensorInfo, dtype: DType) -> EngineTensor | None:
    dims = [dim for dim in info.shape or () if isinstance(dim, int)]
    if info.shape is None or len(dims) != len(info.shape):
        return None
    return EngineTensor(name=name, shape=tuple(dims), dtype=dtype, format=FORMAT)
