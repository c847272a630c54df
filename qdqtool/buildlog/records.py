"""The layers that a log prints, taken apart only when asked: most questions to a log need a few words of each."""

from __future__ import annotations

from functools import cached_property

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer, EngineTensor
from qdqtool.trt.layer_records import Fields, layer_of, line_fields, record_fields
from qdqtool.trt.metadata import onnx_nodes

_LONGEST = 1 << 18
"""Characters of one record that are taken apart; real ones stay far below."""

Tensors = tuple[EngineTensor, ...]
Region = tuple[int, str, tuple[str, ...]]
"""A Myelin region: the line that tells of it, its name, the ONNX nodes it holds."""


class LoggedLayer:
    """A layer of which only the name is printed (default profiling verbosity).

    Attributes:
        line: number of its line in the log.
        name: as printed.
        kind: LayerType; "" where only names are printed.
        rest: the remaining text.
    """

    def __init__(self, line: int, name: str, kind: str = "", rest: str = "") -> None:
        self.line = line
        self.name = name
        self.kind = kind
        self.rest = rest[:_LONGEST]

    @cached_property
    def value(self) -> EngineLayer:
        """The layer taken apart completely; a record that does not fit is its name and kind."""
        return layer_of(self._fields() or {"Name": self.name, "LayerType": self.kind})

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        """ONNX nodes it says it contains."""
        return ()

    @property
    def inputs(self) -> Tensors:
        """Run-time inputs."""
        return self.value.inputs

    @property
    def constants(self) -> Tensors:
        """Weights and other constants where the dump lists them apart."""
        return self.value.constants

    @property
    def outputs(self) -> Tensors:
        """Results."""
        return self.value.outputs

    def _fields(self) -> Fields | None:
        return None


class LineLayer(LoggedLayer):
    """A layer of `Engine Layer Information:`; `rest` begins with its tactic id."""

    def _fields(self) -> Fields | None:
        tactic, _, tensors = self.rest.partition(", ")
        return line_fields(self.kind, self.name, tactic, tensors)


class RecordLayer(LoggedLayer):
    """A layer of `Layers:`; `rest` begins with its type."""

    def __init__(self, line: int, name: str, rest: str) -> None:
        super().__init__(line, name, rest[:_LONGEST].partition(", ")[0], rest)

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        return onnx_nodes(self.rest.rpartition("Metadata: ")[2])

    def _fields(self) -> Fields | None:
        return record_fields(self.name, self.rest)


def types(tensors: Tensors) -> list[DType]:
    """Element types of tensors."""
    return [tensor.dtype for tensor in tensors]
