"""The bench that all trials of a sweep share: prepared model, histograms, ranking, finished builds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.sensitivity import SensitivityOptions
from qdqtool.core.kinds import PLACEMENT
from qdqtool.core.placement import SlotKind
from qdqtool.core.protocols import Feeds
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.report import AccuracySummary
from qdqtool.core.sweep import Outcome, Value
from qdqtool.errors import BuildError
from qdqtool.io.files import digest_file, unwritable, write_text
from qdqtool.io.json_files import canonical
from qdqtool.io.locks import acquire
from qdqtool.pipeline import recipes, runner
from qdqtool.pipeline.float_sides import open_quantized
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.sensitivity import SensitivityRequest, study
from qdqtool.pipeline.sweep.space import Space
from qdqtool.pipeline.sweep.speed import SPEEDS, Estimated, Measured, OnGpu, Try, in_engine, placed
from qdqtool.report.assemble import headline

OUTCOME, METRIC = "outcome", "metric"
_KEPT = frozenset({"report.json", "recipe.yaml"})
"""What stays of a trial that others beat; the rest can be made again from its recipe."""
_RANKED_ON = 32
"""How many samples are enough to order nodes; the sweep itself uses all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """One sweep, please.

    Attributes:
        base: model, samples, folder; its recipe is the base with `settings` applied.
        recipe: the base recipe as typed, or None.
        settings: changes of the base recipe as typed.
        trials: how many trials; None tries the whole grid, or 50 with a sampler that draws.
        storage: address of the study; "" is a file in the folder.
        study: the study's name; "" is made from the inputs.
        cluster: Dask scheduler whose workers all take part, or "local"; "" searches in this process only.
        export: folder for the models of all trials and a script that times them elsewhere; None exports nothing.
        times: what that script wrote, which replaces the times of the sweep; None leaves them.
    """

    base: RunRequest
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    trials: int | None = None
    storage: str = field(default="", repr=False)  # Dask workers log what they are called with
    study: str = ""
    cluster: str = ""
    export: Path | None = None
    times: Path | None = None


class SweepContext:
    """Makes what is shared once, and runs one configuration at a time."""

    def __init__(self, request: SweepRequest) -> None:
        self.request = request
        self.base = request.base
        self.options = request.base.recipe.sweep
        self.speed = SPEEDS[self.options.speed](self.options.device)
        self.reference_ms = 0.0
        until = "build" if isinstance(self.speed, OnGpu) else "insert"
        self._base_run = runner.start(replace(self.base, out=self.base.out / "base"), until)

    @property
    def identity(self) -> dict[str, str]:
        """Digests of everything that decides what a trial gives."""
        labels = self.base.labels
        return {
            "model": digest_file(self.base.model),
            "samples": self._base_run.samples.digest,
            "evaluation": self._base_run.evaluation.digest,
            "labels": digest_file(Path(labels)) if labels else "",
            "recipe": _digest(self.base.recipe.model_dump(mode="json")),
        }

    def ranking(self, on_progress: Callable[[int, int | None], None]) -> list[str]:
        """The quantized nodes, most sensitive first; a journal beside the histograms keeps what was run."""
        most = max((*self.options.keep_float, self.options.tune))
        if most == 0:
            return []
        compared = CompareOptions(task="none", limit=_RANKED_ON)
        found = study(
            SensitivityRequest(
                model=self._base_run.path("model.qdq.onnx"),
                recipe=self.base.recipe.model_copy(update={"compare": compared}),
                samples=self.base.samples,
                eval_samples=None,
                labels=None,
                options=SensitivityOptions(top=most, causes=False),
                out=self._base_run.folder.path,
            ),
            lambda _step, done, total: on_progress(done, total),
        )
        return [node.node for node in found.nodes]

    @property
    def reads(self) -> dict[str, str]:
        """The first quantized activation that each node reads."""
        decisions = PLACEMENT.read(self._base_run.path("placement.json")).quantized
        return {
            decision.slot.node: decision.tensor
            for decision in reversed(decisions)
            if decision.kind is SlotKind.ACTIVATION
        }

    def time_reference(self) -> float | None:
        """Milliseconds of what all trials are timed in turns with; None where nothing is measured."""
        if isinstance(self.speed, OnGpu):
            return self.speed.reference(self._base_run.path("engine.plan"))
        if isinstance(self.speed, Measured):
            return self.speed.reference(self._base_run.path("model.prepared.onnx"), self._feeds())
        return None

    def _feeds(self) -> Feeds:
        return next(iter(self._base_run.evaluation)).feeds

    def objective(
        self, space: Space, choice: dict[str, Value], note: Callable[[str, Any], None]
    ) -> tuple[float, float]:
        """Run the line with this choice; its accuracy and its milliseconds.

        Raises:
            BuildError: the builder refuses this configuration, or its accuracy is undefined.
        """
        settings = space.settings(choice)
        folder = self.base.out / "trials" / _digest(settings)[:12]
        with _alone_in(folder):
            accuracy, tried = self._tried(settings, folder)
            _thin_out(folder)
        if accuracy is None or accuracy.int8 is None:
            raise BuildError("its accuracy is undefined", fix="look at the outputs with `qdqtool compare`")
        low, high = _interval(accuracy)
        outcome = Outcome(
            settings=settings,
            accuracy=accuracy.int8,
            ms=tried.ms,
            ms_low=tried.low,
            ms_high=tried.high,
            accuracy_low=low,
            accuracy_high=high,
            nodes_int8=tried.nodes_int8,
            nodes_total=tried.nodes_total,
            kernels=tried.kernels,
            kept_float=space.kept(choice),
        )
        note(OUTCOME, asdict(outcome))
        note(METRIC, [accuracy.metric, accuracy.unit, accuracy.reference])
        return outcome.accuracy, outcome.ms

    def _tried(self, settings: tuple[str, ...], folder: Path) -> tuple[AccuracySummary | None, Try]:
        """One configuration; the line goes on to an engine only where that is timed."""
        request = self._trial_request(settings, folder)
        if isinstance(self.speed, Estimated):
            report = runner.run(request)
            return report.summary.accuracy, self.speed.of_run(report.summary, folder)
        if isinstance(self.speed, OnGpu):
            summary = runner.run(request).summary
            engines = self._base_run.path("engine.plan"), folder / "engine.plan"
            times = self.speed.of_engines(*engines, self.reference_ms)
            return summary.accuracy, in_engine(summary, times)
        work = runner.start(request, "insert")
        models = (self._base_run.path("model.prepared.onnx"), work.path("model.qdq.onnx"))
        plain, quantized = (open_quantized(path, path.name) for path in models)
        comparison = compare(plain, quantized, work.evaluation, request.recipe.compare)
        ms, low, high = 0.0, None, None
        if isinstance(self.speed, Measured):
            ms, low, high = self.speed.of_models(*models, self._feeds(), self.reference_ms)
        int8, total = placed(work.model("model.prepared.onnx"), PLACEMENT.read(work.path("placement.json")))
        return headline(comparison), Try(ms=ms, low=low, high=high, nodes_int8=int8, nodes_total=total)

    def keep(self, settings: tuple[str, ...], out: Path) -> None:
        """The run folder of one configuration, as far as the sweep went with it."""
        request = self._trial_request(settings, out)
        if isinstance(self.speed, Estimated | OnGpu):
            runner.run(request)
        else:
            runner.start(request, "insert")
            write_text(out / "recipe.yaml", recipes.dump(request.recipe))

    @property
    def float_model(self) -> Path:
        """The prepared float model."""
        return self._base_run.path("model.prepared.onnx")

    def model_of(self, settings: tuple[str, ...]) -> Path:
        """The Q/DQ model of one configuration, without an engine."""
        folder = self.base.out / "trials" / f"{_digest(settings)[:12]}-model"
        return runner.start(self._trial_request(settings, folder), "insert").path("model.qdq.onnx")

    def _trial_request(self, settings: tuple[str, ...], out: Path) -> RunRequest:
        return replace(
            self.base,
            # the same recipe was loaded before, under the trust that the user gave
            recipe=recipes.load(self.request.recipe, [*self.request.settings, *settings], trust=True),
            out=out,
            cache=self.base.cache or self.base.out / "builds",
            histograms=self._base_run.path("histograms.npz"),
        )


def _interval(accuracy: AccuracySummary) -> tuple[float | None, float | None]:
    """Between which values the accuracy lies with 95 %."""
    if accuracy.interval is None:
        return None, None
    low, high = accuracy.interval
    # Of a task metric the difference to the float model is what is known, sample by sample.
    base = accuracy.reference or 0.0
    return base + low, base + high


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Samplers may draw one configuration for two workers: the second waits until the first has cleared its folder."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        acquire(lock)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def _thin_out(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in _KEPT:
            path.unlink() if path.is_file() else shutil.rmtree(path)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
