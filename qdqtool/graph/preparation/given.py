"""Makes inputs of the model constants, with the values that a recipe gives.

    sr ─ Equal 16000 ─ If (A | B)              A

A network for two sampling rates asks for the rate at run time, and TensorRT cannot build an If whose branches differ in rank.
An engine is made for one rate anyway. With the value in the place of the input the branch that is taken is known before the build
(`branches.py` puts it there), and nobody has to hand the value in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from qdqtool.core.recipe import Given
from qdqtool.core.wording import counted
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model

_WHERE = "prepare.constants"


def give_constants(model: Model, values: Mapping[str, Given]) -> Model:
    """The model without these inputs: each is a constant of its type, free dimensions have the length 1.

    One number fills the input; a list has all of its values, in the order of rows. The model itself where there is nothing to do,
    so that a prepared model is as it was after it is prepared again.

    Raises:
        UsageError: an input that is not there, the last one, or a value that its type or its shape cannot hold.
    """
    inputs = {value.name: value for value in model.proto.graph.input}
    given = {name: value for name, value in values.items() if name in inputs}
    made = {tensor.name for tensor in model.proto.graph.initializer}
    unknown = [name for name in values if name not in inputs and name not in made]
    if unknown:
        raise UsageError(
            f"the model has no input {unknown[0]!r}", fix=f"its inputs are {', '.join(inputs)}", where=_WHERE
        )
    if not given:
        return model
    if len(given) == len(inputs):
        raise UsageError(
            "every input would be a constant: nothing would be left to compute",
            fix="leave out the input that samples are for",
            where=_WHERE,
        )
    edit = Edit(model)
    for name, value in given.items():
        edit.put(name, _tensor(inputs[name], value))
    edit.inputs = [entry for entry in edit.inputs if entry.name not in given]
    shown = ", ".join(f"{name} = {value}" for name, value in given.items())
    edit.notes.append(f"{counted(len(given), 'input is a constant', 'inputs are constants')} now: {shown}")
    return edit.finish()


def _tensor(entry: onnx.ValueInfoProto, value: Given) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    kind = entry.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    shape = [dim.dim_value or 1 for dim in kind.shape.dim]
    several = isinstance(value, Sequence) and not isinstance(value, str)
    exact = np.asarray(value)
    stored = exact.astype(dtype)
    if exact.dtype.kind not in "biuf" or (stored.dtype.kind in "biu" and (stored != exact).any()):
        raise UsageError(
            f"{value!r} is no value of {dtype}, the type of {entry.name!r}",
            fix=f"give a {dtype}",
            where=_WHERE,
        )
    if several and stored.size != int(np.prod(shape)):
        raise UsageError(
            f"{entry.name!r} has {counted(int(np.prod(shape)), 'value')}, and {stored.size} are given",
            fix="give one number for all, or each of them",
            where=_WHERE,
        )
    return stored.reshape(shape) if several else np.full(shape, stored, dtype)
