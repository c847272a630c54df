"""A run with a limit of accuracy: first quantizes all nodes, then makes nodes float until the limit holds.

The folder `quantized` of the run folder holds the run with every node quantized. If it misses the limit,
`float_nodes` finds the smallest set of float nodes that keeps it. The run folder itself is a run of this recipe with
these nodes in `place.kept_float`, with unchanged ranges. So its engine, audit and accuracy prove the result of the
search. Its recipe.yaml gives the same model again without a search.

If these nodes may compute in FP8 or FP16 (`accuracy.alternatives`), the folder `float` has the run with all of them
float. The run folder itself then holds the fastest engine that keeps the limit (`formats`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from qdqtool.accuracy.tokens import token_input
from qdqtool.core.comparison import Comparison, exceeds
from qdqtool.core.kinds import CALIBRATION, LIMIT
from qdqtool.core.recipe import AccuracyOptions, Recipe
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import EngineCost, FloatLimit, FloatSet
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.qdq.unquantize import with_zero_points
from qdqtool.io.json_files import canonical
from qdqtool.pipeline import runner
from qdqtool.pipeline.datacheck import are_others
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.pipeline.ranges.samples import from_all_over
from qdqtool.pipeline.request import NullProgress, ProgressListener, RunContext, RunRequest, UsageMeter
from qdqtool.pipeline.runner import LINE, TRIAL_LINE, RunStep
from qdqtool.pipeline.search.float_nodes import FloatSearch, Limit, add_accuracy, smallest_confirmable_drop
from qdqtool.pipeline.search.formats import FLOAT, Ladder, Question, cost_of, device_of, fastest, steps_of
from qdqtool.pipeline.search.switched import SwitchedNetwork, units_of
from qdqtool.pipeline.steps import Measured
from qdqtool.runtime.session import on_device

FOLDER: Final = "quantized"
"""Folder of the run with every node quantized, in the run folder."""
_ATTEMPTS: Final = 3
"""Number of searches. Each search has a stricter limit, by the amount that the model of the search before missed."""
_MORE_DB: Final = 1.0
"""SQNR, in dB, that is asked for in addition if the task shows no difference."""
SEARCH: Final = "search"
"""Step that the listener sees while nodes are tried."""


@on_device(lambda request: request.recipe.compute.device)
def run(
    request: RunRequest, listener: ProgressListener | None = None, *, course: tuple[RunStep, ...] = LINE
) -> Report:
    """Run as `runner.run`. If the recipe limits the loss of accuracy, make as many nodes float as the limit needs.

    Raises:
        UsageError: the limit cannot be measured: there are no labels, or the model is quantized already.
        QdqError: a step failed; finished steps stay, and the next run continues after them.
    """
    options = request.recipe.accuracy
    bound = Limit(max_drop=options.max_drop, min_sqnr=options.min_sqnr)
    if bound == Limit():
        return runner.run(request, listener, course=course)
    limit = replace(bound, confidence=float(options.confidence))
    _check(request, limit, course)
    listener = listener or NullProgress()
    first = replace(
        request,
        out=request.out / FOLDER,
        recipe=request.recipe.model_copy(update={"accuracy": AccuracyOptions()}),
        cache=request.cache or request.out / "builds",
    )
    whole = runner.run(first, listener, course=TRIAL_LINE)
    _check_task(whole.comparison, limit)
    before = cost_of(whole.summary)
    attempts = 0
    while True:
        attempts += 1
        result = _search_limit(request, first, limit, before, listener)
        nodes = (result.chosen or result.path[0]).kept
        final = replace(
            first,
            out=request.out,
            recipe=_with_float(request.recipe, nodes),
            histograms=first.out / "histograms.npz",
            table=first.out / "calibration.json",
        )
        has_choice = result.chosen is not None and bool(nodes) and len(steps_of(request.recipe)) > 1
        plain = replace(final, out=request.out / FLOAT) if has_choice else final
        report = runner.run(plain, listener, course=TRIAL_LINE if has_choice else _course(result))
        lacking = _lacking(report, bound)
        if result.chosen is None or lacking == Limit(max_drop=0.0, min_sqnr=0.0):
            break
        if attempts == _ATTEMPTS:
            missed = replace(result, chosen=None, built=add_accuracy(result.chosen, report.comparison))
            return runner.run(final, listener, course=_course(missed))
        limit = _tighten_limit(limit, lacking, result.chosen)
    if not has_choice:
        return report
    tightened = _tighten_limit(bound, _room(result))
    question = Question(request=request, first=first, kept=nodes, limit=tightened, listener=listener)
    ladder = Ladder(question)
    tried = ladder.run(report)
    best = fastest(tried)
    taken = final if best.is_float else replace(ladder.request_of(best.formats), out=request.out)
    result = replace(result, alternatives=tried, formats=best.formats, device=device_of(request.recipe))
    return runner.run(taken, listener, course=_course(result))


def _search_limit(
    request: RunRequest, first: RunRequest, limit: Limit, before: EngineCost, listener: ProgressListener
) -> FloatLimit:
    """Search from the finished run `first`. A stopped search continues."""
    options, compared = request.recipe.accuracy, first.recipe.compare
    listener.started(SEARCH)
    with UsageMeter() as meter:
        work = runner.start(first, "insert")
        table = CALIBRATION.read(work.path("calibration.json"))
        plain = undo_rounding(load(work.path("model.prepared.onnx")), table)
        # A single node is switched together with its zero points; constants would stay behind.
        model = with_zero_points(load(work.path("model.qdq.onnx")))
        network = SwitchedNetwork(model, table.shifts, plain, description="Q/DQ model")
        # spread over the data set, because data sets are often sorted by class
        choosing, checking = from_all_over(work.samples, options.samples), work.evaluation
        noise_alone = compared.model_copy(update={"task": "none"})
        total = len(checking) if compared.limit is None else min(compared.limit, len(checking))
        listener.reported(_about(limit, total))
        result = FloatSearch(
            (
                network.trials(choosing, noise_alone, work.path("limit.choosing.jsonl")),
                network.trials(checking, compared, work.path("limit.checking.jsonl"), first.labels),
            ),
            units_of(network.staged.nodes, (), network.compute),
            (choosing, checking),
            limit,
            listener.progressed,
            listener.reported,
        ).run()
    listener.finished(SEARCH, meter.measured, skipped=False)
    return replace(
        result,
        max_drop=options.max_drop,
        min_sqnr=options.min_sqnr,
        samples=total,
        before=before,
        choosing=len(choosing),
        calibrated=not are_others(work.samples, checking),
    )


def _lacking(report: Report, limit: Limit) -> Limit:
    """Return by how many points and dB the built model misses the limit.

    An excluded node may also lose the Q/DQ of its neighbours, which a search that switches nodes does not see.
    """
    comparison = report.comparison
    task = comparison.task[0] if comparison and comparison.task else None
    noise = comparison.sqnr if comparison else None
    drop = 0.0 if task is None else task.reference - task.candidate
    points = 0.0 if limit.max_drop is None or not exceeds(drop, limit.max_drop) else drop - limit.max_drop
    level = 0.0 if limit.min_sqnr is None or noise is None else limit.min_sqnr - noise.sqnr_db
    return Limit(max_drop=max(0.0, points), min_sqnr=max(0.0, level))


def _room(result: FloatLimit) -> Limit:
    """Return the margin between the accuracy of the chosen float nodes and its bound for unseen samples.

    Other formats of these nodes need this margin too.
    """
    chosen = result.chosen
    task, sqnr_db = (chosen.task, chosen.sqnr_db) if chosen else (None, None)
    points = level = 0.0
    if chosen and task and chosen.worst_drop is not None:
        most = max(result.max_drop or 0.0, smallest_confirmable_drop(task.samples, result.confidence))
        points = max(
            0.0, (result.max_drop or 0.0) - most + chosen.worst_drop - task.reference + task.candidate
        )
    if chosen and sqnr_db is not None and chosen.least_db is not None:
        level = sqnr_db - chosen.least_db
    return Limit(max_drop=points, min_sqnr=level)


def _tighten_limit(bound: Limit, lacking: Limit, chosen: FloatSet | None = None) -> Limit:
    """Return `bound` made stricter by the amounts in `lacking`.

    If `chosen` still meets this stricter limit, require a higher SQNR than that of `chosen`.

    If the set loses no sample of the search, but the built model loses some, the task metric cannot require more
    nodes; the noise then does.
    """
    points, level = lacking.max_drop or 0.0, lacking.min_sqnr or 0.0
    tight = replace(
        bound,
        max_drop=None if bound.max_drop is None else max(0.0, bound.max_drop - points),
        min_sqnr=None if bound.min_sqnr is None else bound.min_sqnr + level,
    )
    if chosen is None or chosen.sqnr_db is None or not tight.is_met(chosen):
        return tight
    return replace(tight, min_sqnr=chosen.sqnr_db + _MORE_DB)


def _check(request: RunRequest, limit: Limit, course: tuple[RunStep, ...]) -> None:
    if course is not LINE:
        raise UsageError(
            "an accuracy limit needs a float model; this model already has Q/DQ",
            fix=f"start from the float model, or look for fixes without loss of accuracy with {Command('fix')}",
            where="accuracy",
        )
    compared = request.recipe.compare.task
    if limit.max_drop is not None and (
        compared == "none" or (compared == "classify" and not _is_labelled(request))
    ):
        raise UsageError(
            "the task metric is not measured, so accuracy.max_drop cannot limit it",
            fix="pass --labels, set compare.task=agreement, or limit the noise with accuracy.min_sqnr",
            where="accuracy.max_drop",
        )


def _check_task(comparison: Comparison | None, limit: Limit) -> None:
    """Raise an error with the reason if the drop of a task is limited but the comparison could not measure the task."""
    if limit.max_drop is None or comparison is None or comparison.task:
        return
    beginning = "no task metric: "
    reasons = (note.removeprefix(beginning) for note in comparison.notes if note.startswith(beginning))
    raise UsageError(
        f"the loss of the task metric cannot be limited: {'; '.join(reasons) or 'the task is not measured'}",
        fix="set compare.task for this output, pass --labels for a classifier, or limit the noise with --min-sqnr",
        where="--max-drop",
    )


def _is_labelled(request: RunRequest) -> bool:
    """Return True if labels or next tokens give the correct answers of the samples."""
    model = request.opened()
    samples = samples_for(
        request.eval_samples or request.samples,
        model.view.inputs,
        request.recipe,
        opener(model),
        labels=request.labels,
        limit=1,
    )
    first = next(iter(samples), None)
    return first is not None and (first.label is not None or token_input(first.feeds) is not None)


def _about(limit: Limit, samples: int) -> str:
    """Describe the limit, and what this number of samples can confirm."""
    bounds = (
        f"at most {limit.max_drop:.3g} points lost" if limit.max_drop is not None else "",
        f"at least {limit.min_sqnr:.2f} dB" if limit.min_sqnr is not None else "",
    )
    words = f"{' and '.join(filter(None, bounds))} on {count_noun(samples, 'sample')}"
    if limit.confidence:
        words += f", and on other samples with {100 * limit.confidence:g} % confidence"
    if limit.max_drop is None or limit.max_drop >= 100 / samples:
        return words
    return f"{words}: one lost sample is {100 / samples:.3g} points, so none may be lost"


def _with_float(recipe: Recipe, nodes: tuple[str, ...]) -> Recipe:
    """Return the recipe with these nodes kept float as well."""
    kept = tuple(dict.fromkeys((*recipe.place.kept_float, *nodes)))
    return recipe.model_copy(update={"place": recipe.place.model_copy(update={"kept_float": kept})})


def _course(result: FloatLimit) -> tuple[RunStep, ...]:
    """Return the steps of a run, with a step that records the engine's cost under the accuracy limit."""

    def act(work: RunContext) -> Measured:
        from qdqtool.pipeline.report import read_material
        from qdqtool.report.assemble import assemble

        after = cost_of(assemble(read_material(work.folder.path)).summary)
        LIMIT.write(work.path("limit.json"), replace(result, after=after))
        return {}

    *before, report = LINE
    step = RunStep(
        name="limit",
        act=act,
        reads=("build.json", "layers.json", "findings.json"),
        writes=("limit.json",),
        outside=lambda _work: {"found": canonical(asdict(result))},
    )
    return (*before, step, replace(report, reads=(*report.reads, "limit.json")))
