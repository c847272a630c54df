"""Chooses the epoch whose weights are kept when validation scores are noisy.

A score on 200 samples is uncertain by more than a point, so the best of 15 epochs is the luckiest one: in the example
on digits the second epoch, by chance as good as any on the validation samples, is three points worse on the test samples
than the last. Scores are therefore smoothed over three epochs, and of those within one standard error of the best the
latest is kept, because it has trained longest and, at the end of a schedule, with the smallest steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdqtool.core.qat import Epoch

# Epochs whose scores are averaged: a single lucky one is not chosen.
_WINDOW = 3


def kept_epoch(epochs: Sequence[Epoch], noise: float) -> int:
    """Return the number of the epoch to keep; 0 if no trained epoch is better than calibration alone.

    Args:
        epochs: all so far, number 0 first.
        noise: standard error of a score; see `noise_of`.
    """
    untrained, trained = epochs[0].score, [epoch.score for epoch in epochs[1:]]
    smooth = [
        sum(window) / len(window)
        for end in range(1, len(trained) + 1)
        for window in [trained[max(0, end - _WINDOW) : end]]
    ]
    best = max((score for score in smooth if math.isfinite(score)), default=-math.inf)
    kept = [
        epochs[1 + place].number
        for place, score in enumerate(smooth)
        if score >= best - noise and score > untrained and math.isfinite(trained[place])
    ]
    return kept[-1] if kept else epochs[0].number


def noise_of(metric: str, score: float, samples: int) -> float:
    """Return the standard error of a score; 0 if the noise of the metric is unknown.

    For a share of right answers (top1, in percent) it is that of the binomial distribution.
    """
    if metric != "top1" or samples < 1:
        return 0.0
    share = min(max(score / 100, 1 / (samples + 1)), 1 - 1 / (samples + 1))
    return 100 * math.sqrt(share * (1 - share) / samples)
