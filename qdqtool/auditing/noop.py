"""Check whether an engine that is called INT8 computes in INT8.

A build with INT8 requested can silently give the float engine again: the export lost the Q/DQ, the calibration cache
does not match, or the target GPU has no INT8 convolutions. Such an engine has the size, the kernels, the latency and,
to the last bit, the outputs of the float engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qdqtool.core.engine import Engine, EngineLayer, Role, count_formats, is_computing
from qdqtool.core.findings import Indication, NoOpReport, NoOpVerdict, Observation
from qdqtool.core.tensors import DType
from qdqtool.core.wording import computing_in, count_noun

_SAME = 0.02
"""Largest relative difference between sizes or byte counts that are reported as the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraEvidence:
    """Evidence for the check of an INT8 engine in addition to its layers: float engine, sizes, outputs and times.

    Attributes:
        plan_bytes: sizes of the INT8 and the float plan file.
        ms: times of one inference with the INT8 and the float engine.
        outputs_equal: whether both engines gave bit-identical outputs for one input.
        outputs_of: source of the outputs, in words.
    """

    plan_bytes: tuple[int, int] | None = None
    ms: tuple[float, float] | None = None
    outputs_equal: bool | None = None
    outputs_of: str = "engine"


def really_int8(
    engine: Engine, reference: Engine | None = None, besides: ExtraEvidence | None = None
) -> NoOpReport:
    """Return the verdict on `engine`, compared with the float build `reference` if given."""
    computing = [layer for layer in engine.kernels if is_computing(layer)]
    other_counts = count_formats(computing)
    int8 = other_counts.pop(str(DType.INT8), 0)
    unknown = sum(layer.precision is DType.UNKNOWN for layer in computing)
    signs = (
        *_own(computing, int8, unknown, other_counts),
        *(_against(engine, reference) if reference else ()),
        *_besides(besides or ExtraEvidence()),
    )
    verdict = _verdict(len(computing), int8, unknown, signs, other_counts)
    return NoOpReport(
        verdict=verdict, int8=int8, compute=len(computing), unknown=unknown, signs=signs, others=other_counts
    )


def _verdict(
    compute: int, int8: int, unknown: int, signs: tuple[Observation, ...], other_counts: Mapping[str, int]
) -> NoOpVerdict:
    if int8:
        return NoOpVerdict.INT8 if int8 == compute else NoOpVerdict.PARTLY
    if other_counts:
        return NoOpVerdict.OTHER
    if compute and not unknown:
        return NoOpVerdict.NO_OP
    votes = {sign.points for sign in signs} - {Indication.NOTHING}
    # Without layer information, all signs must agree.
    return NoOpVerdict.NO_OP if votes == {Indication.NO_OP} else NoOpVerdict.UNKNOWN


def _own(
    computing: list[EngineLayer], int8: int, unknown: int, other_counts: Mapping[str, int]
) -> Iterator[Observation]:
    if not computing:
        yield Observation(text="the layer information shows no compute kernel", points=Indication.NOTHING)
        return
    points = Indication.INT8 if int8 else Indication.NOTHING if unknown or other_counts else Indication.NO_OP
    words = "".join(f", {count} {computing_in(name)}" for name, count in other_counts.items())
    words += f", {unknown} of unknown type" if unknown else ""
    yield Observation(
        text=f"{int8} of {count_noun(len(computing), 'compute kernel multiplies', 'compute kernels multiply')} in INT8{words}",
        points=points,
    )


def _against(engine: Engine, reference: Engine) -> Iterator[Observation]:
    """Yield observations from comparing the layers of both engines. They count only if the other engine is a float build."""
    observations = [_sizes("activation bytes of all kernels", _bytes(engine), _bytes(reference))]
    ours, theirs = _tactics(engine), _tactics(reference)
    if ours and theirs:
        shared = sum((ours & theirs).values()) / max(sum(ours.values()), 1)
        points = Indication.NO_OP if shared == 1 else Indication.INT8 if shared < 0.5 else Indication.NOTHING
        observations.append(
            Observation(
                text=f"{shared:.0%} of the compute kernels are those of the float engine", points=points
            )
        )
    unlike = _unlike(engine, reference)
    if unlike:
        yield Observation(text=unlike, points=Indication.NOTHING)
    for sign in observations:
        yield replace(sign, points=Indication.NOTHING) if unlike else sign


def _unlike(engine: Engine, reference: Engine) -> str:
    """Return why the other engine cannot serve as float reference; "" if it can."""
    there = [layer for layer in reference.kernels if is_computing(layer)]
    for name, count in count_formats(there).items():
        return f"{count} of {count_noun(len(there), 'compute kernel of the float engine multiplies', 'compute kernels of the float engine multiply')} {computing_in(name)}: it is not a valid reference"
    half = [_halves(side) for side in (engine, reference)]
    return (
        "only one of the two engines uses FP16 or BF16, which alone halves the bytes"
        if half[0] != half[1]
        else ""
    )


def _halves(engine: Engine) -> bool:
    tensors = (
        tensor.dtype
        for layer in engine.kernels
        for tensor in (*layer.inputs, *layer.outputs, *layer.constants)
    )
    return any(dtype in {DType.FLOAT16, DType.BFLOAT16} for dtype in tensors)


def _besides(evidence: ExtraEvidence) -> Iterator[Observation]:
    if evidence.plan_bytes is not None:
        yield _sizes("bytes of the plan file", *evidence.plan_bytes)
    if evidence.ms is not None:
        ours, theirs = evidence.ms
        close = abs(ours - theirs) <= _SAME * theirs
        points = Indication.NO_OP if close else Indication.NOTHING
        yield Observation(
            text=f"time of this engine {ours:.4f} ms, of the float engine {theirs:.4f} ms", points=points
        )
    if evidence.outputs_equal is not None:
        # A rounding model does not prove INT8 kernels. A model without any rounding proves that there are none.
        differ = Indication.INT8 if evidence.outputs_of == "engine" else Indication.NOTHING
        yield Observation(
            text=f"outputs {'equal' if evidence.outputs_equal else 'differ from'} those of the float {evidence.outputs_of}"
            f"{', to the last bit' if evidence.outputs_equal else ''}",
            points=Indication.NO_OP if evidence.outputs_equal else differ,
        )


def _sizes(name: str, ours: int | None, theirs: int | None) -> Observation:
    if ours is None or not theirs:
        return Observation(text=f"{name}: unknown", points=Indication.NOTHING)
    text = f"{name}: this engine {ours:,}, float engine {theirs:,}"
    if abs(ours - theirs) <= _SAME * theirs:
        return Observation(text=text, points=Indication.NO_OP)
    return Observation(text=text, points=Indication.INT8 if ours < theirs else Indication.NOTHING)


def _tactics(engine: Engine) -> Counter[str]:
    """Count how often each kernel name occurs among the compute layers, without names that contain "STUB"."""
    names = (layer.tactic for layer in engine.kernels if layer.role is Role.COMPUTE)
    return Counter(name for name in names if name and "STUB" not in name)


def _bytes(engine: Engine) -> int | None:
    sizes = [tensor.bytes for layer in engine.kernels for tensor in (*layer.inputs, *layer.outputs)]
    known_sizes = [size for size in sizes if size is not None]
    return sum(known_sizes) if known_sizes and len(known_sizes) == len(sizes) else None
