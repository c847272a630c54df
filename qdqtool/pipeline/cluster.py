"""Calibration on many machines: Dask workers each run shards of the samples, and the histograms are added up.

The workers must see the model and the samples under equal paths, and have equal releases of qdqtool, onnxruntime and
numpy. Other releases would give other bits, so such workers are refused. A shard of a worker that dies is run again
by another; finished shards are kept on disk, so that the command can be interrupted too, or the scheduler die.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

from qdqtool.backends.building.procedure import external_files
from qdqtool.calibration.collect import Collection, OnProgress
from qdqtool.calibration.histograms import (
    Histograms,
    Span,
    load_histograms,
    merge_parts,
    releases,
    save_histograms,
)
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.samples import SampleInput
from qdqtool.calibration.samples.opening import SampleSpec
from qdqtool.core.recipe import Preprocess
from qdqtool.errors import InputFileError, MissingPackage, QdqError, SystemFault, UsageError
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.platform import processors

SHARDS: Final = 64
"""Most parts that the samples are divided into: small enough that little is lost with a worker."""
_FEWEST: Final = 8
"""Fewest samples of a part: the transfer of a part takes as long as a small network takes for one sample."""
LOCAL: Final = frozenset({"", "local", "dask://"})
"""Addresses that mean workers on this machine."""
_ENCRYPTED: Final = ("tls://", "wss://")
"""Beginnings of addresses with certificates at both ends, which Dask reads from its own settings."""
LOCAL_SETTINGS: Final = {
    "distributed.worker.profile.enabled": False,  # 100 stack samples a second
    "distributed.scheduler.http.routes": [],  # pages that nobody needs, visible for all users of this machine
    "distributed.worker.http.routes": [],
    "distributed.nanny.http.routes": [],
}
"""Settings of Dask for workers on this machine."""


def collect_on_cluster(
    job: Calibration,
    options: CollectOptions,
    address: str,
    kept: Path | None,
    on_progress: OnProgress | None = None,
) -> Histograms:
    """Collect the histograms of all samples on a cluster. They equal those of a single process bit for bit.

    Args:
        job: model, placement and samples.
        options: options for counting; each worker uses one processor per thread.
        address: a scheduler as "tcp://host:8786", "dask://host:8786" or "tls://host:8786", or "local" for workers on
            this machine.
        kept: folder for finished work; None keeps no work.
        on_progress: called with the number of finished samples and their total.

    Raises:
        MissingPackage: dask.distributed is not installed, the scheduler does not answer or is gone, workers keep
            dying, lack the model, or have other releases installed.
        InputFileError: a sample or the model is wrong.
    """
    total = len(job.samples)
    shards = max(1, min(SHARDS, total // _FEWEST))
    request = _absolute(job.request)
    with _folder(kept) as folder:
        parts = _read_finished(folder, job, options, Span(shards=shards, total=total))
        missing = [shard for shard in range(shards) if f"{shard}" not in parts]

        def keep(shard: int, part: Histograms) -> None:
            if kept is not None:
                save_histograms(folder / f"{shard}.npz", part)
            parts[f"{shard}"] = part
            if on_progress is not None:
                on_progress(sum(entry.span.done for entry in parts.values()), total)

        if missing:
            with client_of(address) as client:
                for shard, part in _compute_shards(client, request, options, missing, shards):
                    keep(shard, part)
        histograms = merge_parts(dict(sorted(parts.items(), key=lambda item: int(item[0]))))
        if kept is not None:
            save_histograms(kept, histograms)
    return histograms


def collect_shard(
    request: CalibrationRequest, options: CollectOptions, span: Span, expected: Mapping[str, str]
) -> Histograms:
    """Collect one shard on a worker. The model stays open for the next shard.

    Raises:
        MissingPackage: this worker has other releases than `expected`, or does not see the model or the samples.
        InputFileError: a sample or the model is wrong.
    """
    _check_place(request, expected)
    collection, total, identity = _open_collection(request, replace(options, threads=1))
    return replace(collection.run(replace(span, total=total)), identity=identity)


def _check_place(request: CalibrationRequest, expected: Mapping[str, str]) -> None:
    where = f"worker on {socket.gethostname()}"
    different = [f"{name} {there}" for name, there in releases().items() if there != expected[name]]
    if different:
        expected_releases = ", ".join(f"{name} {release}" for name, release in expected.items())
        raise MissingPackage(
            f"the worker has {', '.join(different)}: its results would differ in some bits",
            fix=f"install {expected_releases} on all workers",
            where=where,
        )
    unseen = [path for path in (request.model, request.placement) if path is not None and not path.exists()]
    heads = [Path(head) for head in _heads(absolute(request.samples))]
    if heads[0].is_absolute() and not any(head.exists() for head in heads):
        unseen.append(heads[-1])
    if unseen:
        raise MissingPackage(
            f"the worker cannot access {unseen[0]}",
            fix="give all workers the same folder under the same path",
            where=where,
        )


def _open_collection(request: CalibrationRequest, options: CollectOptions) -> _Opened:
    """Open the histogram collection of a request. A worker keeps its last collection open, until a file changes."""
    key = repr((request, options, _stamps(request)))
    with _opening:  # a worker may have several threads
        if key not in _kept_open:
            job = Calibration(request)
            collection = job.collection(options)
            _kept_open.clear()
            _kept_open[key] = (collection, len(job.samples), collection.identity())
        return _kept_open[key]


def _stamps(request: CalibrationRequest) -> list[tuple[str, int, int]]:
    """Return name, time of the last change and size of all files that a request reads."""
    places = [Path(head) for head in _heads(absolute(request.samples))]
    files = [
        request.model,
        *external_files(request.model),
        *([request.placement] if request.placement else []),
    ]
    for place in places:
        files += sorted(place.iterdir()) if place.is_dir() else [place]
    stats = [(str(file), file.stat()) for file in files if file.exists()]
    return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]


_Opened = tuple[Collection, int, dict[str, str]]
_kept_open: dict[str, _Opened] = {}
_opening = Lock()


def _compute_shards(
    client: Any, request: CalibrationRequest, options: CollectOptions, missing: list[int], shards: int
) -> Iterator[tuple[int, Histograms]]:
    from distributed import as_completed

    expected = releases()
    futures = {}
    for shard in missing:
        span = Span(shard=shard, shards=shards)
        future = client.submit(collect_shard, request, options, span, expected, pure=False, retries=2)
        futures[future] = shard
    try:
        for future in as_completed(list(futures)):
            yield futures[future], _result(future)
    finally:
        if client.status == "running":
            client.cancel(list(futures))


def _result(future: Any) -> Histograms:
    """Return the histograms of a worker, or raise its error with a fix for this machine."""
    from distributed import KilledWorker

    if future.status == "finished":
        return future.result()  # type: ignore[no-any-return]
    if future.status == "cancelled":
        raise MissingPackage(
            "the Dask scheduler has stopped",
            fix="start it again and repeat the command; finished shards are kept",
        )
    error = future.exception()
    if isinstance(error, QdqError):
        raise error
    if isinstance(error, KilledWorker):
        raise MissingPackage(
            f"workers died repeatedly: {error}", fix="give them more memory; finished shards are kept"
        ) from error
    raise MissingPackage(
        f"a worker cannot run shards: {type(error).__name__}: {error}",
        fix="install the same qdqtool on all workers; finished shards are kept",
    ) from error


@contextmanager
def client_of(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler at `address`, or of workers started on this machine.

    Raises:
        MissingPackage: dask.distributed or cryptography is not installed, or no scheduler answers.
        UsageError: the address asks for TLS, and Dask's settings name no certificates.
        SystemFault: workers could not be started on this machine.
    """
    try:
        import dask
        import distributed

        own = distributed.Security.temporary() if address in LOCAL else None
    except ImportError as error:
        raise MissingPackage(
            f"{'dask.distributed' if error.name == 'distributed' else error.name} is not installed",
            fix="pip install 'qdqtool[cluster]'",
            where="--cluster",
        ) from error
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # do not show its notes about every connection
    if address in LOCAL:
        with dask.config.set(LOCAL_SETTINGS), ExitStack() as stack:
            client = _workers_here(distributed, own, stack)
            with _guard_connection(client):
                yield client
        return
    if (
        address.startswith(_ENCRYPTED)
        and not distributed.Security().get_connection_args("client")["ssl_context"]
    ):
        raise UsageError(
            "the scheduler requires certificates, and Dask's settings have none",
            fix="set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__TLS__CLIENT__CERT and ...__TLS__CLIENT__KEY to files",
            where=address,
        )
    try:
        client = distributed.Client(address.replace("dask://", "tcp://", 1), timeout="5s")
    except (OSError, ValueError) as error:
        raise MissingPackage(
            f"no Dask scheduler answers: {error}",
            fix="start one with `dask scheduler`, or use --cluster local",
            where=address,
        ) from error
    with client, _guard_connection(client):
        yield client


def _workers_here(distributed: Any, own: Any, stack: ExitStack) -> Any:
    """Return a client of workers that run on this machine; they end when `stack` closes."""
    try:
        cluster = stack.enter_context(
            distributed.LocalCluster(
                # Workers unpickle what they receive. So they listen only on this machine, and other users lack the
                # key, which is made for this call and never stored.
                host="127.0.0.1",
                protocol="tls://",
                security=own,
                n_workers=processors(),
                threads_per_worker=1,
                dashboard_address=None,
                silence_logs=50,
            )
        )
        return stack.enter_context(distributed.Client(cluster))
    except (RuntimeError, OSError, asyncio.TimeoutError) as error:
        raise SystemFault(
            f"workers could not be started on this machine: {error}",
            fix="run the same command again; if it fails again, free some memory, or remove --cluster",
            where="--cluster local",
        ) from error


@contextmanager
def _guard_connection(client: Any) -> Iterator[None]:
    """Turn errors from a lost scheduler or from missing workers into an error with a fix."""
    from distributed import CancelledError
    from distributed.comm import CommClosedError

    try:
        yield
    except (CommClosedError, CancelledError, asyncio.TimeoutError) as error:
        raise MissingPackage(
            f"the Dask cluster no longer answers: {type(error).__name__}: {error}",
            fix="check the scheduler and its workers, then run the same command again; finished shards and trials are kept",
            where=client.scheduler.address if client.scheduler is not None else "--cluster",
        ) from error


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Yield the folder that keeps finished shards until all shards are finished."""
    if kept is None:
        with TemporaryDirectory(prefix="qdqtool-") as name:
            yield Path(name)
        return
    folder = kept.with_suffix(".shards")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _read_finished(
    folder: Path, job: Calibration, options: CollectOptions, division: Span
) -> dict[str, Histograms]:
    """Return the shards from an interrupted run, if they belong to this run."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        return {}
    identity = job.collection(options).identity()
    parts = {}
    for path in paths:
        try:
            part = load_histograms(path)
        except InputFileError:
            continue  # incomplete or foreign file: this shard runs again
        span = replace(division, shard=part.span.shard, done=part.span.done)
        if part.identity == identity and part.span == span and part.span.is_complete:
            parts[f"{part.span.shard}"] = part
    return parts


def _absolute(request: CalibrationRequest) -> CalibrationRequest:
    """Return the request with paths that are valid on every worker."""
    placement = None if request.placement is None else request.placement.resolve()
    return replace(
        request, model=request.model.absolute(), samples=absolute(request.samples), placement=placement
    )


def absolute(samples: SampleInput) -> str:
    """Return a `--samples` text with a path that is valid in any folder.

    Raises:
        UsageError: the samples are objects of this process.
    """
    if not isinstance(samples, str):
        raise UsageError(
            "samples in memory cannot be sent to the workers of a cluster",
            fix="save the samples as an .npz file in a folder that all workers can access",
            where=samples.description,
        )
    place = next((head for head in _heads(samples) if Path(head).exists()), None)
    return samples if place is None else str(Path(place).resolve()) + samples[len(place) :]


def _heads(samples: str) -> tuple[str, ...]:
    """Return the parts of a `--samples` text that may be a path: "digits.npz[:8]", "feeds.py:function"."""
    place = SampleSpec(text=samples, preprocess=Preprocess()).place
    return tuple(head for head in (place, place.rpartition(":")[0]) if head)
