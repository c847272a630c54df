"""Preparations of pictures are tried without labels: broken ones are found, and right ones raise no alarm."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from qdqtool.calibration.samples import open_samples
from qdqtool.core.recipe import PRESETS, Preprocess, Recipe
from qdqtool.core.wording import Setting, actions
from qdqtool.datachecks import check_data
from qdqtool.datachecks.evidence import DataEvidence
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.datacheck import sample_set
from qdqtool.pipeline.preparation_trials import agreement, compare_preparations
from qdqtool.pipeline.preparations import assumptions, with_known_inputs
from qdqtool.report.assemble import assemble
from qdqtool.runtime.runner import open_model
from tests import models
from tests.report.test_verdict import QUANTIZED, SOUND

CLASSES, SIDE, COUNT = 12, 8, 96
RAW = {"scale": 1.0, "mean": (0.0,), "std": (1.0,)}
TRAINED: dict[str, dict[str, Any]] = {
    "0..1": {**PRESETS["yolo"]},
    "ImageNet": {**PRESETS["imagenet"]},
    "-1..1": {**PRESETS["imagenet-inception"]},
    "Caffe": {**PRESETS["caffe"]},
    "0..255": {**RAW, "colour": "rgb"},
    "0..255 in BGR": {**RAW, "colour": "bgr"},
}
BROKEN = {
    "0..1": (RAW, PRESETS["imagenet"] | {"colour": "bgr"}),
    "ImageNet": (RAW, PRESETS["imagenet"] | {"colour": "bgr"}),
    "-1..1": (RAW, PRESETS["imagenet-inception"] | {"colour": "bgr"}),
    "Caffe": (PRESETS["yolo"], PRESETS["imagenet"]),
    "0..255": (PRESETS["yolo"], PRESETS["imagenet-inception"]),
    "0..255 in BGR": (RAW | {"colour": "rgb"}, PRESETS["imagenet"]),
}
"""Two broken preparations of each of six networks, as people type them: forgotten scale, wrong family, colours turned."""


def _prototypes() -> NDArray[np.float64]:
    """Return a picture of each class (values 0..255), which its mirror image equals."""
    half = np.random.default_rng(7).uniform(20, 235, (CLASSES, SIDE, SIDE // 2, 3))
    return np.concatenate([half, half[:, :, ::-1]], axis=2)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(COUNT):
        noisy = _prototypes()[number % CLASSES] + random.normal(0, 40, (SIDE, SIDE, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:03}.png")
    return str(folder)


def _network(trained: dict[str, Any], folder: Path, *, is_linear: bool = False) -> Path:
    """Write a classifier by the nearest prototype, with as much confidence as a trained network has.

    Its scores are relative to the mean distance, as normalization layers make them; linear scores grow with the values.
    """
    preprocess = Preprocess.model_validate(trained)
    values = _prototypes() if preprocess.colour == "rgb" else _prototypes()[..., ::-1]
    centres = (
        ((values * preprocess.scale - preprocess.mean) / preprocess.std)
        .transpose(0, 3, 1, 2)
        .reshape(CLASSES, -1)
    )
    s = models.Sketch(0)
    flat = s.node("Flatten", [s.input("x", ["N", 3, SIDE, SIDE])], "f")
    product = s.node("MatMul", [flat, s.constant("w", (-2 * centres.T).astype(np.float32))], "m")
    bias = s.constant("b", (centres**2).sum(axis=1).astype(np.float32))
    distance = s.node("Add", [product, bias], "d")
    if is_linear:
        least = s.constant("k", np.float32(-12 * CLASSES / np.ptp(centres) ** 2))
        s.output(s.node("Mul", [distance, least], "y"), ["N", CLASSES])
        return models.save(s.model(), folder)
    square = s.node("ReduceSumSquare", [flat], "s", axes=[1], keepdims=1)
    whole = s.node("Add", [distance, square], "a")
    mean = s.node("ReduceMean", [whole], "e", axes=[1], keepdims=1)
    scaled = s.node("Div", [whole, mean], "r")
    s.output(s.node("Mul", [scaled, s.constant("k", np.float32(-12))], "y"), ["N", CLASSES])
    return models.save(s.model(), folder)


def _judged(path: Path, given: dict[str, Any], pictures: str) -> tuple[str, str]:
    recipe = Recipe.model_validate({"name": "mine", "samples": {"preprocess": given}})
    runner = open_model(load(path), description="float model")
    samples = open_samples(pictures, runner.inputs, recipe.samples.preprocess)
    seen = sample_set(samples)
    found = check_data(
        DataEvidence(
            calibration=seen, evaluation=seen, mirrored=compare_preparations(runner, samples, seen, recipe)
        )
    )
    alarms = tuple(finding for finding in found if finding.code == "DAT104")
    judged = assemble(replace(SOUND, audit=replace(QUANTIZED, findings=alarms)))
    return judged.summary.verdict.answer, alarms[0].fix if alarms else ""


@pytest.mark.parametrize("trained", TRAINED)
def test_no_broken_preparation_is_good_and_the_right_one_raises_no_alarm(
    trained: str, pictures: str, tmp_path: Path
) -> None:
    path = _network(TRAINED[trained], tmp_path)
    assert _judged(path, TRAINED[trained], pictures) == ("good", "")
    for broken in BROKEN[trained]:
        answer, fix = _judged(path, broken, pictures)
        assert answer in {"doubtful", "bad"}, broken
        assert {one.key.rpartition(".")[0] for one in actions(fix) if isinstance(one, Setting)} == {
            "samples.preprocess"
        }


@pytest.mark.parametrize("trained", TRAINED)
def test_a_clear_winner_replaces_the_guess_and_stays_a_guess(
    trained: str, pictures: str, tmp_path: Path
) -> None:
    path = _network(TRAINED[trained], tmp_path)
    known = with_known_inputs(Recipe(name="mine"), pictures, path)
    inputs = open_model(load(path), description="float model").inputs
    wanted = open_samples(pictures, inputs, Preprocess.model_validate(TRAINED[trained]))
    for used, right in zip(open_samples(pictures, inputs, known.samples.preprocess), wanted, strict=True):
        np.testing.assert_allclose(used.feeds["x"], right.feeds["x"], rtol=1e-3, atol=1e-3)
    said = {entry.what: entry for entry in assumptions(known, ())}
    assert said["scale"].is_guessed
    assert "tried on" in said["scale"].source


def test_one_answer_to_everything_is_not_good_and_pictures_of_one_class_are_not_bad(
    pictures: str, tmp_path: Path
) -> None:
    """A linear network is certain of one class for all pictures; so is a right one if all pictures are of that class."""
    path = _network(TRAINED["0..255"], tmp_path, is_linear=True)
    answer, fix = _judged(path, PRESETS["yolo"], pictures)
    assert (answer != "good", "--set" in fix) == (True, True)
    assert _judged(path, TRAINED["0..255"], pictures) == ("good", "")
    one_class = _one_class(pictures, tmp_path)
    known = with_known_inputs(Recipe(name="mine"), one_class, path)
    assert known.samples.preprocess.scale == 1
    assert _judged(path, RAW, one_class)[0] != "bad"


def _one_class(pictures: str, folder: Path) -> str:
    """Copy the pictures of the first class."""
    some = folder / "one class"
    some.mkdir()
    for file in sorted(Path(pictures).iterdir())[::CLASSES]:
        shutil.copy(file, some)
    return str(some)


def test_answers_that_do_not_depend_on_the_picture_agree_by_nothing() -> None:
    random = np.random.default_rng(0)
    sure = np.eye(8)[random.integers(0, 8, 64)]
    assert agreement(sure, sure)[0].mean() > 1.5
    same = np.tile(sure[:1], (64, 1))
    assert np.abs(agreement(same, same)).max() < 1e-2
    assert agreement(sure, np.roll(sure, 1, axis=1))[0].mean() < -3


def test_outputs_that_are_no_classes_are_not_tried(pictures: str, tmp_path: Path) -> None:
    s = models.Sketch(0)
    s.output(s.relu("r", s.conv("c", s.input("x", ["N", 3, SIDE, SIDE]), (3, 4))), ["N", 4, SIDE, SIDE])
    runner = open_model(load(models.save(s.model(), tmp_path)), description="float model")
    samples = open_samples(pictures, runner.inputs, Preprocess())
    assert compare_preparations(runner, samples, sample_set(samples), Recipe(name="mine")) is None
