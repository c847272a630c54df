"""Every model of ONNX's own operator tests that onnxruntime or onnx itself runs computes the same after every edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graph.node_cases import cases, troubles

SHARDS = 8
REFUSED = {"test_scan_sum": "holds a Scan of opset 8"}
"""Models that onnxruntime runs and we refuse, with the reason that is told."""
OUT_OF_CONTRACT = {"test_attention_4d_causal_nonpad_negative_offset_structural_empty"}
"""More queries than the cache holds keys, which the operator's contract excludes: a query without a key averages the values."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shard",  # neighbours by name are of one operator
    [pytest.param(shard, marks=[pytest.mark.long] * (shard % 2)) for shard in range(SHARDS)],
)
def test_every_operator_computes_the_same_after_prepare_insert_convert_and_repair(
    shard: int, tmp_path: Path
) -> None:
    mine = cases()[shard::SHARDS]
    assert len(mine) > 150
    found = {case.name: wrong for case in mine if (wrong := troubles(case, tmp_path))}
    for name in OUT_OF_CONTRACT & found.keys():
        del found[name]
    for name, reason in REFUSED.items():
        if name in found and reason in found[name].get("load", ""):
            del found[name]
    assert found == {}
