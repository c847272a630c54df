"""Values that a Resize or a Pad keeps from the layer behind are quantized again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qdqtool.placement.repair import remaining
from tests.graph.repairing import Sketch, apart, kinds, repaired
from tests.placement.building import build

Move = Callable[[Sketch, str], str]


def resized(s: Sketch, x: str, mode: str = "nearest") -> str:
    sizes = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    return s.node("Resize", [x, "", sizes], "moved", name="resize", mode=mode)


def padded(
    s: Sketch, x: str, pads: tuple[int, ...], value: float | None = None, mode: str = "constant"
) -> str:
    inputs = [x, s.constant("pads", np.asarray(pads, np.int64))]
    if value is not None:
        inputs.append(s.constant("value", np.float32(value)))
    return s.node("Pad", inputs, "moved", name="pad", mode=mode)


def smallest(s: Sketch, x: str) -> str:
    return s.node("MaxPool", [x], "pooled", name="pool", kernel_shape=[2, 2])


AROUND, DEEPER = (0, 0, 1, 1, 0, 0, 1, 1), (0, 2, 0, 0, 0, 2, 0, 0)


def behind(move: Move, channels: int = 4) -> Sketch:
    s = Sketch()
    x = move(s, s.pair(s.image(), "x"))
    values = s.integers("w", 8, channels, 3, 3)
    weight = s.dequantize(values, "w", np.linspace(0.001, 0.002, 8), 0, np.int8, axis=0)
    s.output(s.convolved(x, weight))
    return s


@pytest.mark.parametrize(
    ("move", "channels"),
    [
        pytest.param(resized, 4, id="nearest Resize"),
        pytest.param(lambda s, x: smallest(s, resized(s, x)), 4, id="Resize and MaxPool"),
        pytest.param(lambda s, x: padded(s, x, DEEPER), 8, id="padded channels"),
        pytest.param(lambda s, x: padded(s, x, DEEPER, 0.0), 8, id="channels padded with a zero"),
        pytest.param(lambda s, x: smallest(s, padded(s, x, AROUND)), 4, id="Pad and MaxPool"),
    ],
)
def test_a_layer_behind_a_barrier_gets_a_pair_of_the_same_scale(
    move: Move, channels: int, tmp_path: Path
) -> None:
    proto = behind(move, channels).model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"held_back": 1}
    assert apart(proto, fixed) == 0
    assert remaining(fixed) == ()
    assert repaired(fixed.proto, tmp_path)[1] == ()


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(smallest, id="MaxPool"),
        pytest.param(lambda s, x: padded(s, x, AROUND), id="the Conv's own Pad"),
    ],
)
def test_what_int8_values_pass_needs_no_second_pair(move: Move, tmp_path: Path) -> None:
    fixed, changes = repaired(behind(move).model(), tmp_path)
    assert kinds(changes) == {}
    assert remaining(fixed) == ()


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda s, x: resized(s, x, "linear"), id="linear Resize"),
        pytest.param(lambda s, x: padded(s, x, AROUND, 1.0), id="Pad with ones"),
    ],
)
def test_values_off_the_grid_are_not_quantized_again(move: Move, tmp_path: Path) -> None:
    assert "held_back" not in kinds(repaired(behind(move).model(), tmp_path)[1])


@pytest.mark.parametrize("shared", [False, True], ids=["one Conv", "two Convs"])
def test_a_pad_that_two_layers_read_is_a_barrier(shared: bool, tmp_path: Path) -> None:
    s = Sketch()
    x = padded(s, s.pair(s.image(), "x"), AROUND)
    s.output(s.convolved(x, s.filters()))
    if shared:
        s.output(s.convolved(x, s.filters("v"), name="other"))
    assert kinds(repaired(s.model(), tmp_path)[1]) == ({"held_back": 2} if shared else {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("move", "channels"),
    [
        pytest.param(resized, 4, id="nearest Resize"),
        pytest.param(lambda s, x: padded(s, x, DEEPER), 8, id="padded channels"),
    ],
)
def test_tensorrt_multiplies_int8_only_with_the_second_pair(
    move: Move, channels: int, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    proto = behind(move, channels).model()
    assert dict(build(proto).precision) == {"conv": "float"}
    assert dict(build(repaired(proto, tmp_path)[0].proto).precision) == {"conv": "int8"}
