"""Implementations of fake quantization: each file is one, with a `PLUGIN`."""

from qdqtool.plugins import Registry

ENGINES = Registry(package="qdqtool.backends.torch_qat.fake_quant")
