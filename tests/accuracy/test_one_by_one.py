"""Two large models over the same samples, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.side_by_side import record_outputs
from qdqtool.calibration.samples import open_samples
from qdqtool.core.kinds import ACCURACY
from qdqtool.core.recipe import CompareOptions, Preprocess, Recipe
from qdqtool.pipeline import comparing, steps
from qdqtool.runtime.runner import OrtRunner, open_runner
from tests import models


def opened(path: Path) -> OrtRunner:
    return open_runner(path, description="model", crowded=True)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_recorded_side_gives_what_the_model_gives(tmp_path: Path, limit: int | None) -> None:
    first = models.save(models.residual_cnn(), tmp_path, "first.onnx")
    second = models.save(models.residual_cnn(batchnorm=True), tmp_path, "second.onnx")
    runner = opened(first)
    samples = open_samples("random:5", runner.inputs, Preprocess())
    options = CompareOptions(limit=limit)
    both = compare(runner, opened(second), samples, options)
    folder = tmp_path / "outputs"
    folder.mkdir()
    played = record_outputs(lambda: opened(first), samples, limit, folder)
    assert len(list(folder.iterdir())) == (limit or 5)
    assert played.outputs == runner.outputs
    assert compare(played, opened(second), samples, options) == both


def test_the_first_model_is_closed_before_the_second_opens(tmp_path: Path) -> None:
    path = models.save(models.residual_cnn(), tmp_path)
    samples = open_samples("random:2", opened(path).inputs, Preprocess())
    alive: list[str] = []

    class Watched(OrtRunner):
        def __del__(self) -> None:
            alive.remove(self.description)

    def open_it(name: str) -> Watched:
        assert not alive
        alive.append(name)
        runner = opened(path)
        return Watched(runner._session, name, None)

    sides = comparing.both_sides(
        lambda: open_it("first"), lambda: open_it("second"), samples, None, large=True
    )
    with sides as (first, second):
        assert alive == ["second"]
        assert compare(first, second, samples, CompareOptions()).samples == 2


@pytest.mark.slow
def test_a_run_of_a_large_model_compares_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.cli.app import run

    path = models.save(models.residual_cnn(), tmp_path)
    found = []
    for limit in (comparing.LARGE, 1):
        for module in (steps, comparing):
            monkeypatch.setattr(module, "LARGE", limit)
        out = tmp_path / f"out{limit}"
        arguments = [
            "run",
            str(path),
            "--samples",
            "random:4",
            "--sm",
            "86",
            "--out",
            str(out),
            "--set",
            "build.retries=0",
        ]
        assert run(arguments) == 0
        found.append(ACCURACY.read(out / "accuracy.json"))
    small, large = found
    assert large == small


def test_compare_of_large_models_opens_one_at_a_time_and_says_the_same(tmp_path: Path, monkeypatch) -> None:
    first = models.save(models.residual_cnn(), tmp_path, "first.onnx")
    second = models.save(models.residual_cnn(batchnorm=True), tmp_path, "second.onnx")
    match = comparing.ComparedSides(
        reference=str(first), candidate=str(second), samples="random:3", labels=None, recipe=Recipe()
    )
    both = comparing.compare_match(match)
    recorded_sides: list[str] = []

    def watched(open_it, samples, limit, folder):
        runner = record_outputs(open_it, samples, limit, folder)
        recorded_sides.append(runner.description)
        return runner

    monkeypatch.setattr(comparing, "LARGE", 1)
    monkeypatch.setattr(comparing, "record_outputs", watched)
    assert comparing.compare_match(match) == both
    assert recorded_sides == ["first.onnx on onnxruntime"]
