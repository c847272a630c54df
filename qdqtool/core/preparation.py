"""Descriptions of changes to a model before placement and after insertion."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.tensors import TensorInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """Description of the prepared model.

    Attributes:
        model: file name of the original.
        digest: SHA-256 of the original.
        inputs: what the model is fed.
        outputs: what it returns.
        notes: everything that was changed, each in one sentence.
    """

    model: str
    digest: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Insertion:
    """Notes for users of the Q/DQ model: values that overflow FP16, a raised opset, and the like."""

    notes: tuple[str, ...]
