"""Inspects a model and writes the recipe that fits it, with the reasons as comments."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.backends.shapes import spell_shapes, usual_shapes
from qdqtool.core.wording import Command, count_noun
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.folding import take_decided_branches
from qdqtool.graph.preparation.prepare import give_constants
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.pipeline import recipes
from qdqtool.pipeline.recipes import SCHEMA_URL
from qdqtool.trt.ops import (
    COMPUTE,
    CONVOLUTIONS,
    PRODUCTS,
    RECURRENT,
    RESAMPLING,
    SHAPE_READERS,
    SPECTRAL,
    find_computed_once,
)

BOXES = frozenset({"NonMaxSuppression", "RoiAlign", "TopK"})
_POOLED = frozenset({"RoiAlign"})
"""Operators that show a detector anywhere in a model; other operators choose boxes only at the end, and
neighbours or tokens inside.
"""
_GROWS = frozenset({"Concat", "ScatterElements", "ScatterND", "TensorScatter"})
"""Operators that append a step to a cache of keys or values."""
_ATTENTION = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})


UPSCALING = RESAMPLING | {"ConvTranspose", "DepthToSpace"}


_Stated = Callable[[Model, Path], tuple[Mapping[str, Any], str]]
_COLOURS = frozenset({1, 3})
_SMALLEST_PICTURE = 16
"""Least width of a picture, in pixels; narrower inputs are other tables."""
_SHORTEST_SOUND = 256
"""Least length of a sound or a part of one, in samples or lines of a spectrum."""
_FEWEST = 3
"""Fewest convolutions of a network that returns pictures."""
_TRUNK = 6
"""Fewest convolutions of a network that finds boxes or reads pictures; networks with fewer are toys, or begin
with convolutions.
"""


_RARE = 3
"""Fewest matrix products per convolution of a network that consists of products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """The graph of a model, and how many nodes of each kind it has."""

    view: GraphView
    counts: Counter[str]
    quantized: tuple[str, ...]

    @property
    def depthwise(self) -> int:
        return sum(_is_depthwise(node, self.view) for node in self.view.nodes if node.op == "Conv")

    @property
    def spread(self) -> int:
        """Number of Conv nodes with several output positions, which are not gates of channels or heads."""
        shapes = (
            self.view.info(node.outputs[0]).shape or () for node in self.view.nodes if node.op == "Conv"
        )
        return sum(not shape or set(shape[2:]) != {1} for shape in shapes)

    @property
    def products(self) -> int:
        """Number of MatMul and Einsum nodes that multiply two run-time tensors, as in attention.

        Preparation writes Einsum nodes as MatMul.
        """
        fixed = find_computed_once(self.view)
        return sum(
            node.op in {"MatMul", "Einsum"}
            and len(node.inputs) > 1
            and not any(self.view.is_constant(name) or name in fixed for name in node.inputs)
            for node in self.view.nodes
        )

    def rank(self) -> int:
        """Return the number of dimensions of the first output; 0 if it is not known."""
        return len(self.view.outputs[0].shape or ()) if self.view.outputs else 0

    def multiplies(self) -> bool:
        """Return True if the network consists of matrix products, and convolutions only make or mix tokens.

        Depthwise convolutions along one dimension are not counted: state-space models have one per two products.
        """
        plain = self.counts["MatMul"] + self.counts["Gemm"]
        mixers = sum(
            _is_depthwise(node, self.view) and len(self.view.info(node.inputs[1]).shape or ()) == 3
            for node in self.view.nodes
            if node.op == "Conv"
        )
        return plain > _FEWEST and (self.counts["Conv"] - mixers) * _RARE <= plain

    def names_classes(self) -> bool:
        """Return True if every output is one row of scores per image, as of classifiers."""
        return all(info.shape is not None and len(info.shape) == 2 for info in self.view.outputs)

    def labels_pixels(self) -> bool:
        """Return True if the first output has an integer for each pixel, as the classes of a segmentation are."""
        first = self.view.outputs[0] if self.view.outputs else None
        return first is not None and self.rank() == 3 and not first.dtype.is_float

    def is_flat(self) -> bool:
        """Return True if the first output has a single position, as the scores of a classifier do."""
        shape = (self.view.outputs[0].shape or ()) if self.view.outputs else ()
        return len(shape) == 4 and (set(shape[2:]) == {1} or set(shape[1:3]) == {1})

    def draws(self) -> bool:
        """Return True if convolutions turn a 4-D input into an output of equal channels and no fewer pixels, such as a picture."""
        result = (self.view.outputs[0].shape or ()) if self.view.outputs else ()
        shapes = (value.shape or () for value in self.view.inputs)
        return self.counts["Conv"] >= _FEWEST and any(
            len(shape) == len(result) == 4
            and shape[1] == result[1]
            and all(
                isinstance(before, int) and isinstance(after, int) and after >= before
                for before, after in zip(shape[2:], result[2:], strict=True)
            )
            for shape in shapes
        )

    def joins_heads(self) -> bool:
        """Return True if an output joins the results of several convolutions, with no compute node after them, as in detectors.

        A detector joins its feature levels, or the decoded values of one level, after its last convolutions. If a
        matrix product or a recurrence is between, the parts are steps of time. A Concat of sizes does not move
        values.
        """
        ends = [info.name for info in self.view.outputs]
        return any(
            node.op == "Concat" and sum(_of_convolutions(name, self.view) for name in node.inputs) > 1
            for node in _up_to_products(ends, self.view)
        )

    def caches(self) -> int:
        """Return the number of inputs that are caches: a node appends to the input, and the model returns the result."""
        outputs = {info.name for info in self.view.outputs}
        return sum(
            any(
                use.node.op in _ATTENTION
                or (use.node.op in _GROWS and not outputs.isdisjoint(use.node.outputs))
                for use in self.view.uses(info.name)
            )
            for info in self.view.inputs
            if info.dtype.is_float and len(info.shape or ()) > 2
        )

    def chooses_boxes(self) -> tuple[str, ...]:
        """Return box operators: RoiAlign anywhere, NonMaxSuppression and TopK after the last compute node."""
        ends = {node.op for node in _up_to_products([info.name for info in self.view.outputs], self.view)}
        return tuple(sorted(BOXES & (ends | (_POOLED & self.counts.keys()))))

    def reads_pictures(self) -> bool:
        """Return True if convolutions read an input with three colours. Sound has one channel, and few convolutions."""
        shapes = (info.shape or () for info in self.view.inputs)
        return self.counts["Conv"] >= _TRUNK and any(
            len(shape) == 4 and max(_COLOURS) in {shape[1], shape[3]} for shape in shapes
        )

    def returns_sound(self) -> bool:
        """Return True if the last axis of an output is as long as that of a float input, as with sound."""
        input_lengths = {
            shape[-1]
            for info in self.view.inputs
            if info.dtype.is_float and len(shape := info.shape or ()) > 1
        }
        output_lengths = {shape[-1] for info in self.view.outputs if len(shape := info.shape or ()) > 1}
        # two unnamed lengths may differ
        return any(
            length != "?" if isinstance(length, str) else length >= _SHORTEST_SOUND
            for length in input_lengths & output_lengths
        )


_Reason = Callable[[_Look], str]


def suggest(path: Path, read_stated: _Stated = lambda *_: ({}, "")) -> str:
    """Return the text of a recipe for the model.

    Args:
        path: the ONNX file.
        read_stated: returns the `samples.preprocess` values that the model at a path states, and their source.

    Raises:
        InputFileError: the model cannot be read.
    """
    model = load(path)
    view = model.view
    look = _look(model)
    name, reason = _family(look)
    weighted = ", ".join(
        f"{look.counts[op]} {op}" for op in (*sorted(PRODUCTS), *sorted(RECURRENT)) if look.counts[op]
    )
    title = title_of(path)
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_URL}",
        f"# {_line(path.name)}: {count_noun(len(view.nodes), 'node')}, of them {weighted or 'none with weights'}; opset {view.opset}.",
        *(f"# Changes while reading: {_line(note)}." for note in model.notes),
        f"# Extends {name}, because {reason}.",
        f"# {Command('recipe', ('show', name))} prints what that sets; every value can be set here.",
        f"name: '{title}'",
        f"description: Written for {_plain(path.name)}.",
        f"extends: {name}",
        *_samples(view, *read_stated(model, path)),
        *_place(look),
        *_build(view),
    ]
    return "\n".join(lines) + "\n"


def fitting(model: Model, changes: Iterable[str] = ()) -> tuple[str, str]:
    """Return the shipped recipe for this kind of network, and the reason.

    `changes` are the user's `--set key=value`: inputs that they make constants decide branches, which can hold the whole
    network.
    """
    constants = [change for change in changes if change.startswith("prepare.constants")]
    if constants:
        fixed = recipes.load(None, constants).prepare.constants
        model = take_decided_branches(give_constants(model, fixed))
    return _family(_look(model))


def families() -> frozenset[str]:
    """Return the recipes for one kind of network among those from which `fitting` chooses."""
    return frozenset(name for name, _ in _FAMILIES) - {"llm-int4-weights"}


def _look(model: Model) -> _Look:
    counts = Counter(node.op for node in model.view.nodes)
    return _Look(view=model.view, counts=counts, quantized=quantized_ops(model))


def _family(look: _Look) -> tuple[str, str]:
    return next((name, why) for name, test in _FAMILIES if (why := test(look)))


def _samples(view: GraphView, stated: Mapping[str, Any], where: str) -> list[str]:
    """Return the recipe lines for the preparation of pictures that the model states, else a guess as a comment."""
    if stated:
        values = (f"    {name}: {json.dumps(value)}" for name, value in stated.items())
        return ["samples:", f"  preprocess:    # read from {where}, for folders of images", *values]
    images = [info for info in view.inputs if len(info.shape or ()) == 4]
    if len(view.inputs) != 1 or not images:
        return []
    shape = images[0].shape or ()
    last = shape[1] not in _COLOURS and shape[3] in _COLOURS
    colours, size = (shape[3], shape[1:3]) if last else (shape[1], shape[2:])
    pixels = [dim for dim in size if isinstance(dim, int) and dim >= _SMALLEST_PICTURE]
    if len(pixels) < 2 or colours not in _COLOURS:
        return []
    return [
        "# samples:                      # not stated by the model, so a guess: write the values of your training",
        "#   preprocess:                 # for folders of images; arrays are used unchanged",
        f"#     resize: [{pixels[0]}, {pixels[1]}]",
        f"#     colour: {'gray' if colours == 1 else 'rgb'}",
        *(["#     layout: nhwc"] if last else []),
        "#     scale: 0.00392156862745098    # 1/255; then mean and std",
    ]


def _place(look: _Look) -> list[str]:
    narrow = sum(
        min((look.view.constant_shape(node.inputs[1]) or (16,))[:1]) < 16
        for node in look.view.nodes
        if node.op == "Conv" and len(node.inputs) > 1
    )
    if not narrow:
        return []
    return [
        "# place:",
        f"#   min_channels: 16              # would keep the {count_noun(narrow, 'Conv node')} with fewer than 16 channels float",
    ]


def _build(view: GraphView) -> list[str]:
    if not any(info.shape and not info.is_static for info in view.inputs):
        return []
    shapes = spell_shapes(usual_shapes(view.inputs))
    return [
        "# build:                         # dynamic dimensions: write the sizes that you will run",
        *(f"#   {end}_shapes: {json.dumps(shapes)}" for end in ("min", "opt", "max")),
    ]


def _foreign(look: _Look) -> str:
    return f"the network is already quantized ({', '.join(look.quantized)})" if look.quantized else ""


def _sound(look: _Look) -> str:
    # a model that reads integers reads tokens: a Fourier transform mixes them, as attention does
    reads_waves = any(info.dtype.is_float for info in look.view.inputs)
    recurrent = sorted((RECURRENT | SPECTRAL if reads_waves else RECURRENT) & set(look.counts))
    if recurrent:
        # with images as input it recognizes text, with LSTM nodes or with their steps written out
        return "" if look.reads_pictures() else f"the network has {', '.join(recurrent)}"
    # a convolution with kernel size 1 is a matrix product at every position; a few convolutions between products mix
    # the tokens of a text
    flat = sum(
        node.op == "Conv" and len(shape) == 3 and shape[2] > 1
        for node in look.view.nodes
        if (shape := _weight_shape(node, look.view))
    )
    return (
        f"{count_noun(flat, 'Conv node runs', 'Conv nodes run')} along one dimension"
        if flat and look.products == 0 and not look.multiplies()
        else ""
    )


def _sound_of_sound(look: _Look) -> str:
    reason = _sound(look)
    return f"{reason} and the output is as long as the input" if reason and look.returns_sound() else ""


def _decoder(look: _Look) -> str:
    """Return the reason why the model is a decoder with a key-value cache; "" if it is not.

    A decoder waits for its weights, so these become low-bit, and arithmetic stays float.
    """
    count = look.caches()
    attends = look.products or not _ATTENTION.isdisjoint(look.counts)
    if count < 2 or not attends or look.counts["Conv"] * 4 > look.products:
        return ""
    return f"the network is a decoder with a key-value cache ({count_noun(count, 'input is a cache', 'inputs are caches')}), and its speed depends on reading its weights"


def _denoiser(look: _Look) -> str:
    """Return the reason why the model removes noise in steps; "" if it does not.

    Such a model reads the number of a step, as sine and cosine waves, and returns a picture.
    """
    steps = [info.name for info in look.view.inputs if info.shape is not None and len(info.shape) < 2]
    pictures = [info.name for info in look.view.inputs if len(info.shape or ()) == 4]
    if look.rank() != 4 or not steps or not pictures or not (look.counts["Sin"] and look.counts["Cos"]):
        return ""
    return f"the network turns images into images for a step of time ({steps[0]})"


def _attention(look: _Look) -> str:
    if look.products and look.counts["Softmax"] and look.products * 4 >= look.counts["Conv"]:
        return f"the network multiplies run-time tensors {look.products} times, as attention does"
    return "the network consists of matrix products" if look.multiplies() else ""


def _boxes(look: _Look) -> str:
    selecting = look.chooses_boxes()
    if selecting:
        return f"the network chooses boxes with {', '.join(selecting)}"
    if look.counts["Conv"] < _TRUNK:
        return ""
    if len(look.view.outputs) > 1 and not look.names_classes():
        return f"the network has {count_noun(len(look.view.outputs), 'output')}, as detectors have"
    rows = look.rank() == 3 and look.joins_heads()
    return "the output is a list of rows, such as boxes" if rows else ""


def _picture(look: _Look) -> str:
    upscaling = sorted(UPSCALING & set(look.counts))
    if look.is_flat() or (look.rank() != 4 and not look.labels_pixels()):
        return ""
    if upscaling:
        return f"the network turns images into images ({', '.join(upscaling)})"
    return "the output is an image, like the input" if look.draws() else ""


def _channels(look: _Look) -> str:
    depthwise, spread = look.depthwise, look.spread
    gates = f", {count_noun(gated, 'gate')} not counted" if (gated := look.counts["Conv"] - spread) else ""
    return (
        f"{depthwise} of {spread} Conv nodes are depthwise{gates}" if depthwise * 4 >= max(1, spread) else ""
    )


def _rest(look: _Look) -> str:
    if look.counts["Conv"]:
        return "the network is convolutional"
    weighted = any(look.counts[op] for op in PRODUCTS)
    return "no other recipe fits better" if weighted else "any recipe fits: the model has nothing to quantize"


_FAMILIES: tuple[tuple[str, _Reason], ...] = (
    ("third-party-qdq", _foreign),
    ("audio-to-audio-int8", _sound_of_sound),
    ("audio-int8", _sound),
    ("llm-int4-weights", _decoder),
    ("diffusion-int8", _denoiser),
    ("transformer-int8", _attention),
    ("detector-int8", _boxes),
    ("unet-int8", _picture),
    ("conv-depthwise-int8", _channels),
    ("conv-int8", _rest),
)
"""Families of networks with their tests; the first family with a reason is chosen."""


def _up_to_products(ends: Iterable[str], view: GraphView) -> Iterator[Node]:
    """Yield the nodes before `ends`, back to and including the nearest compute nodes and recurrences."""
    waiting, visited = list(ends), set[str]()
    while waiting:
        node = view.producer(waiting.pop())
        if node is None or node.name in visited:
            continue
        visited.add(node.name)
        yield node
        if node.op not in COMPUTE | SHAPE_READERS:
            waiting += node.inputs


def _of_convolutions(tensor: str, view: GraphView) -> bool:
    return any(node.op in CONVOLUTIONS for node in _up_to_products([tensor], view))


def _is_depthwise(node: Node, view: GraphView) -> bool:
    shape = view.info(node.inputs[1]).shape if len(node.inputs) > 1 else None
    return bool(shape) and node.integer("group", 1) > 1 and shape is not None and shape[1] == 1


def _weight_shape(node: Node, view: GraphView) -> tuple[int, ...]:
    return (view.constant_shape(node.inputs[1]) or ()) if len(node.inputs) > 1 else ()


def title_of(path: Path) -> str:
    """Return the name of the file; if it is a common name such as "model", the name of its folder."""
    stem = path.stem if path.stem.lower() not in {"model", "network"} else path.parent.resolve().name
    return _plain(stem)


def _line(text: str) -> str:
    return " ".join(text.split())


def _plain(text: str) -> str:
    """Return a name with only the characters that YAML reads as a word."""
    return (
        "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text).strip("-.")
        or "model"
    )
