"""Chooses the range of each tensor, by the decisions below, in this order.

To the right of each decision is its module:

    a  tensors that must share a range           `placement.decide.effective`, `calibration.table.groups`
    b  equalization that the recipe names      `equalization`
    c  compare candidates by the outputs?      `decisions`: needs real samples, a network below 2 GB and a quantized tensor
    d  the samples that choose, check and fit  `samples`
    e  few samples?                            `few_samples`: 8 to 72, affordable, no overrides or factors in the recipe
    f  the range by each calibrator            `calibration.table.Chooser`: override, calibrator, bound, factor
    g  the calibrator, or a mean of several    `calibrators`, or `few_samples` with margins
    h  noise at the outputs                    `reference` (float network), `executor` (candidates); `bias`, `layer_walk`
    i  rounding of weights, and equalization   `decisions` (`equalization`); each is kept if the outputs gain enough
    j  zero points                             `zero_points`; kept if the outputs gain enough and a build has no more kernels
    k  the number in the file                  `graph.qdq.encode`: rounded up to what the file can store

`decisions.final_tables` takes these steps. `extremes` rejects samples whose values show that they are damaged.
`channels` reports channels that a shared scale rounds to zero. `fix`, a sweep and a given table come later.
"""
