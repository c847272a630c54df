"""Completes a prediction with a build: the engine gives kernels, layers, precisions and what happened to every Q and DQ.

Only TensorRT for RTX is asked, which builds without a GPU. If it is not installed or refuses the model, the prediction
stays what the rules say; a note, or `refused`, says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import several_profiles
from qdqtool.core.build import BuildRequest, OnProgress
from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.findings import NodeVerdict, Verdict
from qdqtool.core.prediction import PredictedLayer, PredictedNode, Prediction
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, MissingPackage
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import GraphView, Node
from qdqtool.pipeline.examined import ExaminedEngine, examined
from qdqtool.pipeline.random_shapes import shapes_of
from qdqtool.prediction.predict import predict
from qdqtool.trt.names import join
from qdqtool.trt.ops import QDQ, QUANTIZE

_SM = ("86",)
"""GPU architectures to build for if none is named: the default of recipes."""
_RETRIES = 3
"""Nodes without a kernel whose Q/DQ may be removed for the builder, as `qdqtool build` allows by default."""


def predict_built(
    path: Path, target: Target, *, cache: Path | None = None, on_progress: OnProgress | None = None
) -> Prediction:
    """Predict from rules; for TensorRT for RTX, also from the engine that its builder makes.

    Args:
        path: a Q/DQ or float model.
        target: the builder.
        cache: folder of finished builds; None builds again.
        on_progress: called with the progress of the build.

    Raises:
        InputFileError: the model cannot be read.
    """
    model = load(path)
    prediction = predict(model, target)
    if not target.is_rtx:
        return prediction
    profiles, assumed = several_profiles(model.view.inputs, (), (), (), shapes_of(model))
    sm = target.sm or _SM
    request = BuildRequest(
        model=path,
        folder=path.parent,
        targets=tuple(f"sm{number}" for number in sm),
        profiles=profiles,
        cache=cache,
    )
    try:
        made = examined(path, BUILDERS.load("rtx"), request, retries=_RETRIES, on_progress=on_progress)
    except MissingPackage as error:
        note = f"kernels and layers are unknown: {error.what}; {error.fix}"
        return replace(prediction, notes=(*prediction.notes, note))
    except BuildError as error:
        return replace(prediction, refused=error.what, fix=error.fix)
    return _completed(prediction, model, made, assumed)


def _completed(
    prediction: Prediction, model: Model, made: ExaminedEngine, assumed: tuple[str, ...]
) -> Prediction:
    verdicts = {verdict.node: verdict for verdict in made.audit.verdicts}
    kernels = made.engine.kernels
    holder = _holders(made.engine, model.view)
    return replace(
        prediction,
        nodes=tuple(
            _with_layer(node, verdicts.get(node.node), holder.get(node.node)) for node in prediction.nodes
        ),
        layers=tuple(PredictedLayer(name=layer.name, nodes=layer.onnx_nodes) for layer in kernels),
        ledger=tuple(_fates(model.view, kernels, holder)),
        notes=(*prediction.notes, *assumed, *made.build.notes),
        kernels=made.audit.counts.kernels,
        exact=True,
    )


def _holders(engine: Engine, view: GraphView) -> Mapping[str, EngineLayer]:
    """Map each ONNX node to the layer that computes it, else to the first layer that names it."""
    matches = join(engine, frozenset(node.name for node in view.nodes))
    layers = {name: (*match.compute, *match.other) for name, match in matches.items()}
    return {name: found[0] for name, found in layers.items() if found}


def _with_layer(node: PredictedNode, verdict: NodeVerdict | None, layer: EngineLayer | None) -> PredictedNode:
    """Return a node with its layer and, if it computes and the engine shows it, the engine's precision.

    The rules' reason stays where the engine agrees with them.
    """
    node = replace(node, layer=layer.name if layer else "")
    if (
        verdict is None
        or verdict.verdict is Verdict.NOT_FOUND
        or verdict.realised in {"unknown", node.realised}
    ):
        return node
    return replace(node, precision=verdict.precision, realised=verdict.realised, reason=verdict.reason)


def _fates(
    view: GraphView, kernels: tuple[EngineLayer, ...], holder: Mapping[str, EngineLayer]
) -> Iterator[LedgerRow]:
    """Yield what happened to every Q and DQ. Of twins that read one tensor with one scale, the engine names only one."""
    named: dict[tuple[str, ...], str] = {}
    quantizing = [node for node in view.nodes if node.op in QDQ]
    for node in quantizing:
        if node.name in holder:
            named.setdefault(_key(view, node), node.name)
    alone = {layer.name for layer in kernels if set(layer.onnx_nodes) <= {node.name for node in quantizing}}
    for node in quantizing:
        end, into = _fate(view, node, holder.get(node.name), alone)
        if end is End.UNKNOWN and _key(view, node) in named:
            end, into = End.MERGED, named[_key(view, node)]
        step = LedgerStep(line=0, what=f"{end} {into}".strip())
        yield LedgerRow(
            node=node.name, kind="Q" if node.op == QUANTIZE else "DQ", end=end, into=into, steps=(step,)
        )


def _fate(view: GraphView, node: Node, layer: EngineLayer | None, alone: set[str]) -> tuple[End, str]:
    is_weight = _is_constant(view, node)
    if layer is None:
        return (End.FOLDED if is_weight else End.UNKNOWN), ""
    return (End.WEIGHT if is_weight else End.COPY if layer.name in alone else End.KERNEL), layer.name


def _key(view: GraphView, node: Node) -> tuple[str, ...]:
    """Return the operator, the tensor that a Q (or the Q before a DQ) reads, and the bytes of the scale."""
    maker = view.producer(node.inputs[0])
    source = maker.inputs[0] if maker is not None and maker.op == QUANTIZE else node.inputs[0]
    scale = view.constant(node.inputs[1])
    return node.op, source, node.inputs[1] if scale is None else scale.tobytes().hex()


def _is_constant(view: GraphView, node: Node) -> bool:
    """Return whether a Q reads a constant, or a DQ reads a constant or a quantized constant."""
    maker = view.producer(node.inputs[0])
    return view.is_constant(node.inputs[0]) or (
        maker is not None and maker.op in QDQ and view.is_constant(maker.inputs[0])
    )
