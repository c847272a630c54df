"""Models with data for benchmarks/accuracy.py: ready inputs, and how right an output is for each sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from checkout import ROOT  # isort: skip -- puts the checkout on the path
from models import class_table
from ruamel.yaml import YAML

from qdqtool.accuracy.detections import NoScores
from qdqtool.accuracy.task import ScorePair, score_pair
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.samples.conform import RawSample, conform
from qdqtool.core.recipe import Preprocess
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.ranges.samples import choosing
from qdqtool.pipeline.suggest import fitting

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Right = Callable[[Array, Array, int], float]
"""How right an output is: float model's output, candidate's output, number of the sample."""

SUPER_RESOLUTION = "super_resolution_x3"
MODELS = (
    "mobilenet_v1_025_imagenet",
    "squeezenet1_1_imagenet",
    "cifar10_resnet20",
    "vit_cifar10_pgd_2_3_16",
    "kws_dscnn",
    "yolox_nano",
    SUPER_RESOLUTION,
)
HARD = ("mobilenet_v1_025_imagenet", "vit_cifar10_pgd_2_3_16")
"""Where the sweep must be strictly better than the defaults."""
SMALL = ("cifar10_resnet20", "vit_cifar10_pgd_2_3_16", "kws_dscnn")
"""Whose samples are small, so that many cost little."""
_FEW = 16
"""Samples below which a choice would be chance."""
_TILE, _SCALE, _RIM = 85, 3, 6
"""Super-resolution: small pictures of 85 pixels, four in a frame, enlarged 3 times; this rim is not judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One model and what it is tried on.

    Attributes:
        name: folder of the model.
        model: float ONNX file.
        recipe: shipped recipe.
        changes: changes of the recipe that the model needs.
        calibration: model inputs that everybody calibrates on, samples along the first axis.
        selection: model inputs that a sweep chooses on: others than the calibration's where there are enough.
        evaluation: model inputs of the evaluation, one dictionary per sample; never any of these samples.
        right: how right one output is, in `unit`.
        metric: what `right` is.
        unit: "%" or "dB".
    """

    name: str
    model: Path
    recipe: str
    changes: tuple[str, ...]
    calibration: Feeds
    selection: Feeds
    evaluation: tuple[Feeds, ...] = field(repr=False)
    right: Right = field(repr=False)
    metric: str
    unit: str = "%"

    def __post_init__(self) -> None:
        """Make sure that no evaluation sample was seen while anything was chosen."""
        seen = {
            _content({name: value[row : row + 1] for name, value in feeds.items()})
            for feeds in (self.calibration, self.selection)
            for row in range(len(next(iter(feeds.values()))))
        }
        shared = sum(_content(feeds) in seen for feeds in self.evaluation)
        if shared:
            raise ValueError(f"{self.name}: {shared} evaluation samples calibrate or choose too")


def subject(name: str, models: Path, calibrate: int, evaluate: int) -> Subject:
    """The model `name` with at most so many samples of each kind."""
    if name == SUPER_RESOLUTION:
        return _super_resolution(models, calibrate, evaluate)
    entry = YAML(typ="safe").load((ROOT / "benchmarks" / "models.yaml").read_text("utf-8"))[name]
    path = models / name / "model.onnx"
    inputs = load(path).view.inputs
    preprocess = Preprocess.model_validate(entry["preprocess"])
    samples, split = str(models / entry["samples"]), entry.get("split")
    seen = f"{samples}[::{split}]" if split else samples
    text = str(models / entry["evaluation"]) if not split else samples
    labels = str(models / entry["labels"]) if "labels" in entry and "coco" not in entry else None
    unseen = open_samples(text, inputs, preprocess, labels=labels)
    numbers = [number for number in range(len(unseen)) if not split or number % split]
    step = max(1, len(numbers) // evaluate)
    chosen = frozenset(numbers[::step][:evaluate])
    # from all over the file, which may hold one class after the other; every other one calibrates
    known_to_all = open_samples(seen, inputs, preprocess)
    ready = [dict(one.feeds) for one in choosing(known_to_all, 2 * calibrate)]
    ready = ready[0::2] + ready[1::2]
    known_ones = {_content(feeds) for feeds in ready}
    # data sets hold some pictures twice: one that calibrates does not judge
    taken = [
        sample
        for number, sample in enumerate(unseen)
        if number in chosen and _content(sample.feeds) not in known_ones
    ]
    known = class_table(entry, models) if "coco" in entry else {}
    if known:
        taken = [sample for sample in taken if Path(sample.name).name in known] or taken
    truth = [sample.label for sample in taken]
    return Subject(
        name=name,
        model=path,
        recipe=entry["recipe"],
        changes=tuple(entry.get("set", ())),
        **_shared_out(ready, calibrate),
        evaluation=tuple(dict(sample.feeds) for sample in taken),
        right=_agrees if "coco" in entry else lambda _, output, n: 100.0 * (output.argmax() == truth[n]),
        metric="agreement" if "coco" in entry else "top1",
    )


def stranger(model: Path, data: Path, calibrate: int, evaluate: int) -> Subject:
    """Any model with ready inputs in an .npz: the first rows calibrate, the next choose, others, from all over the rest, judge.

    The recipe is the one that `qdqtool run` takes without --recipe. An array `labels` that is no input holds the class of each
    row; without it right is an output of the class that the float model's has: of a detector that of the best box, of what holds
    no scores of one sample the place of the largest value.

    Raises:
        InputFileError: rows do not fit the model's inputs.
    """
    loaded = load(model)
    with np.load(data, allow_pickle=False) as stored:
        rows = {name: stored[name] for name in stored.files}
    taken = {info.name for info in loaded.view.inputs}
    labels = None if "labels" in taken else rows.pop("labels", None)
    count = len(next(iter(rows.values())))
    # a sweep chooses on as many again where enough are left
    seen = 2 * calibrate if count >= 2 * calibrate + evaluate else calibrate
    rest = range(seen, count)
    ready = [_row(rows, row) for row in range(min(count, seen))]
    known = {_content(feeds) for feeds in ready}
    judging = [(row, _row(rows, row)) for row in rest[:: max(1, len(rest) // evaluate)][:evaluate]]
    chosen = [(row, feeds) for row, feeds in judging if _content(feeds) not in known]

    def fitted(row: int, feeds: Feeds) -> Feeds:
        # a scalar input has one value a row, and no batch
        raw = RawSample(name=f"{data.name}[{row}]", arrays=feeds, is_ready=True)
        return dict(conform(raw, loaded.view.inputs, Preprocess()).feeds)

    def right(reference: Array, output: Array, number: int) -> float:
        if labels is None:
            return _agrees(reference, output, number)
        label = int(labels[chosen[number][0]])
        return 100.0 * (_classes(reference, output, label + 1)[1] == label)

    return Subject(
        name=model.stem,
        model=model,
        recipe=fitting(loaded)[0],
        changes=(),
        **_shared_out(ready, calibrate),
        evaluation=tuple(fitted(row, feeds) for row, feeds in chosen),
        right=right,
        metric="agreement" if labels is None else "top1",
    )


def _row(rows: Feeds, number: int) -> Feeds:
    return {name: values[number : number + 1] for name, values in rows.items()}


def _agrees(reference: Array, output: Array, _number: int) -> float:
    """Whether the best box has the class that it has in the float model, where that shows one."""
    scores = score_pair(reference, output)
    if isinstance(scores, ScorePair) and scores.named is None:
        return 100.0  # no box to lose
    plain, found = _classes(reference, output)
    return 100.0 * (plain == found)


def _classes(reference: Array, output: Array, least: int = 0) -> tuple[int, int]:
    """The class that each side names of at least so many, as the tool reads it; where it reads none, the place of the largest value."""
    scores = score_pair(reference, output, least)
    if isinstance(scores, NoScores):
        return int(reference.argmax()), int(output.argmax())
    return int(scores.reference.argmax()), int(scores.candidate.argmax())


def _super_resolution(models: Path, calibrate: int, evaluate: int) -> Subject:
    """Brightness of pictures made 3 times smaller; four of them fill the frame that the model takes."""
    paths = sorted(path for path in (models / "imagenet500").iterdir() if path.suffix == ".JPEG")
    sharp = [_brightness(path) for path in paths[: 4 * (calibrate + evaluate)]]
    frames = [sharp[start : start + 4] for start in range(0, len(sharp) - 3, 4)]
    # every fifth frame calibrates, the others are for the evaluation
    seen = [frame for number, frame in enumerate(frames) if number % 5 == 0][:calibrate]
    unseen = [frame for number, frame in enumerate(frames) if number % 5][:evaluate]
    return Subject(
        name=SUPER_RESOLUTION,
        model=models / SUPER_RESOLUTION / "model.onnx",
        recipe="detector-int8",
        changes=("compare.task=none",),
        **_shared_out([_frame(pictures) for pictures in seen], calibrate),
        evaluation=tuple(_frame(pictures) for pictures in unseen),
        right=lambda _, output, number: _psnr(output, unseen[number]),
        metric="psnr",
        unit="dB",
    )


def _brightness(path: Path) -> Array:
    from PIL import Image

    side = _TILE * _SCALE
    with Image.open(path) as picture:
        grey = picture.convert("L")
        left, top = (grey.width - side) // 2, (grey.height - side) // 2
        return np.asarray(grey.crop((left, top, left + side, top + side)), np.float32) / 255


def _frame(pictures: list[Array]) -> Feeds:
    from PIL import Image

    small = [
        np.asarray(Image.fromarray(picture).resize((_TILE, _TILE), Image.Resampling.BICUBIC), np.float32)
        for picture in pictures
    ]
    square = np.vstack([np.hstack(small[:2]), np.hstack(small[2:])])
    edge = 224 - 2 * _TILE
    return {"input": np.pad(square, ((0, edge), (0, edge)), mode="edge")[None, None]}


def _psnr(output: Array, pictures: list[Array]) -> float:
    """Peak signal to noise of the four pictures against the sharp ones, in dB."""
    side = _TILE * _SCALE
    errors = []
    for number, sharp in enumerate(pictures):
        top, left = side * (number // 2), side * (number % 2)
        drawn = np.clip(output[0, 0, top : top + side, left : left + side], 0, 1)
        errors.append((drawn - sharp)[_RIM:-_RIM, _RIM:-_RIM] ** 2)
    return float(-10 * np.log10(np.mean(errors)))


def _content(feeds: Mapping[str, Any]) -> bytes:
    """Digest of a sample's arrays."""
    sha = hashlib.sha256()
    for name in sorted(feeds):
        sha.update(np.ascontiguousarray(feeds[name]).tobytes())
    return sha.digest()


def _shared_out(ready: list[Feeds], calibrate: int) -> dict[str, Feeds]:
    """The first ones for calibration, the rest for selection; where few are left, the first ones for both."""
    rest = ready[calibrate:]
    return {
        "calibration": _stacked(ready[:calibrate]),
        "selection": _stacked(rest if len(rest) >= _FEW else ready[:calibrate]),
    }


def _stacked(feeds: list[Feeds]) -> Feeds:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
