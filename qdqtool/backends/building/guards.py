"""Checks before a build, for flags and models that would build but not as intended.

The mistakes come from many threads: a Q/DQ model built without INT8; INT8 without any scales (trtexec then invents
ranges); INT8 without FP16 for the float part; flags that a strongly typed network ignores; a calibration cache that
no builder reads; DLA with options that it does not support.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qdqtool.backends.flags import PRECISIONS, Flag
from qdqtool.core.tensors import DType

# --- facts -----------------------------------------------------------------------------------------------------------
# Facts about a model that the checks before a build need.


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Facts about a model that a builder needs to know.

    Attributes:
        quantized: whether it has QuantizeLinear or DequantizeLinear nodes.
        half: whether it has FP16 or BF16 tensors, weights or inputs.
        dynamic: inputs with a dimension that is not a number.
    """

    quantized: bool
    half: bool
    dynamic: tuple[str, ...]


def facts_of(model: Path) -> ModelFacts:
    """Read from a model file whether it has Q/DQ and FP16, and which inputs are dynamic.

    Raises:
        InputFileError: it cannot be read.
    """
    from qdqtool.graph.onnx_io.read import read
    from qdqtool.graph.view import GraphView
    from qdqtool.trt.ops import QDQ

    view = GraphView(read(model))
    ops = {node.op for node in view.nodes}
    tensors = {name for node in view.nodes for name in node.inputs if name}
    types = {view.info(name).dtype for name in tensors}
    return ModelFacts(
        quantized=bool(ops & QDQ),
        half=bool(types & {DType.FLOAT16, DType.BFLOAT16}),
        dynamic=tuple(info.name for info in view.inputs if not info.is_static),
    )


# --- guards ----------------------------------------------------------------------------------------------------------


Strong = Literal["always", "on request", "never"]
_INT8_CORES_FROM = 72
"""First compute capability, times ten, with INT8 tensor cores (Xavier; the desktop line follows with 75)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """Facts about a builder that guards read: its name, network typing and GPU compute capability.

    Attributes:
        name: builder and release, for messages ("TensorRT 10.9").
        strong: whether networks are strongly typed: the model has the types, and precision flags have no effect.
        sm: compute capability of the GPU times ten; None when not known.
    """

    name: str
    strong: Strong
    sm: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """A warning about a build before it starts. A fatal one stops the build."""

    what: str
    fix: str
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({self.fix})"


def choose_typing(
    facts: ModelFacts, flags: tuple[Flag, ...], can: Abilities
) -> tuple[tuple[Flag, ...], str | None]:
    """If the user chose no typing, add the flags with which the builder keeps the model's Q/DQ.

    Return the flags, and a note on the choice or None.
    """
    names = {flag.name for flag in flags}
    if not facts.quantized or can.strong == "always" or names & (PRECISIONS | {"stronglyTyped"}):
        return flags, None
    name = "stronglyTyped" if can.strong == "on request" else "int8"
    added = [Flag(name=name)]
    if name == "int8" and facts.half:
        added.append(Flag(name="fp16"))
    words = " ".join(map(str, added))
    return (*flags, *added), f"the model has Q/DQ and no flag sets the typing: built with {words}"


def guards(
    facts: ModelFacts, flags: tuple[Flag, ...], can: Abilities, *, profiled: frozenset[str] = frozenset()
) -> tuple[Guard, ...]:
    """Return errors and warnings for a build with these flags. `profiled` are the inputs for which shapes are given."""
    names = {flag.name for flag in flags}
    strong = can.strong == "always" or "stronglyTyped" in names
    problems = [*_typing(facts, names, can, strong=strong), *_calibration(facts, names, strong=strong)]
    problems += _dla(facts, names, can, strong=strong)
    without = [name for name in facts.dynamic if name not in profiled]
    if without:
        problems.append(
            Guard(
                what=f"{', '.join(map(repr, without))} has dynamic dimensions and no shapes were given",
                fix="give --min-shapes, --opt-shapes and --max-shapes (build.opt_shapes in a recipe)",
                fatal=True,
            )
        )
    if can.sm is not None and can.sm < _INT8_CORES_FROM and (facts.quantized or "int8" in names):
        problems.append(
            Guard(
                what=f"the GPU (sm{can.sm}) has no INT8 tensor cores: expect little or no gain, and errors about missing kernels",
                fix="use FP16, or a GPU from sm75 on",
            )
        )
    return tuple(problems)


def _typing(facts: ModelFacts, names: set[str], can: Abilities, *, strong: bool) -> Iterator[Guard]:
    options = sorted(names & (PRECISIONS | {"precisionConstraints", "layerPrecisions", "layerOutputTypes"}))
    if strong and options:
        yield Guard(
            what=f"{', '.join('--' + name for name in options)} has no effect: networks are strongly typed in "
            + (can.name if can.strong == "always" else "this build"),
            fix="write the types into the model: qdqtool convert MODEL -o OUT --types fp16",
            fatal=can.strong == "always",
        )
    if strong:
        if facts.quantized and not facts.half:
            yield Guard(
                what="the model has no FP16: every layer that is not quantized runs in FP32",
                fix="write FP16 into the model: qdqtool convert MODEL -o OUT --types fp16",
            )
        return
    integer = bool(names & {"int8", "best"})
    if facts.quantized and not integer:
        yield Guard(
            what="the model has Q/DQ, but INT8 is not enabled",
            fix="add --int8, or --stronglyTyped if the release has it",
            fatal=True,
        )
    if integer and not facts.quantized and "calib" not in names:
        yield Guard(
            what="INT8 without Q/DQ and without a calibration cache: ranges are invented, and accuracy is meaningless",
            fix="insert Q/DQ (qdqtool run), or give --calib",
        )
    if facts.quantized and integer and not names & {"fp16", "bf16", "best"}:
        yield Guard(
            what="only INT8 is enabled: every layer that is not quantized runs in FP32",
            fix="add --fp16",
        )
    if names & {"layerPrecisions", "layerOutputTypes"} and "precisionConstraints" not in names:
        yield Guard(
            what="--layerPrecisions and --layerOutputTypes have no effect without --precisionConstraints",
            fix="add --precisionConstraints=obey",
        )


def _calibration(facts: ModelFacts, names: set[str], *, strong: bool) -> Iterator[Guard]:
    if "calib" not in names:
        return
    if strong:
        yield Guard(
            what="--calib needs a weakly typed network",
            fix="turn the cache into Q/DQ: qdqtool cache to-qdq",
            fatal=True,
        )
    elif facts.quantized:
        yield Guard(
            what="the calibration cache is not used: the model has Q/DQ",
            fix="remove --calib, or build the float model",
        )


def _dla(facts: ModelFacts, names: set[str], can: Abilities, *, strong: bool) -> Iterator[Guard]:
    if "useDLACore" not in names:
        return
    fallback = "allowGPUFallback" in names
    half = "write FP16 into the float model: qdqtool convert MODEL -o OUT --types fp16"
    if facts.quantized:
        weak = f"build the float model with --int8 --calib{' and without --stronglyTyped' if strong else ''} for DLA"
        yield Guard(
            what="DLA cannot run Q/DQ nodes" + (": they fall back to the GPU" if fallback else ""),
            fix=half if can.strong == "always" else weak,
            fatal=not fallback,
        )
    if not (facts.half or facts.quantized if strong else names & {"fp16", "int8", "best"}):
        yield Guard(
            what="DLA computes in FP16 or INT8 only",
            fix=half if strong else "add --fp16 or --int8",
            fatal=True,
        )
    if not fallback:
        yield Guard(
            what="layers that DLA cannot run make the build fail",
            fix="add --allowGPUFallback",
        )
