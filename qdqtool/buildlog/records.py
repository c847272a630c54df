"""What a log prints of layers: records that are taken apart when asked, and names of nodes and layers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer, EngineTensor
from qdqtool.trt.layer_records import Fields, layer_of, line_fields, record_fields
from qdqtool.trt.metadata import onnx_nodes
from qdqtool.trt.names import parts

# --- layers ----------------------------------------------------------------------------------------------------------

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
        kind: LayerType; "" if only names are printed.
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


# --- names -----------------------------------------------------------------------------------------------------------
# Names of nodes and layers: they contain ` + `, ` with `, ` and `, brackets and spaces, so separators prove nothing.


class LoggedNames:
    """All names a run has shown; decides where one name ends and the next begins."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._known = set(names)
        self._parts: dict[str, tuple[str, ...]] = {}

    def add(self, name: str) -> None:
        """A name that an optimizer step has just made."""
        self._known.add(name)

    def split(self, text: str, separator: str) -> tuple[str, str]:
        """Two names joined by a separator that may also occur inside them.

        Where several places are possible, both sides known beats one side known beats the first place.
        The second part is "" if the separator does not occur.
        """
        first, found, second = text.partition(separator)
        if not found or separator not in second:
            return first, second
        best = (-1, first, second)
        at = text.find(separator)
        for _ in range(_PLACES):
            left, right = text[:at], text[at + len(separator) :]
            score = self._trust(left) + self._trust(right)
            if score > best[0]:
                best = (score, left, right)
            at = text.find(separator, at + 1)
            if at < 0:
                break
        return best[1], best[2]

    def parts(self, name: str) -> tuple[str, ...]:
        """The nodes that a fused name is made of: `A + B` and `A || B`, with `PWN(...)` opened."""
        if " + " not in name and " || " not in name and not name.startswith("PWN("):
            return (name,)
        known = self._parts.get(name)
        if known is None:
            known = self._parts[name] = parts(name)
        return known

    def _trust(self, name: str) -> int:
        if name in self._known:
            return 2
        return 1 if name and all(part in self._known for part in name.split(" + ")) else 0


_PLACES = 64
"""Separators looked at in one text; real names have a handful."""
