"""The parts that all trials of a sweep share: the prepared model, histograms, a ranking and finished builds."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from qdqtool.accuracy.side_by_side import Remembered
from qdqtool.backends.building.procedure import external_files
from qdqtool.backends.shapes import Shapes, usual_of
from qdqtool.core.comparison import Comparison
from qdqtool.core.kinds import ACCURACY, PLACEMENT, REPORT
from qdqtool.core.placement import SlotKind
from qdqtool.core.protocols import Feeds, Runner
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.report import AccuracySummary, RunVerdict
from qdqtool.core.sweep import Checked, FloatPoint, Outcome, Value
from qdqtool.core.wording import Command
from qdqtool.engine.roofline import usual_device
from qdqtool.errors import BuildError, UsageError
from qdqtool.graph.view import Model
from qdqtool.io.files import digest_file, digest_files, make_folder, unwritable, write_text
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline import recipes, runner, steps
from qdqtool.pipeline.building import builder_flags
from qdqtool.pipeline.report import read_material
from qdqtool.pipeline.request import RunContext, RunFolder, RunRequest
from qdqtool.pipeline.runner import LINE, TRIAL_LINE, RunStep
from qdqtool.pipeline.search.sensitivity import SensitivityOptions, SensitivityRequest, study
from qdqtool.pipeline.sweep.space import Space
from qdqtool.pipeline.sweep.speed import SPEEDS, Estimated, Measured, OnGpu, Try, count_placed, in_engine
from qdqtool.pipeline.sweep.storage import alone_beside
from qdqtool.report.assemble import assemble, headline

# --- trial line ------------------------------------------------------------------------------------------------------
# The steps of a trial: those of a run, without parts that only a reader of its report needs.
#
# To locate the noise inside the network and to check the samples takes as long as the comparison itself, and all
# trials are compared with equal float outputs. The run folders of the best trials are complete runs.


_ROOM: Final = 128 << 20
"""Bytes for float outputs that stay in memory."""


class FloatOutputs:
    """The outputs of the float model for the evaluation samples of all trials."""

    def __init__(self) -> None:
        self._known: dict[frozenset[str], Remembered] = {}

    def compared(self, work: RunContext) -> Comparison:
        """Measure the difference between a trial's outputs and the float outputs."""
        try:
            return steps.compare_outputs(work, self._open_trial)
        finally:
            # its weights would take memory beside a calibration
            for runner in self._known.values():
                runner.close()

    def _open_trial(self, open_it: Callable[[], Runner], returned: frozenset[str]) -> Runner:
        remembered = self._known.get(returned)
        if remembered is None:
            remembered = self._known[returned] = Remembered(open_it, _ROOM)
        else:
            remembered.reopen(open_it)  # the files of earlier trials were removed
        return remembered


def trial_line(outputs: FloatOutputs) -> tuple[RunStep, ...]:
    """Return the steps of a trial. They use the float model's outputs in `outputs`."""
    changed: dict[str, Callable[[RunContext], steps.Measured]] = {
        "compare": partial(_compare, outputs),
        "report": _report,
    }
    line = [step for step in TRIAL_LINE if step.name != "data"]
    return tuple(
        replace(
            step,
            act=changed.get(step.name, step.act),
            reads=tuple(name for name in step.reads if name != "data.json"),
            writes=tuple(name for name in step.writes if name != "report.html"),
        )
        for step in line
    )


def _compare(outputs: FloatOutputs, work: RunContext) -> steps.Measured:
    comparison = outputs.compared(work)
    ACCURACY.write(work.path("accuracy.json"), comparison)
    return {"samples": float(comparison.samples)}


def _report(work: RunContext) -> steps.Measured:
    REPORT.write(work.path("report.json"), assemble(read_material(work.folder.path)))
    return {}


# --- context ---------------------------------------------------------------------------------------------------------


OUTCOME, METRIC = "outcome", "metric"
_KEPT = frozenset({"report.json", "recipe.yaml"})
"""Files that are kept of every trial; the rest can be made again from its recipe."""
_CONTINUED = frozenset(
    {"steps.json"}.union(
        *((*step.writes, *step.may_write) for step in LINE if step.name in {"collect", "calibrate"})
    )
)
"""Files with which another run folder continues after a trial's calibration; kept of trials on the Pareto front."""
log = logging.getLogger(__name__)
_FLOATS = {"FP32": "fp32", "FP16": "fp16"}
"""Points without a quantized node, with the `insert.types` of each."""
_ENOUGH = 64
"""Fewest evaluation samples in each half for which one half is held back."""
_RANKED_ON = 32
"""Number of samples that order nodes; the sweep itself uses all samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """Parameters of a sweep.

    Attributes:
        base: model, samples, folder; its recipe is the base with `settings` applied.
        recipe: the base recipe as typed, or None.
        settings: changes of the base recipe as typed.
        trials: how many trials; None tries the whole grid, or 50 with a sampler that draws.
        storage: address of the study; "" is a file in the folder.
        study: the study's name; "" is made from the inputs.
        cluster: Dask scheduler whose workers all take part, or "local"; "" searches in this process only.
        export: folder for the models of all trials and a script that times them elsewhere; None exports nothing.
        times: the results of this script, which replace the times of the sweep; None keeps them.
        on: machines that run the script, "local" or ssh://user@host; the times of the first replace those of the sweep.
        trtexec: the program there; "" looks for it.
    """

    base: RunRequest
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    trials: int | None = None
    storage: str = field(default="", repr=False)  # Dask workers log the arguments of calls
    study: str = ""
    cluster: str = ""
    export: Path | None = None
    times: Path | None = None
    on: tuple[str, ...] = ()
    trtexec: str = ""


OnProgress = Callable[[str, int, "int | None"], None]
"""Function called with a step, the pieces that are done, and their total number."""


class _StepProgress:
    """A listener that reports the progress of each step."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._step = ""

    def started(self, step: str) -> None:
        self._step = step
        self._tell(step, 0, None)

    def progressed(self, done: int, total: int | None) -> None:
        self._tell(self._step, done, total)

    def reported(self, words: str) -> None:
        """Ignore the messages of a step."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        del measured, skipped
        self._tell(step, 1, 1)


class SweepContext:
    """Makes the shared parts of a sweep once, and runs one configuration at a time."""

    def __init__(self, request: SweepRequest, tell: OnProgress | None = None) -> None:
        """Make the shared parts; `tell` is called with the current step and its progress."""
        self.request = request
        self.base = request.base
        self.options = request.base.recipe.sweep
        recipe = self.base.recipe
        gpu = self.options.device or usual_device(recipe.build.sm)
        device = recipe.compute.device if self.options.speed == "measured" else gpu
        self.speed = SPEEDS[self.options.speed](device)
        self.reference_ms = 0.0
        self._outputs = FloatOutputs()
        self._line = trial_line(self._outputs)
        until = "build" if isinstance(self.speed, OnGpu) else "insert"
        base = replace(self.base, out=self.base.out / "base")
        self._base_run = runner.start(base, until, None if tell is None else _StepProgress(tell))
        every = len(self._base_run.evaluation)
        held = every >= 2 * _ENOUGH if self.options.hold_back is None else self.options.hold_back
        if held and every < 2:
            raise UsageError(
                "a single evaluation sample cannot be split into two halves",
                fix="pass more --eval-samples, or set sweep.hold_back=false",
                where="sweep.hold_back",
            )
        self._parts: tuple[tuple[int, int] | None, tuple[int, int] | None] = (
            ((0, 2), (1, 2)) if held else (None, None)
        )

    @property
    def identity(self) -> dict[str, str]:
        """Return digests of all inputs that determine the result of a trial."""
        labels, model = self.base.labels, self.base.model
        weights = external_files(model)
        return {
            "model": digest_files((model, *weights)) if weights else digest_file(model),
            "samples": self._base_run.samples.digest,
            "evaluation": f"{self._base_run.evaluation.digest}{self._parts[0] or ''}",
            "labels": digest_file(Path(labels)) if labels else "",
            "recipe": digest_of(self.base.recipe.model_dump(mode="json")),
        }

    def ranking(self, on_progress: Callable[[int, int | None], None]) -> list[str]:
        """Return the quantized nodes of the base run, the most sensitive first; [] if no option uses them."""
        most = max((*self.options.keep_float, self.options.tune))
        if most == 0:
            return []
        compared = CompareOptions(task="none", limit=_RANKED_ON)
        result = study(
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
        return [node.node for node in result.nodes]

    @property
    def prepared(self) -> Model:
        """The prepared float model."""
        return self._base_run.model("model.prepared.onnx")

    @property
    def reads(self) -> dict[str, str]:
        """The first quantized activation that each node reads, by the name of the node."""
        decisions = PLACEMENT.read(self._base_run.path("placement.json")).quantized
        return {
            decision.slot.node: decision.tensor
            for decision in reversed(decisions)
            if decision.kind is SlotKind.ACTIVATION
        }

    def time_reference(self) -> float | None:
        """Return the time in ms of the reference that alternates with each trial; None if none is timed."""
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
        """Run the steps with this choice; return the accuracy and the milliseconds.

        Raises:
            BuildError: the target or the builder refuses this configuration, or its accuracy is undefined.
        """
        settings = space.settings(choice)
        folder = self._trial_folder(settings)
        with _alone_in(folder):
            request = self._trial_request(settings, folder)
            _check_placement(request)
            accuracy, tried = self._try_part(request, self._parts[0])
            _thin_out(folder, _KEPT | _CONTINUED)
        if accuracy is None or accuracy.int8 is None:
            name = "accuracy" if accuracy is None else accuracy.metric
            raise BuildError(
                f"the metric {name} has no value for this trial: the outputs are equal to the float model's, all zero, NaN or infinite",
                fix=f"inspect the outputs with {Command('compare', ('--inside',))}",
            )
        low, high = _interval(accuracy)
        outcome = Outcome(
            settings=settings,
            accuracy=accuracy.int8,
            ms=tried.ms,
            ms_low=tried.low,
            ms_high=tried.high,
            accuracy_low=low,
            accuracy_high=high,
            sqnr_db=accuracy.sqnr_db,
            nodes_int8=tried.nodes_int8,
            formats=tried.formats,
            nodes_total=tried.nodes_total,
            kernels=tried.kernels,
            kept_float=space.kept(choice),
        )
        note(OUTCOME, asdict(outcome))
        note(METRIC, [accuracy.metric, accuracy.unit, accuracy.reference])
        return outcome.accuracy, outcome.ms

    def _try_part(
        self, request: RunRequest, part: tuple[int, int] | None
    ) -> tuple[AccuracySummary | None, Try]:
        """Run a configuration on some evaluation samples; build an engine to estimate or time it on a GPU."""
        request = replace(request, part=part)
        folder = request.out
        if isinstance(self.speed, Estimated):
            report = runner.run(request, course=self._line)
            return report.summary.accuracy, self.speed.of_run(report.summary, folder)
        if isinstance(self.speed, OnGpu):
            summary = runner.run(request, course=self._line).summary
            engines = self._base_run.path("engine.plan"), folder / "engine.plan"
            times = self.speed.of_engines(*engines, self.reference_ms)
            return summary.accuracy, in_engine(summary, times)
        work = runner.start(request, "insert")
        models = (self._base_run.path("model.prepared.onnx"), work.path("model.qdq.onnx"))
        accuracy = headline(self._outputs.compared(work))
        ms, low, high = 0.0, None, None
        if isinstance(self.speed, Measured):
            ms, low, high = self.speed.of_models(*models, self._feeds(), self.reference_ms)
        formats, total = count_placed(
            work.model("model.prepared.onnx"), PLACEMENT.read(work.path("placement.json"))
        )
        int8 = formats.get("int8", 0)
        tried = Try(ms=ms, low=low, high=high, nodes_int8=int8, nodes_total=total, formats=formats)
        return accuracy, tried

    def keep(self, settings: tuple[str, ...], out: Path) -> tuple[Checked | None, RunVerdict | None]:
        """Make the run folder of one configuration: all steps if engines are built, else up to `insert`.

        Returns:
            Its accuracy on held-back samples, if there are any, and the verdict of its report, if an engine was built.
        """
        request = replace(self._continued_request(settings, out), part=self._parts[1])
        accuracy: AccuracySummary | None = None
        verdict: RunVerdict | None = None
        if isinstance(self.speed, Estimated | OnGpu):
            summary = runner.run(request).summary
            accuracy, verdict = summary.accuracy, summary.verdict
        else:
            work = runner.start(request, "insert")
            write_text(out / "recipe.yaml", recipes.dump(request.recipe))
            if self._parts[1] is not None:
                accuracy = headline(self._outputs.compared(work))
        if self._parts[1] is None or accuracy is None or accuracy.int8 is None:
            return None, verdict
        low, high = _interval(accuracy)
        checked = Checked(accuracy=accuracy.int8, low=low, high=high, samples=accuracy.samples)
        return checked, verdict

    def floats(self) -> tuple[FloatPoint, ...]:
        """Measure the network without quantization in FP32 and in FP16. Types that the builder refuses are omitted."""
        points = []
        for name, types in _FLOATS.items():
            settings = _nothing_quantized(types)
            request = self._trial_request(settings, self.base.out / f"float-{types}")
            try:
                with _alone_in(request.out):
                    accuracy, tried = self._try_part(request, self._parts[0])
                    _thin_out(request.out, _KEPT)
            except BuildError as error:
                log.warning("%s is not in the chart: %s", name, error)
                continue
            low, high = (None, None) if accuracy is None else _interval(accuracy)
            # FP32 compared with itself has no noise: only the order of sums differs.
            is_itself = types == "fp32" and (accuracy is None or accuracy.reference is None)
            point = FloatPoint(
                name=name,
                accuracy=None if is_itself or accuracy is None else accuracy.int8,
                low=None if is_itself else low,
                high=None if is_itself else high,
                ms=tried.ms,
                ms_low=tried.low,
                ms_high=tried.high,
            )
            points.append(point)
        return tuple(points)

    def float_model(self, name: str) -> Path:
        """Return the model without quantized nodes; `name` is "FP32" or "FP16"."""
        if name == "FP32":
            return self._base_run.path("model.prepared.onnx")
        return self.model_of(_nothing_quantized(_FLOATS[name]))

    def model_of(self, settings: tuple[str, ...]) -> Path:
        """Return the Q/DQ model of one configuration, without an engine."""
        folder = self.base.out / "trials" / f"{digest_of(settings)[:12]}-model"
        return runner.start(self._continued_request(settings, folder), "insert").path("model.qdq.onnx")

    def flags_of(self, settings: tuple[str, ...]) -> tuple[str, ...]:
        """Return the builder flags of the configuration `settings`; () stands for the base recipe."""
        return builder_flags(self._trial_request(settings, self.base.out).recipe)

    @property
    def shapes(self) -> Shapes:
        """The usual shapes of dynamic inputs, as engines are built for."""
        profiles, _ = steps.profiles_of(self._base_run)
        return usual_of(profiles)

    def thin_out(self, settings: tuple[str, ...]) -> None:
        """Remove the calibration files of a trial that no later run continues."""
        folder = self._trial_folder(settings)
        if (folder / "steps.json").is_file():
            with _alone_in(folder):
                _thin_out(folder, _KEPT)

    def _trial_folder(self, settings: tuple[str, ...]) -> Path:
        return self.base.out / "trials" / digest_of(settings)[:12]

    def _continued_request(self, settings: tuple[str, ...], out: Path) -> RunRequest:
        """Return the request for a run in `out`, and copy the calibration of the finished trial to `out`."""
        trial, folder = RunFolder(self._trial_folder(settings)), RunFolder(out)
        if "calibrate" in trial.footprints():
            with _alone_in(trial.path), folder.locked(wait=True):
                _take_over(trial, folder)
        return self._trial_request(settings, out)

    def _trial_request(self, settings: tuple[str, ...], out: Path) -> RunRequest:
        # this recipe was loaded before, with the user's trust
        recipe = recipes.load(self.request.recipe, [*self.request.settings, *settings], trust=True)
        # facts about images and task that were read or tried apply to all trials
        unchanged = [
            name
            for name in ("samples", "compare")
            if not any(text.startswith(f"{name}.") for text in settings)
        ]
        recipe = recipe.model_copy(update={name: getattr(self._base_run.recipe, name) for name in unchanged})
        return replace(
            self.base,
            recipe=recipe,
            out=out,
            cache=self.base.cache or self.base.out / "builds",
            histograms=self._base_run.path("histograms.npz"),
        )


def _take_over(trial: RunFolder, folder: RunFolder) -> None:
    """Copy the calibration of a trial to a run folder, unless this was done before."""
    if trial.footprints().get("calibrate") == folder.footprints().get("calibrate"):
        return
    for name in _CONTINUED:
        (folder / name).unlink(missing_ok=True)
        if (trial / name).is_file():
            shutil.copyfile(trial / name, folder / name)


def _nothing_quantized(types: str) -> tuple[str, ...]:
    return 'place.exclude=["*"]', f"insert.types={types}"


def _check_placement(request: RunRequest) -> None:
    """Run the step `place`. If it refuses the settings or quantizes no node, only this trial fails."""
    try:
        work = runner.start(request, "place")
    except UsageError as error:
        raise BuildError(error.what, fix=error.fix, where=error.where) from error
    if not PLACEMENT.read(work.path("placement.json")).quantized:
        raise BuildError(
            "these settings quantize nothing; the float model is already a point of the sweep",
            fix="quantize at least one node: a smaller sweep.keep_float, or a format other than float",
        )


def _interval(accuracy: AccuracySummary) -> tuple[float | None, float | None]:
    """Return the lower and the upper end of the 95 % interval of the accuracy."""
    if accuracy.interval is None:
        return None, None
    low, high = accuracy.interval
    # For a task metric, the difference to the float model is known for each sample.
    base = accuracy.reference or 0.0
    low, high = base + low, base + high
    return (max(low, 0.0), min(high, 100.0)) if accuracy.unit == "%" else (low, high)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder that workers of one sweep share: the second worker waits until the first has finished."""
    try:
        make_folder(folder.parent)
    except OSError as error:
        raise unwritable(folder, error) from error
    with alone_beside(folder):
        yield


def _thin_out(folder: Path, kept: frozenset[str]) -> None:
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink() if path.is_file() else shutil.rmtree(path)
