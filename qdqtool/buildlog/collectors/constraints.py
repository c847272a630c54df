"""Requests that were not followed: layers that DLA refuses, precision constraints, and the accuracy check of trtexec."""

from __future__ import annotations

from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import AccuracyLoss
from qdqtool.core.wording import counted

_MOST = 4000
"""Layers and tensors kept of each kind."""


class ConstraintsCollector:
    """Keeps, per layer, why DLA refused it and that its precision was not obeyed; per tensor, its accuracy loss."""

    def __init__(self) -> None:
        self._refused: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._unobeyed: dict[str, None] = {}
        self._overruled: dict[str, None] = {}
        self._losses: dict[tuple[str, str], AccuracyLoss] = {}

    def handlers(self) -> dict[str, Handler]:
        return {
            "dla-refused": lambda _line, layer: self._refuse(layer, "not supported on DLA"),
            "dla-unsupported": lambda _line, layer, kind: self._refuse(layer, f"DLA runs no {kind}"),
            "dla-invalid": lambda _line, layer: self._refuse(layer, "its validation for DLA failed"),
            "dla-subgraphs": lambda _line, limit, layer: self._refuse(
                layer, f"a DLA core takes at most {counted(limit, 'subgraph')}"
            ),
            "dla-precision": lambda _line, layer: self._refuse(layer, "DLA computes in FP16 and INT8 only"),
            "dla-reason": lambda _line, layer, reason: self._explain(layer, f"DLA {reason}"),
            "dla-lacks": lambda _line, layer, lacking: self._explain(
                layer, f"DLA does not support {lacking}"
            ),
            "dla-kind": lambda _line, layer, kind: self._explain(layer, f"{kind} not supported for DLA"),
            "dla-needs": lambda _line, layer, kind, need: self._explain(
                layer, f"{kind} on DLA requires {need}"
            ),
            "dla-batch": lambda _line, batch, layer, limit: self._explain(
                layer, f"a batch of {batch}, and DLA takes at most {limit}"
            ),
            "unobeyed": lambda _line, layer, _rest: self._keep(self._unobeyed, layer),
            "overruled": lambda _line, layer, _rest: self._keep(self._overruled, layer),
            "accuracy-loss": self._lose,
            "accuracy-failed": self._lose,
        }

    @property
    def dla_refused(self) -> dict[str, str]:
        """Layers that DLA refused -> the most exact reason that the builder states."""
        return {layer: self._reasons.get(layer, reason) for layer, reason in self._refused.items()}

    @property
    def unobeyed(self) -> tuple[str, ...]:
        """Layers for which no kernel has the precision that was asked for."""
        return tuple(self._unobeyed)

    @property
    def overruled(self) -> tuple[str, ...]:
        """Layers that got a faster kernel of another precision than was asked for."""
        return tuple(self._overruled)

    @property
    def losses(self) -> tuple[AccuracyLoss, ...]:
        """The last loss of each tensor and algorithm."""
        return tuple(self._losses.values())

    def _refuse(self, layer: str, reason: str) -> None:
        if len(self._refused) < _MOST:
            self._refused.setdefault(layer, reason)

    def _explain(self, layer: str, reason: str) -> None:
        if len(self._reasons) < _MOST:
            self._reasons[layer] = reason

    def _keep(self, layers: dict[str, None], layer: str) -> None:
        if len(layers) < _MOST:
            layers[layer] = None

    def _lose(
        self, _line: int, tensor: str, algorithm: str, loss: float | None, threshold: float | None = None
    ) -> None:
        if len(self._losses) < _MOST:
            self._losses[tensor, algorithm] = AccuracyLoss(
                tensor=tensor, algorithm=algorithm, loss=loss, failed_threshold=threshold
            )
