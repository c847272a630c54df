"""Shapes of random samples where a model leaves dimensions free."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends import shapes
from qdqtool.calibration.samples import SampleInput
from qdqtool.core.tensors import TensorInfo


def shaped(samples: SampleInput, inputs: tuple[TensorInfo, ...], usual: str = "") -> SampleInput:
    """Random samples get the shapes that an engine is built for, unless they bring their own; others stay as they are.

    `usual` are these shapes as a recipe spells them; without, those that `run` and `build` take.
    """
    if not isinstance(samples, str):
        return samples
    is_shapeless = samples.startswith("random") and "," not in samples
    if not is_shapeless or Path(samples).exists():
        return samples
    known = usual or shapes.spelled(shapes.usual_shapes(inputs))
    if not known:
        return samples
    words, bracket, part = samples.partition("[")
    return f"{words},{known}{bracket}{part}"
