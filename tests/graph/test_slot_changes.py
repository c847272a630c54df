"""Laws of slot edits: what two models differ in is what was edited, and an edit is what the model says afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.fixes import SlotEdit
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.slots import requantize, slot_changes
from tests.placement.building import quantized
from tests.placement.zoo import FLOAT

NAMES = ("attention", "conv_chain", "residual_cnn")
MODELS = {name: quantized(FLOAT[name]())[0] for name in NAMES}
SLOTS = {
    name: sorted(slot for pair in find(model) if pair.dequantize for slot in pair.slots)
    for name, model in MODELS.items()
}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_does_not_differ_from_itself(name) -> None:
    assert slot_changes(MODELS[name], MODELS[name]) == ()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_inputs_made_float_are_the_changes(name, data) -> None:
    chosen = data.draw(st.sets(st.sampled_from(SLOTS[name])))
    after = requantize(MODELS[name], [SlotEdit(slot=slot) for slot in chosen])
    changes = slot_changes(MODELS[name], after)
    assert {change.slot for change in changes} == chosen
    assert {change.after for change in changes} <= {"float"}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_edits_are_undone_by_the_edits_back(name, data) -> None:
    before = MODELS[name]
    chosen = data.draw(st.sets(st.sampled_from(SLOTS[name])))
    was = {slot: pair for pair in find(before) for slot in pair.slots}
    after = requantize(before, [SlotEdit(slot=slot) for slot in chosen])
    back = requantize(
        after,
        [
            SlotEdit(
                slot=slot, scales=was[slot].scale, axis=was[slot].axis if was[slot].scale_shape else None
            )
            for slot in chosen
        ],
    )
    assert slot_changes(before, back) == ()


def test_a_change_says_how_the_input_was_and_is_quantized() -> None:
    before = MODELS["conv_chain"]
    slot = next(slot for pair in find(before) for slot in pair.slots if pair.scale_shape == ())
    (change,) = slot_changes(before, requantize(before, [SlotEdit(slot=slot, scales=(0.5,))]))
    assert (change.slot, change.after) == (slot, "int8 0.5")
    assert float(change.before.removeprefix("int8 ")) > 0


def test_a_scale_that_is_still_to_be_measured_is_no_edit_yet() -> None:
    with pytest.raises(ValueError, match="has not been measured"):
        requantize(MODELS["conv_chain"], [SlotEdit(slot=SLOTS["conv_chain"][0], scales=None)])
    assert np.isfinite(SlotEdit(slot=SLOTS["conv_chain"][0], scales=(0.5,)).measured_scales[0])
