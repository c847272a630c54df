"""Opens the samples that a user names, as a source that fits the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from mimetypes import guess_type
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.arrays import ArrayFiles, PolygraphyInputs, open_file
from qdqtool.calibration.samples.conform import (
    RawSource,
    conform,
    fixed_batch,
    nonfinite,
    placed_boxes,
    tile_sample,
)
from qdqtool.calibration.samples.images import Images, pictures
from qdqtool.calibration.samples.labels import (
    BoxLabels,
    Labels,
    labels_beside,
    matching_name,
    name_ends,
    read_labels,
)
from qdqtool.calibration.samples.objects import SampleObjects, code
from qdqtool.calibration.samples.synthetic import Random
from qdqtool.core.protocols import Feeds, Sample, SampleSource
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import require_file
from qdqtool.io.json_files import digest_of

# --- spec ------------------------------------------------------------------------------------------------------------
# Specification of samples on the command line.


NanPolicy = Literal["error", "skip"]

_LONGEST_NAME = 255
"""Largest length of a file name in bytes on common file systems; for longer names the system reports an error."""
_SLICE = re.compile(r"^(?P<place>.+)\[(?P<slice>-?\d*:-?\d*(?::-?\d*)?)\]$", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSpec:
    """Choice of samples, and their conversion to model inputs.

    Attributes:
        text: a folder, an .npz, .npy or .json file, "module:function", or "random:16"; each may be followed by
            [start:stop:step], so that one data set gives disjoint calibration and evaluation samples.
        preprocess: how raw images and arrays become model inputs.
        limit: at most this many samples, after the slice.
        on_nan: handling of a sample with NaN or Inf.
    """

    text: str
    preprocess: Preprocess
    limit: int | None = None
    on_nan: NanPolicy = "error"

    @property
    def place(self) -> str:
        """The samples text without its slice."""
        return self._parts()[0]

    def select(self, count: int) -> range:
        """Return the numbers of the chosen samples among `count`.

        Raises:
            UsageError: the step is not positive.
        """
        words = [int(word) if word else None for word in self._parts()[1].split(":")]
        start, stop, step = (*words, None, None)[:3]
        if step is not None and step < 1:
            raise UsageError(
                f"the step of the slice {self.text!r} is {step}",
                fix="use a positive step, as in x.npz[0:100:2]",
            )
        return range(count)[slice(start, stop, step)][: self.limit]

    def _parts(self) -> tuple[str, str]:
        match = _SLICE.match(self.text)
        if match is None or is_there(self.text):
            return self.text, ":"
        return match["place"], match["slice"]


def is_there(text: str) -> bool:
    """Return whether `text` names an existing file or folder.

    Shapes of many inputs are longer than any file name and are not a path.
    """
    return len(Path(text).name) <= _LONGEST_NAME and Path(text).exists()


# --- opening ---------------------------------------------------------------------------------------------------------


SampleInput = str | SampleObjects
"""Samples as text from the command line, or as Python objects."""

_ARRAY_SUFFIXES = {".npy", ".npz"}
_KINDS = "a folder, an .npz, .npy or .json file, module:function, or random:16"


def no_samples(inputs: tuple[TensorInfo, ...]) -> UsageError:
    """Return the error for missing samples. It contains a line of Python that saves some samples."""
    arrays = ", ".join(f"{info.name!r}: np.stack({_variable(info)})" for info in inputs[:_MOST_INPUTS])
    more = ", ..." if len(inputs) > _MOST_INPUTS else ""
    meant = "; ".join(
        f"{_variable(info)} is a list of {info.dtype.value.replace('fp', 'float')} arrays of shape {_shape(info)}"
        for info in inputs[:_MOST_INPUTS]
    )
    return UsageError(
        "no samples were passed, but ranges of activations are measured on samples",
        fix="pass --samples: a folder of images or arrays, or a file that your Python writes from preprocessed inputs, "
        f"`np.savez('samples.npz', **{{{arrays}{more}}})` ({meant}; 32 to 512 samples), then --samples samples.npz. "
        "--samples random:16 only shows the kernels: ranges of random samples mean nothing",
        where="samples",
    )


_MOST_INPUTS = 3
"""Largest number of inputs in the example line for samples."""


def _variable(info: TensorInfo) -> str:
    """Return the name of a Python variable for the samples of an input, for a printed example."""
    name = re.sub(r"\W", "_", info.name, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"input_{name}"


def _shape(info: TensorInfo) -> str:
    """Return the shape of one sample of an input, without the batch axis."""
    shape = info.shape or ()
    return "[" + ", ".join(map(str, shape[1:])) + "]"


def open_samples(
    source: SampleInput,
    inputs: tuple[TensorInfo, ...],
    preprocess: Preprocess = Preprocess(),  # noqa: B008 -- frozen
    *,
    labels: str | None = None,
    limit: int | None = None,
    on_nan: NanPolicy = "error",
) -> Samples:
    """Open the given samples and fit them to a model.

    Args:
        source: a folder, an .npz, .npy or .json file, "module:function", or "random:16"; each may be followed by
            [start:stop:step], so that one data set gives disjoint calibration and evaluation samples. Or objects.
        inputs: inputs of the model.
        preprocess: how raw images and arrays become model inputs.
        labels: a file of class indices; None uses labels beside or in the samples, if there are any.
        limit: at most this many samples, after the slice.
        on_nan: whether a sample that holds NaN or Inf is an error or left out.

    Raises:
        UsageError: the text names no samples, the slice is empty, or labels and samples do not match.
        InputFileError: a file is unreadable or does not fit the model.
    """
    text = source if isinstance(source, str) else source.description
    spec = SampleSpec(text=text, preprocess=preprocess, limit=limit, on_nan=on_nan)
    given_labels = read_labels(Path(labels)) if labels else None
    if not isinstance(source, str):
        raw = source.source(inputs)
        if not len(raw):
            raise UsageError(
                f"{text} holds no samples",
                fix="pass at least one sample; an iterator that was already read is empty",
                where="samples",
            )
        return Samples(spec, raw, inputs, given_labels, labels or "")
    beside = (
        labels_beside(Path(spec.place))
        if given_labels is None and not _is_random(spec.place)
        else given_labels
    )
    return Samples(spec, _raw_source(spec, inputs), inputs, beside, labels or "")


class Samples:
    """Samples that can be read repeatedly; the order never changes."""

    def __init__(
        self,
        spec: SampleSpec,
        raw: RawSource,
        inputs: tuple[TensorInfo, ...],
        labels: Labels | None = None,
        file: str = "",
    ) -> None:
        self._spec = spec
        self._raw = raw
        self._inputs = inputs
        self._chosen = spec.select(len(raw))
        self._numbers: Sequence[int] = self._chosen
        self._labels = labels
        self._file = file
        self._label_ends = name_ends(labels) if isinstance(labels, dict) else {}
        self.skipped: tuple[str, ...] = ()
        """Names of samples that are skipped because of NaN or Inf."""
        if not self._numbers:
            raise UsageError(
                f"{spec.text!r} holds no samples ({len(raw)} before slice and limit are applied)",
                fix=f"name {_KINDS}",
            )
        if isinstance(labels, list) and len(labels) not in {len(raw), len(self._chosen)}:
            raise UsageError(
                f"{count_noun(len(labels), 'label')} for {count_noun(len(raw), 'sample')}",
                fix="give one label per sample, in the order of the samples",
                where=spec.text,
            )
        if spec.on_nan == "skip":
            self._skip_nonfinite()

    @property
    def description(self) -> str:
        """Description of the samples."""
        numbers = self._chosen
        part = "" if len(numbers) == len(self._raw) else f", numbers {numbers.start} to {numbers[-1]}"
        step = "" if numbers.step == 1 else f" step {numbers.step}"
        return f"{self._raw.description}{part}{step}"

    @property
    def meaningful(self) -> bool:
        """False for random data."""
        return self._raw.meaningful

    @property
    def is_preprocessed(self) -> bool:
        """True if `samples.preprocess` is applied: always for images, and for arrays if the recipe says so."""
        return isinstance(self._raw, Images) or self._spec.preprocess.arrays

    @property
    def digest(self) -> str:
        """Digest of the samples. It changes if the samples or their preparation change."""
        parts = {
            "raw": self._raw.digest(),
            "numbers": [self._chosen.start, self._chosen.stop, self._chosen.step],
            "preprocess": self._spec.preprocess.model_dump(mode="json"),
            "on_nan": self._spec.on_nan,
            "labels": self._labels.digest if isinstance(self._labels, BoxLabels) else self._labels,
        }
        return digest_of(parts)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples. If the model has a fixed batch size, each sample is repeated to fill the batch.

        Raises:
            InputFileError: a sample cannot be read or does not fit, or labels by name match no sample.
        """
        labelled = False
        for number, sample in enumerate(self.picked(range(len(self))), start=1):
            labelled = labelled or sample.label is not None
            if number == len(self) and not labelled and self._file and isinstance(self._labels, dict):
                raise InputFileError(
                    f"none of {count_noun(len(self._labels), 'label')} belongs to a sample: they name {next(iter(self._labels))!r}, and "
                    f"the last sample is {Path(sample.name).name!r}",
                    fix="use the file names of the samples, or pass one label per sample in their order",
                    where=self._file,
                )
            yield sample

    def picked(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Return the samples at these ascending positions, repeated to fill a fixed batch size."""
        copies = fixed_batch(self._inputs) or 1
        return (tile_sample(sample, copies) for sample in self.rows(positions))

    def _skip_nonfinite(self) -> None:
        """Leave out samples with NaN or Inf before anything counts samples, so that all readers count alike."""
        kept, names = list[int](), list[str]()
        for number, raw in zip(self._chosen, self._raw.read(self._chosen), strict=True):
            sample = conform(raw, self._inputs, self._spec.preprocess)
            if nonfinite(sample):
                names.append(sample.name)
            else:
                kept.append(number)
        if not kept:
            raise InputFileError(
                "every sample holds NaN or Inf values", fix="correct the samples", where=self._spec.text
            )
        self._numbers, self.skipped = kept, tuple(names)

    def rows(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples at these ascending positions, always with a batch dimension of 1."""
        numbers = [self._numbers[position] for position in positions if position < len(self)]
        for number, raw in zip(numbers, self._raw.read(numbers), strict=True):
            sample = conform(raw, self._inputs, self._spec.preprocess)
            bad = nonfinite(sample)
            if bad:
                raise _not_finite(sample, bad)
            if isinstance(self._labels, BoxLabels):
                boxes, points = self._boxes(sample, self._labels)
                yield replace(sample, boxes=boxes, points=points)
                continue
            label = self._label(sample, number)
            yield (
                sample if label == sample.label else Sample(name=sample.name, feeds=sample.feeds, label=label)
            )

    def _boxes(
        self, sample: Sample, labels: BoxLabels
    ) -> tuple[NDArray[np.float64], tuple[NDArray[np.float64], ...] | None]:
        """Return the labelled boxes of a picture, with outlines or keypoints, in pixels of the input."""
        if not isinstance(self._raw, Images):
            raise UsageError(
                "labels with boxes need pictures as samples",
                fix="pass a folder of pictures, whose sizes place the boxes; or labels that are class indices instead of boxes",
                where=self._file,
            )
        size = self._raw.size_of(sample.name)
        return placed_boxes(*labels.of(sample.name), size, self._spec.preprocess)

    def _label(self, sample: Sample, number: int) -> int | None:
        if self._labels is None:
            return sample.label
        if isinstance(self._labels, list):
            is_whole = len(self._labels) == len(self._raw)
            return int(self._labels[number if is_whole else self._chosen.index(number)])
        assert isinstance(self._labels, dict)
        name = matching_name(self._label_ends, sample.name)
        return None if name is None else self._labels[name]


def _is_random(text: str) -> bool:
    """Return True if the text requests random samples and is not the name of a file or folder."""
    names_random = re.match("random(?=[:,]|$)", text) is not None
    return names_random and not is_there(text)


def _raw_source(spec: SampleSpec, inputs: tuple[TensorInfo, ...]) -> RawSource:
    text = spec.place
    if _is_random(text):
        return Random(text, inputs)
    path = Path(text)
    if path.is_dir():
        return _folder(path, spec, inputs)
    require_file(path)
    if path.is_file():
        return _file(path, spec, inputs)
    if ":" in text and "/" not in text.rpartition(":")[2]:
        return code(text).source(inputs)
    raise UsageError(f"no samples found at {text!r}", fix=f"name {_KINDS}")


def _file(path: Path, spec: SampleSpec, inputs: tuple[TensorInfo, ...]) -> RawSource:
    if path.suffix.lower() in _ARRAY_SUFFIXES:
        return ArrayFiles(path.name, (open_file(path, inputs, spec.preprocess),))
    if path.suffix.lower() == ".json":
        return PolygraphyInputs(path)
    is_video = str(guess_type(path.name)[0]).startswith("video/")
    raise UsageError(
        f"the file is not a file of samples: its name ends with {path.suffix or 'no suffix'}",
        fix="write frames of the video into a folder: ffmpeg -i FILE -vf fps=1 frames/%05d.png"
        if is_video
        else f"name {_KINDS}",
        where=str(path),
    )


def _folder(path: Path, spec: SampleSpec, inputs: tuple[TensorInfo, ...]) -> RawSource:
    arrays = sorted(
        entry for entry in path.iterdir() if entry.suffix.lower() in _ARRAY_SUFFIXES and entry.is_file()
    )
    has_images = bool(pictures(path))
    if arrays and has_images:
        raise UsageError(
            "the folder holds both arrays and images",
            fix="keep arrays and images in separate folders",
            where=str(path),
        )
    if arrays:
        files = tuple(open_file(entry, inputs, spec.preprocess) for entry in arrays)
        return ArrayFiles(f"{count_noun(len(files), 'array file')} in {path.name}", files)
    if not has_images:
        raise InputFileError(
            "the folder holds neither images nor arrays", fix=f"name {_KINDS}", where=str(path)
        )
    if len(inputs) != 1:
        raise UsageError(
            f"a folder of images cannot be used for a model with {count_noun(len(inputs), 'input')}",
            fix="save one .npz file per sample, with an array for each input",
            where=str(path),
        )
    return Images(path, inputs[0], spec.preprocess)


def _not_finite(sample: Sample, bad: dict[str, int]) -> InputFileError:
    tensor, count = next(iter(bad.items()))
    return InputFileError(
        f"input {tensor!r} holds {count} NaN or Inf values",
        fix=f"correct the sample; {Setting('samples.nan', 'skip')} skips such samples",
        where=sample.name,
    )


# --- batches ---------------------------------------------------------------------------------------------------------
# Groups samples into batches, and selects parts of a source: halves to choose and to check on, or a few evenly spaced
# samples.


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Samples joined along the first dimension.

    Attributes:
        names: the samples in it.
        feeds: one array per model input.
        labels: one per sample.
        padding: how many copies of the last sample were added to fill a fixed batch size.
    """

    names: tuple[str, ...]
    feeds: Feeds
    labels: tuple[int | None, ...]
    padding: int = 0


def batches(samples: Iterable[Sample], size: int, *, fill: bool = False) -> Iterator[Batch]:
    """Yield batches of `size` samples, in order. The last batch may be smaller, unless `fill` repeats its last sample.

    Inputs without a batch dimension (rank 0) are taken from the first sample of the group.
    """
    group: list[Sample] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield _join_samples(group, 0)
            group = []
    if group:
        yield _join_samples(group, size - len(group) if fill else 0)


def _join_samples(group: list[Sample], padding: int) -> Batch:
    padded = group + [group[-1]] * padding
    feeds = group[0].feeds
    if len(padded) > 1:
        feeds = {
            name: array if array.ndim == 0 else np.concatenate([sample.feeds[name] for sample in padded])
            for name, array in feeds.items()
        }
    return Batch(
        names=tuple(sample.name for sample in group),
        feeds=feeds,
        labels=tuple(sample.label for sample in group),
        padding=padding,
    )


# --- part ------------------------------------------------------------------------------------------------------------
# Parts of a sample source: disjoint halves to choose and to check on, or a few evenly spaced samples.


def picked(samples: SampleSource, numbers: Sequence[int]) -> Iterator[Sample]:
    """Return the samples with these ascending numbers, counted from 0."""
    if isinstance(samples, Samples):
        return samples.picked(numbers)
    chosen = frozenset(numbers)
    return (sample for number, sample in enumerate(samples) if number in chosen)


@dataclass(frozen=True, slots=True)
class SamplePart:
    """Samples of a source by their ascending numbers.

    The first and second half of a data set could differ, because data sets are often sorted.
    """

    whole: SampleSource
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Sample]:
        return picked(self.whole, self.numbers)

    @property
    def description(self) -> str:
        """Description of the samples."""
        return f"{len(self)} of {self.whole.description}, from number {self.numbers[0]} to {self.numbers[-1]}"

    @property
    def meaningful(self) -> bool:
        """False for random data."""
        return self.whole.meaningful

    @property
    def digest(self) -> str:
        """Digest of the chosen samples. It changes if the source changes, or the choice of samples."""
        return f"{self.whole.digest}{[*self.numbers]}"
