"""Measurements of samples, labels and models, which the data checks evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qdqtool.core.claims import Assertion
from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class InputStatistics:
    """Statistics of one float input over a set of samples.

    Attributes:
        name: the input.
        low: smallest value.
        high: largest value.
        means: one mean per channel; a single one without channels.
        deviations: standard deviation per channel, over pixels and samples.
        tilt: mean of the first channel minus that of the last, in standard errors from sample to sample; 0 without
            three channels. Its sign tells RGB from BGR.
    """

    name: str
    low: float
    high: float
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    tilt: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSet:
    """Facts about one set of samples, for calibration or evaluation.

    Attributes:
        count: how many there are.
        digests: SHA-256 of the values of each sample that was looked at, in order.
        names: their names.
        constant: names of samples in which every value of a float input is the same.
        inputs: statistics of each float input.
        skipped: samples that were left out because they held NaN or Inf.
    """

    count: int
    digests: tuple[str, ...]
    names: tuple[str, ...]
    constant: tuple[str, ...]
    inputs: tuple[InputStatistics, ...]
    skipped: int = 0


CONVERGED = 0.10
"""Largest relative difference between the median ranges of two halves for converged ranges. Chosen with
digits and a ResNet-20 on CIFAR-10: halves of 4 samples may differ by more, and halves of 8 do not.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Difference between the ranges from two halves of the calibration samples.

    Attributes:
        samples: how many samples were split.
        typical: median over tensors of the relative difference, averaged over random splits (0.1 is 10 %).
        worst: the largest over tensors.
        tensor: the tensor with the largest.
    """

    samples: int
    typical: float
    worst: float
    tensor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """Predicted and true classes of the float model on labelled samples, one per sample."""

    predicted: tuple[int, ...]
    truth: tuple[int, ...]
    classes: int

    @property
    def hits(self) -> int:
        """Number of correct predictions."""
        return sum(left == right for left, right in zip(self.predicted, self.truth, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """Predictions of the float model on some samples: with another plausible preparation, and unchanged.

    Attributes:
        name: the preparation in words.
        predictions: answers of the model on samples with this preparation.
        asis: accuracy on the unchanged samples.
        settings: settings of the recipe for this preparation, "samples.preprocess.colour=bgr"; () if the samples are
            arrays that are used unchanged.
    """

    name: str
    predictions: Predictions
    asis: Predictions
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirrored:
    """How well the model's answers to pictures and their mirror images agree, with the usual preparations.

    This needs no labels.

    Attributes:
        samples: how many pictures.
        asis: agreement of the answers, in nats, for unchanged pictures.
        name: the preparation that is clearly better, in words; "" if none is.
        best: agreement with the preparation.
        few_classes: whether a picture and its mirror image get one class significantly more often without the
            preparation, a sign of few classes. All pictures may be of few classes then.
        settings: settings of the recipe for this preparation; () if the samples are arrays that are used unchanged.
    """

    samples: int
    asis: float
    name: str = ""
    best: float = 0.0
    few_classes: bool = False
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatCure:
    """The nodes with the largest loss of signal at their outputs, and the gain if they stay float.

    Attributes:
        nodes: the nodes, worst first.
        before_db: SQNR of the noisiest output, or part of an output, without the change, on the samples of this
            measurement.
        after_db: SQNR of this output with these nodes float; None if it was not measured.
        samples: how many samples.
    """

    nodes: tuple[str, ...]
    before_db: float | None = None
    after_db: float | None = None
    samples: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowLoss:
    """Accuracy loss from the type of the float part, measured separately from the loss by quantization.

    Attributes:
        types: the type, "fp16" or "bf16".
        wide_db: SQNR of the noisiest output, or part of an output, with the float part in FP32; None without a loss.
        narrow_db: SQNR of this output with the float part in the narrow type.
        nodes: the nodes in that type at whose outputs most is lost, worst first.
        kept_db: SQNR of this output with these nodes in FP32; None if it was not measured.
        samples: how many samples.
    """

    types: str
    wide_db: float | None
    narrow_db: float
    samples: int
    nodes: tuple[str, ...] = ()
    kept_db: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEvidence:
    """All facts about samples, labels and accuracy that data checks can use.

    Attributes:
        calibration: the calibration samples.
        evaluation: the evaluation samples; None if the calibration samples were used.
        meaningful: False when samples were random.
        calibrated: whether ranges were chosen on the calibration samples; a Q/DQ model brings its own.
        spread: convergence of the ranges; None for fewer than two samples.
        predictions: the float model on labelled evaluation samples.
        variant: the samples in the other usual preparation that suits the model best; None if no other preparation
            does.
        mirrored: preparations compared without labels; None if there are labels, or the model cannot be asked so.
        comparison: float against quantized model.
        cure: the nodes that cause the loss; None if they were not searched for.
        narrow: accuracy loss of FP16 or BF16; None if the float part is FP32, or if the loss is small.
        recipe: name of the recipe.
        fitting: the shipped recipe made for such networks, and why; None if the recipe is none of those.
        excluded: patterns of the nodes that the recipe keeps float; a fix repeats them, because a setting replaces them.
        wide: patterns of the nodes that the recipe keeps FP32.
    """

    calibration: SampleSet
    evaluation: SampleSet | None
    meaningful: bool = True
    calibrated: bool = True
    spread: Spread | None = None
    predictions: Predictions | None = None
    variant: Variant | None = None
    mirrored: Mirrored | None = None
    comparison: Comparison | None = None
    cure: FloatCure | None = None
    narrow: NarrowLoss | None = None
    recipe: str = ""
    fitting: tuple[str, str] | None = None
    excluded: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RawDataFinding:
    """A finding before its data check adds the code and name. `severity` overrides the severity of the check."""

    subject: str
    reason: str
    fix: str
    severity: Severity | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataCheck:
    """A data check, as its plug-in file defines it.

    Attributes:
        code: stable identifier, "DAT101".
        severity: default severity of the findings; a finding may override it.
        find: yields the findings, in a stable order.
        says: claim about the run that every reason makes; None if only the samples show the fact.
    """

    code: str
    severity: Severity
    find: Callable[[DataEvidence], Iterable[RawDataFinding]]
    says: Assertion | None = None
