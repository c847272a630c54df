"""What candidates are predicted to do to the number of kernels, so that builds go to those that may help first."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.core.fixes import SlotEdit
from qdqtool.core.target import Target
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.pipeline.autofix.drafts import DraftModel, Edits, merged
from qdqtool.prediction.run import predict

_LARGE = 512 << 20
"""Bytes of weights from which on a prediction, which writes the model anew, costs as much as a build."""


class PredictedKernels:
    """Predicted kernels of edited models, each predicted once.

    Args:
        draft: what edits are applied to.
        target: the builder.
    """

    def __init__(self, draft: DraftModel, target: Target) -> None:
        self._draft = draft
        self._target = target
        self._large = weight_bytes(draft.reference) >= _LARGE
        self._known: dict[frozenset[SlotEdit], int | None] = {}

    def more(self, best: Edits, edits: Iterable[SlotEdit]) -> int | None:
        """Kernels that the edits add to those of the best model; None where nothing can be predicted."""
        before, after = self._kernels(best), self._kernels(merged(best, edits))
        return None if before is None or after is None else after - before

    def _kernels(self, edits: Edits) -> int | None:
        if self._large:
            return None
        key = frozenset(edits.values())
        if key not in self._known:
            try:
                self._known[key] = predict(self._draft.apply(edits), self._target).kernels
            except QdqError:  # an edit that cannot be applied is told by the trial itself
                self._known[key] = None
        return self._known[key]
