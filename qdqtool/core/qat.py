"""Results of quantization-aware training."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One pass over the training samples; number 0 is the calibrated network before training.

    Attributes:
        number: passes so far.
        loss: mean over the pass; None for number 0.
        score: on the validation samples, higher is better; None if the metric was NaN or infinite.
        learning_rate: at the end of the pass.
        seconds: training and validation (measured); None in `qat.json`, which holds no times.
    """

    number: int
    loss: float | None
    score: float | None
    learning_rate: float
    seconds: float | None = None

    @property
    def rank(self) -> float:
        """The score; minus infinity without a score."""
        return -inf if self.score is None else self.score


@dataclass(frozen=True, kw_only=True, slots=True)
class QatRow:
    """One model in the result table of QAT.

    Attributes:
        name: "FP32", "PTQ" or "QAT".
        value: its task metric on the test samples (measured); None if there is none to give.
        low: lower end of the 95 % interval of `value`; None if it is not estimated.
        high: upper end.
        change: `value` minus that of FP32; None for FP32 itself.
        change_low: lower end of the 95 % interval of `change`, sample by sample.
        change_high: upper end.
        nodes_int8: compute nodes that run INT8 in the engine; None for FP32.
        nodes_total: compute nodes.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    nodes_int8: int | None = None
    nodes_total: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrainedSlot:
    """A quantized node input that had no quantizer in training; it keeps its calibrated range."""

    slot: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class QatResult(Displayable):
    """The result table of QAT, and the course of the training.

    Attributes:
        metric: metric of the table: "top1", the recipe's own function, or "sqnr_db" of the first output against FP32
            without class labels.
        unit: "%" for shares.
        samples: test samples.
        rows: FP32, PTQ and QAT.
        engine: the library of the quantizers.
        device: device of the training.
        best_epoch: the epoch whose weights were taken.
        epochs: all epochs.
        quantizers: tensors with a quantizer in training.
        untrained: quantized slots without a quantizer in the training.
        notes: remarks that a reader needs to trust the figures.
    """

    metric: str
    unit: str
    samples: int
    rows: tuple[QatRow, ...]
    engine: str
    device: str
    best_epoch: int
    epochs: tuple[Epoch, ...]
    quantizers: int
    untrained: tuple[UntrainedSlot, ...] = ()
    notes: tuple[str, ...] = ()
