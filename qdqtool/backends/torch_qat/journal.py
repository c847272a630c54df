"""Records every epoch: one JSON line per epoch, and TensorBoard logs if the recipe requests them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from qdqtool.backends.torch_qat.presence import need
from qdqtool.core.commands import Setting
from qdqtool.core.qat import Epoch
from qdqtool.io.files import write_text

FILE = "training.jsonl"


class EpochJournal:
    """Context manager; call `write` after each epoch, and once when a training resumes.

    Raises:
        MissingPackage: TensorBoard logs are wanted and its package is not installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._folder = folder
        self._writer: Any = None
        if tensorboard:
            module = need(
                "torch.utils.tensorboard",
                fix=f"pip install tensorboard, or {Setting('qat.tensorboard', 'false')}",
            )
            self._writer = module.SummaryWriter
        self._board: Any = None

    def __enter__(self) -> EpochJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, epochs: Sequence[Epoch]) -> None:
        """Write all epochs so far; the file is rewritten each time, so that an interruption leaves no gap."""
        lines = [json.dumps(asdict(epoch), sort_keys=True) + "\n" for epoch in epochs]
        write_text(self._folder / FILE, "".join(lines))
        if self._writer is not None:
            self._draw(epochs[-1])

    def _draw(self, epoch: Epoch) -> None:
        if self._board is None:
            # What an interrupted training drew of this epoch and beyond is not shown twice.
            self._board = self._writer(str(self._folder / "tensorboard"), purge_step=epoch.number)
        self._board.add_scalar("score", epoch.score, epoch.number)
        self._board.add_scalar("learning_rate", epoch.learning_rate, epoch.number)
        if epoch.loss is not None:
            self._board.add_scalar("loss", epoch.loss, epoch.number)
        self._board.flush()
