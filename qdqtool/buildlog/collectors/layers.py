"""The finished engine: its layers from the text of any generation, and its bindings."""

from __future__ import annotations

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.records import LineLayer, LoggedLayer, RecordLayer, Region
from qdqtool.trt.metadata import onnx_nodes


class LayersCollector:
    """Keeps the last dump of each form; detailed records are preferred to one-line layers, these to bare names."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str, str, str]] = []
        self._records: list[tuple[int, str, str]] = []
        self._names: list[tuple[int, str]] = []
        self.bindings: list[str] = []
        self.regions: list[Region] = []

    def __len__(self) -> int:
        return (
            len(self._lines) + len(self._records) + len(self._names) + len(self.bindings) + len(self.regions)
        )

    def handlers(self) -> dict[str, Handler]:
        return {
            "layers-heading": lambda _line: self._lines.clear(),
            "layers-detailed": self._restart,
            "layer": lambda line, kind, name, rest: self._lines.append((line, kind, name, rest)),
            "layer-record": lambda line, name, rest: self._records.append((line, name, rest)),
            "layer-name-only": lambda line, name: self._names.append((line, name)),
            "foreign-node": self._region,
            "bindings-heading": lambda _line: self.bindings.clear(),
            "io-heading": lambda _line: self.bindings.clear(),
            "io-tensor": lambda _line, tensor, *_: self.bindings.append(tensor),
            "binding": lambda _line, tensor: self.bindings.append(tensor),
        }

    def finish(self) -> tuple[LoggedLayer, ...]:
        """The layers of the engine, in its order."""
        if self._records:
            return tuple(RecordLayer(*record) for record in self._records)
        if self._lines:
            return tuple(LineLayer(line, name, kind, rest) for line, kind, name, rest in self._lines)
        return tuple(LoggedLayer(*name) for name in self._names)

    def tactics(self) -> dict[str, str]:
        """Layer -> tactic id as it is spelt, from whichever form states it."""
        stated = {
            name: rest.rpartition("TacticValue: ")[2].partition(",")[0] for _, name, rest in self._records
        }
        return stated | {name: rest.partition(", ")[0] for _, _, name, rest in self._lines}

    def _region(self, line: int, region: str, metadata: str) -> None:
        self.regions.append((line, region, onnx_nodes(metadata)))

    def _restart(self, _line: int) -> None:
        self._records.clear()
        self._names.clear()
