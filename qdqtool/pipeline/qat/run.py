"""Turns a PyTorch network into two audited engines: prepare, calibrate, export, train, export, and a run of both models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.backends.torch_qat.presence import need_torch
from qdqtool.core.kinds import CALIBRATION, PLACEMENT, QAT
from qdqtool.core.qat import QatResult, UntrainedSlot
from qdqtool.core.report import Report
from qdqtool.io.files import digest_file, write_bytes
from qdqtool.pipeline import runner
from qdqtool.pipeline.folder import RunFolder, StepRecord, key_of
from qdqtool.pipeline.own_code import own_code
from qdqtool.pipeline.qat.measured import rows_of_metric
from qdqtool.pipeline.qat.request import QatRequest
from qdqtool.pipeline.qat.table import rows
from qdqtool.pipeline.request import NullProgress, ProgressListener, RunRequest
from qdqtool.pipeline.third_party import QDQ_LINE
from qdqtool.pipeline.usage import UsageMeter

if TYPE_CHECKING:
    from qdqtool.backends.torch_qat.model import PreparedModel
    from qdqtool.backends.torch_qat.network import Network, Trained


_NOISE = 0.5
"""Standard error, in points, from which the choice of an epoch is reported as uncertain."""
_FREE = frozenset({"tensorboard", "threads"})
"""Options that may change when a stopped training continues."""


def run(request: QatRequest, listener: ProgressListener | None = None) -> QatResult:
    """Run all steps in `request.out`, and return the table. A second call continues where the first one was stopped.

    Leaves there: `float.onnx`, the two Q/DQ models `calibrated.onnx` and `trained.onnx`, `placement.json`,
    `calibration.json`, `checkpoint.pt`, `best.pt`, `training.jsonl`, `data/`, `qat.json`, and the run folders `ptq` and
    `qat` of the two Q/DQ models.

    Raises:
        MissingPackage: torch, or the engine's package, is not installed.
        QdqError: a step failed; what is finished stays.
    """
    need_torch()
    from qdqtool.backends.torch_qat.network import Network
    from qdqtool.pipeline.qat import library

    out = request.out
    folder = RunFolder(out)
    with folder.locked():
        network = Network(request.recipe.qat, request.beside)
        data = _Data(network, out / "data", request.recipe.samples.limit)
        work = _Work(request, folder, network, data, listener or NullProgress())
        network.export(out / "float.onnx")
        model = library.prepare_traced(network.traced, request.recipe)
        PLACEMENT.write(out / "placement.json", model.placement)
        work.calibrate(model)
        library.export(model, out / "calibrated.onnx")
        trained = work.train(model)
        library.export(model, out / "trained.onnx", network.train.batches(), data.calibrates)
        reports = work.run_of("calibrated.onnx", "ptq"), work.run_of("trained.onnx", "qat")
        result = _result(work, model, trained, reports)
        QAT.write(out / "qat.json", result)
        return result


class _Data:
    """The data of the recipe, as files for the steps of a run."""

    def __init__(self, network: Network, folder: Path, limit: int | None) -> None:
        self.calibration, self.evaluation = folder / "calibration.npz", folder / "evaluation.npz"
        columns, _ = network.train.gathered(limit)
        self.calibrates = len(columns[0])
        _write_npz(self.calibration, network.inputs, columns)
        columns, targets = network.test.gathered()
        _write_npz(self.evaluation, network.inputs, columns)
        self.labels: Path | None = None
        if isinstance(targets, np.ndarray) and targets.ndim == 1 and targets.dtype.kind in "iu":
            self.labels = folder / "labels.npy"
            stream = BytesIO()
            np.save(stream, targets.astype(np.int64), allow_pickle=False)
            write_bytes(self.labels, stream.getvalue())
        self.digest = digest_file(self.calibration)


def _write_npz(path: Path, names: Sequence[str], columns: Sequence[Any]) -> None:
    stream = BytesIO()
    np.savez(stream, allow_pickle=False, **dict(zip(names, columns, strict=True)))
    write_bytes(path, stream.getvalue())


@dataclass(frozen=True)
class _Work:
    """A training in progress."""

    request: QatRequest
    folder: RunFolder
    network: Network
    data: _Data
    listener: ProgressListener

    def calibrate(self, model: PreparedModel) -> None:
        """Give the model its ranges: those of an earlier call if nothing that they depend on has changed."""
        from qdqtool.pipeline.qat import library

        recipe, path = self.request.recipe, self.folder / "calibration.json"
        key = self._key(
            ranges={name: getattr(recipe, name).model_dump(mode="json") for name in ("prepare", "calibrate")}
        )
        known = self.folder.footprints().get("calibrate")
        self.listener.started("calibrate")
        if known is not None and self.folder.is_up_to_date("calibrate", key):
            library.start_from(model, CALIBRATION.read(path))
            self.listener.finished("calibrate", known.measured, skipped=True)
            return
        with UsageMeter() as meter:
            table = library.calibrate(model, self.network.train.batches(), self.data.calibrates)
            CALIBRATION.write(path, table)
        record = StepRecord(key=key, outputs={path.name: digest_file(path)}, measured=meter.measured)
        self.folder.remember("calibrate", record)
        self.listener.finished("calibrate", meter.measured, skipped=False)

    def train(self, model: PreparedModel) -> Trained:
        """Train to the last epoch; continue where an earlier call was stopped."""
        options = self.request.recipe.qat.model_dump(mode="json")
        key = self._key(
            ranges=digest_file(self.folder / "calibration.json"),
            options={name: options[name] for name in sorted(options) if name not in _FREE},
        )
        self.listener.started("train")
        trained = self.network.fit(model, self.folder.path, key, self.listener.progressed)
        seconds = sum(epoch.seconds or 0.0 for epoch in trained.epochs)
        self.listener.finished("train", {"seconds": seconds}, skipped=False)
        return trained

    def _key(self, **parts: object) -> str:
        placement = self.folder / "placement.json"
        return key_of(
            {
                "qdqtool": own_code(),
                "network": self.network.digest,
                "placement": digest_file(placement),
                "data": self.data.digest,
                **parts,
            }
        )

    def run_of(self, model: str, name: str) -> Report:
        """Build and audit one of the Q/DQ models, and measure its accuracy against the network as given."""
        request, data = self.request, self.data
        order = RunRequest(
            model=self.folder / model,
            recipe=request.recipe,
            samples=str(data.calibration),
            eval_samples=str(data.evaluation),
            labels=None if data.labels is None else str(data.labels),
            out=self.folder / name,
            cache=request.cache,
            reference=self.folder / "float.onnx",
        )
        return runner.run(order, _Prefixed(self.listener, name), course=QDQ_LINE)


def _result(work: _Work, model: PreparedModel, trained: Trained, reports: tuple[Report, Report]) -> QatResult:
    request = work.request
    assert reports[1].comparison is not None
    samples = reports[1].comparison.samples
    if ":" in request.recipe.qat.metric:
        metric, unit, samples, table = rows_of_metric(work.network, request.out, *reports)
    else:
        metric, unit, table = rows(*reports)
    notes = []
    if trained.noise > _NOISE:
        notes.append(
            f"a validation score is uncertain by {trained.noise:.1f} points (standard error): epochs within this error count as equal, and the latest of them was kept; more validation samples give a better choice"
        )
    if trained.kept == 0:
        notes.append(
            "no epoch was better on the validation samples than calibration alone; PTQ weights were kept"
        )
    return QatResult(
        metric=metric,
        unit=unit,
        samples=samples,
        rows=table,
        engine=request.recipe.qat.engine,
        device=trained.device,
        best_epoch=trained.kept,
        epochs=tuple(replace(epoch, seconds=None) for epoch in trained.epochs),
        quantizers=len({site.tensor for site in model.sites.found}),
        untrained=tuple(UntrainedSlot(slot=str(slot), reason=why) for slot, why in model.sites.lost),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Prefixed:
    """Adds the name of the run to the steps that a listener receives."""

    listener: ProgressListener
    name: str

    def started(self, step: str) -> None:
        self.listener.started(f"{self.name}: {step}")

    def progressed(self, done: int, total: int | None) -> None:
        self.listener.progressed(done, total)

    def said(self, words: str) -> None:
        self.listener.said(words)

    def finished(self, step: str, measured: Any, *, skipped: bool) -> None:
        self.listener.finished(f"{self.name}: {step}", measured, skipped=skipped)
