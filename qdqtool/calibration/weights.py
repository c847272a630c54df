"""Ranges of constants, computed from their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calibrators.error import CalibrationDataError
from calibrators.weights import channel_max, channel_mse
from qdqtool.core.calibration import TensorRange
from qdqtool.core.grids import grid_for
from qdqtool.core.placement import Decision, QuantSpec
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView

NEVER_FIRED: Final = 1.0
"""Range of a tensor that holds only zeros, which any range represents exactly."""


def weight_range(decision: Decision, view: GraphView, method: str) -> TensorRange:
    """Compute the range of a constant by "max" or "mse", per channel if the placement requests it.

    Raises:
        InputFileError: not a constant, or it holds NaN or Inf.
    """
    values = view.constant(decision.tensor)
    if values is None:
        raise InputFileError(
            f"weight {decision.tensor!r} is not a constant", fix="fold constants first (prepare)"
        )
    spec = decision.spec or QuantSpec()
    # Blocks get their scales, and the search for them, from the values when they are written.
    axis = spec.axis if spec.block is None else None
    search = method == "mse" and spec.block is None
    try:
        amax = channel_mse(values, axis, grid_for(spec.format)) if search else channel_max(values, axis)
    except CalibrationDataError as error:
        raise InputFileError(
            f"weight {decision.tensor!r}: {error}",
            fix="repair or export the model again",
            where=decision.slot.node,
        ) from error
    dead = int((amax == 0).sum())
    filler = float(amax.max()) or NEVER_FIRED
    return TensorRange(
        tensor=decision.tensor,
        amax=tuple(float(value) or filler for value in amax),
        axis=axis,
        format=spec.format,
        block=spec.block,
        low=float(values.min()),
        high=float(values.max()),
        method=method,
        origin=(_step(axis, spec, search=search),),
        note=f"{dead} of {counted(amax.size, 'channel')} hold zeros only" if dead else "",
    )


def _step(axis: int | None, spec: QuantSpec, *, search: bool) -> str:
    if spec.block is not None:
        return f"largest magnitude; each block of {spec.block} gets its scale from its values when they are written"
    what = "least squared error" if search else "largest magnitude"
    return f"{what} of the whole tensor" if axis is None else f"{what} of each channel along axis {axis}"
