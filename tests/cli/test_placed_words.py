"""Every command counts the nodes of a model as `run` does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.cli.placed_words import nodes_of
from qdqtool.core.engine import Engine
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.decide import decide
from tests import models
from tests.placement.zoo import FLOAT


@pytest.mark.parametrize("name", sorted(FLOAT))
def test_as_many_compute_nodes_are_told_as_an_audit_looks_for(name: str, tmp_path: Path) -> None:
    model = load(models.save(FLOAT[name](), tmp_path))
    placement = decide(model.view, PlacementOptions())
    verdicts = audit(model, Engine(layers=(), form="none"), placement).verdicts
    told = re.fullmatch(
        r"(\d+) of (\d+) compute nodes?(?: and (\d+) others?)?", nodes_of(model.view, placement)
    )
    assert told is not None
    assert int(told[1]) == sum(verdict.requested for verdict in verdicts)
    assert int(told[2]) == len(verdicts)
    chosen = {entry.slot.node for entry in placement.quantized}
    assert int(told[1]) + int(told[3] or 0) == len(chosen)
