"""INT8 for NVIDIA TensorRT by explicit Q/DQ nodes: place, calibrate, insert, build, audit, compare, report."""

__version__ = "0.1.0"
