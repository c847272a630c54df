"""The models that laws are tried on: every pattern of the tests, in float and with Q/DQ."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType

import onnx

from tests import models
from tests.models import Sketch
from tests.placement import graphs

Maker = Callable[[], onnx.ModelProto]


def downsampling_block(shortcut_first: bool) -> onnx.ModelProto:
    """A residual block whose shortcut has a convolution of its own, written before or behind the longer branch."""
    s = Sketch()
    x = s.relu("stem_relu", s.conv("stem", s.input("x", [1, 3, 16, 16]), (3, 16)))
    short = s.conv("short", x, (16, 32), kernel=1, stride=2) if shortcut_first else ""
    main = s.conv("main2", s.relu("main_relu", s.conv("main1", x, (16, 32), stride=2)), (32, 32))
    short = short or s.conv("short", x, (16, 32), kernel=1, stride=2)
    y = s.relu("out_relu", s.node("Add", [main, short], "sum", name="add"))
    s.output(s.conv("last", y, (32, 32)))
    return s.model()


def _without_parameters(module: ModuleType) -> dict[str, Maker]:
    made = {
        name: maker
        for name, maker in inspect.getmembers(module, inspect.isfunction)
        if maker.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.signature(maker).return_annotation in {"onnx.ModelProto", onnx.ModelProto}
        and all(entry.default is not entry.empty for entry in inspect.signature(maker).parameters.values())
    }
    return {name: maker for name, maker in made.items() if name != "long_chain"}


FLOAT: dict[str, Maker] = {
    **_without_parameters(models),
    **_without_parameters(graphs),
    "residual_cnn with BatchNormalization": partial(models.residual_cnn, batchnorm=True),
    "unet with groups": partial(models.unet, group=2),
    "head behind a global average": partial(graphs.pooled_head, 10),
    "heads of 32": partial(graphs.heads, 32, 64),
    "heads of 48": partial(graphs.heads, 48, 64),
    "600 tokens": partial(graphs.heads, 32, 600),
    "small head": partial(graphs.head, 8, 32),
    "one row": partial(graphs.head, 1, 8),
    "normalized stream, written out": partial(graphs.normalized_stream, written_out=True),
    "downsampling block": partial(downsampling_block, shortcut_first=False),
    "downsampling block, shortcut first": partial(downsampling_block, shortcut_first=True),
}
"""Float models by name."""
