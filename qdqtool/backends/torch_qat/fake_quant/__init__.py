"""Engines that compute fake quantization: each file is one engine, with a `PLUGIN`."""

from qdqtool.plugins import Registry

ENGINES = Registry(package="qdqtool.backends.torch_qat.fake_quant")
