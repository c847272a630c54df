"""The request for a run, and the listener that receives its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from qdqtool.calibration.samples import SampleInput
from qdqtool.core.commands import Command
from qdqtool.core.recipe import Recipe
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The request for a run.

    Attributes:
        model: the float ONNX file.
        recipe: the method.
        samples: where calibration samples come from, as typed on the command line, or objects.
        eval_samples: where evaluation samples come from; None compares on the calibration samples.
        labels: file of class indices for the evaluation samples, or None.
        out: the run folder.
        cache: folder of finished builds by digest, or None.
        histograms: a histograms.npz of the same model and samples that spares the collection, or None.
        table: a calibration.json whose ranges and shifts are taken, as far as their nodes are quantized, or None.
        calibration_cache: the cache whose scales the float model gets, or None.
        reference: the float model that a Q/DQ model is compared with; None uses what remains without its Q/DQ.
        brought: the model at `model`, where it is open already; None opens it.
        part: which of the evaluation samples: the first one, and the distance to the next; None takes all.
    """

    model: Path
    recipe: Recipe
    samples: SampleInput
    eval_samples: SampleInput | None
    labels: str | None
    out: Path
    cache: Path | None = None
    histograms: Path | None = None
    table: Path | None = None
    calibration_cache: Path | None = None
    reference: Path | None = None
    brought: Model | None = None
    part: tuple[int, int] | None = None

    def typed(self) -> Command:
        """Return the command that repeats this run with the recipe in its folder. Objects that were passed appear as DATA."""
        words = [str(self.model), "--recipe", str(self.out / "recipe.yaml")]
        samples = [("--samples", self.samples), ("--eval-samples", self.eval_samples)]
        files = [
            ("--labels", self.labels),
            ("--calibration-cache", self.calibration_cache),
            ("--reference", self.reference),
        ]
        for option, given in (*samples, *files):
            if given is not None:
                words += [option, str(given) if isinstance(given, str | Path) else "DATA"]
        return Command("run", (*words, "--out", str(self.out)))

    def opened(self) -> Model:
        """Open the model, unless it is open already.

        Raises:
            InputFileError: it cannot be read.
        """
        return load(self.model) if self.brought is None else self.brought


class ProgressListener(Protocol):
    """Receives the progress of a run."""

    def started(self, step: str) -> None:
        """The step begins."""

    def progressed(self, done: int, total: int | None) -> None:
        """`done` of `total` pieces of the current step are finished."""

    def said(self, words: str) -> None:
        """The current step reports what it does or what it found; its count of pieces starts again."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """The step has ended; `skipped` if its files were up to date and nothing was done."""


class NullProgress:
    """A listener that does nothing."""

    def started(self, step: str) -> None:
        """Do nothing."""

    def progressed(self, done: int, total: int | None) -> None:
        """Do nothing."""

    def said(self, words: str) -> None:
        """Do nothing."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """Do nothing."""
