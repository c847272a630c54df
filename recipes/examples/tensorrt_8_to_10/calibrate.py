"""INT8 by implicit quantization with TensorRT 8 to 10: builder, network, parser, calibrator, cache, engine.

    python calibrate.py model.onnx calibration.npz --cache calibration.cache --engine model.plan

Needs a GPU and `pip install tensorrt cuda-python` of a release up to 10. A cache that is there is used, and no sample is
read. TensorRT 11 has no calibrators: `qdqtool cache to-qdq model.onnx calibration.cache` makes explicit Q/DQ of the cache.

Not run on a GPU so far: the tests run it with stand-ins for TensorRT and CUDA.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tensorrt as trt

from calibrators.tensorrt import EntropyCalibrator2
from qdqtool.calibration.samples import open_samples
from qdqtool.graph.onnx_io.load import load


def main(words: list[str] | None = None) -> None:
    """Build the engine that the command line asks for."""
    parser = argparse.ArgumentParser(description="Calibrate a model and build its INT8 engine.")
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", help="what qdqtool takes as --samples; each sample is one batch")
    parser.add_argument("--cache", type=Path, default=Path("calibration.cache"))
    parser.add_argument("--engine", type=Path, default=Path("model.plan"))
    options = parser.parse_args(words)
    samples = open_samples(options.samples, load(options.model).view.inputs)
    options.engine.write_bytes(build(options.model, samples, options.cache))


def build(model: Path, samples: Any, cache: Path) -> bytes:
    """The serialized engine; `samples` are dictionaries from input to array, or objects with one under `feeds`.

    Raises:
        RuntimeError: the parser or the builder refused.
        CalibrationDataError: the samples are wrong, whatever TensorRT made of them.
    """
    logger = trt.Logger(trt.Logger.INFO)
    builder = trt.Builder(logger)
    # Explicit batch is an option up to release 9 and the only way from 10 on, which still knows the flag.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise RuntimeError("\n".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.INT8)
    config.set_flag(trt.BuilderFlag.FP16)
    # Inputs with free dimensions need a profile; calibration runs at its optimum, which is the shape of a sample.
    profile = builder.create_optimization_profile()
    first = next(iter(samples))
    shapes = {name: tuple(array.shape) for name, array in getattr(first, "feeds", first).items()}
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    config.add_optimization_profile(profile)
    config.set_calibration_profile(profile)
    # Leaving the block frees the device memory, and raises what went wrong with the samples.
    with EntropyCalibrator2(samples, cache=cache, batch_size=1) as calibrator:
        config.int8_calibrator = calibrator
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("TensorRT built no engine; its log says why")
    return bytes(plan)


if __name__ == "__main__":
    main()
