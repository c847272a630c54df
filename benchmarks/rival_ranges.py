"""Quantizes a model with another tool and one of its ways; runs inside that rival's own environment.

    python rival_ranges.py onnxruntime|modelopt|aimet|quark|nncf WAY MODEL SAMPLES.npz OUT OPERATORS

Each rival is asked for what TensorRT can read: symmetric INT8, per-channel weights, float biases. Outputs of the model stay
float, as ours do: pairs that a rival puts there are taken out, which favours it. A way is a calibrator,
or a calibrator and what is done beside it: "percentile+adaround". OPERATORS is a list with commas of what onnxruntime and
quark may quantize; modelopt, aimet and nncf decide that by their own rules. Imports nothing of qdqtool.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEVERAL_AT_ONCE = 32
"""Rows that aimet takes as one input; it asks for batches."""


@dataclass(frozen=True)
class Job:
    """What a rival is asked for.

    Attributes:
        way: the calibrator, and what is done beside it.
        model: float ONNX file of opset 13 or later.
        samples: rows of every input.
        out: where the Q/DQ model goes.
        operators: what may be quantized.
    """

    way: str
    model: Path
    samples: dict[str, np.ndarray]
    out: Path
    operators: list[str]

    @property
    def calibrator(self) -> str:
        """The way without what is done beside it."""
        return self.way.partition("+")[0]

    @property
    def beside(self) -> str:
        """What is done beside the calibrator; "" for nothing."""
        return self.way.partition("+")[2]


def onnxruntime(job: Job) -> None:
    """Static quantization as its documentation asks for TensorRT: symmetric, dedicated pairs, float biases."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from rival_samples import Reader

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    prepared = job.out.with_suffix(".prepared.onnx")
    quant_pre_process(str(job.model), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(job.out),
        Reader(job.model, job.samples),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=job.operators,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=methods[job.calibrator],
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "DedicatedQDQPair": True,
        },
    )


def modelopt(job: Job) -> None:
    """The ONNX path of nvidia-modelopt with its own placement."""
    from modelopt.onnx.quantization import quantize

    quantize(
        str(job.model),
        quantize_mode="int8",
        calibration_data=job.samples,
        calibration_method=job.calibrator,
        calibration_eps=["cpu"],
        output_path=str(job.out),
        high_precision_dtype="fp32",
        log_level="ERROR",
    )


def aimet(job: Job) -> None:
    """aimet-onnx with its default configuration for scales per channel, but symmetric activations.

    Beside a calibrator: "cle" (cross-layer equalization), "seqmse", "adaround" with 2,000 steps a layer, of the
    10,000 that its documentation recommends.
    """
    import aimet_onnx
    import onnx
    from aimet_onnx.batch_norm_fold import fold_all_batch_norms_to_weight
    from aimet_onnx.common import quantsim_config
    from aimet_onnx.cross_layer_equalization import equalize_model

    shipped = Path(quantsim_config.__file__).with_name("default_config_per_channel.json")
    config = json.loads(shipped.read_text("utf-8"))
    config["defaults"]["ops"]["is_symmetric"] = "True"
    config["defaults"]["strict_symmetric"] = "True"
    written = job.out.with_suffix(".json")
    written.write_text(json.dumps(config), "utf-8")
    model = onnx.load(job.model)
    if job.beside == "cle":
        equalize_model(model)
    else:
        fold_all_batch_norms_to_weight(model)
    count = len(next(iter(job.samples.values())))
    first = next(iter(model.graph.input)).type.tensor_type.shape.dim[0]
    step = 1 if first.HasField("dim_value") else SEVERAL_AT_ONCE
    batches = [
        {name: rows[start : start + step] for name, rows in job.samples.items()}
        for start in range(0, count, step)
    ]
    sim = aimet_onnx.QuantizationSimModel(
        model,
        param_type=aimet_onnx.int8,
        activation_type=aimet_onnx.int8,
        quant_scheme=job.calibrator,
        config_file=str(written),
    )
    if job.beside == "seqmse":
        aimet_onnx.apply_seq_mse(sim, batches)
    if job.beside == "adaround":
        aimet_onnx.apply_adaround(sim, batches, num_iterations=2000)
    sim.compute_encodings(batches)
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True, force_activation_as="signed"), job.out)


def quark(job: Job) -> None:
    """amd-quark's ONNX path with symmetric INT8 of float scales, float biases, a pair of its own for every consumer.

    Beside a calibrator: "bias" (bias correction), "cle", "adaround" and "adaquant" as its accurate configurations have
    them, on the CPU.
    """
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config.algorithm import (
        AdaQuantConfig,
        AdaRoundConfig,
        BiasCorrectionConfig,
        CLEConfig,
    )
    from quark.onnx.quantization.config.config import QConfig
    from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, QLayerConfig, QuantGranularity
    from rival_samples import Reader

    methods = {
        "minmax": CalibMethod.MinMax,
        "minmse": CalibMethod.MinMSE,
        "percentile": CalibMethod.Percentile,
        "entropy": CalibMethod.Entropy,
        "layerwise": CalibMethod.LayerwisePercentile,
    }
    count = len(next(iter(job.samples.values())))
    batch = {"data_size": count, "batch_size": 2, "early_stop": True}
    beside: dict[str, Callable[[], object]] = {
        "bias": BiasCorrectionConfig,
        "cle": CLEConfig,
        "adaround": lambda: AdaRoundConfig(num_iterations=1000, learning_rate=0.1, **batch),
        "adaquant": lambda: AdaQuantConfig(num_iterations=1000, learning_rate=1e-5, **batch),
    }
    config = QConfig(
        global_config=QLayerConfig(
            activation=Int8Spec(symmetric=True, calibration_method=methods[job.calibrator]),
            weight=Int8Spec(
                symmetric=True,
                calibration_method=CalibMethod.MinMax,
                quant_granularity=QuantGranularity.Channel,
            ),
        ),
        algo_config=[beside[job.beside]()] if job.beside else [],
        extra_options={
            "OpTypesToQuantize": job.operators,
            "QuantizeBias": False,
            "DedicatedQDQPair": True,
            "PrintSummary": False,
        },
    )
    ModelQuantizer(config).quantize_model(str(job.model), str(job.out), Reader(job.model, job.samples))


def nncf(job: Job) -> None:
    """NNCF's ONNX path with its symmetric preset, 8 bits for weights everywhere, and UINT8 written as INT8 of the same range.

    Its "mean_minmax" is its default. Beside a calibrator: "bias" (accurate instead of fast bias correction),
    "transformer" (its settings for transformers, SmoothQuant among them).
    """
    import nncf as package
    import onnx
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    count = len(next(iter(job.samples.values())))
    rows = [{name: values[i : i + 1] for name, values in job.samples.items()} for i in range(count)]
    model = package.quantize(
        onnx.load(job.model),
        package.Dataset(rows),
        preset=package.QuantizationPreset.PERFORMANCE,
        subset_size=count,
        fast_bias_correction=job.beside != "bias",
        model_type=package.ModelType.TRANSFORMER if job.beside == "transformer" else None,
        advanced_parameters=AdvancedQuantizationParameters(
            overflow_fix=OverflowFix.DISABLE,
            activations_range_estimator_params=getattr(RangeEstimatorParametersSet, job.calibrator.upper()),
        ),
    )
    _signed(model)
    onnx.save(model, job.out)


def _signed(model: object) -> None:
    """Write UINT8 with a zero point of 0, which TensorRT refuses, as INT8 of the same range."""
    from onnx import TensorProto, numpy_helper

    del model.graph.value_info[:]
    constants = {entry.name: entry for entry in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    for scale, zero in {tuple(node.input[1:3]) for node in pairs}:
        if constants[zero].data_type == TensorProto.UINT8:
            assert not numpy_helper.to_array(constants[zero]).any()
            step = numpy_helper.to_array(constants[scale]) * np.float32(255 / 127)
            constants[scale].CopyFrom(numpy_helper.from_array(step, scale))
            zeros = numpy_helper.to_array(constants[zero]).astype(np.int8)
            constants[zero].CopyFrom(numpy_helper.from_array(zeros, zero))


def modern(model: Path, out: Path) -> Path:
    """The model in opset 17, which all rivals need for scales per channel; itself where it is new enough.

    Old models list their constants as inputs, too; aimet would leave them there without a value. It takes a free dimension
    only by name, and old exporters of PaddlePaddle write -1.
    """
    import onnx
    from onnx import version_converter

    proto = onnx.load(model)
    if proto.opset_import[0].version >= 13 and proto.ir_version >= 4:
        return model
    proto.ir_version = 8
    path = out.with_suffix(".modern.onnx")
    proto = version_converter.convert_version(proto, 17)
    constants = {entry.name for entry in proto.graph.initializer}
    for entry in [entry for entry in proto.graph.input if entry.name in constants]:
        proto.graph.input.remove(entry)
    for entry in (*proto.graph.input, *proto.graph.output):
        for place, size in enumerate(entry.type.tensor_type.shape.dim):
            if size.dim_value < 0:
                size.dim_param = f"{entry.name}_{place}"
    onnx.save(proto, path)
    return path


def with_float_outputs(path: Path) -> None:
    """Take the pairs of Q and DQ in front of the model's outputs away."""
    import onnx

    proto = onnx.load(path)
    made = {output: node for node in proto.graph.node for output in node.output}
    read = [name for node in proto.graph.node for name in node.input]
    for output in proto.graph.output:
        last = made.get(output.name)
        first = made.get(last.input[0]) if last is not None and last.op_type == "DequantizeLinear" else None
        if first is None or first.op_type != "QuantizeLinear" or output.name in read:
            continue
        source = first.input[0]
        if read.count(source) > 1 or source not in made:
            continue
        maker = made[source]
        maker.output[list(maker.output).index(source)] = output.name
        proto.graph.node.remove(first)
        proto.graph.node.remove(last)
    onnx.save(proto, path)


if __name__ == "__main__":
    tool, way, source, data, target, types = sys.argv[1:]
    with np.load(data, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    rivals = {"modelopt": modelopt, "onnxruntime": onnxruntime, "aimet": aimet, "quark": quark, "nncf": nncf}
    rivals[tool](Job(way, modern(Path(source), Path(target)), arrays, Path(target), types.split(",")))
    with_float_outputs(Path(target))
