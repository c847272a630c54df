from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.kinds import PLACEMENT
from qdqtool.core.placement import (
    JointSlots,
    Placement,
    QuantSpec,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotKind,
    SlotStatement,
    classes,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.errors import UsageError
from qdqtool.matching.rule import rulebook
from qdqtool.placement.decide import decide
from qdqtool.trt.ops import PRODUCTS
from tests import models
from tests.placement import graphs

PLACES = {name: rule.place for name, rule in rulebook().rules.items() if rule.place is not None}
MODELS = [
    models.attention,
    models.concat_cnn,
    models.conv_chain,
    models.depthwise_cnn,
    models.gemms,
    models.matmuls,
    models.residual_cnn,
    models.silu_cnn,
    models.unet,
    graphs.excite,
    graphs.pyramid,
    graphs.strided_shortcut,
]


def quantized(placement: Placement) -> set[str]:
    return {str(decision.slot) for decision in placement.quantized}


def test_a_model_without_weighted_nodes_gets_an_empty_placement():
    s = models.Sketch()
    s.output(s.relu("relu", s.input("x", [1, 4])), [1, 4])
    assert decide(graphs.view(s.model())) == Placement(decisions=(), ties=())


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_order_of_rules_does_not_matter(make, seed):
    view = graphs.view(make())
    names = list(PLACES)
    random.Random(seed).shuffle(names)
    assert decide(view, rules={name: PLACES[name] for name in names}) == decide(view)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_factor_of_every_weighted_node_gets_a_decision_with_a_reason(make):
    view = graphs.view(make())
    decided = {str(d.slot): d for d in decide(view, PlacementOptions(ops=("Conv",))).decisions}
    for node in view.nodes:
        if node.op in PRODUCTS:
            for index in (0, 1):
                assert decided[f"{node.name}[{index}]"].opinions


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_node_is_ever_half_quantized(make, data):
    view = graphs.view(make())
    names = [node.name for node in view.nodes]
    excluded = tuple(data.draw(st.lists(st.sampled_from(names), max_size=4)))
    placement = decide(view, PlacementOptions(exclude=excluded))
    slots = quantized(placement)
    for node in view.nodes:
        if node.op in PRODUCTS:
            assert (f"{node.name}[0]" in slots) == (f"{node.name}[1]" in slots)
            assert not (node.name in excluded and f"{node.name}[0]" in slots)


def test_decisions_come_in_graph_order():
    view = graphs.view(models.residual_cnn())
    positions = [view.by_name[d.slot.node].position for d in decide(view).decisions]
    assert positions == sorted(positions)


def test_a_placement_survives_the_round_trip_through_its_artefact(tmp_path):
    placement = decide(graphs.view(models.residual_cnn()))
    PLACEMENT.write(tmp_path / "placement.json", placement)
    assert PLACEMENT.read(tmp_path / "placement.json") == placement


def test_weights_and_activations_are_told_apart():
    decisions = {str(d.slot): d for d in decide(graphs.view(models.conv_chain())).decisions}
    assert decisions["conv1[0]"].kind is SlotKind.ACTIVATION
    assert decisions["conv1[1]"].kind is SlotKind.WEIGHT
    assert decisions["conv1[1]"].spec == QuantSpec(axis=0)


def test_two_rules_that_want_different_scales_are_a_usage_error():
    def other(view, options):
        yield SlotStatement(
            slot=Slot(node="conv1", index=1),
            stance=RequestOrVeto.REQUEST,
            reason="because",
            spec=QuantSpec(axis=1),
        )

    with pytest.raises(UsageError, match=r"conv and other disagree"):
        decide(graphs.view(models.conv_chain()), rules={"conv": PLACES["conv"], "other": other})


def test_an_unknown_rule_in_skip_rules_is_a_usage_error_with_the_nearest_name():
    with pytest.raises(UsageError) as caught:
        decide(graphs.view(models.conv_chain()), PlacementOptions(skip_rules=("concatt",)))
    assert "concat" in caught.value.fix


def test_a_skipped_rule_is_not_asked():
    placement = decide(graphs.view(models.conv_chain()), PlacementOptions(skip_rules=("conv",)))
    assert placement.quantized == ()
    assert all(decision.opinions == () for decision in placement.decisions)


def test_patterns_that_match_nothing_are_noted():
    options = PlacementOptions(exclude=("nothing*", "conv1"), only=("conv*",))
    placement = decide(graphs.view(models.conv_chain()), options)
    assert placement.notes == ("no node matches the pattern 'nothing*' of place.exclude",)


def test_a_bond_whose_partner_nobody_requests_stays_float():
    a, b = Slot(node="conv1", index=0), Slot(node="conv2", index=0)

    def half(view, options):
        yield SlotStatement(slot=a, stance=RequestOrVeto.REQUEST, reason="wanted")
        yield JointSlots(slots=(a, b), reason="both or none")

    decisions = {d.slot: d for d in decide(graphs.view(models.conv_chain()), rules={"half": half}).decisions}
    assert not decisions[a].quantize
    assert "conv2[0] stays float" in decisions[a].opinions[-1].reason


@pytest.mark.parametrize(("asked", "quantized"), [("ab", {"a", "b"}), ("a", set()), ("b", {"b"})])
def test_what_a_bond_requires_is_quantized_or_its_own_slots_are_not(asked: str, quantized: set[str]):
    slots = {"a": Slot(node="conv1", index=0), "b": Slot(node="conv2", index=0)}

    def bound(view, options):
        for name in asked:
            yield SlotStatement(slot=slots[name], stance=RequestOrVeto.REQUEST, reason="wanted")
        yield JointSlots(slots=(slots["a"],), requires=(slots["b"],), reason="nothing else hands on INT8")

    found = decide(graphs.view(models.conv_chain()), rules={"bound": bound}).quantized
    assert {decision.slot for decision in found} == {slots[name] for name in quantized}


def test_bonds_reach_through_each_other():
    slots = [Slot(node="conv1", index=0), Slot(node="conv1", index=1), Slot(node="conv2", index=0)]

    def chained(view, options):
        for slot in slots:
            yield SlotStatement(slot=slot, stance=RequestOrVeto.REQUEST, reason="wanted")
        yield SlotStatement(slot=slots[2], stance=RequestOrVeto.VETO, reason="no")
        yield JointSlots(slots=(slots[0], slots[1]), reason="first")
        yield JointSlots(slots=(slots[1], slots[2]), reason="second")

    assert decide(graphs.view(models.conv_chain()), rules={"chained": chained}).quantized == ()


def test_a_tie_that_no_quantized_tensor_needs_is_dropped():
    def loose(view, options):
        yield SharedScale(tensors=("relu1_y", "x"), reason="because")

    rules = {"conv": PLACES["conv"], "loose": loose}
    view = graphs.view(models.conv_chain())
    assert [tie.tensors for tie in decide(view, rules=rules).ties] == [("relu1_y", "x")]
    assert (
        decide(view, PlacementOptions(exclude=("conv2",)), rules={**rules, "user": PLACES["user"]}).ties == ()
    )


@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), max_size=12))
def test_classes_are_an_equivalence_relation(groups):
    parts = classes(groups)
    members = [item for part in parts for item in part]
    assert sorted(members) == sorted({item for group in groups for item in group})
    home = {item: part for part in parts for item in part}
    for group in groups:
        assert len({home[item] for item in group}) == 1
    assert set(classes(reversed(groups))) == set(parts)
    # Nothing is joined without cause: a part of several items is held together by overlapping groups.
    for part in parts:
        inside = [set(group) for group in groups if set(group) <= part]
        reached = {min(part)}
        while grown := [group for group in inside if group & reached and not group <= reached]:
            reached |= grown[0]
        assert reached == part


@pytest.mark.slow
def test_twenty_thousand_nodes_take_seconds():
    view = graphs.view(graphs.long_chain(20_000))
    start = time.process_time()
    placement = decide(view)
    assert time.process_time() - start < 60  # processor time: a square would take many minutes
    assert len(placement.quantized) >= 8_000
