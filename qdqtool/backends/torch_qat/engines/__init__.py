"""Engines: who computes the fake quantization; an engine is one file with a `PLUGIN`."""

from qdqtool.plugins import Shelf

ENGINES = Shelf(package="qdqtool.backends.torch_qat.engines", besides=frozenset({"engine"}))
