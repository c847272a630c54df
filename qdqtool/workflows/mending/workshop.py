"""Makes an engine of an edited model, audits it, and measures its accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path

from qdqtool.accuracy.compare import compare
from qdqtool.audit.run import examine
from qdqtool.audit.scene import Scene, stage
from qdqtool.backends import BUILDERS
from qdqtool.backends.making.retry import build_with_retries
from qdqtool.backends.ort import open_runner
from qdqtool.core.audit import Audit
from qdqtool.core.build import BuildRequest, BuildResult
from qdqtool.core.comparison import Comparison
from qdqtool.core.dtypes import DType
from qdqtool.core.fixes import Standing
from qdqtool.core.protocols import Builder, Runner, SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.engine.read import read
from qdqtool.errors import BuildError
from qdqtool.graph.load import load
from qdqtool.graph.save import save, serialize
from qdqtool.workflows.mending.drafts import Draft, Edits

MODEL = "model.qdq.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """An engine of an edited model and what was seen in it.

    Attributes:
        edits: all edits of the model.
        folder: where it was built.
        build: what the builder said.
        scene: the engine beside its model.
        audit: verdicts and findings.
    """

    edits: Edits
    folder: Path
    build: BuildResult
    scene: Scene
    audit: Audit

    @property
    def model(self) -> Path:
        """The Q/DQ model that was built in the end."""
        return self.folder / (self.build.model or MODEL)

    @property
    def int8(self) -> frozenset[str]:
        """Compute nodes that run INT8."""
        return frozenset(verdict.node for verdict in self.audit.verdicts if verdict.precision is DType.INT8)

    def standing(self, accuracy: float | None) -> Standing:
        """The engine in figures."""
        counts = self.audit.counts
        return Standing(
            int8=len(self.int8),
            compute=len(self.audit.verdicts),
            kernels=counts.kernels,
            conversions=counts.qdq,
            activation_bytes=counts.activation_bytes_dumped,
            accuracy=accuracy,
        )


class Workshop:
    """One draft, one builder, one set of samples.

    Args:
        draft: what edits are applied to.
        recipe: how engines are built and models compared.
        samples: what accuracy is measured on; None measures nothing.
        request: profiles and cache; model and folder are filled in for every build.
    """

    def __init__(
        self, draft: Draft, recipe: Recipe, samples: SampleSource | None, request: BuildRequest
    ) -> None:
        self.draft = draft
        self.recipe = recipe
        self.samples = samples
        self._request = request

    def make(self, edits: Edits, folder: Path) -> Piece:
        """Build the edited model in `folder` and audit the engine.

        Raises:
            BuildError: the builder refuses it, or tells nothing of its layers.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save(self.draft.apply(edits), folder / MODEL)
        builder: Builder = BUILDERS.load(self.recipe.build.builder)
        request = replace(self._request, model=folder / MODEL, folder=folder)
        built, _ = build_with_retries(builder, request, most=self.recipe.build.retries)
        if built.layers is None:
            raise BuildError(
                "the builder gave no layer information, so no fix can be proven",
                fix="build with detailed profiling verbosity (build.flags=--profilingVerbosity=detailed)",
                where=str(folder),
            )
        plan = self.draft.plan(edits)
        scene = stage(
            read(folder / built.layers),
            load(folder / (built.model or MODEL)).view,
            plan.placement if plan else None,
            targets=built.targets,
        )
        audit = examine(scene, ignore=self.recipe.audit.ignore)
        return Piece(edits=edits, folder=folder, build=built, scene=scene, audit=audit)

    def compare(self, model: Path) -> Comparison | None:
        """The float model against a Q/DQ one; None without samples."""
        if self.samples is None:
            return None
        options = self.recipe.compare
        metrics = tuple(dict.fromkeys((*options.metrics, "sqnr_db")))
        candidate = open_runner(model, description="Q/DQ model on onnxruntime", crowded=True)
        return compare(
            self._reference, candidate, self.samples, options.model_copy(update={"metrics": metrics})
        )

    @cached_property
    def _reference(self) -> Runner:
        return open_runner(
            serialize(self.draft.reference), description="float model on onnxruntime", crowded=True
        )


def score(found: Comparison | None) -> tuple[str, float]:
    """What accuracy is called and how high it is: the first task metric, else the SQNR of the worst output.

    Outputs without any noise count as infinitely good, and nothing measured as ("", inf).
    """
    if found is None:
        return "", inf
    if found.task:
        return found.task[0].metric, found.task[0].candidate
    values = [
        measure.value
        for output in found.outputs
        for measure in output.measures
        if measure.metric == "sqnr_db" and measure.value is not None
    ]
    return "sqnr_db", min(values, default=inf)
