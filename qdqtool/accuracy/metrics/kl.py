"""Mean Kullback-Leibler divergence of the class probabilities, candidate from reference, in nats.

Softmax over the class axis (the last axis, or axis 1 of N x C x 1 x 1) turns scores into probabilities; rows that
already are probabilities are used unchanged. Undefined for outputs with fewer than two classes.
"""

from __future__ import annotations

import numpy as np

from qdqtool.accuracy.metric import Distance, Floats, Reading
from qdqtool.accuracy.task import class_rows

# Keeps the logarithm of an empty bin finite; smaller than the resolution of FP32 probabilities.
_TINY = 1e-12


class Divergence:
    """Mean Kullback-Leibler divergence of an output. Stores a sum and the number of rows."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._rows = 0

    def add(self, reference: Floats, candidate: Floats) -> None:
        left, right = class_rows(reference), class_rows(candidate)
        if left.shape[1] < 2:
            return
        are_probabilities = _are_probabilities(left) and _are_probabilities(right)
        p, q = (left, right) if are_probabilities else (_softmax(left), _softmax(right))
        self._sum += float((p * (np.log(p + _TINY) - np.log(q + _TINY))).sum())
        self._rows += len(p)

    def reading(self) -> Reading:
        if not self._rows:
            return Reading(value=None, note="the output has fewer than two classes")
        return Reading(value=max(0.0, self._sum / self._rows))


def _are_probabilities(rows: Floats) -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3))


def _softmax(rows: Floats) -> Floats:
    powers: Floats = np.exp(rows - rows.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


PLUGIN = Distance(start=Divergence, better="lower", unit="nat", perfect=0.0)
