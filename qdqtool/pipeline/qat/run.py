"""Quantization-aware training from a recipe: the request, the training, and the table of FP32, PTQ and QAT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.backends.torch_qat import need_torch
from qdqtool.core.comparison import Comparison, TaskAccuracy
from qdqtool.core.kinds import BUILD, CALIBRATION, PLACEMENT, QAT
from qdqtool.core.qat import QatResult, QatRow, UntrainedSlot
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Report
from qdqtool.io.files import digest_file, write_bytes
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline import runner
from qdqtool.pipeline.own_code import own_code
from qdqtool.pipeline.request import (
    NullProgress,
    ProgressListener,
    RunFolder,
    RunRequest,
    StepRecord,
    UsageMeter,
)
from qdqtool.pipeline.third_party import QDQ_LINE
from qdqtool.runtime.runner import open_runner

if TYPE_CHECKING:
    from qdqtool.backends.torch_qat.model import PreparedModel
    from qdqtool.backends.torch_qat.network import Network, Trained


# --- request ---------------------------------------------------------------------------------------------------------
# The request for quantization-aware training.


@dataclass(frozen=True, kw_only=True, slots=True)
class QatRequest:
    """Parameters of a quantization-aware training.

    Attributes:
        recipe: the method; its section `qat` names the network and its data.
        beside: base folder for relative files of the recipe.
        out: folder for everything; `ptq` and `qat` in it are run folders like any other.
        cache: folder of finished builds by digest, or None.
    """

    recipe: Recipe
    beside: Path
    out: Path
    cache: Path | None = None


# --- table -----------------------------------------------------------------------------------------------------------
# The table FP32, PTQ, QAT, with the uncertainty of each figure.


_Z = 1.959964
"""Quantile of the normal distribution for 95 %."""


def wilson(percent: float, samples: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of independent samples, in percent (Wilson, 1927)."""
    share, z2 = percent / 100, _Z * _Z
    middle = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    reach = _Z / (1 + z2 / samples) * sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    return 100 * max(0.0, middle - reach), 100 * min(1.0, middle + reach)


def rows(ptq: Report, qat: Report) -> tuple[str, str, tuple[QatRow, ...]]:
    """Return the metric, its unit and the rows FP32, PTQ and QAT, from two reports with the same float model."""
    first, second = ptq.comparison, qat.comparison
    assert first is not None
    assert second is not None
    if not first.task or not second.task:
        unit, compared = "dB", (("PTQ", first, ptq), ("QAT", second, qat))
        return "sqnr_db", unit, tuple(_noise_row(*entry) for entry in compared)
    task = first.task[0]
    low, high = wilson(task.reference, task.samples)
    original = QatRow(name="FP32", value=task.reference, low=low, high=high)
    quantized = (_table_row("PTQ", task, ptq), _table_row("QAT", second.task[0], qat))
    return task.metric, task.unit, (original, *quantized)


def _table_row(name: str, task: TaskAccuracy, report: Report) -> QatRow:
    low, high = wilson(task.candidate, task.samples)
    return QatRow(
        name=name,
        value=task.candidate,
        low=low,
        high=high,
        change=task.candidate - task.reference,
        change_low=task.low,
        change_high=task.high,
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )


def _noise_row(name: str, comparison: Comparison, report: Report) -> QatRow:
    measures = comparison.outputs[0].measures if comparison.outputs else ()
    value = next((entry.value for entry in measures if entry.metric == "sqnr_db"), None)
    return QatRow(
        name=name,
        value=value,
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )


# --- measured --------------------------------------------------------------------------------------------------------
# The table for a recipe whose metric is a function: float, PTQ and QAT models measured on the test samples.


_DRAWS = 200
"""Number of bootstrap draws. A metric such as mean average precision needs all samples, so every draw computes it again."""
# Fixed seed: equal scores give equal intervals.
_SEED = 20250


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    value: float
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]


def rows_of_metric(
    network: Network, out: Path, ptq: Report, qat: Report
) -> tuple[str, str, int, tuple[QatRow, ...]]:
    """Return the name of the metric, its unit, the number of test samples, and the rows FP32, PTQ and QAT.

    The intervals are percentile bootstraps: all models are measured on the same samples, drawn with replacement.
    """
    models = {
        "FP32": out / "float.onnx",
        "PTQ": _find_built_model(out / "ptq"),
        "QAT": _find_built_model(out / "qat"),
    }
    measured = {name: _measure_network(network, path) for name, path in models.items()}
    samples = sum(len(inputs[0]) for inputs, _ in network.test.batches())
    reports = {"FP32": None, "PTQ": ptq, "QAT": qat}
    rows = tuple(
        _measured_row(name, each, measured["FP32"], reports[name]) for name, each in measured.items()
    )
    return network.options.metric.rpartition(":")[2], "", samples, rows


def _find_built_model(folder: Path) -> Path:
    return folder / (BUILD.read(folder / "build.json").model or "model.qdq.onnx")


def _measure_network(network: Network, model: Path) -> _Measured:
    from qdqtool.backends.torch_qat.flat import join_batches, pick_samples

    runner = open_runner(model, description=model.name, crowded=True)
    outputs, expected, counts = [], [], []
    for inputs, targets in network.test.batches():
        feeds = {name: value.numpy() for name, value in zip(network.inputs, inputs, strict=True)}
        results = runner.run(feeds)
        outputs.append(network.structured([results[name] for name in runner.outputs]))
        expected.append(targets)
        counts.append(len(inputs[0]))
    score, total = network.score(), sum(counts)
    computed, truth = join_batches(outputs, counts), join_batches(expected, counts)
    return _Measured(
        value=float(score(computed, truth)), draws=_draws(score, (computed, truth), total, pick_samples)
    )


def _draws(
    score: Callable[[Any, Any], float], pair: tuple[Any, Any], total: int, picked: Callable[..., Any]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # One seed for all models, so that all are measured on equal draws and changes are paired.
    rng = np.random.default_rng(_SEED)
    drawn = (rng.integers(0, total, total) for _ in range(_DRAWS))
    return np.array([float(score(*(picked(each, rows, total) for each in pair))) for rows in drawn])


def _measured_row(name: str, mine: _Measured, original: _Measured, report: Report | None) -> QatRow:
    low, high = _interval(mine.draws)
    if report is None:
        return QatRow(name=name, value=_finite(mine.value), low=low, high=high)
    below, above = _interval(mine.draws - original.draws)
    return QatRow(
        name=name,
        value=_finite(mine.value),
        low=low,
        high=high,
        change=_finite(mine.value - original.value),
        change_low=below,
        change_high=above,
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _interval(draws: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of bootstrap draws; Nones if the metric of a draw was NaN or infinite."""
    if not np.isfinite(draws).all():
        return None, None
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


# --- run -------------------------------------------------------------------------------------------------------------


_NOISE = 0.5
"""Standard error, in points, from which the choice of an epoch is reported as uncertain."""
_FREE = frozenset({"tensorboard", "threads"})
"""Options that may change when a stopped training continues."""
_FOR_RANGES = ("prepare", *next(step.obeys for step in runner.LINE if step.name == "calibrate"))
"""Sections of the recipe that the ranges depend on, in addition to the placement."""


def run(request: QatRequest, listener: ProgressListener | None = None) -> QatResult:
    """Run all steps in `request.out`, and return the table. A second call resumes a stopped training.

    Leaves there: `float.onnx`, the two Q/DQ models `calibrated.onnx` and `trained.onnx`, `placement.json`,
    `calibration.json`, `checkpoint.pt`, `best.pt`, `training.jsonl`, `data/`, `qat.json`, and the run folders `ptq` and
    `qat` of the two Q/DQ models.

    Raises:
        MissingPackage: torch, or the engine's package, is not installed.
        QdqError: a step failed; finished steps are kept.
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
        library.export(model, out / "calibrated.onnx", network.train.batches(), data.calibrates)
        trained = work.train(model)
        library.export(model, out / "trained.onnx", network.train.batches(), data.calibrates)
        reports = work.run_of("calibrated.onnx", "ptq"), work.run_of("trained.onnx", "qat")
        result = _result(work, model, trained, reports)
        QAT.write(out / "qat.json", result)
        return result


class _Data:
    """Calibration and evaluation samples of a training recipe, as files; class indices as labels."""

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
    """A quantization-aware training in progress."""

    request: QatRequest
    folder: RunFolder
    network: Network
    data: _Data
    listener: ProgressListener

    def calibrate(self, model: PreparedModel) -> None:
        """Choose the ranges of the model; if nothing has changed, use the ranges of an earlier call."""
        from qdqtool.pipeline.qat import library

        recipe, path = self.request.recipe, self.folder / "calibration.json"
        key = self._key(
            ranges={name: getattr(recipe, name).model_dump(mode="json") for name in _FOR_RANGES},
            export=[recipe.qat.exporter, recipe.qat.opset],
        )
        earlier = self.folder.footprints().get("calibrate")
        self.listener.started("calibrate")
        if earlier is not None and self.folder.is_up_to_date("calibrate", key):
            library.start_from(model, CALIBRATION.read(path))
            self.listener.finished("calibrate", earlier.measured, skipped=True)
            return
        with UsageMeter() as meter:
            table = library.calibrate(model, self.network.train.batches(), self.data.calibrates)
            CALIBRATION.write(path, table)
        record = StepRecord(key=key, outputs={path.name: digest_file(path)}, measured=meter.measured)
        self.folder.remember("calibrate", record)
        self.listener.finished("calibrate", meter.measured, skipped=False)

    def train(self, model: PreparedModel) -> Trained:
        """Train to the last epoch. A stopped training continues."""
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
        return digest_of(
            {
                "qdqtool": own_code(),
                "network": self.network.digest,
                "placement": digest_file(placement),
                "data": self.data.digest,
                **parts,
            }
        )

    def run_of(self, model: str, name: str) -> Report:
        """Build and audit one of the Q/DQ models, and compare its accuracy with that of the original network."""
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
        quantizers=len({site.tensor for site in model.sites.placed}),
        untrained=tuple(UntrainedSlot(slot=str(slot), reason=why) for slot, why in model.sites.lost),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Prefixed:
    """Adds the name of the run to each step that it reports to a listener."""

    listener: ProgressListener
    name: str

    def started(self, step: str) -> None:
        self.listener.started(f"{self.name}: {step}")

    def progressed(self, done: int, total: int | None) -> None:
        self.listener.progressed(done, total)

    def reported(self, words: str) -> None:
        self.listener.reported(words)

    def finished(self, step: str, measured: Any, *, skipped: bool) -> None:
        self.listener.finished(f"{self.name}: {step}", measured, skipped=skipped)
