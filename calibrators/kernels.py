"""The inner loop of histogram collection: exact extremes, then bins, in pieces that fit the processor's cache.

A float32 is read a second time as an integer. Without its sign bit that integer orders magnitudes, and values from
`INFINITY` on are Inf and NaN; with negative numbers mirrored it orders signed values. Integer minima and maxima
compile to vector instructions, which floating-point ones do not, because of NaN. Numba widens what it computes from two
int32 to int64, of which half as many fit: each result is made an int32 again.

Which bin a value lies in is computed in the same pass, as if the range did not have to grow; the bins are counted from a
buffer then. Counting is what takes time: one addition in memory per value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

# --- compiled --------------------------------------------------------------------------------------------------------
# Compiled loops: numba, loaded at the first call. The machine code is kept on disk if possible.


F = TypeVar("F", bound=Callable[..., object])


def compile_loop(function: F) -> F:
    """Return the function as machine code that runs without holding the interpreter lock.

    The code is kept on disk, next to the source file or in numba's own cache folder, so that only the first run on a
    machine pays for compiling. If neither folder can be written it is compiled again in every process; `cache_problem()`
    then says why. numba is loaded with the first call.
    """
    return cast("F", _Loop(function))


def cache_problem() -> str | None:
    """Return why machine code cannot be kept on disk; None if it can, or if no loop was needed."""
    return _problems[0] if _problems else None


class _Loop:
    """A function that is compiled at its first call, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.loop(*arguments)

    @cached_property
    def loop(self) -> Any:
        """Return the function that numba compiled."""
        import numba

        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **options)(self.function)
        except RuntimeError as error:
            _problems.append(str(error))
            return numba.njit(**options)(self.function)

    @property
    def _numba_type_(self) -> Any:
        """Return the type that numba uses if another loop calls this loop."""
        import numba

        return numba.typeof(self.loop)


_problems: list[str] = []


# --- kernels ---------------------------------------------------------------------------------------------------------


# Half a bin is at most 1/4096 of the largest magnitude, a thirtieth of an INT8 step.
BIN_BITS: Final = 12
BINS: Final = 1 << BIN_BITS
"""Bins of every histogram. The largest magnitude is in the upper half, so at least 2048 bins are in use."""
LANES: Final = 4
"""Number of count tables. Neighbouring elements use different tables, because equal values would otherwise
wait for each other. The counters of one bin are adjacent, in 64 bits, so that the tables stay in the L1
cache.
"""
FEW: Final = 1 << 12
"""Elements below which clearing the count tables costs more than it saves."""
PIECE: Final = 1 << 13
"""Elements per piece: their bins take 16 KiB and stay in the cache between the two loops."""
_MOST: Final = LANES * ((1 << 16) - 1) - 2 * PIECE
"""Elements after which the next piece could overflow a counter of 16 bits."""
LOWEST_EXPONENT: Final = -100
"""Smallest range that has bins of its own: below it, the reciprocal of a bin width would overflow float32."""

EXPONENT, LOW_KEY, HIGH_KEY, NAN, INF, SEEN = range(6)
STATE_SIZE: Final = SEEN + 1
# Smaller than every exponent of a float, so that the first value replaces it.
UNSET_EXPONENT: Final = -(1 << 20)

# The bits of an IEEE 754 single as an integer: a mask of all bits except the sign, and the bits of +Inf.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
# Start values of a minimum and a maximum.
_HIGHEST = np.int32(0x7FFFFFFF)
_LOWEST = np.int32(-0x80000000)


def fresh_state() -> NDArray[np.int64]:
    """Return the state before any value was added."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[EXPONENT] = UNSET_EXPONENT
    state[LOW_KEY], state[HIGH_KEY] = _HIGHEST, _LOWEST
    return state


@compile_loop
def shrink(counts: NDArray[np.int64], halvings: Any) -> None:
    """Add neighbouring bins `halvings` times, in place: bin i becomes bin i >> halvings."""
    size = counts.size
    if halvings <= 0:
        return
    for source in range(size):
        moved = counts[source]
        if moved:
            counts[source] = 0
            counts[source >> min(halvings, 62)] += moved


@compile_loop
def _extremes(bits: NDArray[np.int32]) -> Any:
    low, high = _HIGHEST, _LOWEST
    for i in range(bits.size):
        key = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> np.int32(31)) & _MAGNITUDE))
        low = np.int32(min(low, key))
        high = np.int32(max(high, key))
    return low, high


@compile_loop
def _extremes_and_bins(
    values: NDArray[np.float32], bits: NDArray[np.int32], bins: NDArray[np.uint16], reciprocal: Any
) -> Any:
    """Return the extremes, and fill in the bin of every value if all are within the range; `reciprocal` is a power of two."""
    low, high = _HIGHEST, _LOWEST
    for i in range(bits.size):
        key = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> np.int32(31)) & _MAGNITUDE))
        low = np.int32(min(low, key))
        high = np.int32(max(high, key))
        bins[i] = np.uint16(np.int32(abs(values[i]) * reciprocal))
    return low, high


@compile_loop
def _finite_extremes(bits: NDArray[np.int32], state: NDArray[np.int64]) -> Any:
    low, high = _HIGHEST, _LOWEST
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude > _INFINITY:
            state[NAN] += 1
        elif magnitude == _INFINITY:
            state[INF] += 1
        else:
            key = bits[i] ^ ((bits[i] >> np.int32(31)) & _MAGNITUDE)
            low = min(low, key)
            high = max(high, key)
    return low, high


@compile_loop
def _note(low: Any, high: Any, bits: NDArray[np.int32], state: NDArray[np.int64]) -> Any:
    """Update minimum, maximum and the counts of NaN and Inf. Return whether all elements are finite, and the exponent."""
    finite = low > -_INFINITY - np.int32(1) and high < _INFINITY
    if not finite:
        low, high = _finite_extremes(bits, state)
    if low > high:
        return finite, UNSET_EXPONENT
    state[LOW_KEY] = min(state[LOW_KEY], np.int64(low))
    state[HIGH_KEY] = max(state[HIGH_KEY], np.int64(high))
    lowest_magnitude = low ^ ((low >> np.int32(31)) & _MAGNITUDE)
    magnitude = max(
        lowest_magnitude & _MAGNITUDE, (high ^ ((high >> np.int32(31)) & _MAGNITUDE)) & _MAGNITUDE
    )
    if magnitude == 0:
        return finite, UNSET_EXPONENT
    return finite, max(np.int64(magnitude >> np.int32(23)) - 126, LOWEST_EXPONENT)


@compile_loop
def _count(bins: NDArray[np.uint16], lanes: NDArray[np.uint16]) -> None:
    unit = np.uint16(1)
    whole = bins.size // 4 * 4
    for i in range(0, whole, 4):
        lanes[np.uint32(bins[i]), 0] += unit
        lanes[np.uint32(bins[i + 1]), 1] += unit
        lanes[np.uint32(bins[i + 2]), 2] += unit
        lanes[np.uint32(bins[i + 3]), 3] += unit
    for i in range(whole, bins.size):
        lanes[np.uint32(bins[i]), 0] += unit


@compile_loop
def _count_few(bins: NDArray[np.uint16], counts: NDArray[np.int64]) -> None:
    for i in range(bins.size):
        counts[np.uint32(bins[i])] += 1


@compile_loop
def _count_finite(values: NDArray[np.float32], counts: NDArray[np.int64], reciprocal: Any) -> Any:
    count = 0
    for i in range(values.size):
        if np.isfinite(values[i]):
            counts[np.uint32(abs(values[i]) * reciprocal)] += 1
            count += 1
    return count


@compile_loop
def _flush(lanes: NDArray[np.uint16], counts: NDArray[np.int64]) -> None:
    sums = lanes.view(np.uint64).reshape(-1)
    half, low = np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)
    for i in range(counts.size):
        pairs = (sums[i] & half) + ((sums[i] >> np.uint64(16)) & half)
        counts[i] += np.int64((pairs & low) + (pairs >> np.uint64(32)))
    lanes[:] = 0


@compile_loop
def extremes_only(bits: NDArray[np.int32], state: NDArray[np.int64]) -> None:
    """Record minimum, maximum, element count and non-finite counts, without bins."""
    nan, inf = state[NAN], state[INF]
    low, high = _extremes(bits)
    _, exponent = _note(low, high, bits, state)
    state[EXPONENT] = max(state[EXPONENT], exponent)
    state[SEEN] += bits.size - (state[NAN] - nan) - (state[INF] - inf)


@compile_loop
def _reciprocal(exponent: Any) -> Any:
    """Return one divided by the width of a bin."""
    return np.float32(math.ldexp(1.0, BIN_BITS - max(exponent, LOWEST_EXPONENT)))


@compile_loop
def accumulate(
    values: NDArray[np.float32],
    bits: NDArray[np.int32],
    counts: NDArray[np.int64],
    lanes: NDArray[np.uint16],
    state: NDArray[np.int64],
) -> None:
    """Add `values` to `counts`.

    Args:
        values: float32, one dimension.
        bits: the memory of `values` as int32.
        counts: (BINS,) int64.
        lanes: (BINS, LANES) uint16 of zeros, left as zeros.
        state: see the named positions above.
    """
    pending = start = 0
    buffer = np.empty(min(values.size, PIECE), np.uint16)
    reciprocal = _reciprocal(state[EXPONENT])
    while start < values.size:
        part, part_bits = values[start : start + PIECE], bits[start : start + PIECE]
        bins = buffer[: part.size]
        low, high = _extremes_and_bins(part, part_bits, bins, reciprocal)
        finite, exponent = _note(low, high, part_bits, state)
        if exponent > state[EXPONENT]:
            if pending:
                _flush(lanes, counts)
                pending = 0
            shrink(counts, exponent - state[EXPONENT])
            state[EXPONENT] = exponent
            reciprocal = _reciprocal(exponent)
            if finite:
                continue  # again, with the range that it needs
        start += PIECE
        if not finite:
            state[SEEN] += _count_finite(part, counts, reciprocal)
        elif values.size < FEW:
            _count_few(bins, counts)
            state[SEEN] += part.size
        else:
            _count(bins, lanes)
            state[SEEN] += part.size
            pending += part.size
        if pending > _MOST:
            _flush(lanes, counts)
            pending = 0
    if pending:
        _flush(lanes, counts)
