"""Judges language models without labels: the next token is in the sample itself.

A model that reads token numbers (batch, positions) and returns logits (batch, positions, vocabulary) predicts at every position
the token that follows. So `next_token` is the share of positions at which a side ranks that token first, and the perplexity is
the exponential of the mean negative logarithm of its probability. Positions that an attention mask leaves out do not count.

A masked language model, such as BERT, predicts the token at the position itself. So a sample whose own tokens the reference finds
more often than the next ones is judged by the agreement of both sides.

Hidden states of an encoder have the shape of logits too. So an output that predicts neither tokens better than an even guess over all
its values is not judged.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.comparison import Measure
from qdqtool.core.evidence import weighted_interval
from qdqtool.core.protocols import Feeds, Sample

NEXT: Final = "next_token"
SAME: Final = "agreement"
PERPLEXITY: Final = "perplexity"
_OTHERS: Final = ("mask", "position", "type", "segment", "length")
"""Parts of the names of integer inputs that are not token numbers."""
_ROWS: Final = 64
"""Positions whose logits are computed with at the same time: a vocabulary may have 200,000 tokens."""
_GRID: Final = 2
"""Axes of token numbers: batch and position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenJudgement:
    """Scores of both language models on one sample, averaged over its positions.

    Attributes:
        hits: share of positions whose next token a side ranks first: reference, candidate.
        own: share of positions whose own token the reference ranks first.
        same: share of positions at which both models rank one token first.
        losses: mean negative logarithm of the probability of the next token, in nats: reference, candidate.
        positions: number of them.
    """

    hits: tuple[float, float]
    own: float
    same: float
    losses: tuple[float, float]
    positions: int

    @property
    def is_causal(self) -> bool:
        """True if the reference predicts the next token; False if it predicts the token at the position."""
        return self.own <= self.hits[0]


def token_input(feeds: Feeds) -> str | None:
    """Return the input with the token numbers; None if there is no such input, or several candidates."""
    grids = [
        name
        for name, feed in feeds.items()
        if feed.dtype.kind in "iu"
        and feed.ndim == _GRID
        and not any(word in name.lower() for word in _OTHERS)
    ]
    return grids[0] if len(grids) == 1 else None


def judged_tokens(
    reference: Mapping[str, NDArray[Any]], candidate: Mapping[str, NDArray[Any]], sample: Sample
) -> TokenJudgement | None:
    """Score both language models on one sample; None for other models, or if no position has a next token.

    The first output is read, with the same name on both sides.
    """
    name = token_input(sample.feeds)
    first = next(iter(reference))
    left, right = reference[first], candidate[first]
    if name is None or left.ndim != _GRID + 1 or left.shape != right.shape or left.dtype.kind != "f":
        return None
    tokens = sample.feeds[name][: len(left)]
    if left.shape[:_GRID] != tokens.shape or left.shape[-1] <= max(2, int(tokens.max(initial=0))):
        return None
    used = used_positions(sample.feeds, tokens.shape)
    kept = used[:, 1:] & used[:, :-1]  # positions at which the next token is judged
    truth = tokens[:, 1:][kept].astype(np.int64)
    if not truth.size or truth.min() < 0:
        return None
    own = tokens[:, :-1][kept].astype(np.int64)
    rows, places = np.nonzero(kept)
    parts = [slice(first, first + _ROWS) for first in range(0, len(truth), _ROWS)]
    results = [
        (
            *_of_rows(left[rows[part], places[part]], truth[part]),
            *_of_rows(right[rows[part], places[part]], truth[part]),
            _of_rows(left[rows[part], places[part]], own[part])[1],
        )
        for part in parts
    ]
    mine, my_losses, theirs, their_losses, own_losses = (
        np.concatenate(column) for column in zip(*results, strict=True)
    )
    if not any(_predicts(losses, left.shape[-1]) for losses in (my_losses, own_losses)):
        return None
    return TokenJudgement(
        hits=(float((mine == truth).mean()), float((theirs == truth).mean())),
        own=float((mine == own).mean()),
        same=float((mine == theirs).mean()),
        losses=(float(my_losses.mean()), float(their_losses.mean())),
        positions=len(truth),
    )


def _predicts(losses: NDArray[np.float64], vocabulary: int) -> bool:
    """Return True if a model predicts tokens significantly better than an even guess."""
    return bool(losses.mean() + 2 * losses.std() / math.sqrt(len(losses)) < math.log(vocabulary))


def used_positions(feeds: Feeds, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return an array (batch, positions) that is False where an integer mask among the inputs is zero."""
    used = np.ones(shape, bool)
    for name, feed in feeds.items():
        # a float mask is added to the scores: 0 keeps a token
        if "mask" in name.lower() and feed.dtype.kind in "iub" and feed[: shape[0]].shape == shape:
            used &= feed[: shape[0]] != 0
    return used


def _of_rows(logits: NDArray[Any], truth: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the token that a model ranks first in each row, and the negative log probability of the true token."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    losses = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), truth]
    return wide.argmax(axis=1), losses


class Perplexity:
    """Perplexity of both models over all samples; all positions have equal weights."""

    def __init__(self) -> None:
        self._losses = (array("d"), array("d"))
        self._positions = array("d")

    def record(self, judgement: TokenJudgement) -> None:
        """Add the token losses of one sample to the perplexity of both models."""
        for kept, value in zip(self._losses, judgement.losses, strict=True):
            kept.append(value)
        self._positions.append(judgement.positions)

    def measures(self) -> tuple[Measure, ...]:
        """Return the candidate's perplexity, with the reference's in the note; () without samples."""
        if not self._positions:
            return ()
        first, second = self._both()
        return (Measure(metric=PERPLEXITY, value=second, note=f"{first:.4g} in the reference"),)

    def note(self) -> str:
        """Return both perplexities as text, with the interval of their ratio over samples."""
        first, second = self._both()
        rise = 100 * (second / first - 1)
        left, right = (np.frombuffer(kept) for kept in self._losses)
        ends = weighted_interval(right - left, np.frombuffer(self._positions))
        span = (
            ""
            if ends is None
            else f", 95 % interval {100 * math.expm1(ends.low):+.2f} to {100 * math.expm1(ends.high):+.2f} %"
        )
        return f"perplexity {first:.4g} -> {second:.4g} ({rise:+.2f} %{span}), {int(sum(self._positions))} tokens"

    def _both(self) -> tuple[float, float]:
        weights = np.frombuffer(self._positions)
        means = (float(np.average(np.frombuffer(kept), weights=weights)) for kept in self._losses)
        first, second = (math.exp(min(mean, 700.0)) for mean in means)
        return first, second
