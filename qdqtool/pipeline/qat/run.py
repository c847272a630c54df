"""From a PyTorch network to an audited INT8 engine: export, PTQ, training from there, export, and the line again."""

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
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Report
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.io.files import digest_file, write_bytes
from qdqtool.pipeline import runner
from qdqtool.pipeline.folder import RunFolder, key_of
from qdqtool.pipeline.qat.measured import rows_of_metric
from qdqtool.pipeline.qat.request import QatRequest
from qdqtool.pipeline.qat.steps import course
from qdqtool.pipeline.qat.table import rows
from qdqtool.pipeline.request import NullProgress, ProgressListener, RunRequest

if TYPE_CHECKING:
    from qdqtool.backends.torch_qat.network import Network, Trained


_NOISE = 0.5
"""Points of standard error from which on the choice of an epoch is said to be uncertain."""
_FREE = frozenset({"tensorboard", "threads"})
"""Options that may change between two halves of one training."""


def run(request: QatRequest, listener: ProgressListener | None = None) -> QatResult:
    """Do everything in `request.out` and return the table; the same request again goes on where it was stopped.

    Leaves there: `float.onnx` and `trained.onnx` (both float), `trained.json` (the trained ranges), `checkpoint.pt`,
    `best.pt`, `training.jsonl`, `data/`, the run folders `ptq` and `qat`, and `qat.json`.

    Raises:
        MissingPackage: torch, or the engine's package, is not installed.
        QdqError: a step failed; what is finished stays.
    """
    need_torch()
    from qdqtool.backends.torch_qat.network import Network

    folder = RunFolder(request.out)
    with folder.locked():
        network = Network(request.recipe.qat, request.beside)
        data = _Data(network, request.out / "data", request.recipe.samples.limit)
        listener = listener or NullProgress()
        network.export(request.out / "float.onnx")
        ptq = runner.run(_line_request(request, data, "float.onnx", "ptq"), _Prefixed(listener, "ptq"))
        trained = _train(network, request, data, listener)
        network.export(request.out / "trained.onnx")
        CALIBRATION.write(request.out / "trained.json", trained.table)
        exchanged = course(request.out / "trained.json", request.out / "ptq" / "model.prepared.onnx")
        line = _line_request(
            replace(request, recipe=_trained_biases(request.recipe)), data, "trained.onnx", "qat"
        )
        qat = runner.run(line, _Prefixed(listener, "qat"), course=exchanged)
        result = _result(network, request, trained, (ptq, qat))
        QAT.write(request.out / "qat.json", result)
        return result


def _trained_biases(recipe: Recipe) -> Recipe:
    """The recipe for a trained network, whose biases are what training made of the corrected ones."""
    kept = recipe.calibrate.model_copy(update={"bias": "keep"})
    return recipe.model_copy(update={"calibrate": kept})


class _Data:
    """The data of the recipe as files that the line reads."""

    def __init__(self, network: Network, folder: Path, limit: int | None) -> None:
        self.calibration, self.evaluation = folder / "calibration.npz", folder / "evaluation.npz"
        columns, _ = network.train.gathered(limit)
        _write_npz(self.calibration, network.inputs, columns)
        columns, targets = network.test.gathered()
        _write_npz(self.evaluation, network.inputs, columns)
        self.labels: Path | None = None
        if isinstance(targets, np.ndarray) and targets.ndim == 1 and targets.dtype.kind in "iu":
            self.labels = folder / "labels.npy"
            stream = BytesIO()
            np.save(stream, targets.astype(np.int64), allow_pickle=False)
            write_bytes(self.labels, stream.getvalue())
        self.train_digest = digest_file(self.calibration)


def _write_npz(path: Path, names: Sequence[str], columns: Sequence[Any]) -> None:
    stream = BytesIO()
    np.savez(stream, allow_pickle=False, **dict(zip(names, columns, strict=True)))
    write_bytes(path, stream.getvalue())


def _line_request(request: QatRequest, data: _Data, model: str, out: str) -> RunRequest:
    return RunRequest(
        model=request.out / model,
        recipe=request.recipe,
        samples=str(data.calibration),
        eval_samples=str(data.evaluation),
        labels=None if data.labels is None else str(data.labels),
        out=request.out / out,
        cache=request.cache,
    )


def _train(network: Network, request: QatRequest, data: _Data, listener: ProgressListener) -> Trained:
    from qdqtool.backends.torch_qat.network import digest

    ptq = request.out / "ptq"
    placement = PLACEMENT.read(ptq / "placement.json")
    if not placement.quantized:
        raise UsageError(
            "the placement quantizes nothing, so there is nothing to train",
            fix="run `qdqtool place` on float.onnx to see the reasons",
            where=str(ptq / "placement.json"),
        )
    options = request.recipe.qat.model_dump(mode="json")
    key = key_of(
        {
            "network": digest(network),
            "placement": digest_file(ptq / "placement.json"),
            "ranges": digest_file(ptq / "calibration.json"),
            "data": data.train_digest,
            "options": {name: options[name] for name in sorted(options) if name not in _FREE},
        }
    )
    start = (
        placement,
        CALIBRATION.read(ptq / "calibration.json"),
        load(ptq / "model.prepared.onnx").view,
    )
    listener.started("train")
    trained = network.fit(start, request.out, key, listener.progressed)
    seconds = sum(epoch.seconds or 0.0 for epoch in trained.epochs)
    listener.finished("train", {"seconds": seconds}, skipped=False)
    return trained


def _result(
    network: Network, request: QatRequest, trained: Trained, reports: tuple[Report, Report]
) -> QatResult:
    assert reports[1].comparison is not None
    samples = reports[1].comparison.samples
    if ":" in request.recipe.qat.metric:
        metric, unit, samples, table = rows_of_metric(network, request.out, *reports)
    else:
        metric, unit, table = rows(*reports)
    notes = []
    if trained.noise > _NOISE:
        notes.append(
            f"a validation score is uncertain by {trained.noise:.1f} points (standard error): epochs within that were "
            "taken for equal and the latest of them kept; more validation samples would choose better"
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
        quantizers=len({site.tensor for site in trained.sites.found}),
        untrained=tuple(UntrainedSlot(slot=str(slot), reason=why) for slot, why in trained.sites.lost),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Prefixed:
    """Tells a listener which of the two runs a step belongs to."""

    listener: ProgressListener
    name: str

    def started(self, step: str) -> None:
        self.listener.started(f"{self.name}: {step}")

    def progressed(self, done: int, total: int | None) -> None:
        self.listener.progressed(done, total)

    def finished(self, step: str, measured: Any, *, skipped: bool) -> None:
        self.listener.finished(f"{self.name}: {step}", measured, skipped=skipped)
