"""Ranges of few samples become wider where samples that they did not see ask for it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.backends.ort import OrtRunner, open_runner
from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import Samples, open_samples
from qdqtool.calibration.table import constants, groups
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.recipe import CalibrationOptions, InsertOptions, PlacementOptions
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline.auto import Judged, choose
from qdqtool.pipeline.margins import MARGINS, parts_of, with_margin
from qdqtool.pipeline.trial import PASSES, Budget, Reference
from qdqtool.placement.decide import decide
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


def both(found: Case, **options: object) -> tuple[Judged, Judged]:
    """What is chosen, without and with a margin."""
    model, samples, _ = found
    placement = decide(model.view, PlacementOptions())
    how = CalibrationOptions(method="auto", **options)  # type: ignore[arg-type]
    known = constants(placement, model.view, how.weights)
    reference = Reference(model, samples, Budget(), bias=how.bias == "correct")
    parts = parts_of(model, placement, reference, how, len(samples))
    plain = choose(model, placement, (collect(model, placement, samples), known), how, reference)
    return plain, with_margin(plain, parts, placement, known, how)


def noise(model: Model, table: CalibrationTable, samples: Samples) -> float:
    outputs = []
    for one in (model, insert(model, decide(model.view, PlacementOptions()), table, InsertOptions())):
        runner = open_runner(serialize(one), description="test")
        outputs.append([runner.run(sample.feeds)[runner.outputs[0]].astype(np.float64) for sample in samples])
    pairs = zip(*outputs, strict=True)
    return sum(float(np.square(a - b).sum()) for a, b in pairs) / sum(
        float(np.square(a).sum()) for a in outputs[0]
    )


def widened(before: Judged, after: Judged) -> set[float]:
    """By how many times ranges became wider."""
    old = before.table.by_tensor()
    return {round(one.amax[0] / old[one.tensor].amax[0], 6) for one in after.table.ranges}


@pytest.mark.parametrize("bias", ["keep", "correct"])
def test_a_margin_makes_the_outputs_quieter_on_other_samples(bias: str, tmp_path: Path) -> None:
    found = case(tmp_path, 12, spread=0.2)
    before, after = both(found, bias=bias)
    assert widened(before, after) <= {1.0, *MARGINS}
    assert widened(before, after) != {1.0}
    model, _, others = found
    assert noise(model, after.best.table, others) * 1.1 < noise(model, before.best.table, others)
    assert any("few samples" in one.note for one in after.table.ranges)


@pytest.mark.parametrize("count", [4, 160])
def test_very_few_and_many_samples_get_none(count: int, tmp_path: Path) -> None:
    before, after = both(case(tmp_path, count, spread=0.2))
    assert after is before


def test_where_the_next_samples_are_no_larger_ranges_stay(tmp_path: Path) -> None:
    model, few, _ = case(tmp_path, 24, spread=0.2)
    (name,) = (info.name for info in model.view.inputs)
    same = np.concatenate([next(iter(few)).feeds[name]] * 24)
    np.savez(tmp_path / "same.npz", **{name: same})
    samples = open_samples(str(tmp_path / "same.npz"), model.view.inputs)
    before, after = both((model, samples, samples))
    assert after is before


@pytest.mark.parametrize("settings", [{"shrink": {"*": 0.9}}, {"overrides": {"*": "max"}}], ids=str)
def test_ranges_that_the_recipe_sets_stay(settings: dict[str, object], tmp_path: Path) -> None:
    before, after = both(case(tmp_path, 12, spread=0.2), **settings)
    assert after is before


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(models.ALL) - {"branching"}))
def test_tied_ranges_stay_tied_and_weights_stay(name: str, tmp_path: Path) -> None:
    model = load(models.save(models.ALL[name](), tmp_path))
    if len(model.view.inputs) > 1:
        pytest.skip("samples here are of one input")
    before, after = both(case(tmp_path, 12, spread=0.2, name=name))
    placement = decide(model.view, PlacementOptions())
    old, new = before.table.by_tensor(), after.table.by_tensor()
    activations = {one for group in groups(placement) for one in group}
    assert all(len({new[one].amax for one in group}) == 1 for group in groups(placement))
    assert all(new[one] == old[one] for one in set(old) - activations)
    assert all(new[one].amax >= old[one].amax for one in activations)


def test_a_margin_costs_four_inferences_of_each_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = case(tmp_path, 12, spread=0.2)
    (entry,) = found[0].view.inputs
    spent = 0
    run_one = OrtRunner.run

    def counted(self: OrtRunner, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal spent
        spent += len(feeds[entry.name])
        return run_one(self, feeds)

    monkeypatch.setattr(OrtRunner, "run", counted)
    both(found)
    assert spent <= (PASSES + 2 + len(MARGINS)) * 12
