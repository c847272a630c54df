"""Operators that onnxruntime lacks. They come from libraries of custom operators, or NumPy functions replace them.

`runtime.custom_ops` names libraries that onnxruntime loads. `runtime.stand_ins` names functions: they take the
inputs, and the attributes as keywords, and return the output or a tuple of outputs. With neither, tensors that depend
on the operator are not computed.

The stand-ins in use apply to the whole process, like onnxruntime's registration of libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.recipe import Recipe
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.cut import (
    CutStage,
    OperatorName,
    foreign_operators,
    piece,
    reachable,
    stages,
    stages_within,
)
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.view import Node
from qdqtool.plugins import resolve

StandIn = Callable[..., Any]
"""A function that computes the outputs of an operator from its inputs, with its attributes as keywords."""


@dataclass(frozen=True, kw_only=True)
class Operators:
    """Libraries and NumPy functions for operators that onnxruntime lacks.

    Attributes:
        libraries: of custom operators, for onnxruntime.
        stand_ins: by domain and operator type.
    """

    libraries: tuple[Path, ...] = ()
    stand_ins: Mapping[OperatorName, StandIn] = field(default_factory=dict)


NONE = Operators()
_in_use = [NONE]
_STAND_INS: Final = "runtime.stand_ins"


def use(operators: Operators) -> None:
    """Use these operators in all sessions that are opened from now on."""
    _in_use[0] = operators


def use_operators(recipe: Recipe) -> None:
    """Use the recipe's libraries and NumPy functions for missing operators in all sessions from now on.

    Raises:
        UsageError: the library does not exist, or a stand-in is not a function.
    """
    options = recipe.runtime
    libraries = tuple(Path(word).expanduser() for word in options.custom_ops)
    missing = next((path for path in libraries if not path.is_file()), None)
    if missing is not None:
        raise UsageError(
            f"the library {missing} does not exist",
            fix="pass the shared library of onnxruntime custom operators",
            where="runtime.custom_ops",
        )
    stand_ins = {}
    for word, text in options.stand_ins.items():
        domain, colons, op = word.rpartition("::")
        if not colons or not op:
            raise UsageError(
                f"{word!r} does not name an operator",
                fix='write "domain::Operator": "module:function"',
                where=_STAND_INS,
            )
        stand_ins[domain, op] = resolve(text, Path(), _STAND_INS)
    use(Operators(libraries=tuple(path.resolve() for path in libraries), stand_ins=stand_ins))


def in_use() -> Operators:
    """Return the libraries and NumPy functions that sessions use for missing operators."""
    return _in_use[0]


def read_whole(model: Path | bytes, home: Path | None) -> onnx.ModelProto:
    """Read a model with its weights, from a file or from memory."""
    proto = onnx.ModelProto()
    if isinstance(model, bytes):
        proto.ParseFromString(model)
    else:
        proto.CopyFrom(onnx.load_model(model, load_external_data=False))
        home = home or model.parent
    if home is not None:
        onnx.external_data_helper.load_external_data_for_model(proto, str(home))
    return proto


def open_in_pieces(
    proto: onnx.ModelProto, stand_ins: Mapping[OperatorName, StandIn], open_piece: Callable[[bytes], Any]
) -> CutSession | None:
    """Return a session that runs a model in pieces around operators that onnxruntime lacks; None if it lacks none.

    Operators of TensorRT's own domain are for emulation, not for this.
    """
    lacking = foreign_operators(proto) | stand_ins.keys()
    present = {(node.domain, node.op_type) for node in proto.graph.node} & lacking
    return CutSession(proto, frozenset(present), stand_ins, open_piece) if present else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Declared:
    """An input or output of a session in pieces, with the attributes that onnxruntime's sessions have."""

    name: str
    type: str
    shape: list[Any]


class CutSession:
    """A model in several onnxruntime sessions with NumPy functions between them, used like a single session.

    With `room`, the pieces are cut by the bytes of their weights instead, and only one is open at a time.

    Without a stand-in, all tensors after the operator are not computed. The outputs are then the computable ones:
    outputs of the model, and the tensors that such operators read.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        operators: frozenset[OperatorName],
        stand_ins: Mapping[OperatorName, StandIn],
        open_piece: Callable[[bytes], Any],
        room: int | None = None,
    ) -> None:
        self._proto, self._stand_ins, self._open = proto, stand_ins, open_piece
        self._is_kept = room is None
        self._stages = stages(proto, operators) if room is None else stages_within(proto, room)
        inputs = {value.name for value in proto.graph.input} | {
            tensor.name for tensor in proto.graph.initializer
        }
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._known = reachable(self._stages, inputs, stand_ins.keys())
        self._sessions: dict[int, Any] = {}
        self._parts = [self._compute_stage(stage) for stage in self._stages]

    def get_inputs(self) -> list[_Declared]:
        """Return the inputs of the model that are not constants."""
        return [
            _declare_value(value) for value in self._proto.graph.input if value.name not in self._constants
        ]

    def get_outputs(self) -> list[_Declared]:
        """Return the outputs that can be computed.

        If some outputs cannot be computed, also return the inputs of the operators without a stand-in.
        """
        outputs = [_declare_value(value) for value in self._proto.graph.output if value.name in self._known]
        if len(outputs) < len(self._proto.graph.output):
            entering = (name for stage in self._stages for node in stage.foreign for name in node.inputs)
            named = {entry.name for entry in outputs} | self._constants.keys()
            fresh = dict.fromkeys(name for name in entering if name in self._known and name not in named)
            types = {value.name: value for value in self._proto.graph.value_info}
            outputs += [_declare_value(types.get(name, onnx.ValueInfoProto(name=name))) for name in fresh]
        return outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any], _options: Any = None) -> list[Any]:
        """Compute these tensors of the model, piece by piece.

        Raises:
            RuntimeError: a condition depends on an operator without a stand-in, or a stand-in fails.
        """
        outputs = list(names or [entry.name for entry in self.get_outputs()])
        unknown = next((name for name in outputs if name not in self._known), None)
        if unknown is not None:
            raise RuntimeError(
                f"{unknown!r} depends on an operator that neither onnxruntime nor a stand-in can compute"
            )
        values: dict[str, NDArray[Any]] = {name: np.asarray(value) for name, value in feeds.items()}
        for number, stage in enumerate(self._parts):
            if stage.outputs:
                session = self._session(number, stage, values)
                fed = {name: values[name] for name in stage.inputs}
                values |= dict(zip(stage.outputs, session.run(list(stage.outputs), fed), strict=True))
            for node in stage.foreign:
                values |= self._stand_in(node, values)
        return [values[name] if name in values else self._constant(name) for name in outputs]

    def _compute_stage(self, stage: CutStage) -> CutStage:
        """Return a stage of the cut model without the nodes and tensors that cannot be computed."""
        nodes = tuple(
            node for node in stage.nodes if all(name in self._known for name in node.output if name)
        )
        foreign = tuple(
            node for node in stage.foreign if all(name in self._known for name in node.outputs if name)
        )
        outputs = tuple(name for name in stage.outputs if name in self._known)
        inputs = tuple(name for name in stage.inputs if name in self._known)
        return CutStage(nodes=nodes, foreign=foreign, inputs=inputs, outputs=outputs)

    def _session(self, number: int, stage: CutStage, values: Mapping[str, NDArray[Any]]) -> Any:
        if number in self._sessions:
            return self._sessions[number]
        session = self._open(piece(self._proto, stage, values).SerializeToString())
        if self._is_kept:
            self._sessions[number] = session
        return session

    def _stand_in(self, node: Node, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        read = [
            None if not name else values[name] if name in values else self._constant(name)
            for name in node.inputs
        ]
        try:
            result = self._stand_ins[node.domain, node.op](*read, **node.attributes)
        except Exception as error:
            raise RuntimeError(
                f"the stand-in of {node.domain}::{node.op} fails on node {node.name!r}: {type(error).__name__}: {error}"
            ) from error
        several = result if isinstance(result, (tuple, list)) else (result,)
        if len(several) < len(node.outputs):
            raise RuntimeError(
                f"the stand-in of {node.domain}::{node.op} returns {len(several)} of {count_noun(len(node.outputs), 'output')}"
            )
        return {name: np.asarray(value) for name, value in zip(node.outputs, several, strict=False) if name}

    def _constant(self, name: str) -> NDArray[Any]:
        return array(self._constants[name])


def _declare_value(value: onnx.ValueInfoProto) -> _Declared:
    kind = value.type.tensor_type
    word = onnx.TensorProto.DataType.Name(kind.elem_type or onnx.TensorProto.FLOAT).lower()
    shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim]
    return _Declared(name=value.name, type=f"tensor({word})", shape=shape)
