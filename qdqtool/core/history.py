"""History of every engine layer in a builder's log: Q/DQ nodes, optimizer events, tuning."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.buildlog import LayerTuning, MyelinTuning
from qdqtool.core.events import OptimizerEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerHistory:
    """History of one layer in the log.

    Attributes:
        qdq: names of the Q and DQ nodes that ended in it; the ledger has their stories.
        events: what the optimizer did to what it is made of, in the order of the log; attempts without effect are left
            out.
        tuning: the search for its kernel; None if the log has none.
        myelin: the searches for kernels inside a Myelin region.
    """

    qdq: tuple[str, ...] = ()
    events: tuple[OptimizerEvent, ...] = ()
    tuning: LayerTuning | None = None
    myelin: tuple[MyelinTuning, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """History of all layers in the log.

    Attributes:
        layers: one per layer of the engine, in its order.
        unplaced: Q and DQ nodes of the model that belong to no layer.
        notes: what a reader should know.
    """

    layers: tuple[LayerHistory, ...] = ()
    unplaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
