"""Runs a sweep, from request to Pareto front."""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from qdqtool.backends.flags import split_flags
from qdqtool.core.kinds import PLACEMENT, SWEEP
from qdqtool.core.sweep import Sweep, Trial
from qdqtool.errors import MissingPackage
from qdqtool.pipeline.cluster import absolute, client_of
from qdqtool.pipeline.recipe_mistakes import refuse_formats
from qdqtool.pipeline.request import RunFolder
from qdqtool.pipeline.search.patterns import SlowerPatterns
from qdqtool.pipeline.sweep.context import OnProgress, SweepContext, SweepRequest
from qdqtool.pipeline.sweep.elsewhere import (
    ELSEWHERE,
    Host,
    check_host,
    export,
    host_of,
    identify,
    read_times,
    refuse_own,
    time_on_all,
    with_times,
)
from qdqtool.pipeline.sweep.front import assemble, limit_of
from qdqtool.pipeline.sweep.front import pick as choose
from qdqtool.pipeline.sweep.slower import PatternsOf, TrialEdits
from qdqtool.pipeline.sweep.space import Space, groups_of
from qdqtool.pipeline.sweep.storage import Storage, StorageLost, absolute_address, guard_rows
from qdqtool.pipeline.sweep.study import Study
from qdqtool.runtime.session import on_device

# --- workers ---------------------------------------------------------------------------------------------------------
# Runs a sweep on Dask: every worker takes part in the study, as if the command had been started there.
#
# The workers must see the model, the samples and the sweep's folder under equal paths. Results are in the storage, so
# a worker that dies loses only its running trial, and the scheduler holds no results.


_ONE_AT_A_TIME = Lock()
"""Lock for one trial at a time in a process, so that its own unfinished trials differ from lost ones."""


def join_all(
    request: SweepRequest, join: Callable[[SweepRequest], int], tell: Callable[[str, int, int | None], None]
) -> None:
    """Let all workers of the cluster run `join` until all trials are done.

    Raises:
        MissingPackage: dask.distributed is not installed, no scheduler answers, or workers keep dying.
        QdqError: a worker found the inputs wrong.
    """
    alone = _absolute(request)
    with client_of(request.cluster) as client:
        from distributed import KilledWorker, as_completed

        client.wait_for_workers(1, timeout=60)
        workers = sorted(client.scheduler_info()["workers"])
        futures = [
            client.submit(
                _one_at_a_time,
                join,
                alone,
                key=f"sweep-{number}-{worker}",
                workers=[worker],
                allow_other_workers=True,
                pure=False,
                retries=2,
            )
            for number, worker in enumerate(workers)
        ]
        try:
            for done, future in enumerate(as_completed(futures)):
                future.result()
                tell("workers done", done + 1, len(futures))
        except KilledWorker as error:
            raise MissingPackage(
                f"workers died repeatedly: {error}",
                fix="give them more memory; finished trials are kept",
            ) from error
        finally:
            client.cancel(futures)


def _one_at_a_time(join: Callable[[SweepRequest], int], request: SweepRequest) -> int:
    with _ONE_AT_A_TIME:
        return join(request)


def _absolute(request: SweepRequest) -> SweepRequest:
    """Return the request without its cluster, and with paths that are valid on every worker."""
    base = request.base
    labels = None if base.labels is None else str(Path(base.labels).resolve())
    evaluation = None if base.eval_samples is None else absolute(base.eval_samples)
    base = replace(
        base,
        model=base.model.absolute(),
        samples=absolute(base.samples),
        eval_samples=evaluation,
        labels=labels,
        out=base.out.resolve(),
        cache=None if base.cache is None else base.cache.resolve(),
    )
    recipe = request.recipe
    is_file = recipe is not None and Path(recipe).is_file()
    return replace(
        request,
        base=base,
        recipe=str(Path(recipe or "").resolve()) if is_file else recipe,
        storage=absolute_address(request.storage),
        cluster="",
    )


# --- run -------------------------------------------------------------------------------------------------------------


T = TypeVar("T")
log = logging.getLogger(__name__)
RANKING, REFERENCE = "ranking", "reference ms"
_DRAWN = 50
"""Default number of trials of a sampler that draws."""
_WAIT_S = 1.0
"""Seconds between two checks while all trials are done or running."""
_PAUSES_S = (1, 2, 4, 8, 16)
"""Seconds between attempts to reach a storage after its connection was lost."""
_OPENING_S = (1, 2, 4)
"""Seconds between attempts to reach a storage for the first time: long enough for a server to restart, short
for a wrong address.
"""


@on_device(lambda request: request.base.recipe.compute.device)
def sweep(request: SweepRequest, pick: str = "", on_progress: OnProgress | None = None) -> Sweep:
    """Search the configurations; write sweep.json and the run folder of every Pareto point into the folder of the sweep.

    Any number of workers can run a sweep together, on one or several machines, if they share the storage. A killed
    worker loses only its running trial; a repeated call continues the sweep. `pick` also makes the run folder "pick".

    Raises:
        MissingPackage: optuna is not installed.
        UsageError: there is nothing to search, no trial can meet a limit, or the study belongs to other inputs.
        InputFileError: the storage or the folder cannot be used.
    """
    tell = on_progress or _silent
    if pick:
        limit_of(pick)
    hosts = [host_of(word) for word in request.on]
    for host in hosts:
        check_host(host, request.trtexec)
    if hosts or request.export is not None:
        recipe = request.base.recipe
        for flags in (recipe.build.flags, *recipe.sweep.space.get("build.flags", ())):
            refuse_own(split_flags(str(flags)))
    if request.cluster:
        join_all(request, join, tell)
    bench = SweepContext(request, tell)
    trials, space = _take_part(request, bench, tell)
    with guard_rows(_address(request)):
        result = assemble(trials, space, request.base.model.name, bench.speed)
    tell("float model", 0, None)
    result = replace(result, floats=bench.floats())
    tell("float model", 1, 1)
    if request.times is not None:
        result = with_times(result, request.times)
    folder = request.export or (request.base.out / ELSEWHERE if hosts else None)
    if folder is not None:
        patterns = _open_patterns(bench, hosts)
        result, edits = _export(bench, result, folder, tell, patterns)
        if hosts:
            tell(f"time on {' and '.join(request.on)}", 0, None)
            times = time_on_all(hosts, folder, request.trtexec)[0]
            result = with_times(result, times)
            if edits is not None and patterns is not None:
                edits.record(read_times(times), hosts[0], patterns)
    return _keep(bench, result, pick, tell)


@on_device(lambda request: request.base.recipe.compute.device)
def join(request: SweepRequest) -> int:
    """Run trials of a sweep until all are done, without run folders; return their number. Dask workers call this function."""
    trials, _ = _take_part(request, SweepContext(request), _silent)
    return len(trials)


def _take_part(request: SweepRequest, bench: SweepContext, tell: OnProgress) -> tuple[list[Any], Space]:
    url = _address(request)
    with closing(_persevering(lambda: Storage(url), pauses=_OPENING_S)) as storage:
        name = request.study or f"qdqtool {request.base.model.stem}"
        study = _persevering(lambda: Study(storage, name, bench.identity, _sampler(request)))
        ranking = _persevering(
            lambda: study.agreed(
                RANKING, lambda: bench.ranking(lambda done, total: tell("rank nodes", done, total))
            )
        )
        reference = _persevering(
            lambda: study.agreed(REFERENCE, lambda: _format_time(bench.time_reference()))
        )
        with guard_rows(url):
            bench.reference_ms = float(reference[0]) if reference else 0.0
        refuse_formats(groups_of(bench.options), request.base.recipe, bench.prepared.view)
        space = Space(bench.options, tuple(ranking), request.base.recipe, bench.reads)

        def end_trial() -> None:
            if request.export is None and not request.on:  # these need the models of all trials
                _thin_out_beaten(study, space, bench)

        return _search(study, space, bench, tell, end_trial), space


def _nothing() -> None:
    """Do nothing at the end of a trial."""


def _format_time(ms: float | None) -> list[str]:
    return [] if ms is None else [repr(ms)]


def _search(
    study: Study,
    space: Space,
    bench: SweepContext,
    tell: OnProgress,
    end_trial: Callable[[], None] = _nothing,
) -> list[Any]:
    """Run trials until enough are done; call `end_trial` after each trial, and return all trials."""
    sampler = bench.options.sampler
    drawn = sampler != "grid"
    all_of_it = space.size if sampler in {"grid", "gain"} else _DRAWN
    most = min(bench.request.trials or all_of_it, space.size)
    study.search(space)

    def states() -> Counter[str]:
        return Counter(trial.state.name for trial in study.trials() if _counts(trial))

    def one_more() -> bool:
        study.revive()
        before = states()
        tell("trials", before.total() - before["RUNNING"], most)
        if study.step(
            space, lambda choice, note: bench.objective(space, choice, note), most=most, drawn=drawn
        ):
            end_trial()
            return True
        # Read again: since this round began, other workers may have claimed free trials or released their own.
        now = states()
        if not now["RUNNING"]:
            return now.total() < most
        time.sleep(_WAIT_S)
        study.retire()
        return True

    while _persevering(one_more):
        pass  # in every round the storage may be lost and come back
    return _persevering(study.trials)


def _thin_out_beaten(study: Study, space: Space, bench: SweepContext) -> None:
    with guard_rows(_address(bench.request)):
        so_far = assemble(study.trials(), space, bench.request.base.model.name, bench.speed)
    _thin_out(bench, (trial for trial in so_far.trials if trial not in so_far.pareto))


def _thin_out(bench: SweepContext, trials: Iterable[Trial]) -> None:
    for trial in trials:
        if trial.outcome is not None:
            bench.thin_out(_settings(trial))


def _persevering(act: Callable[[], T], pauses: tuple[int, ...] | None = None) -> T:
    """Run a function; if a sweep's storage is lost, wait and run it again, a few times. Return its result.

    Raises:
        StorageLost: it stays lost.
    """
    for attempt, pause in enumerate(_PAUSES_S if pauses is None else pauses):
        try:
            return act()
        except StorageLost as error:  # noqa: PERF203 -- this is what the loop is for
            if error.full:
                raise
            # Workers that start together create the tables at the same time; the second try succeeds because they
            # exist.
            log.log(
                logging.WARNING if attempt else logging.INFO, "%s; trying again in %s s", error.what, pause
            )
            time.sleep(pause)
    return act()


def _silent(_step: str, _done: int, _total: int | None) -> None:
    """Ignore the progress of a step."""


def _keep(bench: SweepContext, result: Sweep, pick: str, tell: OnProgress) -> Sweep:
    """Make the run folders of the Pareto points. Return the sweep with verdicts and held-out accuracies."""
    out = bench.base.out
    kept: dict[int, Trial] = {}
    for done, trial in enumerate(result.pareto):
        tell("Pareto points", done, len(result.pareto))
        checked, verdict = bench.keep(_settings(trial), out / "pareto" / f"{trial.number:04}")
        kept[trial.number] = replace(trial, checked=checked, verdict=verdict)
    result = replace(
        result,
        pareto=tuple(kept.values()),
        trials=tuple(kept.get(trial.number, trial) for trial in result.trials),
    )
    SWEEP.write(out / "sweep.json", result)
    if pick:
        bench.keep(_settings(choose(result, pick)), out / "pick")
    _thin_out(bench, result.trials)
    return result


def _open_patterns(bench: SweepContext, hosts: Sequence[Host]) -> PatternsOf | None:
    """Return a function that looks up edits recorded as slower on the first timing machine.

    Return None if there is no timing machine, or no folder of finished builds, which has the records.
    """
    cache = bench.base.cache
    if cache is None or not hosts:
        return None
    gpu, release = identify(hosts[0], bench.request.trtexec)
    open_once = lru_cache(partial(SlowerPatterns, cache, gpu, release))
    return lambda trial: open_once(bench.flags_of(_settings(trial)))


def _export(
    bench: SweepContext, result: Sweep, folder: Path, tell: OnProgress, patterns: PatternsOf | None
) -> tuple[Sweep, TrialEdits | None]:
    """Write the models of all finished trials. Return the sweep, and the edits that lead from trial to trial.

    With `patterns`, trials whose edit is recorded as slower and gains no accuracy count as failed.
    """
    files: list[Path] = []
    edits = None
    try:
        done = [trial for trial in result.trials if trial.outcome is not None]
        models: dict[int, Path] = {}
        for trial in done:
            tell("export", len(files), len(done))
            files.append(bench.model_of(_settings(trial)))
            models[trial.number] = files[-1]
        if patterns is not None:
            placements = {
                number: PLACEMENT.read(path.with_name("placement.json")) for number, path in models.items()
            }
            edits = TrialEdits(done, placements, bench.prepared.view)
            result = edits.drop_slower(result, patterns)
        floats = {"FP32": bench.float_model("FP32")}
        for name in (point.name for point in result.floats if point.name not in floats):
            floats[name] = bench.float_model(name)
            files.append(floats[name])
        export(result, floats, models, folder, bench.flags_of, bench.shapes)
        return result, edits
    finally:
        for path in files:
            shutil.rmtree(path.parent, ignore_errors=True)


def _settings(trial: Trial) -> tuple[str, ...]:
    assert trial.outcome is not None
    return trial.outcome.settings


def _counts(trial: Any) -> bool:
    """Return True if a trial counts towards the number of trials, unlike lost trials and duplicates."""
    return trial.state.name in {"COMPLETE", "RUNNING"} or "reason" in trial.user_attrs


def _address(request: SweepRequest) -> str:
    """Return the address of the study. The default is a file in the folder of the sweep, which is created."""
    if request.storage:
        return request.storage
    out = request.base.out
    RunFolder(out).make()
    return f"sqlite:///{out / 'study.db'}"


def _sampler(request: SweepRequest) -> Any:
    from optuna import samplers

    from qdqtool.pipeline.sweep.study import ExpectedGain

    options = request.base.recipe.sweep
    if options.sampler == "gain":
        return ExpectedGain()
    kinds = {"grid": samplers.RandomSampler, "tpe": samplers.TPESampler, "nsga2": samplers.NSGAIISampler}
    return kinds[options.sampler](seed=options.seed)
