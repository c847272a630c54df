"""One pair in front of the split of a joint projection: where it is asked for, and what builds make of it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.placement import graphs
from tests.placement.building import build, quantized

CUTS = ("Gather", "Split", "Slice")


def _readers(cut: str) -> set[str]:
    """The slots that read the projection."""
    return {"Gather": {"qkv_reshape[0]"}, "Split": {"cut[0]"}, "Slice": {f"{part}_cut[0]" for part in "qkv"}}[
        cut
    ]


def _asked(cut: str, **options: object) -> tuple[set[str], list[set[str]]]:
    """The readers of the projection that are quantized, and the tensors that share a scale."""
    drawing = {key: options.pop(key) for key in ("scaled", "turned") if key in options}
    _, placement = quantized(graphs.joint(cut, **drawing), **options)
    slots = {str(decision.slot) for decision in placement.quantized}
    return slots & _readers(cut), [set(tie.tensors) for tie in placement.ties]


@pytest.mark.parametrize("cut", CUTS)
def test_one_part_that_is_moved_alone_keeps_its_own_pair(cut: str) -> None:
    assert not _asked(cut, turned=True)[0]


@pytest.mark.parametrize(
    "options",
    [{"target": "10"}, {"only": ("proj",)}, {"exclude": ("av",)}, {"formats": {"av": "fp8"}}],
    ids=["another builder", "float factors", "a float product", "two formats"],
)
@pytest.mark.parametrize("cut", CUTS)
def test_the_pair_is_asked_for_only_where_all_factors_are_quantized_alike(
    cut: str, options: dict[str, object]
) -> None:
    assert not _asked(cut, **options)[0]


@pytest.mark.parametrize("format_", ["int8", "fp8"])
@pytest.mark.parametrize(("scaled", "parts"), [("scores", 3), ("q", 2), ("qk", 1)])
@pytest.mark.parametrize("cut", CUTS)
def test_the_projection_and_its_parts_share_one_scale(
    cut: str, scaled: str, parts: int, format_: str
) -> None:
    asked, ties = _asked(cut, scaled=scaled, format=format_)
    assert asked == _readers(cut)
    (tie,) = [tensors for tensors in ties if "qkv_sum" in tensors]
    assert len(tie) >= parts + 1
    assert not [tensor for tensor in tie if "scaled" in tensor]


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize(
    ("format_", "types", "sm"),
    [("int8", "fp32", "sm86"), ("int8", "fp16", "sm86"), ("fp8", "fp32", "sm89")],
)
@pytest.mark.parametrize("scaled", ["scores", "q", "qk"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_joint_pair_saves_two_kernels_and_never_costs_one(
    cut: str, scaled: str, format_: str, types: str, sm: str
) -> None:
    without, joint = (
        build(
            quantized(graphs.joint(cut, scaled=scaled), types, format=format_, skip_rules=skipped)[0].proto,
            sm,
        )
        for skipped in (("joint_projection",), ())
    )
    assert not joint.error
    assert len(without.kernels) - len(joint.kernels) == 2
    assert joint.bytes <= without.bytes
    assert joint.precision == without.precision
