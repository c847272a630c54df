"""Ranges of tensors, the calibration table that contains them, and scales read from a Q/DQ model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema

from qdqtool.core.artefacts import Artefact
from qdqtool.core.findings import Finding
from qdqtool.core.journal import Journal
from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import INT8, DType, NamedFormat, QuantFormat
from qdqtool.core.weights import WeightChanges
from qdqtool.core.wording import Command, count_noun, list_names
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import digest_file
from qdqtool.plugins import Registry

# --- table of ranges -------------------------------------------------------------------------------------------------

CALIBRATORS: Final = Registry(package="calibrators.methods")
"""All methods that choose a range from a histogram; each is a `calibrators.Calibrator`."""
LOST_CHANNELS: Final = ("CAL150", "lost_channels")
"""Code and name of the calibration finding about channels that are almost lost in the step of a shared scale."""
_TOLD: Final = 4
"""Largest number of constants that a sentence names."""
_CPU: Final = "CPUExecutionProvider"
INT8_LEVELS = float(INT8.qmax)
"""Largest magnitude of symmetric INT8: scale = amax / 127."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRange:
    """The magnitude that maps to the largest number of a format, for a whole tensor or per channel.

    Attributes:
        tensor: the tensor's name in the float model.
        amax: one value, or one value per channel along `axis`; all finite and positive.
        axis: channel axis of a constant; None for one range per tensor.
        low: smallest value seen; None if unknown.
        high: largest value seen; None if unknown.
        method: the calibrator that chose it ("max", "entropy", "cache", ...).
        note: anything a reader must know ("zero in every sample", "tied to x").
        gain_db: with the method `auto`, gain in signal to noise at the network's outputs (or at the scores before a
            final softmax) from the choice of this range. The choice is a calibrator instead of the worst calibrator,
            or another calibrator in this part of the network. None if there was no choice, or if all calibrators
            agree.
        format: the format that the range was chosen for; the range also works for other formats, each with its own
            largest number.
        block: values along `axis` that share one scale, which is made from the values when they are written; None
            without blocks. `amax` is then for the whole tensor.
        zero_point: the INT8 number for the value 0. If it is not 0, the range is not symmetric: it ends at the values
            of -128 and 127, and `amax` is 127 steps.
        origin: the decisions behind `amax`, in order, each in words.
    """

    tensor: str
    amax: tuple[float, ...]
    axis: int | None = None
    low: float | None = None
    high: float | None = None
    method: str = "max"
    note: str = ""
    gain_db: float | None = None
    format: Annotated[NamedFormat, Field(exclude_if=lambda value: value == INT8)] = INT8
    block: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    zero_point: Annotated[int, Field(exclude_if=lambda value: value == 0)] = 0
    origin: Annotated[tuple[str, ...], Field(exclude_if=lambda origin: not origin)] = field(
        default=(), compare=False
    )

    def since(self, *steps: str, **changed: Any) -> TensorRange:
        """Return a copy of the range with one more step in its history; `changed` are new field values."""
        return replace(self, origin=(*self.origin, *steps), **changed)

    @property
    def symmetric(self) -> TensorRange:
        """A symmetric range that covers all values of this range, for programs without zero points."""
        if not self.zero_point:
            return self
        steps = max(INT8.qmax - self.zero_point, self.zero_point - INT8.qmin)
        return replace(self, zero_point=0, amax=tuple([amax * steps / INT8.qmax for amax in self.amax]))

    @property
    def scales(self) -> tuple[float, ...]:
        """Quantization steps of `format`, in the order of `amax`."""
        return self.scales_in(self.format)

    def scales_in(self, format_: QuantFormat) -> tuple[float, ...]:
        """Return the quantization steps for any format, in the order of `amax`: amax / the largest number of the format."""
        qmax = format_.qmax
        return tuple([amax / qmax for amax in self.amax])


_InMemory = GetPydanticSchema(lambda _source, _handler: core_schema.any_schema())


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeShift:
    """A correction that is added to the bias of one node, with one value per output channel."""

    node: str
    shift: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Equalized:
    """A tensor whose channels were rescaled by constants before and after it.

    Attributes:
        way: as `weights.equalize` names it.
        constants: names of the constants that changed, sorted.
        gain_db: gain in signal to noise at the network's outputs (or at the scores before a final softmax); None if not
            measured.
    """

    way: str
    constants: tuple[str, ...]
    gain_db: float | None = None

    @property
    def words(self) -> str:
        """One line about an equalization: its gain, its kind and its constants."""
        gain = "" if self.gain_db is None else f"{self.gain_db:+.1f} dB at the output, before any softmax; "
        return f"equalized: {gain}{self.way}, by {list_names(self.constants, _TOLD)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroPoints:
    """Summary of the tensors with zero points, which the model adds and subtracts as constants.

    The setting `calibrate.symmetric` controls them.

    Attributes:
        tensors: how many have one.
        saturating: how many replace their Relu or Clip by the saturation of Q.
        gain_db: gain in signal to noise at the outputs over symmetric ranges; None if not measured.
        kernels: of the engine without and with them; None if none was built.
        bytes: activation bytes of both engines, as dumped; None if unknown.
    """

    tensors: int
    saturating: int = 0
    gain_db: float | None = None
    kernels: tuple[int, int] | None = None
    bytes: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """One line about zero points: number of tensors, gain, and cost in kernels and bytes."""
        gain = "gain not measured" if self.gain_db is None else f"{self.gain_db:+.1f} dB at the output"
        words = [f"zero points on {count_noun(self.tensors, 'tensor')}: {gain}, before any softmax"]
        if self.kernels is None:
            words.append("no engine built to compare")
        else:
            words.append(f"{self.kernels[1]} kernels built, {self.kernels[0]} without")
        if self.bytes is not None and self.bytes[0]:
            words.append(f"{self.bytes[1] / self.bytes[0] - 1:+.1%} activation bytes")
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class CalibrationTable(Displayable):
    """A calibration table: one range per tensor, sorted by name.

    Attributes:
        ranges: activations and weights.
        samples: number of samples; None if the ranges come from another source.
        meaningful: False if the samples were random, because their accuracy has no meaning.
        source: description of the samples.
        shifts: bias corrections in graph order; empty if none was asked for.
        findings: ranges that will cost accuracy, in graph order.
        zero_points: tensors whose ranges are not symmetric; None if all are.
        weights: constants that calibration changed; None if it changed none.
        equalized: the scaled channels and the gain; None if none were scaled.
        weights_digest: SHA-256 of the file next to calibration.json with these constants; "" without one.
        notes: skipped steps with their reasons, one sentence each.
        journal: the candidates that were compared by the outputs of the network; None if none were.
        provider: the execution provider of onnxruntime on which the samples ran; not written for its CPU.
    """

    ranges: tuple[TensorRange, ...]
    samples: int | None = None
    meaningful: bool = True
    source: str = ""
    shifts: tuple[NodeShift, ...] = ()
    findings: tuple[Finding, ...] = ()
    equalized: Annotated[Equalized | None, Field(exclude_if=lambda value: value is None)] = None
    zero_points: Annotated[ZeroPoints | None, Field(exclude_if=lambda value: value is None)] = None
    weights: Annotated[WeightChanges | None, _InMemory, Field(exclude=True)] = field(
        default=None, repr=False, compare=False
    )
    weights_digest: Annotated[str, Field(exclude_if=lambda digest: not digest)] = ""
    notes: Annotated[tuple[str, ...], Field(exclude_if=lambda notes: not notes)] = ()
    journal: Annotated[Journal | None, Field(exclude_if=lambda value: value is None)] = field(
        default=None, compare=False
    )
    provider: Annotated[str, Field(exclude_if=lambda provider: provider == _CPU)] = _CPU

    def headline(self) -> str:
        """One line about the table: the number of ranges, samples and findings."""
        source = f" of {self.source}" if self.source else ""
        samples = "" if self.samples is None else f" from {count_noun(self.samples, 'sample')}{source}"
        return (
            f"{count_noun(len(self.ranges), 'range')}{samples}, {count_noun(len(self.findings), 'finding')}"
        )

    def by_tensor(self) -> dict[str, TensorRange]:
        """The ranges of the table by tensor name."""
        return {entry.tensor: entry for entry in self.ranges}


# --- file ------------------------------------------------------------------------------------------------------------
# calibration.json, with an optional file of changed weights beside it.

_FIX: Final = f"run {Command('calibrate')} again, and keep the two files together"
_SUFFIX: Final = ".weights.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFile(Artefact[CalibrationTable]):
    """The artefact `calibration`, optionally with a weights file next to it."""

    def write(self, path: Path, data: CalibrationTable, provenance: dict[str, str] | None = None) -> None:
        """Write the calibration table to `path`, and the changed weights to a file next to it.

        Without changed weights, a file of weights from an earlier calibration is deleted.

        Raises:
            UsageError: the weights would overwrite a file that this tool did not write.
        """
        from qdqtool.core.weights import is_weights_file, save_weights

        beside = path.with_name(path.stem + _SUFFIX)
        foreign = beside.exists() and not is_weights_file(beside)
        if data.weights:
            if foreign:
                raise UsageError(
                    "the changed weights would overwrite a file that qdqtool did not write",
                    fix="choose another output path, or move this file",
                    where=str(beside),
                )
            save_weights(beside, data.weights)
            data = replace(data, weights_digest=digest_file(beside))
        else:
            if not foreign:
                beside.unlink(missing_ok=True)
            data = replace(data, weights_digest="")
        # super() does not work here, because slots=True creates a new class
        Artefact.write(self, path, data, provenance)

    def read(self, path: Path) -> CalibrationTable:
        """Read the calibration table at `path`, with the changed weights.

        Raises:
            InputFileError: as `Artefact.read`, or the file of weights is missing, damaged or the wrong one.
        """
        data = Artefact.read(self, path)
        if not data.weights_digest:
            return data
        beside = path.with_name(path.stem + _SUFFIX)
        if not beside.is_file() or digest_file(beside) != data.weights_digest:
            raise InputFileError(
                f"the file does not hold the weights that were written with {path.name}",
                fix=_FIX,
                where=str(beside),
            )
        from qdqtool.core.weights import load_weights

        return replace(data, weights=load_weights(beside))


# --- readback --------------------------------------------------------------------------------------------------------
# Scales read from a Q/DQ model.


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadScale:
    """The scales that a Q/DQ model stores for one input of one node.

    Attributes:
        slot: the input.
        tensor: its tensor in the float model.
        module: the module of the framework that the node comes from, as "layer1.0.conv1"; "" if no name shows.
        kind: whether the tensor is a constant.
        dtype: type of the integers.
        scale: quantization steps, a single step or one per channel.
        zero_point: one integer per scale.
        axis: channel axis; None for one scale per tensor.
    """

    slot: Slot
    tensor: str
    module: str
    kind: SlotKind
    dtype: DType
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBack:
    """All scales that a Q/DQ model stores.

    Attributes:
        model: file name of the model.
        origin: the tool that quantized the model, recognized by names; "" if it is not recognized.
        scales: one entry per quantized input, in graph order.
        table: the scales as ranges of the float model's tensors.
        notes: omitted or widened scales, one sentence each.
    """

    model: str
    origin: str
    scales: tuple[ReadScale, ...]
    table: CalibrationTable
    notes: tuple[str, ...] = ()
