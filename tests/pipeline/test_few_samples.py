"""Ranges of few samples are chosen on samples that they did not come from, become wider where these ask for it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import Samples, open_samples
from qdqtool.calibration.table import constants, groups
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.calibrators import Judged, choose, single_tables
from qdqtool.pipeline.ranges.few_samples import MARGINS, choose_for_others, most_inferences, parts_of
from qdqtool.pipeline.ranges.reference import PASSES, Budget, Reference
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import OrtRunner, open_runner
from tests import models

Case = tuple[Model, Samples, Samples]


def case(folder: Path, count: int, spread: float, name: str = "gemms") -> Case:
    """A network, samples whose loudness differs by so much, and 200 others."""
    model = load(models.save(models.ALL[name](), folder))
    (entry,) = model.view.inputs
    shape = [dim if isinstance(dim, int) else 1 for dim in entry.shape or ()]
    random = np.random.default_rng(7)
    values = random.standard_normal((count + 200, *shape[1:])).astype(np.float32)
    loudness = np.exp(spread * random.standard_normal(count + 200)).astype(np.float32)
    values *= loudness.reshape(-1, *[1] * (values.ndim - 1))
    np.savez(folder / "few.npz", **{entry.name: values[:count]})
    np.savez(folder / "others.npz", **{entry.name: values[count:]})
    few, others = (open_samples(str(folder / f"{one}.npz"), model.view.inputs) for one in ("few", "others"))
    return model, few, others


def both(found: Case, **options: object) -> tuple[Judged, Judged | None]:
    """What is chosen by the samples themselves, and what for others; None where they are not few, or the recipe has chosen."""
    model, samples, _ = found
    placement = decide(model.view, PlacementOptions())
    how = CalibrationOptions(method="auto", **options)  # type: ignore[arg-type]
    known = constants(placement, model.view, how.weights)
    collected = (collect(model, placement, samples), known)
    references = [Reference(model, samples, Budget(), bias=how.bias == "correct") for _ in range(2)]
    parts = parts_of(model, placement, references[0], how, len(samples))
    plain = choose(model, placement, collected, how, references[1])
    if not parts:
        return plain, None
    return plain, choose_for_others(model, placement, collected, how, references[0], parts)


def noise(model: Model, table: CalibrationTable, samples: Samples) -> float:
    outputs = []
    for one in (model, insert(model, decide(model.view, PlacementOptions()), table, InsertOptions())):
        runner = open_runner(serialize(one), description="test")
        outputs.append([runner.run(sample.feeds)[runner.outputs[0]].astype(np.float64) for sample in samples])
    pairs = zip(*outputs, strict=True)
    return sum(float(np.square(a - b).sum()) for a, b in pairs) / sum(
        float(np.square(a).sum()) for a in outputs[0]
    )


def singles(model: Model, samples: Samples) -> list[dict[str, TensorRange]]:
    """The ranges of every calibrator."""
    placement, how = decide(model.view, PlacementOptions()), CalibrationOptions(method="auto")
    collected = (collect(model, placement, samples), constants(placement, model.view, how.weights))
    return [table.by_tensor() for table in single_tables(placement, collected, how).values()]


@pytest.mark.parametrize("bias", ["keep", "correct"])
def test_the_outputs_are_quieter_on_other_samples(bias: str, tmp_path: Path) -> None:
    found = case(tmp_path, 12, spread=0.2)
    before, after = both(found, bias=bias)
    assert after is not None
    model, _, others = found
    assert noise(model, after.best.table, others) * 1.1 < noise(model, before.best.table, others)
    assert any("times 1.25" in one.note for one in after.table.ranges)


@pytest.mark.parametrize("count", [4, 80])
def test_very_few_and_many_samples_are_not_parted(count: int, tmp_path: Path) -> None:
    assert both(case(tmp_path, count, spread=0.2))[1] is None


@pytest.mark.parametrize("settings", [{"shrink": {"*": 0.9}}, {"overrides": {"*": "max"}}], ids=str)
def test_ranges_that_the_recipe_sets_stay(settings: dict[str, object], tmp_path: Path) -> None:
    assert both(case(tmp_path, 12, spread=0.2), **settings)[1] is None


def test_where_the_next_samples_are_no_larger_nothing_becomes_wider(tmp_path: Path) -> None:
    model, few, _ = case(tmp_path, 24, spread=0.2)
    (name,) = (info.name for info in model.view.inputs)
    same = np.concatenate([next(iter(few)).feeds[name]] * 24)
    np.savez(tmp_path / "same.npz", **{name: same})
    samples = open_samples(str(tmp_path / "same.npz"), model.view.inputs)
    _, after = both((model, samples, samples))
    assert after is not None
    activations = [one for group in groups(decide(model.view, PlacementOptions())) for one in group]
    ranges, tables = after.table.by_tensor(), singles(model, samples)
    assert activations
    for one in activations:
        assert ranges[one].amax[0] <= max(table[one].amax[0] for table in tables) * (1 + 1e-9)


def test_what_all_samples_reach_alike_is_never_widened(tmp_path: Path) -> None:
    """White pixels: the next picture has none that are whiter, while what follows from it may be larger."""
    model, few, others = case(tmp_path, 12, spread=0.2)
    (entry,) = model.view.inputs
    pictures = np.concatenate([np.clip(sample.feeds[entry.name], -0.5, 0.5) for sample in few])
    pictures.reshape(len(pictures), -1)[:, 0] = 0.5
    np.savez(tmp_path / "pictures.npz", **{entry.name: pictures})
    samples = open_samples(str(tmp_path / "pictures.npz"), model.view.inputs)
    _, after = both((model, samples, others))
    assert after is not None
    assert after.table.by_tensor()[entry.name].amax[0] <= 0.5 * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(models.ALL) - {"branching"}))
def test_tied_ranges_stay_tied_weights_stay_and_all_lie_between_the_candidates(
    name: str, tmp_path: Path
) -> None:
    model = load(models.save(models.ALL[name](), tmp_path))
    if len(model.view.inputs) > 1:
        pytest.skip("samples here are of one input")
    found = case(tmp_path, 12, spread=0.2, name=name)
    _, after = both(found)
    assert after is not None
    placement, tables = decide(model.view, PlacementOptions()), singles(model, found[1])
    single, new = tables[0], after.table.by_tensor()
    activations = {one for group in groups(placement) for one in group}
    assert all(len({new[one].amax for one in group}) == 1 for group in groups(placement))
    assert all(new[one] == single[one] for one in set(single) - activations)
    for one in activations:
        ranges = [table[one].amax[0] for table in tables]
        assert min(ranges) * (1 - 1e-9) <= new[one].amax[0] <= max(ranges) * max(MARGINS) * (1 + 1e-9)


def test_it_costs_so_many_inferences_of_each_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = case(tmp_path, 12, spread=0.2)
    model, samples, _ = found
    (entry,) = model.view.inputs
    placement, how = decide(model.view, PlacementOptions()), CalibrationOptions(method="auto")
    collected = (collect(model, placement, samples), constants(placement, model.view, how.weights))
    spent = 0
    run_one = OrtRunner.run

    def counted(self: OrtRunner, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal spent
        spent += len(feeds[entry.name])
        return run_one(self, feeds)

    monkeypatch.setattr(OrtRunner, "run", counted)
    reference = Reference(model, samples, Budget(), bias=False)
    parts = parts_of(model, placement, reference, how, len(samples))
    choose_for_others(model, placement, collected, how, reference, parts)
    assert spent <= most_inferences(len(samples))
    assert most_inferences(72) <= PASSES * 256
