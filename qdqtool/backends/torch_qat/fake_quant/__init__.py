"""Engines: who computes the fake quantization; an engine is one file with a `PLUGIN`."""

from qdqtool.plugins import Registry

ENGINES = Registry(package="qdqtool.backends.torch_qat.fake_quant", besides=frozenset({"engine"}))
