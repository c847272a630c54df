"""The pass that collects histograms tells what a second pass of the float network would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.calibration.collect import Collection, collect
from qdqtool.calibration.histograms import Span
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.session import means_of_channels, peaks_of_channels
from qdqtool.core.recipe import PlacementOptions, PrepareOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline import calibration
from qdqtool.pipeline.ranges import channels, executor, reference
from qdqtool.pipeline.ranges import samples as partition
from qdqtool.pipeline.ranges.reference import Budget, Reference, float_pass
from qdqtool.placement.decide import decide
from tests import models
from tests.pipeline.test_blocked_judging import odd_channels


def one_input(proto: onnx.ModelProto) -> bool:
    return len(proto.graph.input) == 1


MAKERS = {name: make for name, make in sorted(models.ALL.items()) if one_input(make())} | {
    "odd_channels": odd_channels
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("bias", [True, False], ids=["biases corrected", "biases kept"])
def test_one_pass_tells_what_two_tell(name: str, bias: bool, tmp_path: Path) -> None:
    model = prepare(load(models.save(MAKERS[name](), tmp_path)), PrepareOptions())
    (entry,) = model.view.inputs
    shape = [dim if isinstance(dim, int) else 1 for dim in entry.shape or ()]
    values = np.random.default_rng(2).standard_normal((12, *shape[1:])).astype(np.float32)
    np.savez(tmp_path / "s.npz", **{entry.name: values})
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    placement = decide(model.view, PlacementOptions())
    made = float_pass(model, placement, samples, bias=bias)
    if made is None:
        assert not any(node.op == "Conv" for node in model.view.nodes)
        return
    watched, seen = made
    collection = Collection(watched, placement, samples, watch=seen.watch)
    found = collection.run(Span(total=len(samples)))
    assert found.tensors == collect(model, placement, samples).tensors
    plain = Reference(model, samples, Budget(), bias=bias)
    kept = Reference(model, samples, Budget(), bias=bias, earlier=seen)
    assert kept.together == plain.together
    # or else `run` and `quantize` would choose by different numbers of samples
    assert kept.budget == plain.budget
    for mine, theirs in zip(kept.samples, plain.samples, strict=True):
        assert kept.number(mine) == plain.number(theirs)
        assert mine.name == theirs.name
        for tensor, value in plain.outputs(theirs).items():
            np.testing.assert_allclose(kept.outputs(mine)[tensor], value, rtol=1e-5, atol=1e-6)
    if plain.together:
        means = plain.means(plain.samples)
        assert kept.means(kept.samples).keys() == means.keys()
        for node, rows in kept.means(kept.samples).items():
            np.testing.assert_allclose(rows, means[node], rtol=1e-4, atol=1e-5 * np.abs(means[node]).max())


def test_the_float_network_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(models.residual_cnn(), tmp_path)
    values = np.random.default_rng(0).standard_normal((12, 3, 16, 16)).astype(np.float32)
    opened: list[str] = []
    open_model = executor.open_model

    def noted(*words: object, description: str, **more: object) -> object:
        opened.append(description)
        return open_model(*words, description=description, **more)  # type: ignore[arg-type]

    for module in (executor, reference):
        monkeypatch.setattr(module, "open_model", noted)
    qdqtool.quantize(str(path), values)
    assert "float model" not in opened


def test_where_few_samples_judge_the_others_pay_nothing_for_them(tmp_path: Path) -> None:
    model = load(models.save(models.residual_cnn(), tmp_path))
    np.savez(tmp_path / "s.npz", x=np.zeros((300, 3, 16, 16), np.float32))
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    placement = decide(model.view, PlacementOptions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "_SMALL", 0)
        assert float_pass(model, placement, samples, bias=True) is None
    assert float_pass(model, placement, samples, bias=True) is not None


def test_channels_that_are_lost_are_told_from_the_same_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.depthwise_cnn(), tmp_path)
    shape = [dim if isinstance(dim, int) else 1 for dim in load(path).view.inputs[0].shape or ()]
    values = np.random.default_rng(0).standard_normal((20, *shape[1:])).astype(np.float32)
    told: list[object] = []
    inner = calibration.channel_findings

    def noted(model: object, placement: object, table: object, samples: object, largest: object) -> object:
        told.append(largest)
        found = channels.largest_magnitudes(model, list(largest), samples)  # type: ignore[call-overload, arg-type]
        assert largest
        for tensor, peaks in found.items():
            np.testing.assert_array_equal(peaks, largest[tensor])  # type: ignore[index]
        return inner(model, placement, table, samples, largest)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration, "channel_findings", noted)
    qdqtool.quantize(str(path), values)
    assert told


def test_means_and_peaks_are_those_of_channels() -> None:
    values = np.random.default_rng(0).standard_normal((2, 32, 9, 13)).astype(np.float32) + 3
    np.testing.assert_allclose(means_of_channels(values), values.mean(axis=(2, 3)), rtol=1e-5)
    np.testing.assert_array_equal(peaks_of_channels(values), np.abs(values).max(axis=(0, 2, 3)))
