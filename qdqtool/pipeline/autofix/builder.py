"""Builds an engine of an edited model, audits it, and measures its accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path

from qdqtool.accuracy.compare import compare_noise
from qdqtool.auditing.context import AuditContext, stage
from qdqtool.auditing.full_audit import examine
from qdqtool.backends import BUILDERS
from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Audit
from qdqtool.core.fixes import Metrics, SlotEdit
from qdqtool.core.protocols import (
    BuildCost,
    Builder,
    BuildRequest,
    BuildResult,
    OnProgress,
    Runner,
    SampleSource,
)
from qdqtool.core.recipe import Recipe
from qdqtool.core.wording import count_noun
from qdqtool.graph.qdq.find import find
from qdqtool.graph.view import Model
from qdqtool.io.files import make_folder
from qdqtool.pipeline.autofix.drafts import DraftModel, Edits, merge_edits
from qdqtool.pipeline.building import built_and_read
from qdqtool.pipeline.comparing import open_quantized
from qdqtool.pipeline.search.experiment import OutputNoise
from qdqtool.pipeline.writing import write
from qdqtool.runtime.runner import open_model

MODEL = "model.qdq.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltModel:
    """An engine of an edited model, and its audit.

    Attributes:
        edits: all edits of the model, including the edits that the builder forced.
        settings: recipe values that its Q/DQ was inserted with, beyond the recipe.
        folder: folder of the build.
        build: result of the builder.
        qdq: the Q/DQ model that was built in the end.
        context: the engine and its model.
        audit: verdicts and findings.
        given_up: inputs that lost their Q/DQ because the builder has no kernel for their node.
        notes: notes of the step that inserted its Q/DQ.
    """

    edits: Edits
    folder: Path
    build: BuildResult
    qdq: Model
    context: AuditContext
    audit: Audit
    given_up: tuple[SlotEdit, ...] = ()
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """The Q/DQ model of the engine. It lacks the Q/DQ for which the builder had no kernel."""
        return self.folder / (self.build.model or MODEL)

    @property
    def formats(self) -> dict[str, str]:
        """The format of each compute node that runs in INT8 or in another requested format."""
        return {verdict.node: verdict.realised for verdict in self.audit.verdicts if verdict.is_quantized}

    @property
    def quantized(self) -> frozenset[str]:
        """Names of the compute nodes that run in INT8 or in another requested format."""
        return frozenset(self.formats)

    @property
    def cost(self) -> str:
        """The number of kernels and the number of activation bytes of the engine, as text."""
        size = self.audit.counts.activation_bytes_dumped
        return f"{count_noun(self.audit.counts.kernels, 'kernel')}, {'unknown' if size is None else f'{size:,}'} activation bytes"

    def costs_no_more_than(self, other: BuiltModel) -> bool:
        """Return True if this engine has no more kernels than `other`, and moves no more bytes (if both are known)."""
        ours, theirs = self.audit.counts, other.audit.counts
        sizes = ours.activation_bytes_dumped, theirs.activation_bytes_dumped
        return ours.kernels <= theirs.kernels and (None in sizes or (sizes[0] or 0) <= (sizes[1] or 0))

    def costs_less_than(self, other: BuiltModel) -> bool:
        """Return True if kernels times bytes is smaller than for `other`, although one of the two may be larger."""
        ours, theirs = self.audit.counts, other.audit.counts
        sizes = ours.activation_bytes_dumped, theirs.activation_bytes_dumped
        kernels = ours.kernels / max(theirs.kernels, 1)
        unknown = None in sizes
        moved = 1.0 if unknown else max(sizes[0] or 0, 1) / max(sizes[1] or 0, 1)
        return kernels * moved < 1

    def standing(self, accuracy: float | None) -> Metrics:
        """Return the counts of the engine (INT8 nodes, kernels, bytes), with this accuracy."""
        counts = self.audit.counts
        return Metrics(
            int8=len(self.quantized),
            compute=len(self.audit.verdicts),
            kernels=counts.kernels,
            conversions=counts.qdq,
            activation_bytes=counts.activation_bytes_dumped,
            accuracy=accuracy,
        )


class CandidateBuilder:
    """Builds and measures candidate fixes of one model, with one builder and one set of samples.

    Args:
        draft: the model to which edits are applied.
        recipe: how engines are built and models compared.
        samples: samples on which accuracy is measured; None: accuracy is not measured.
        request: profiles and cache; model and folder are filled in for every build.
    """

    def __init__(
        self, draft: DraftModel, recipe: Recipe, samples: SampleSource | None, request: BuildRequest
    ) -> None:
        self.draft = draft
        self.recipe = recipe
        self.samples = samples
        self._request = request
        self._builder = _Counting(BUILDERS.load(recipe.build.builder))

    @property
    def builds(self) -> int:
        """Number of engines that the builder was asked for."""
        return self._builder.builds

    def make(self, edits: Edits, folder: Path, most: int, settings: tuple[str, ...] = ()) -> BuiltModel:
        """Build the edited model in `folder` and audit the engine, with at most `most` engines.

        If the builder has no kernel for a node, the Q/DQ of this node is removed, up to the limit of the recipe and
        `most`.

        Raises:
            BuildError: the builder refuses it, or gives no layer information.
        """
        make_folder(folder)
        model = self.draft.apply(edits, settings)
        write(model, folder / MODEL, step="fix")
        request = replace(self._request, model=folder / MODEL, folder=folder)
        retries = max(0, min(self.recipe.build.retries, most - 1))
        built, model_built, engine = built_and_read(self._builder, request, retries=retries)
        given_up = _find_lost(model, model_built) if built.model else ()
        edits = merge_edits(edits, given_up)
        plan = self.draft.plan(edits, settings)
        context = stage(engine, model_built, plan.placement if plan else None, targets=built.targets)
        audit = examine(context, ignore=self.recipe.audit.ignore)
        return BuiltModel(
            edits=edits,
            folder=folder,
            build=built,
            qdq=model_built,
            context=context,
            audit=audit,
            given_up=given_up,
            notes=model.notes,
            settings=settings,
        )

    def compare(self, model: Path) -> tuple[Comparison | None, OutputNoise]:
        """Compare the float model with a Q/DQ model. Return the comparison and the output noise per sample.

        Without samples, the comparison is None and the noise is empty.
        """
        if self.samples is None:
            return None, OutputNoise(shares=())
        options = self.recipe.compare
        metrics = tuple(dict.fromkeys((*options.metrics, "sqnr_db")))
        candidate = open_quantized(model, "Q/DQ model on onnxruntime")
        measured = options.model_copy(update={"metrics": metrics})
        comparison, shares = compare_noise(self._reference, candidate, self.samples, measured)
        return comparison, OutputNoise(shares=shares)

    @cached_property
    def _reference(self) -> Runner:
        return open_model(self.draft.reference, description="float model on onnxruntime", crowded=True)


class _Counting:
    """A builder that counts its builds."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.builds = 0

    def version(self) -> str:
        """Return the release of the wrapped builder."""
        return self._builder.version()

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """Build with the wrapped builder."""
        self.builds += 1
        return self._builder.build(request, on_progress)


def _find_lost(before: Model, after: Model) -> tuple[SlotEdit, ...]:
    """Return the inputs that had a DequantizeLinear in the model `before`, but have none in the model `after`."""
    there, left = (
        {slot for pair in find(model) if pair.dequantize for slot in pair.slots} for model in (before, after)
    )
    return tuple(SlotEdit(slot=slot) for slot in sorted(there - left) if slot.node in after.view.by_name)


def score(comparison: Comparison | None) -> tuple[str, float]:
    """Return the name and value of the accuracy: the first task metric, else the SQNR of the worst output.

    Outputs without any noise count as infinitely good; without a measurement the result is ("", inf).
    """
    if comparison is None:
        return "", inf
    if comparison.task:
        return comparison.task[0].metric, comparison.task[0].candidate
    values = [
        measure.value
        for output in comparison.outputs
        for measure in output.measures
        if measure.metric == "sqnr_db" and measure.value is not None
    ]
    return "sqnr_db", min(values, default=inf)
