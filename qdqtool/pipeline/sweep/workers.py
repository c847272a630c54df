"""Runs a sweep on Dask: every worker takes part in the study, as if the command had been started there.

The workers must see the model, the samples and the sweep's folder under the same paths. What they find is in the
storage, so a worker that dies loses its running trial only, and the scheduler itself holds nothing that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock

from qdqtool.errors import MissingPackage
from qdqtool.pipeline.cluster import absolute, client_of
from qdqtool.pipeline.sweep.context import SweepRequest

_ONE_AT_A_TIME = Lock()
"""Lock for one trial at a time in a process: so its unfinished trials can be distinguished from lost ones."""


def join_all(
    request: SweepRequest, join: Callable[[SweepRequest], int], tell: Callable[[str, int, int | None], None]
) -> None:
    """Let all workers of the cluster run `join` until no trial is left.

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
    """Return the request with paths that are valid on every worker, and without a cluster."""
    base = request.base
    labels = None if base.labels is None else str(Path(base.labels).resolve())
    evaluation = None if base.eval_samples is None else absolute(base.eval_samples)
    base = replace(
        base,
        model=base.model.resolve(),
        samples=absolute(base.samples),
        eval_samples=evaluation,
        labels=labels,
        out=base.out.resolve(),
        cache=None if base.cache is None else base.cache.resolve(),
    )
    recipe = request.recipe
    known = recipe is not None and Path(recipe).is_file()
    return replace(
        request, base=base, recipe=str(Path(recipe or "").resolve()) if known else recipe, cluster=""
    )
