"""Every dimension that is written into a model is as long as onnxruntime computes it, whatever the size of the input.

onnxruntime reuses the buffer of one tensor for another whose dimensions have the same names, and refuses the sample
where they differ; other readers build for the lengths that the names give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.canonical.shapes import length_of, solve_dim
from qdqtool.graph.canonical.symbols import Length
from qdqtool.graph.edit import Edit
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened

_CHANNELS = 4
_LEAST = 32
"""Windows of four layers fit into it: of one beyond its input, onnxruntime computes a maximum of nothing."""
_LENGTHS = (32, 35, 36, 41, 48, 63, 64, 70, 72, 96)
_Layer = Callable[[models.Sketch, str, str], str]


def _conv(kernel: int, stride: int, pad: int) -> _Layer:
    def add(s: models.Sketch, x: str, name: str) -> str:
        weight = s.weight(f"{name}_w", _CHANNELS, _CHANNELS, kernel, kernel)
        return s.node("Conv", [x, weight], name, strides=[stride] * 2, pads=[pad] * 4)

    return add


def _pool(kernel: int, stride: int, **attributes: object) -> _Layer:
    def add(s: models.Sketch, x: str, name: str) -> str:
        return s.node("MaxPool", [x], name, kernel_shape=[kernel] * 2, strides=[stride] * 2, **attributes)

    return add


def _ints(s: models.Sketch, name: str, *values: int) -> str:
    return s.constant(name, np.array(values, np.int64))


def _dilated(block: int, *, cropped: bool = True) -> _Layer:
    """A dilated convolution as a pad up to a multiple, SpaceToDepth, Conv, DepthToSpace and a cut."""

    def add(s: models.Sketch, x: str, name: str) -> str:
        def node(op: str, inputs: Sequence[str], to: str, **attributes: object) -> str:
            return s.node(op, list(inputs), f"{name}_{to}", **attributes)

        def ints(to: str, *values: int) -> str:
            return _ints(s, f"{name}_{to}", *values)

        shape = node("Shape", [x], "shape")
        sizes = node("Slice", [shape, ints("two", 2), ints("four", 4), ints("axis", 0)], "sizes")
        rest = node("Mod", [sizes, ints("block", block)], "rest")
        pads = node("Mod", [node("Sub", [ints("whole", block), rest], "gap"), ints("block2", block)], "pads")
        both = node("Concat", [ints("none", 0, 0, 0, 0, 0, 0), pads], "both", axis=0)
        y = node("Pad", [x, both], "padded")
        y = node("Transpose", [y], "turned", perm=[1, 0, 2, 3])
        y = node("SpaceToDepth", [y], "blocks", blocksize=block)
        y = node("Transpose", [y], "back", perm=[1, 0, 2, 3])
        y = _conv(3, 1, 1)(s, y, f"{name}_conv")
        y = node("Transpose", [y], "turned2", perm=[1, 0, 2, 3])
        y = node("DepthToSpace", [y], "spread", blocksize=block)
        y = node("Transpose", [y], "spread_back", perm=[1, 0, 2, 3])
        if not cropped:
            return y
        cut = [ints("start", 0, 0), sizes, ints("axes", 2, 3)]
        y = node("Slice", [y, *cut], "cut")
        return s.node("Relu", [y], name)

    return add


def _upsampled(s: models.Sketch, x: str, name: str) -> str:
    scales = s.constant(f"{name}_scales", np.array([1, 1, 2, 2], np.float32))
    return s.node("Resize", [x, "", scales], name, mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")  # fmt: skip


def _first(count: int) -> _Layer:
    def add(s: models.Sketch, x: str, name: str) -> str:
        bounds = [_ints(s, f"{name}_{key}", value) for key, value in (("a", 0), ("b", count), ("c", 2))]
        return s.node("Slice", [x, *bounds], name)

    return add


def _with_border(s: models.Sketch, x: str, name: str) -> str:
    return s.node("Pad", [x, _ints(s, f"{name}_pads", 0, 0, 1, 2, 0, 0, 0, 1)], name)


def _halved_and_added(s: models.Sketch, x: str, name: str) -> str:
    """A level of a U-Net: it runs where the size is even."""
    y = _upsampled(s, _pool(2, 2)(s, x, f"{name}_small"), f"{name}_large")
    return s.node("Add", [x, y], name)


def _flattened(s: models.Sketch, x: str, name: str) -> str:
    """Tokens and back, by shape arithmetic."""
    tokens = s.node("Reshape", [x, _ints(s, f"{name}_to", 0, _CHANNELS, -1)], f"{name}_tokens")
    return s.node("Reshape", [tokens, s.node("Shape", [x], f"{name}_shape")], name)


_LAYERS: dict[str, _Layer] = {
    "a convolution of stride 2": _conv(3, 2, 1),
    "a convolution of stride 2 without padding": _conv(3, 2, 0),
    "a convolution of stride 3": _conv(1, 3, 0),
    "pooling": _pool(2, 2),
    "pooling that rounds up": _pool(2, 2, ceil_mode=1),
    "pooling padded to the same size": _pool(3, 2, auto_pad="SAME_UPPER"),
    "a dilation of 2": _dilated(2),
    "a dilation of 3": _dilated(3),
    "a dilation of 6": _dilated(6),
    "a pad up to a multiple of 4": _dilated(4, cropped=False),
    "an upsampling": _upsampled,
    "a border": _with_border,
    "tokens": _flattened,
    "a level of a U-Net": _halved_and_added,
    "a cut to a length": _first(40),
}


def _strided_and_dilated(s: models.Sketch) -> str:
    """Behind a stride, a dilation whose padded tensor could take the buffer of one that is a little shorter."""
    x = _conv(3, 2, 1)(s, s.input("x", ["batch", _CHANNELS, "height", "width"]), "half")
    for place in range(3):
        y = _dilated(6)(s, x, f"wide{place}")
        x = s.node("Add", [s.node("Tanh", [x], f"tanh{place}"), y], f"sum{place}")
    return x


def _network(names: Sequence[str]) -> onnx.ModelProto:
    s = models.Sketch()
    x = s.input("x", ["batch", _CHANNELS, "height", "width"])
    for place, name in enumerate(names):
        x = _LAYERS[name](s, x, f"t{place}")
    s.output(s.node("Relu", [x], "y"))
    return s.model()


def _prepared(proto: onnx.ModelProto, folder: Path) -> Model:
    return prepare(opened(proto, folder), PrepareOptions())


def _computed(model: Model, feeds: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]] | None:
    """The shapes that onnxruntime computes with nothing told; None where the network does not take the sample."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model.proto)
    del bare.graph.value_info[:], bare.graph.output[:]
    names = [name for node in bare.graph.node for name in node.output if name]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        return {name: value.shape for name, value in models.run(bare, feeds).items()}
    except Exception:  # noqa: BLE001 -- onnxruntime has an exception for every reason to refuse
        return None


def _false(model: Model, lengths: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """The dimensions that are written and not as long."""
    wrong = []
    made_up: dict[str, int] = {}
    for name, shape in shapes.items():
        written = model.view.info(name).shape
        if written is None:
            continue
        if len(written) != len(shape):
            wrong.append(f"{name}: {written} is {shape}")
            continue
        for dim, size in zip(written, shape, strict=True):
            length = length_of(dim, lengths)
            if length is None and isinstance(dim, str) and dim != "?":
                length = made_up.setdefault(dim, size)
            if length not in {None, size}:
                wrong.append(f"{name}: {written} is {shape}")
    return wrong


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    names=st.lists(st.sampled_from(sorted(_LAYERS)), min_size=1, max_size=4),
    sizes=st.lists(
        st.tuples(st.integers(1, 3), *[st.integers(_LEAST, 130) | st.sampled_from(_LENGTHS)] * 2),
        min_size=6,
        max_size=6,
    ),
)
def test_every_written_dimension_is_as_long_as_onnxruntime_computes_it(
    names: list[str], sizes: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    model = _prepared(_network(names), tmp_path)
    for batch, height, width in sizes:
        feeds = {"x": np.ones((batch, _CHANNELS, height, width), np.float32)}
        shapes = _computed(model, feeds)
        if shapes is None:
            continue
        lengths = {"batch": batch, "height": height, "width": width}
        assert _false(model, lengths, shapes) == []
        assert models.run(model.proto, feeds)["y"].shape == shapes["y"]


@pytest.mark.parametrize("size", [64, 66, 96, 100, 127])
def test_a_dilated_network_runs_on_sizes_that_are_padded_up(size: int, tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Relu", [_strided_and_dilated(s)], "y"))
    proto = s.model()
    feeds = {"x": np.random.default_rng(0).random((1, _CHANNELS, size, size)).astype(np.float32)}
    expected = models.run(proto, feeds)["y"]
    assert np.allclose(models.run(_prepared(proto, tmp_path).proto, feeds)["y"], expected, atol=1e-5)


def _written(names: Sequence[str], folder: Path, tensor: str = "y") -> tuple[int | str, ...]:
    return (_prepared(_network(names), folder).view.info(tensor).shape or ())[2:]


def test_sizes_padded_up_to_a_multiple_are_not_taken_for_the_size_itself(tmp_path: Path) -> None:
    padded = _written(["a pad up to a multiple of 4"], tmp_path)
    assert not {"height", "width"} & set(padded)
    assert _written(["a dilation of 6"], tmp_path) == ("height", "width")


def test_a_cut_to_a_length_is_not_taken_for_that_length(tmp_path: Path) -> None:
    height, width = _written(["a cut to a length"], tmp_path)
    assert isinstance(height, str)
    assert height != "height"
    assert width == "width"


@pytest.mark.parametrize(
    ("layer", "height"),
    [
        ("a convolution of stride 2", "floor((height+1)/2)"),
        ("a convolution of stride 2 without padding", "floor((height+1)/2)-1"),
        ("a convolution of stride 3", "floor((height+2)/3)"),
        ("pooling", "floor(height/2)"),
        ("pooling that rounds up", "floor((height+1)/2)"),
        ("pooling padded to the same size", "floor((height+1)/2)"),
        ("an upsampling", "2*height"),
        ("a border", "height+1"),
    ],
)
def test_what_a_window_rounds_off_is_written(layer: str, height: str, tmp_path: Path) -> None:
    assert _written([layer], tmp_path)[0] == height


def test_a_half_of_what_is_always_even_is_written_plainly(tmp_path: Path) -> None:
    assert _written(["a level of a U-Net"], tmp_path, "t0_small") == ("height/2", "width/2")


def test_every_symbol_is_as_even_as_the_model_demands_and_no_more(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", _CHANNELS, "height", "width"])
    s.output(s.node("Relu", [_halved_and_added(s, x, "level")], "y"))
    z = s.input("z", ["batch", _CHANNELS, "long", "wide"])
    s.output(s.node("Relu", [_pool(2, 2)(s, z, "pooled")], "half"))
    view = _prepared(s.model(), tmp_path).view
    assert (view.info("level_small").shape or ())[2:] == ("height/2", "width/2")
    assert (view.info("half").shape or ())[2:] == ("floor(long/2)", "floor(wide/2)")


@given(
    length=st.integers(1, 999),
    over=st.integers(1, 4),
    under=st.integers(1, 64),
    shift=st.integers(0, 63),
    steps=st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), min_size=1, max_size=4),
)
def test_steps_of_steps_are_rounded_once(
    length: int, over: int, under: int, shift: int, steps: list[tuple[int, int]]
) -> None:
    made = Length(symbol="N", over=over, under=under, shift=shift, exact=False)
    size = (over * length + shift) // under
    for more, step in steps:
        made, size = made.stepped(more, step), (size + more) // step + 1
    assert made.fits(size, {"N": length})
    assert length_of(made.text(), {"N": length}) == size


@given(length=st.integers(1, 99), wanted=st.integers(1, 99))
def test_a_length_that_is_rounded_settles_nothing(length: int, wanted: int) -> None:
    assert solve_dim(f"floor((N+{length})/2)", wanted) == ("", 0)
    assert solve_dim("floor(N/2)", wanted) == ("", 0)


def test_what_stays_unknown_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = models.Sketch()
    places = sketch.node("NonZero", [sketch.input("x", ["n", 4])], "places")
    rows = sketch.node("Transpose", [places], "rows")
    sketch.output(sketch.node("Cast", [rows], "y", to=onnx.TensorProto.FLOAT), ["found", 2])
    model = opened(sketch.model(), tmp_path)
    assert any(str(dim).startswith("unk__") for dim in model.view.info("places").shape or ())
    resolved: list[str] = []
    monkeypatch.setattr("qdqtool.graph.canonical.shapes._resolve_types", lambda _: resolved.append("") or {})
    edit = Edit(model)
    edit.node("Identity", ["rows"], ["more"], name="more")
    assert edit.finish().view.info("more").shape == model.view.info("rows").shape
    assert not resolved
    edit = Edit(model)
    edit.node("NonZero", ["y"], ["others"], name="others")
    edit.finish()
    assert resolved
