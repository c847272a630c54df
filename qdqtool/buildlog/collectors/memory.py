"""Memory of builder and engine, device placement, and the size of the plan."""

from __future__ import annotations

import re

from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import Memory

_BYTES = re.compile(r"(\d{1,18})(?: bytes)?")


class MemoryCollector:
    """Keeps the last stated value of each kind of memory; peaks keep the largest."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._device = ""
        self._placed = 0
        self._skipped, self._skipped_most, self._skipped_line = 0, 0, 0
        self.placement: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return self._placed

    def handlers(self) -> dict[str, Handler]:
        stated = {
            "memory-host": "host_persistent",
            "memory-device": "device_persistent",
            "memory-scratch": "scratch",
            "memory-activation": "activation",
            "memory-weights": "weights",
        }
        return {
            **{name: self._state(field) for name, field in stated.items()},
            "memory-peak": self._peak,
            "tactic-out-of-memory": lambda line, _tactic, needed, _id: self._skip(line, needed),
            "memory-peak-building": lambda _line, cpu: self._largest("peak_building_cpu_mib", cpu),
            "engine-loaded": lambda _line, mib: self._bytes.__setitem__("engine_mib", mib),
            "placement-heading": self._heading,
            "placement-layers": self._list,
            "on-gpu": lambda _line, layer: self._place("GPU", layer),
            "on-dla": lambda _line, layer: self._place("DLA", layer),
        }

    def finish(self, workspace: int | None) -> Memory:
        """All memory as values.

        Args:
            workspace: the limit that was set, in bytes; None for the default.
        """
        return Memory(
            **self._bytes,
            workspace_limit=workspace,
            skipped=self._skipped,
            skipped_most=self._skipped_most if self._skipped else None,
            skipped_line=self._skipped_line,
        )

    def _skip(self, line: int, needed: int) -> None:
        self._skipped += 1
        self._skipped_most = max(self._skipped_most, needed)
        self._skipped_line = self._skipped_line or line

    def _state(self, field: str) -> Handler:
        def handle(_line: int, text: str) -> None:
            found = _BYTES.match(text)
            if found:
                self._bytes[field] = int(found.group(1))

        return handle

    def _peak(self, _line: int, cpu: int, gpu: int) -> None:
        self._largest("peak_cpu_mib", cpu)
        self._largest("peak_gpu_mib", gpu)

    def _largest(self, field: str, mib: int) -> None:
        self._bytes[field] = max(mib, self._bytes.get(field, 0))

    def _heading(self, line: int, device: str, layers: str) -> None:
        """TensorRT 7 lists all layers of a device behind or below its name."""
        self._device = device
        if layers.strip(" {},"):
            self._list(line, layers)

    def _list(self, _line: int, layers: str) -> None:
        for layer in layers.strip(" {},").split(", "):
            self._place(self._device, layer)

    def _place(self, device: str, layer: str) -> None:
        self._placed += 1
        self.placement.setdefault(device, []).append(layer)
