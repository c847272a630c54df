"""Writes down how each epoch went: one JSON line per epoch, and TensorBoard logs where the recipe asks for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from qdqtool.backends.torch_qat.presence import need
from qdqtool.core.qat import Epoch

FILE = "training.jsonl"


class Journal:
    """A context; use `write` after each epoch.

    Raises:
        MissingPackage: TensorBoard logs are wanted and its package is not installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._path = folder / FILE
        self._board: Any = None
        if tensorboard:
            module = need(
                "torch.utils.tensorboard", fix="pip install tensorboard, or --set qat.tensorboard=false"
            )
            self._board = module.SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, epoch: Epoch) -> None:
        """Note one epoch; epoch 0 begins a new journal."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w" if epoch.number == 0 else "a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(epoch), sort_keys=True) + "\n")
        if self._board is not None:
            self._board.add_scalar("score", epoch.score, epoch.number)
            self._board.add_scalar("learning_rate", epoch.learning_rate, epoch.number)
            if epoch.loss is not None:
                self._board.add_scalar("loss", epoch.loss, epoch.number)
            self._board.flush()
