"""Builds engines: for the steps of a run, to inspect an engine, or to complete a prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import examine
from qdqtool.backends import BUILDERS
from qdqtool.backends.building.procedure import build_with_retries
from qdqtool.backends.flags import PLUGIN_LIBRARIES, split_flags
from qdqtool.backends.shapes import Shapes, parse_shapes, several_profiles
from qdqtool.backends.shapes import profiles as profiles_for
from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.findings import Audit, KernelCounts, NodeVerdict, Severity, Verdict
from qdqtool.core.prediction import PredictedLayer, PredictedNode, Prediction
from qdqtool.core.protocols import (
    BuildCost,
    Builder,
    BuildRequest,
    BuildResult,
    InputProfile,
    OnProgress,
    Sample,
)
from qdqtool.core.recipe import Recipe
from qdqtool.core.target import Target, target_of
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.engine.costs import counts
from qdqtool.engine.layer_info import read
from qdqtool.errors import BuildError, MissingPackage, QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.matching.refused import match_refused, way_out
from qdqtool.pipeline.random_shapes import shapes_of
from qdqtool.pipeline.writing import write
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from qdqtool.trt.names import join
from qdqtool.trt.ops import QDQ, QUANTIZE

_MOST = 3
"""Number of findings that are added to a refusal; `qdqtool lint` reports all of them."""


def build_request(
    recipe: Recipe,
    profiles: tuple[InputProfile, ...],
    *,
    model: Path = Path(),
    folder: Path = Path(),
    cache: Path | None = None,
) -> BuildRequest:
    """Return the request for an engine as the recipe says, for inputs of these shapes.

    Model and folder can be set later.
    """
    options = recipe.build
    return BuildRequest(
        model=model,
        folder=folder,
        targets=tuple(f"sm{number.removeprefix('sm')}" for number in options.sm),
        profiles=profiles,
        timeout_s=options.timeout_s,
        stack_mib=options.stack_mib,
        cache=cache,
        flags=builder_flags(recipe),
    )


def builder_flags(recipe: Recipe) -> tuple[str, ...]:
    """Return the recipe's flags for the builder as trtexec spells them, with the libraries of its plug-ins."""
    options = recipe.build
    return (*split_flags(options.flags), *(f"--staticPlugins={path}" for path in options.plugins))


def recipe_profiles(
    recipe: Recipe, inputs: tuple[TensorInfo, ...], usual: Shapes
) -> tuple[tuple[InputProfile, ...], tuple[str, ...]]:
    """Return shapes of dynamic inputs, from the recipe or else from `usual`, and notes on the assumptions.

    Raises:
        UsageError: as `backends.shapes.profiles`.
    """
    options = recipe.build
    low, opt, high = map(parse_shapes, (options.min_shapes, options.opt_shapes, options.max_shapes))
    return profiles_for(inputs, low, opt, high, usual)


_COUNTS = frozenset({DType.INT32, DType.INT64})
"""Types of inputs that hold shapes."""
_READ, _FEW = 16, 8
"""Samples whose values are read, and most elements of an input that may be a shape."""


def value_profiles(inputs: tuple[TensorInfo, ...], samples: Iterable[Sample]) -> tuple[InputProfile, ...]:
    """Return the smallest, first and largest sample values of small integer inputs, for TensorRT profiles.

    The builder needs these values if a shape is computed from the input; otherwise it ignores them.
    """
    names = [info.name for info in inputs if info.is_static and _is_count(info)]
    if not names:
        return ()
    read = [sample.feeds for sample in islice(samples, _READ)]
    names = [name for name in names if read and all(name in feeds for feeds in read)]
    return tuple(
        InputProfile(
            name=name,
            low=tuple(map(int, values.min(axis=0))),
            opt=tuple(map(int, values[0])),
            high=tuple(map(int, values.max(axis=0))),
            is_value=True,
        )
        for name in names
        for values in (np.stack([feeds[name].reshape(-1) for feeds in read]),)
    )


def _is_count(info: TensorInfo) -> bool:
    return info.dtype in _COUNTS and len(info.shape or ()) <= 1 and (info.elements or 0) <= _FEW


def build_engine(
    builder: Builder,
    request: BuildRequest,
    on_progress: OnProgress | None = None,
    *,
    most: int = 3,
    source: Path | None = None,
) -> tuple[BuildResult, BuildCost]:
    """Build with `build_with_retries`. If the builder refuses, add the errors that lint finds for these GPUs.

    For types that a GPU lacks, and for many other errors, a builder names neither the node nor the rule. `source` is
    the user's original model, if `model` was made from it.

    Raises:
        BuildError: as the builder does.
    """
    try:
        return build_with_retries(builder, request, on_progress, most=most)
    except BuildError as error:
        _explain(error, builder, request, source or request.model)
        raise


def _explain(error: BuildError, builder: Builder, request: BuildRequest, source: Path) -> None:
    """Add to the refusal of a model by TensorRT for RTX why it was refused, if the model can be read."""
    if builder is not BUILDERS.load("rtx"):
        return
    try:
        model = load(request.model)
        objections = _objections(model, request)
    except QdqError:
        return  # only the refusal matters here
    refused = next(match_refused(model.view, Target()), None)
    if refused is not None:
        node, reason = refused
        error.add(f"{reason} ({node.name!r})")
        error.fix = way_out(model.view, node, str(source))
    elif objections:
        error.add(f"lint says: {'; '.join(objections)}")


def refuse_early(builder: Builder, request: BuildRequest, source: Path) -> None:
    """Refuse a model that the builder's parser does not import, before the calibration starts.

    Builders that cannot be asked without a build are not asked.

    Raises:
        BuildError: an operator or an attribute that is not imported, or that no kernel computes.
    """
    if builder is BUILDERS.load("rtx"):
        model = load(request.model)
        # A plug-in library may import operators that the parser does not.
        has_library = any(f"--{name}=" in flag for flag in request.flags for name in PLUGIN_LIBRARIES)
        refusals = match_refused(model.view, Target())
        refused = next((entry for entry in refusals if not (has_library and entry[0].domain)), None)
        if refused is not None:
            node, reason = refused
            fix = way_out(model.view, node, str(source))
            raise BuildError(f"node {node.name!r}: {reason}", fix=fix, where=str(source))
    check = getattr(builder, "check_model", None)
    if check is not None:
        try:
            check(request)
        except BuildError as error:
            _explain(error, builder, request, source)
            raise


def _objections(model: Model, request: BuildRequest) -> list[str]:
    """Return the errors that lint finds in a model, each with rule, node and fix."""
    sm = [target_of(target).removeprefix("sm") for target in request.targets]
    first: dict[tuple[str, str], str] = {}
    for finding in lint(model, Target.parse("rtx", sm)).findings:
        if finding.severity is Severity.ERROR:
            words = f"{finding.code} at {finding.node!r}: {finding.reason}; {finding.fix}"
            first.setdefault((finding.code, finding.reason), words)
    return list(first.values())[:_MOST]


# --- built prediction ------------------------------------------------------------------------------------------------
# Completes a prediction with a build: the engine gives kernels, layers, precisions and what happened to every Q and DQ.
#
# Only TensorRT for RTX is used, which builds without a GPU. If it is not installed or refuses the model, only the
# rules predict; a note, or `refused`, gives the reason.


_SM = ("86",)
"""GPU architectures to build for if none is named: the default of recipes."""
_RETRIES = 3
"""Nodes without a kernel whose Q/DQ may be removed for the builder, as `qdqtool build` allows by default."""


def predict_built(
    path: Path, target: Target, *, cache: Path | None = None, on_progress: OnProgress | None = None
) -> Prediction:
    """Predict from rules. For TensorRT for RTX, also use an engine from its builder.

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
        built = examine_engine(path, BUILDERS.load("rtx"), request, retries=_RETRIES, on_progress=on_progress)
    except MissingPackage as error:
        note = f"kernels and layers are unknown: {error.what}; {error.fix}"
        return replace(prediction, notes=(*prediction.notes, note))
    except BuildError as error:
        return replace(prediction, refused=error.what, fix=error.fix)
    return _complete_prediction(prediction, model, built, assumed)


def _complete_prediction(
    prediction: Prediction, model: Model, built: ExaminedEngine, assumed: tuple[str, ...]
) -> Prediction:
    verdicts = {verdict.node: verdict for verdict in built.audit.verdicts}
    kernels = built.engine.kernels
    holder = _holders(built.engine, model.view)
    return replace(
        prediction,
        nodes=tuple(
            _with_layer(node, verdicts.get(node.node), holder.get(node.node)) for node in prediction.nodes
        ),
        layers=tuple(PredictedLayer(name=layer.name, nodes=layer.onnx_nodes) for layer in kernels),
        ledger=tuple(_fates(model.view, kernels, holder)),
        notes=(*prediction.notes, *assumed, *built.build.notes),
        kernels=built.audit.counts.kernels,
        exact=True,
    )


def _holders(engine: Engine, view: GraphView) -> Mapping[str, EngineLayer]:
    """Map each ONNX node to the layer that computes it, else to the first layer that names it."""
    matches = join(engine, frozenset(node.name for node in view.nodes))
    layers = {name: (*match.compute, *match.other) for name, match in matches.items()}
    return {name: holders[0] for name, holders in layers.items() if holders}


def _with_layer(node: PredictedNode, verdict: NodeVerdict | None, layer: EngineLayer | None) -> PredictedNode:
    """Return a predicted node with its layer. For a compute node, add the precision that the engine shows.

    The reason from the rules stays if the engine agrees with it.
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
    """Yield one row for each Q and DQ node: how it ended in the engine, for example merged or fused.

    If two equal nodes read one tensor with one scale, the engine names only one of them.
    """
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
    """Return a key that Q/DQ nodes share if they do the same: operator, source tensor, and bytes of the scale."""
    maker = view.producer(node.inputs[0])
    source = maker.inputs[0] if maker is not None and maker.op == QUANTIZE else node.inputs[0]
    scale = view.constant(node.inputs[1])
    return node.op, source, node.inputs[1] if scale is None else scale.tobytes().hex()


def _is_constant(view: GraphView, node: Node) -> bool:
    """Return True if a Q reads a constant, or if a DQ reads a constant or a quantized constant."""
    maker = view.producer(node.inputs[0])
    return view.is_constant(node.inputs[0]) or (
        maker is not None and maker.op in QDQ and view.is_constant(maker.inputs[0])
    )


# --- examined --------------------------------------------------------------------------------------------------------
# Builds a model to inspect its engine.


_MODEL = "model.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExaminedEngine:
    """The build result, the layers and the audit of an engine that was built and then removed.

    Attributes:
        build: result of the builder.
        engine: its layers.
        audit: verdicts and counts.
    """

    build: BuildResult
    engine: Engine
    audit: Audit


def examine_engine(
    model: Model | Path,
    builder: Builder,
    request: BuildRequest,
    *,
    retries: int = 0,
    on_progress: OnProgress | None = None,
) -> ExaminedEngine:
    """Build a model as `request` says, in a temporary folder, and read its engine back.

    Args:
        model: in memory, or a file.
        builder: builder of the engine.
        request: targets, profiles, flags and cache; its model and folder are ignored.
        retries: nodes without a kernel whose Q/DQ may be removed, at most.
        on_progress: called with the progress of the build.

    Raises:
        BuildError: the builder refuses the model, or gives no layer information.
        MissingPackage: the builder is not installed.
    """
    with _build_request(model, builder, request, retries, on_progress) as (build, built_model, engine):
        return ExaminedEngine(
            build=build, engine=engine, audit=examine(stage(engine, built_model, targets=build.targets))
        )


def engine_counts(model: Model, builder: Builder, request: BuildRequest) -> KernelCounts:
    """Build a model as `examine_engine` does, but only count the kernels of its engine and the bytes that they move.

    Raises:
        BuildError, MissingPackage: as `examine_engine`.
    """
    with _build_request(model, builder, request) as (_, _, engine):
        return counts(engine)


@contextmanager
def _build_request(
    model: Model | Path,
    builder: Builder,
    request: BuildRequest,
    retries: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[BuildResult, Model, Engine]]:
    """Yield the result of `built_and_read`; the folder of the build is removed afterwards."""
    with (
        TemporaryDirectory(prefix="qdqtool-examined-", ignore_cleanup_errors=True) as place,
        _file(model) as path,
    ):
        own_request = replace(request, model=path, folder=Path(place))
        yield built_and_read(builder, own_request, retries=retries, on_progress=on_progress)


def built_and_read(
    builder: Builder, request: BuildRequest, *, retries: int, on_progress: OnProgress | None = None
) -> tuple[BuildResult, Model, Engine]:
    """Build in the folder of `request`. Return the builder's result, the model that was finally built, and its layers.

    Raises:
        BuildError: the builder refuses the model, or gives no layer information.
    """
    build, _ = build_engine(builder, request, on_progress, most=retries)
    if build.layers is None:
        raise BuildError(
            "the builder wrote no layer information, so kernels cannot be counted",
            fix="build with detailed profiling verbosity (build.flags=--profilingVerbosity=detailed)",
            where=str(request.model),
        )
    built_model = load(request.folder / build.model) if build.model else load(request.model)
    return build, built_model, read(request.folder / build.layers)


@contextmanager
def _file(model: Model | Path) -> Iterator[Path]:
    if isinstance(model, Path):
        yield model
        return
    with TemporaryDirectory(prefix="qdqtool-model-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / _MODEL
        write(model, path, step="build")
        yield path
