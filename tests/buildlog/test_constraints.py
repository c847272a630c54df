"""What the builder refuses, ignores or finds inaccurate is in the digest, in words and in full."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.cli.app import run
from qdqtool.core.buildlog import AccuracyLoss, RunDigest
from tests.buildlog import small

_WARNING = f"{small.STAMP} [W] [TRT] "
_REFUSALS = """\
/model.23/Concat_6: DLA only supports concatenation on the C dimension.
Layer '/model.23/Concat_6' (CONCATENATION): Unsupported on DLA. Switching this layer's device type to GPU.
Layer '/model.23/Gather' (GATHER): Unsupported on DLA. Switching this layer's device type to GPU.
Default DLA is enabled but layer Embedding matrix is not supported on DLA, falling back to GPU.
Validation failed for DLA layer: /attn/Reshape. Switching to GPU fallback.
Splitting DLA subgraph at: /attn/Reshape because DLA validation failed for this layer.
DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv_6
No implementation of layer Conv_70[Conv] + Relu_71[Relu] obeys the requested constraints in strict mode. No conforming \
implementation was found i.e. requested layer computation precision and output precision types are ignored, using the \
fastest implementation.
"""
_UNSCALED = "".join(
    f"{_WARNING}Missing scale and zero-point for tensor {tensor}, expect fall back to non-int8 implementation for any "
    "layer consuming or producing given tensor\n"
    for tensor in ("y", "out", "12", "13", "14", "15", "16")
)
_CACHE = "TRT-8600-EntropyCalibration2\ny: 3c010a14\nout: 3c010a14\n"


def _digest(text: str) -> RunDigest:
    (digest,) = buildlog.digests(buildlog.TextSource(io.BytesIO(text.encode())))
    return digest


@pytest.fixture
def unscaled(tmp_path: Path) -> Path:
    path = tmp_path / "build.log"
    path.write_text(small.library(small.GRAPH) + _UNSCALED)
    return path


def test_layers_that_dla_refuses_are_named_with_the_most_exact_reason():
    digest = _digest(small.library(_REFUSALS, _WARNING))
    assert digest.unread == 0
    assert digest.dla_refused == {
        "/model.23/Concat_6": "DLA only supports concatenation on the C dimension.",
        "/model.23/Gather": "DLA cannot run GATHER",
        "Embedding matrix": "not supported on DLA",
        "/attn/Reshape": "the validation of the layer for DLA failed",
        "conv_6": "a DLA core accepts at most 8 subgraphs",
    }


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "{}: ActivationLayer (with ActivationType = LEAKY_RELU) not supported for DLA.",
            "ActivationLayer (with ActivationType = LEAKY_RELU) not supported for DLA",
        ),
        (
            "{}: Concatenation on DLA requires at least two inputs.",
            "Concatenation on DLA requires at least two inputs.",
        ),
        (
            "{}: DLA cores do not support POW ElementWise operation.",
            "DLA cores do not support POW ElementWise operation.",
        ),
        (
            "DLA Layer {} does not support dynamic shapes in any dimension.",
            "DLA does not support dynamic shapes in any dimension.",
        ),
        (
            "DLA LAYER: Batch size (combined volume except for CHW dimensions) 128 for layer {} exceeds max batch size allowed of 32.",
            "a batch of 128, but DLA accepts at most 32",
        ),
    ],
)
@pytest.mark.parametrize("layer", ["leaky_1", "(Unnamed Layer* 10) [Slice]", "a: b/c"])
def test_the_reason_of_a_refusal_is_a_whole_sentence(said: str, reason: str, layer: str):
    text = f"{said}\nDefault DLA is enabled but layer {{}} is not supported on DLA, falling back to GPU.\n"
    digest = _digest(small.library(text.replace("{}", layer), _WARNING))
    assert (digest.unread, digest.dla_refused) == (0, {layer: reason})


def test_an_error_about_a_layer_that_falls_back_to_the_gpu_is_no_failure():
    """TensorRT 7 prints it as an error, and goes on."""
    text = (
        "leaky_1: ActivationLayer (with ActivationType = LEAKY_RELU) not supported for DLA.\n"
        "Default DLA is enabled but layer leaky_1 is not supported on DLA, falling back to GPU.\n"
    )
    digest = _digest(
        "".join(f"[E] [TRT] {line}\n" for line in text.splitlines()[:1])
        + f"[W] [TRT] {text.splitlines()[1]}\n"
    )
    assert (digest.status, digest.failure) == ("cut", None)
    refused = _digest(
        "[E] [TRT] Default DLA is enabled but layer 283 copy is not supported on DLA and falling back to GPU is not enabled.\n"
    )
    assert refused.failure is not None


def test_layers_that_got_a_faster_kernel_of_another_precision_are_named():
    text = (
        "For layer Conv__25 + Relu a non-conforming implementation was chosen than was requested i.e. requested layer "
        "computation precision and output precision types were ignored because it resulted in faster network performance."
    )
    digest = _digest(small.library(text, _WARNING))
    assert (digest.overruled, digest.unobeyed) == (("Conv__25 + Relu",), ())


def test_layers_whose_precision_is_not_obeyed_are_named():
    assert _digest(small.library(_REFUSALS, _WARNING)).unobeyed == ("Conv_70[Conv] + Relu_71[Relu]",)


def test_the_accuracy_check_states_loss_algorithm_and_failed_threshold():
    text = """\
Accuracy loss for tensor y (lInf): 0.003492
Accuracy loss for tensor z (1) (cos): 0.001497 [FAIL: >= threshold 0.001000]
"""
    assert _digest(small.library(text, f"{small.STAMP} [I] ")).accuracy == (
        AccuracyLoss(tensor="y", algorithm="lInf", loss=0.003492),
        AccuracyLoss(tensor="z (1)", algorithm="cos", loss=0.001497, failed_threshold=0.001),
    )


def test_myelin_regions_name_the_nodes_they_hold():
    text = "ForeignNode {ForeignNode[a...b]} metadata: [ONNX Layer: node_view][ONNX Layer: node_linear]\n"
    assert _digest(small.library(text)).foreign_nodes == {
        "{ForeignNode[a...b]}": ("node_view", "node_linear")
    }


def test_constraints_and_accuracy_are_shown(tmp_path, capsys):
    log = tmp_path / "build.log"
    log.write_text(
        small.library(_REFUSALS, _WARNING)
        + small.library(
            "Accuracy loss for tensor y (cos): 0.5 [FAIL: >= threshold 0.25]", f"{small.STAMP} [I] "
        )
    )
    assert run(["parse", str(log)]) == 0
    out = capsys.readouterr().out
    assert "not on DLA  /model.23/Concat_6: DLA only supports concatenation on the C dimension." in out
    assert "unobeyed    Conv_70[Conv] + Relu_71[Relu]: no kernel has the requested precision" in out
    assert "accuracy    y: loss 0.5 (cos), fails: threshold 0.25" in out


def test_tensors_without_scales_come_with_the_nodes_around_them(unscaled, capsys):
    assert _digest(unscaled.read_text()).without_scale["y"] == ("Conv_0", "Conv_1")
    assert run(["parse", str(unscaled)]) == 0
    out = capsys.readouterr().out
    assert "no scale    y (Conv_0, Conv_1)" in out
    assert "and 2 more: --all" in out
    assert "7 tensors have no scale:" in out


def test_a_calibration_cache_tells_unused_scales_from_missing_ones(unscaled, tmp_path, capsys):
    cache = tmp_path / "model.cache"
    cache.write_text(_CACHE)
    assert run(["parse", str(unscaled), "--cache", str(cache)]) == 0
    out = capsys.readouterr().out
    assert "2 of 7 tensors without a scale are in the calibration cache" in out
    assert "5 tensors have no scale in the build or the cache" in out
    assert "no scale    12" in out
    assert "no scale    y" not in out


def test_a_cache_without_a_digest_is_refused(unscaled, tmp_path, capsys):
    assert run(["parse", str(unscaled), "--cache", str(tmp_path / "x"), "--json"]) == 2
    assert "--cache" in capsys.readouterr().err


def test_all_shows_lists_in_full(unscaled, capsys):
    assert run(["parse", str(unscaled), "--all"]) == 0
    out = capsys.readouterr().out
    assert "more: --all" not in out
    for tensor in ("12", "13", "14", "15", "16"):
        assert f"{' ' * 14}{tensor}\n" in out


def test_engines_and_tactics_that_polygraphy_inspects_are_read():
    text = """\
[I] ==== TensorRT Engine ====
    Name: Unnamed Network 0 | Explicit Batch Engine

    ---- 1 Engine Input(s) ----
    {X [dtype=float32, shape=(1, 2, -1, -1)]}

    ---- Memory ----
    Device Memory: 4096 bytes

    ---- 1 Profile(s) (2 Tensor(s) Each) ----
    - Profile: 0
        Tensor: X          (Input), Index: 0 | Shapes: min=(1, 2, 1, 1), opt=(1, 2, 3, 3), max=(1, 2, 5, 5)
        Binding Index: 1 (Output) [Name: Y] | Shape: (1, 2, -1, -1)

    ---- 1 Layer(s) Per Profile ----
    - Profile: 0
        Layer 0    | node_of_Y [Op: Reformat]
            {X [shape=(1, 2, -1, -1)]}
             -> {Y [shape=(1, 2, -1, -1)]}
[I] Loaded 2 good tactic replays.
[I] Found potentially bad tactics:
[I] Layer: layer0
        Algorithms: ["(Implementation: 0, Tactic: 2)"]
"""
    (read,) = buildlog.read(io.BytesIO(text.encode())).runs
    assert (read.unread, read.foreign) == (0, 0)
    assert read.statements["engine-memory"].rows == ((8, 4096),)
    assert read.statements["profile-tensor"].rows[0][1:4] == ("X", "Input", "0")
    assert read.statements["bad-tactics-layer"].rows == ((22, "layer0"),)


def test_a_tactic_replay_that_polygraphy_prints_is_a_table_of_layers_and_tactics():
    text = """\
[I] Loading tactic replay file from model.json
[I] Layer: node_conv2d + node_relu
        Algorithm: (Implementation: 2147483657, Tactic: -6596631851832846809) | Inputs: (TensorInfo(DataType.FLOAT, \
(784, 1), -1, 1),) | Outputs: (TensorInfo(DataType.INT8, (25088, 1), -1, 1),)
    Layer: {ForeignNode[gemm1.weight...cast_9]}
        Algorithm: (Implementation: 0, Tactic: 0) | Inputs: (('TensorFormat.LINEAR', 'DataType.FLOAT'),) | Outputs: ()
"""
    (read,) = buildlog.read(io.BytesIO(text.encode())).runs
    assert (read.front_end, read.unread, read.foreign) == ("polygraphy", 0, 0)
    assert [row[1] for row in read.statements["tactic-layer"].rows] == [
        "node_conv2d + node_relu",
        "{ForeignNode[gemm1.weight...cast_9]}",
    ]
    assert [row[2] for row in read.statements["tactic-algorithm"].rows] == ["-6596631851832846809", "0"]
