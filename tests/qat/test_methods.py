"""Each part of the method does what it says: LSQ, schedules, BatchNorm, distillation, mixed precision, biases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from qdqtool.backends.torch_qat import training  # noqa: E402
from qdqtool.backends.torch_qat.fake_quant import ENGINES  # noqa: E402
from qdqtool.backends.torch_qat.fake_quant_backend import Start  # noqa: E402
from qdqtool.backends.torch_qat.flat import run  # noqa: E402
from qdqtool.backends.torch_qat.losses import measure_distillation  # noqa: E402
from qdqtool.backends.torch_qat.model import QatModel  # noqa: E402
from qdqtool.backends.torch_qat.quantized_model import make_student, shift_biases  # noqa: E402
from qdqtool.backends.torch_qat.sites import bias_owners, locate  # noqa: E402
from qdqtool.calibration.samples import open_samples  # noqa: E402
from qdqtool.core.calibration import CalibrationTable, NodeShift  # noqa: E402
from qdqtool.graph.onnx_io.load import load  # noqa: E402
from qdqtool.graph.onnx_io.save import save  # noqa: E402
from qdqtool.graph.qdq.find import find  # noqa: E402
from qdqtool.graph.qdq.insert import insert  # noqa: E402
from qdqtool.pipeline.ranges.bias import correct_biases  # noqa: E402
from tests.qat.material import NodeEvidence, make, network_of, written  # noqa: E402
from tests.qat.test_places import onnx_output  # noqa: E402
from tests.qat.test_training import fit, weights_of  # noqa: E402


def test_a_scale_has_the_gradient_of_the_lsq_paper() -> None:
    quantizer = ENGINES.load("own").quantizer(Start(amax=(1.27,)))
    values = torch.tensor([0.004, 0.016, -0.333, 5.0, -5.0])
    quantizer(values).sum().backward()
    steps = (values / 0.01).double()
    inside = (steps.round() - steps)[:3].sum()
    share = 1 / math.sqrt(5 * 127)
    assert float(quantizer.scale.grad) == pytest.approx(share * float(inside + 127 - 128), rel=1e-4)


def test_values_beyond_the_range_pass_no_gradient() -> None:
    quantizer = ENGINES.load("own").quantizer(Start(amax=(1.0,)))
    values = torch.tensor([0.5, 1.5, -1.5], requires_grad=True)
    quantizer(values).sum().backward()
    assert values.grad.tolist() == [1.0, 0.0, 0.0]


def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> list[float]:
    """The learning rate of every step, as a share of the highest."""
    seen: list[float] = []
    step = training._TrainingRun._step

    def watched(self, *arguments):
        seen.append(self.optimizer.param_groups[0]["lr"] / self.options.learning_rate)
        return step(self, *arguments)

    monkeypatch.setattr(training._TrainingRun, "_step", watched)
    fit(tmp_path, *changes)
    return seen


def test_steps_in_bfloat16_are_validated_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # autocast of the CPU stands for a GPU's; nothing else of a GPU is tested here
    monkeypatch.setattr(
        training._TrainingRun, "_precision", lambda _: torch.autocast("cpu", dtype=torch.bfloat16)
    )
    entered: list[bool] = []
    product = functional.linear

    def counted(*arguments, **options):
        entered.append(torch.is_autocast_enabled("cpu"))
        return product(*arguments, **options)

    monkeypatch.setattr(functional, "linear", counted)
    fit(tmp_path, "qat.epochs=1")
    assert True in entered
    assert not entered[-1]


def test_the_cosine_schedule_is_half_a_cosine_over_all_steps(tmp_path: Path, monkeypatch) -> None:
    seen = rates(tmp_path, monkeypatch, "qat.epochs=4")
    assert seen == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)])


def test_a_warm_up_rises_to_the_full_rate_and_constant_stays(tmp_path: Path, monkeypatch) -> None:
    seen = rates(tmp_path, monkeypatch, "qat.epochs=3", "qat.warmup_epochs=1", "qat.schedule=constant")
    assert seen == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1])


def test_scales_have_their_own_rate_and_no_decay(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed", "qat.scale_rate=0.1", "qat.weight_decay=0.5", "qat.learning_rate=0.01")
    model = QatModel(case.network.flat, case.placement, case.model.view, case.recipe.qat)
    weights, scales = training._optimizer(model, case.recipe.qat).param_groups
    assert (weights["lr"], weights["weight_decay"]) == (0.01, 0.5)
    assert (scales["lr"], scales["weight_decay"]) == (pytest.approx(0.001), 0.0)
    assert {id(p) for p in scales["params"]} == {
        id(module.scale) for module in model.student.quantizers.values()
    }


def test_batchnorm_moves_until_its_epoch_and_not_after(tmp_path: Path, monkeypatch) -> None:
    statistics: list[torch.Tensor] = []
    epoch = training._TrainingRun.one_epoch

    def watched(self) -> None:
        epoch(self)
        statistics.append(dict(self.network.named_buffers())["stem_1.running_mean"].clone())

    monkeypatch.setattr(training._TrainingRun, "one_epoch", watched)
    before = weights_of(make(tmp_path, "mixed"))["stem_1.running_mean"]
    fit(tmp_path, "qat.epochs=4", "qat.freeze_epoch=2")
    first, second, third, fourth = statistics
    assert not torch.equal(before, first)
    assert not torch.equal(first, second)
    assert torch.equal(second, third)
    assert torch.equal(third, fourth)


@pytest.mark.parametrize("model", ["mixed", "residual", "depthwise"])
def test_folded_batchnorm_is_gone_and_changes_nothing(model: str) -> None:
    plain, folded = network_of(model), network_of(model, "qat.batchnorm=fold")
    assert any(isinstance(module, nn.BatchNorm2d) for module in plain.flat.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.flat.modules())
    (inputs,), _ = plain.test.first()
    with torch.no_grad():
        assert torch.allclose(run(plain.flat, (inputs,)), run(folded.flat, (inputs,)), atol=1e-4)


def test_distillation_is_the_divergence_from_the_float_network() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs, teacher = torch.randn(2, 6, 5, generator=generator)
    soft, goal = functional.softmax(outputs / 3, 1), functional.softmax(teacher / 3, 1)
    expected = 9 * (goal * (goal / soft).log()).sum(1).mean()
    assert float(measure_distillation(outputs, teacher, 3)) == pytest.approx(float(expected), rel=1e-5)
    assert float(measure_distillation(teacher, teacher, 3)) == pytest.approx(0, abs=1e-6)


def test_with_distillation_alone_targets_do_not_matter_and_the_teacher_stays_float(tmp_path: Path) -> None:
    losses = []
    for data in ("images", "mislabelled"):
        case = make(tmp_path, "mixed", "qat.distill=1", f"qat.data=networks.py:{data}", "qat.metric=loss")
        losses.append([epoch.loss for epoch in case.fit(tmp_path / data)[1].epochs])
    assert losses[0] == losses[1]
    assert losses[0][1] > 0


def test_bfloat16_keeps_scales_and_weights_in_float_and_learns_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does with qat.mixed, on the CPU's autocast."""
    changes = ("qat.epochs=3", "qat.learning_rate=0.003")
    _, plain = fit(tmp_path, *changes, into="plain")
    monkeypatch.setattr(
        training._TrainingRun, "_precision", lambda _: torch.autocast("cpu", dtype=torch.bfloat16)
    )
    case, mixed = fit(tmp_path, *changes, into="mixed")
    assert {
        value.dtype for value in case.network.flat.state_dict().values() if value.is_floating_point()
    } == {torch.float32}
    first, second = ([epoch.loss for epoch in trained.epochs[1:]] for trained in (plain, mixed))
    assert first != second
    assert second == pytest.approx(first, rel=0.05)


@pytest.mark.parametrize("engine", ["own", "pytorch_quantization", "modelopt"])
def test_every_engine_takes_bfloat16_values(engine: str) -> None:
    from tests.qat.test_engines import quantizer_of

    quantizer = quantizer_of(engine, Start(amax=(2.0,), learn=False))
    values = torch.linspace(-1.9, 1.9, 31)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = quantizer(values.bfloat16()).float()
    assert torch.allclose(found, quantizer(values), atol=0.02)


def corrected(node_evidence: NodeEvidence, folder: Path) -> CalibrationTable:
    source = open_samples(str(folder / "samples.npz"), node_evidence.model.view.inputs)
    return correct_biases(node_evidence.model, node_evidence.placement, node_evidence.table, source)


@pytest.mark.parametrize("model", ["mixed", "residual", "depthwise"])
def test_training_starts_from_corrected_biases(tmp_path: Path, model: str) -> None:
    case = make(tmp_path, model)
    table = corrected(case, tmp_path)
    assert table.shifts
    save(insert(case.model, case.placement, table, case.recipe.insert), tmp_path / "ptq.onnx")
    (inputs,), _ = case.network.test.first()
    flat = case.network.flat
    owners = bias_owners(table.shifts, case.model.view, flat)
    assert len(owners) == len(table.shifts)
    found = locate(case.placement, case.model.view, flat).placed
    uncorrected = make_student(flat, found, case.placement, table, ENGINES.load("own"), learn=True)
    with torch.no_grad():
        before = run(uncorrected.network.eval(), (inputs,)).numpy()
    shift_biases(flat, table.shifts, owners)
    student = make_student(flat, found, case.placement, table, ENGINES.load("own"), learn=True)
    with torch.no_grad():
        after = run(student.network.eval(), (inputs,)).numpy()
    known = onnx_output(tmp_path / "ptq.onnx", inputs.numpy())
    assert np.abs(after - known).max() < 0.2 * np.abs(before - known).max()
    # The shifts are in the exported network now, so its table has none.
    trained = student.table(table)
    assert trained.shifts == ()
    assert (
        np.abs(onnx_output(written(case, trained, tmp_path), inputs.numpy()) - known).max()
        < 0.2 * np.abs(before - known).max()
    )


def test_a_layer_without_a_bias_gets_one(tmp_path: Path) -> None:
    case = make(tmp_path, "residual", "qat.batchnorm=fold")
    node = next(node for node in case.model.view.nodes if node.op == "Conv")
    (shift,) = (NodeShift(node=node.name, shift=(1.0,) * 8),)
    owners = bias_owners((shift,), case.model.view, case.network.flat)
    layer = case.network.flat.get_submodule(owners[node.name])
    layer.bias = None
    shift_biases(case.network.flat, (shift,), owners)
    assert layer.bias.tolist() == [1.0] * 8


@pytest.mark.parametrize("model", ["mixed", "residual", "depthwise", "attention", "transformer"])
def test_trained_scales_are_those_of_every_pair_of_the_exported_model(tmp_path: Path, model: str) -> None:
    case, trained = fit(tmp_path, "qat.epochs=1", "qat.metric=loss", "qat.learning_rate=0.01", model=model)
    path = written(case, trained.table, tmp_path)
    wanted = {decision.slot for decision in case.placement.quantized}
    assert {site.slot for site in trained.model.sites.placed} == wanted
    assert trained.model.sites.lost == ()
    ranges = trained.table.by_tensor()
    pairs = find(load(path))
    assert {slot for pair in pairs for slot in pair.slots} == wanted
    for pair in pairs:
        entry = ranges[pair.tensor]
        assert entry.method == "trained"
        assert pair.scale == pytest.approx([amax / 127 for amax in entry.amax], rel=1e-6)


def test_tensors_without_a_quantizer_keep_calibrated_ranges_and_say_so(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed")
    found = locate(case.placement, case.model.view, case.network.flat).placed
    engine = ENGINES.load("own")
    student = make_student(case.network.flat, found[1:], case.placement, case.table, engine, learn=True)
    table = student.table(replace(case.table, shifts=()))
    untouched = table.by_tensor()[found[0].tensor]
    assert untouched == case.table.by_tensor()[found[0].tensor]
    assert untouched.method != "trained"
