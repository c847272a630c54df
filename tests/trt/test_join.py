"""Which layers hold a node, and how that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdqtool.core.engine import Certainty, EngineLayer, Role
from qdqtool.trt.names import join
from tests.audit.scenes import engine, kernel

STATED = kernel("conv_myl0_1", "conv")
BIAS = kernel("bias_myl0_2", "conv", role=Role.OTHER)
NAMED = replace(kernel("conv_myl0_1"), certainty=Certainty.UNKNOWN)


@pytest.mark.parametrize(
    ("layers", "compute", "other", "certainty"),
    [
        pytest.param([STATED, BIAS], [STATED], [BIAS], Certainty.STATED, id="metadata"),
        pytest.param([BIAS], [], [BIAS], Certainty.STATED, id="metadata of another kernel only"),
        pytest.param([NAMED, BIAS], [NAMED], [BIAS], Certainty.INFERRED, id="name of the layer"),
        pytest.param([kernel("other", "else")], [], [], Certainty.UNKNOWN, id="no layer"),
    ],
)
def test_a_node_belongs_to_the_compute_layers_that_name_it(
    layers: list[EngineLayer], compute: list[EngineLayer], other: list[EngineLayer], certainty: Certainty
) -> None:
    found = join(engine(*layers), frozenset({"conv"}))["conv"]
    assert (list(found.compute), list(found.other), found.certainty) == (compute, other, certainty)
