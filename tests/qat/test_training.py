"""Training: the same whether interrupted or not, stopped by what is no number, and never fooled by another's files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from qdqtool.backends.torch_qat import losses, training  # noqa: E402
from qdqtool.backends.torch_qat.model import QatModel  # noqa: E402
from qdqtool.backends.torch_qat.network import Trained  # noqa: E402
from qdqtool.backends.torch_qat.training import kept_epoch, noise_of  # noqa: E402
from qdqtool.core.calibration import CalibrationTable  # noqa: E402
from qdqtool.core.qat import Epoch  # noqa: E402
from qdqtool.errors import InputFileError, UsageError  # noqa: E402
from tests.qat import networks  # noqa: E402
from tests.qat.material import NodeEvidence, make, network_of  # noqa: E402


@dataclass(frozen=True)
class Fitted:
    """What a training left."""

    model: QatModel
    trained: Trained

    @property
    def table(self) -> CalibrationTable:
        return self.model.trained()

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self.trained.epochs


def fit(
    folder: Path, *changes: str, key: str = "key", into: str = "out", model: str = "mixed"
) -> tuple[NodeEvidence, Fitted]:
    case = make(folder, model, *changes)
    return case, Fitted(*case.fit(folder / into, key))


def weights_of(case) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in case.network.flat.state_dict().items()}


def test_zero_epochs_keep_the_network_and_its_ranges(tmp_path: Path) -> None:
    before = weights_of(make(tmp_path, "mixed"))
    case, trained = fit(tmp_path, "qat.epochs=0")
    assert all(torch.equal(before[name], value) for name, value in weights_of(case).items())
    assert [epoch.number for epoch in trained.epochs] == [0]
    for old, new in zip(case.table.ranges, trained.table.ranges, strict=True):
        assert new.amax == pytest.approx(old.amax, rel=1e-6)


def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, first = fit(tmp_path, "qat.epochs=3", into="whole")
    step = training._TrainingRun._step
    count = iter(range(1000))

    def until_the_fifth(self, *arguments):
        if next(count) == 4:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(training._TrainingRun, "_step", until_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, "qat.epochs=3", into="halves")
    monkeypatch.undo()
    halves, second = fit(tmp_path, "qat.epochs=3", into="halves")
    assert [epoch.score for epoch in first.epochs] == [epoch.score for epoch in second.epochs]
    assert [entry.amax for entry in first.table.ranges] == [entry.amax for entry in second.table.ranges]
    known = weights_of(whole)
    assert all(torch.equal(known[name], value) for name, value in weights_of(halves).items())


def test_learned_scales_move_and_fixed_ones_do_not(tmp_path: Path) -> None:
    better = ("qat.metric=loss", "qat.learning_rate=0.003", "qat.epochs=4")
    case, learned = fit(tmp_path, *better, into="learned")
    assert any(
        old.amax != pytest.approx(new.amax, rel=1e-4)
        for old, new in zip(case.table.ranges, learned.table.ranges, strict=True)
    )
    case, fixed = fit(tmp_path, "qat.scales=fixed", *better, into="fixed")
    for old, new in zip(case.table.ranges, fixed.table.ranges, strict=True):
        assert new.amax == pytest.approx(old.amax, rel=1e-6)


def test_frozen_statistics_do_not_move_and_free_ones_do(tmp_path: Path) -> None:
    before = weights_of(make(tmp_path, "mixed"))["stem_1.running_mean"]
    for frozen, into in ((0, "frozen"), (2, "free")):
        case, trained = fit(tmp_path, f"qat.freeze_epoch={frozen}", "qat.metric=loss", into=into)
        best = trained.trained.kept
        moved = not torch.equal(before, weights_of(case)["stem_1.running_mean"])
        assert moved == (frozen > 0 and best > 0)


@pytest.mark.parametrize(
    "changes",
    [
        ["qat.optimizer=sgd", "qat.clip_gradient=1", "qat.warmup_epochs=1"],
        ["qat.distill=1", "qat.schedule=constant"],
        ["qat.batchnorm=fold", "qat.metric=loss"],
        ["qat.loss=networks.py:exploding", "qat.epochs=1"],
    ],
    ids=["SGD with warm-up", "distillation without labels", "folded BatchNorm", "a loss of one's own"],
)
def test_training_runs_with(tmp_path: Path, changes: list[str]) -> None:
    _, trained = fit(tmp_path, *changes)
    assert all(epoch.loss is None or epoch.loss > 0 for epoch in trained.epochs)
    lines = (tmp_path / "out" / "training.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(len(trained.epochs)))


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"became nan in epoch 2, step 2 of 3; the checkpoint of epoch 1"):
        fit(tmp_path, "qat.loss=networks.py:exploding", "qat.epochs=4")
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["epoch"] == 1
    assert all(torch.isfinite(value).all() for value in state["network"].values())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    fit(tmp_path)
    with pytest.raises(InputFileError, match="of another model"):
        fit(tmp_path, key="another")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    fit(tmp_path)
    path = tmp_path / "out" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputFileError, match="is not a checkpoint"):
        fit(tmp_path)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    (tmp_path / "out").mkdir()
    torch.save({"key": "key", "network": Bomb()}, tmp_path / "out" / "checkpoint.pt")
    with pytest.raises(InputFileError, match="is not a checkpoint"):
        fit(tmp_path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("wrong_targets", r"\[48\] inputs for 47 targets"),
        ("wrong_channels", r"does not accept samples of shape \[16, 2, 8, 8\]"),
        ("two_inputs", "there are 2 inputs"),
        ("infinite", "NaN or Inf"),
        ("nothing", "contains no samples"),
        ("empty", "returned no samples"),
        ("missing", "no function 'missing'"),
    ],
)
def test_bad_data_is_refused_before_training(data: str, says: str) -> None:
    with pytest.raises((InputFileError, UsageError), match=says):
        network_of("mixed", data=data)


def test_batches_of_another_shape_are_named() -> None:
    with pytest.raises(InputFileError, match=r"has samples of shape .*10, 10"):
        list(network_of("mixed", data="growing").train.batches(0))


def test_a_stream_that_ends_early_is_noticed() -> None:
    feed = network_of("mixed", data="shrinking").train
    assert len(list(feed.batches(0))) == 3
    with pytest.raises(InputFileError, match="ended after 2 of 3 batches"):
        list(feed.batches(1))


def test_a_dataset_of_pairs_gives_the_same_batches_as_arrays() -> None:
    one, other = network_of("mixed").train, network_of("mixed", data="pairs").train
    for (left, first), (right, second) in zip(one.batches(2), other.batches(2), strict=True):
        assert torch.equal(left[0], right[0])
        assert torch.equal(first, second)


def test_every_epoch_has_an_order_of_its_own_that_can_be_repeated() -> None:
    feed = network_of("mixed").train
    orders = [[tuple(labels.tolist()) for _, labels in feed.batches(epoch)] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]


def test_a_gradient_that_is_no_number_stops_before_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"became NaN or infinite in epoch 2; the checkpoint of epoch 1"):
        fit(tmp_path, "qat.loss=networks.py:spiking", "qat.epochs=4", "qat.freeze_epoch=9")
    for name in ("checkpoint.pt", "best.pt"):
        state = torch.load(tmp_path / "out" / name, weights_only=True)
        assert state["epoch"] <= 1
        assert all(torch.isfinite(value).all() for value in state["network"].values())


def test_a_mask_of_minus_infinity_does_not_stop_the_training(tmp_path: Path) -> None:
    _, trained = fit(tmp_path, "qat.epochs=1", model="causal")
    assert [epoch.number for epoch in trained.epochs] == [0, 1]


@pytest.fixture(autouse=True)
def _first_step() -> None:
    networks.exploding.steps = 0


def _epochs(*scores: float | None) -> list[Epoch]:
    return [
        Epoch(number=number, loss=None, score=score, learning_rate=0.0) for number, score in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("scores", "noise", "kept"),
    [
        ((89.0,), 1.3, 0),
        ((89.0, 88.5, 87.0), 1.3, 0),
        ((89.0, 96.5, 96.5, 96.5), 0.0, 3),
        ((89.0, 88.5, 96.5, 93.5, 91.5, 95.5, 95.5, 95.5, 95.5), 1.3, 8),
        ((50.0, 90.0, 90.0, 90.0, 60.0, 55.0), 1.0, 3),
        ((50.0, 90.0, None), 1.0, 1),
        ((50.0, None, 90.0), 1.0, 2),
    ],
    ids=[
        "untrained",
        "no better",
        "ties go to the later",
        "a lucky epoch",
        "a collapse",
        "no number",
        "no number before",
    ],
)
def test_the_kept_epoch_is_the_latest_within_the_noise_of_the_best(
    scores: tuple[float | None, ...], noise: float, kept: int
) -> None:
    assert kept_epoch(_epochs(*scores), noise) == kept


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0, 5))
def test_the_kept_epoch_was_already_kept_when_it_ended(scores: list[float], noise: float) -> None:
    epochs = _epochs(*scores)
    kept = kept_epoch(epochs, noise)
    assert kept_epoch(epochs[: kept + 1], noise) == kept
    assert all(kept_epoch(epochs[: each + 1], noise) != each for each in range(kept + 1, len(epochs)))


def test_a_metric_that_is_no_number_is_no_score(tmp_path: Path) -> None:
    """The journal and qat.json are JSON, which has no NaN and no infinity."""
    _, fitted = fit(tmp_path, "qat.metric=networks.py:undefined", "qat.epochs=1")
    assert fitted.trained.kept == 0
    assert [epoch.score for epoch in fitted.epochs] == [None, None]
    assert "Infinity" not in (tmp_path / "out" / "training.jsonl").read_text("utf-8")


def test_the_noise_of_a_share_is_that_of_its_samples() -> None:
    assert noise_of("top1", 96.0, 200) == pytest.approx(1.386, abs=1e-3)
    assert noise_of("top1", 100.0, 200) > 0
    assert noise_of("loss", -0.3, 200) == 0


def test_loss_metric_and_distillation_see_everything_that_the_network_returns() -> None:
    outputs = {"boxes": torch.ones(2, 4), "scores": (torch.zeros(2, 3), torch.zeros(2, 3))}
    targets = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UsageError, match="returns 3 tensors"):
        losses.LOSSES["cross_entropy"](outputs, targets)
    with pytest.raises(UsageError, match="returns 3 tensors"):
        losses.top1(outputs, targets)
    assert losses.top1({"only": torch.eye(2, 3)}, torch.tensor([0, 1])) == 100.0
    other = {"boxes": torch.zeros(2, 4), "scores": (torch.zeros(2, 3), torch.eye(2, 3))}
    assert float(losses.measure_distillation(outputs, outputs, 2.0)) == pytest.approx(0.0, abs=1e-6)
    moved = {"boxes": torch.ones(2, 4), "scores": other["scores"]}
    assert float(losses.measure_distillation(moved, outputs, 2.0)) > 0.0
