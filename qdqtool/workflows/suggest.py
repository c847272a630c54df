"""Looks at a model and writes the recipe that fits it, with the reasons as comments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qdqtool.graph.find import quantized_ops
from qdqtool.graph.load import load
from qdqtool.graph.view import GraphView, Node

_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "STFT", "DFT", "MelWeightMatrix"})
_BOXES = frozenset({"NonMaxSuppression", "RoiAlign", "TopK"})
_UPWARDS = frozenset({"ConvTranspose", "Resize", "Upsample", "DepthToSpace"})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """What the eye catches first: how many nodes of which kind, and the graph itself."""

    view: GraphView
    counts: Counter[str]
    quantized: tuple[str, ...]

    @property
    def depthwise(self) -> int:
        return sum(_is_depthwise(node, self.view) for node in self.view.nodes if node.op == "Conv")

    @property
    def products(self) -> int:
        """MatMul nodes of two run-time tensors: attention."""
        return sum(
            node.op == "MatMul" and not any(self.view.is_constant(name) for name in node.inputs)
            for node in self.view.nodes
        )

    def rank(self, number: int = 0) -> int:
        """Dimensions of an output; 0 where that is not known."""
        return len(self.view.outputs[number].shape or ()) if self.view.outputs else 0


_Reason = Callable[[_Look], str]


def suggest(path: Path) -> str:
    """The text of a recipe for the model at `path`.

    Raises:
        InputFileError: the model cannot be read.
    """
    model = load(path)
    view = model.view
    look = _Look(view=view, counts=Counter(node.op for node in view.nodes), quantized=quantized_ops(model))
    name, reason = next((name, why) for name, test in _FAMILIES if (why := test(look)))
    weighted = ", ".join(
        f"{look.counts[op]} {op}"
        for op in ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU")
        if look.counts[op]
    )
    lines = [
        f"# {path.name}: {len(view.nodes)} nodes, of them {weighted or 'none with weights'}; opset {view.opset}.",
        f"# Extends {name}, because {reason}.",
        f"# `qdqtool recipe show {name}` prints what that sets; every value can be set here.",
        f"name: {_plain(path.stem)}",
        f"description: Made for {_plain(path.name)}.",
        f"extends: {name}",
        *_samples(view),
        *_place(look),
        *_build(view),
    ]
    return "\n".join(lines) + "\n"


def _samples(view: GraphView) -> list[str]:
    images = [info for info in view.inputs if len(info.shape or ()) == 4]
    if len(view.inputs) != 1 or not images:
        return []
    shape = images[0].shape or ()
    size = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(size) < 2 or shape[1] not in {1, 3}:
        return []
    return [
        "# samples:",
        "#   preprocess:                 # for folders of images; arrays are taken as they are",
        f"#     resize: [{size[0]}, {size[1]}]",
        f"#     colour: {'gray' if shape[1] == 1 else 'rgb'}",
        "#     scale: 0.00392156862745098    # 1/255; then mean and std of your training",
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
        f"#   min_channels: 16              # would keep the {narrow} Conv nodes with fewer than 16 channels float",
    ]


def _build(view: GraphView) -> list[str]:
    free = [info for info in view.inputs if not info.is_static]
    if not free:
        return []
    shapes = ",".join(
        f"{info.name}:{'x'.join(str(dim) if isinstance(dim, int) else '1' for dim in info.shape or ())}"
        for info in free
    )
    return [
        "# build:                         # dimensions are free: give the sizes that you will run",
        f"#   min_shapes: '{shapes}'",
        f"#   opt_shapes: '{shapes}'",
        f"#   max_shapes: '{shapes}'",
    ]


def _foreign(look: _Look) -> str:
    return f"it is quantized already ({', '.join(look.quantized)})" if look.quantized else ""


def _sound(look: _Look) -> str:
    found = sorted(_RECURRENT & set(look.counts))
    if found:
        return f"it has {', '.join(found)}"
    flat = [node for node in look.view.nodes if node.op == "Conv" and _weight_rank(node, look.view) == 3]
    return f"its {len(flat)} Conv nodes run along one dimension" if flat and look.products == 0 else ""


def _attention(look: _Look) -> str:
    if look.products and look.counts["Softmax"] and look.products * 4 >= look.counts["Conv"]:
        return f"it multiplies run-time tensors {look.products} times, as attention does"
    plain = look.counts["MatMul"] + look.counts["Gemm"]
    return "it is made of matrix products" if plain > 3 and not look.counts["Conv"] else ""


def _boxes(look: _Look) -> str:
    found = sorted(_BOXES & set(look.counts))
    if found:
        return f"it has {', '.join(found)}"
    several = len(look.view.outputs) > 1 and look.counts["Conv"] > 5
    if several:
        return f"it has {len(look.view.outputs)} outputs"
    rows = look.rank() == 3 and look.counts["Conv"] > 5 and look.counts["Concat"]
    return "its output is a list of rows, as of boxes" if rows else ""


def _picture(look: _Look) -> str:
    found = sorted(_UPWARDS & set(look.counts))
    if look.rank() == 4 and found:
        return f"it makes pictures of pictures ({', '.join(found)})"
    return "its output is a picture" if look.rank() == 4 and look.counts["Conv"] else ""


def _channels(look: _Look) -> str:
    many = look.depthwise
    return (
        f"{many} of its {look.counts['Conv']} Conv nodes are depthwise"
        if many * 4 >= max(1, look.counts["Conv"])
        else ""
    )


def _rest(look: _Look) -> str:
    return "it is a convolutional network" if look.counts["Conv"] else "no other recipe fits better"


_FAMILIES: tuple[tuple[str, _Reason], ...] = (
    ("third-party-qdq", _foreign),
    ("audio-int8", _sound),
    ("transformer-int8", _attention),
    ("detector-int8", _boxes),
    ("unet-int8", _picture),
    ("conv-depthwise-int8", _channels),
    ("conv-int8", _rest),
)
"""The first family with a reason wins."""


def _is_depthwise(node: Node, view: GraphView) -> bool:
    shape = view.constant_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    return bool(shape) and int(node.attribute("group", 1)) > 1 and shape is not None and shape[1] == 1


def _weight_rank(node: Node, view: GraphView) -> int:
    return len(view.constant_shape(node.inputs[1]) or ()) if len(node.inputs) > 1 else 0


def _plain(text: str) -> str:
    """A name that YAML takes as a word."""
    return (
        "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text).strip("-.")
        or "model"
    )
