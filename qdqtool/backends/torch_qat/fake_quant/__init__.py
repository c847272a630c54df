"""Who computes the fake quantization: each file here is one backend, with a `PLUGIN`."""

from qdqtool.plugins import Registry

ENGINES = Registry(package="qdqtool.backends.torch_qat.fake_quant")
