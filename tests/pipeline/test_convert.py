"""convert: a model file gets another float type; what overflows is seen on samples; engines are what was asked for."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import api
from qdqtool.backends import BUILDERS
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.comparison import Comparison
from qdqtool.core.engine import Engine, Role
from qdqtool.core.kinds import CALIBRATION, CONVERSION, PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import Preprocess
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.conversion import measure_reach
from tests import models
from tests.shared import ROOT, shared

DIGITS = ROOT / "recipes" / "examples" / "digits"
needs_rtx = pytest.mark.skipif(
    find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX: qdqtool[rtx]"
)


def _hot_model(folder: Path) -> Path:
    """x -> 30 000 x -> relu -> 0.0001 x, and a branch of tiny numbers."""
    s = models.Sketch()
    x = s.input("x", ["N", 4])
    hot = s.node("Mul", [x, s.constant("gain", np.float32(3e4))], "hot", name="gain_up")
    relu = s.node("Relu", [hot], "still_hot", name="relu")
    s.output(s.node("Mul", [relu, s.constant("loss", np.float32(1e-4))], "y", name="gain_down"), ["N", 4])
    s.output(s.node("Mul", [x, s.constant("little", np.float32(1e-6))], "z", name="tiny"), ["N", 4])
    return models.save(s.model(), folder)


def _samples(folder: Path) -> Path:
    path = folder / "x.npz"
    np.savez(path, x=np.array([[3.0, -1, 2, 0.5], [-4, 1, 1, 1]], np.float32))
    return path


def _measure(comparison: Comparison, metric: str) -> float:
    """A metric of the first output."""
    value = next(each.value for each in comparison.outputs[0].measures if each.metric == metric)
    assert value is not None
    return value


def test_samples_tell_what_overflows_and_what_loses_digits(tmp_path: Path) -> None:
    model = load(_hot_model(tmp_path))
    samples = open_samples(str(_samples(tmp_path)), model.view.inputs, Preprocess())
    reach = measure_reach(model, samples, "fp16", limit=16)
    assert (reach.samples, reach.tensors) == (2, 5)
    assert [(found.tensor, found.kind) for found in reach.strayed] == [
        ("hot", "overflow"),
        ("still_hot", "overflow"),
        ("z", "subnormal"),
    ]
    assert reach.strayed[0].largest == pytest.approx(1.2e5)
    assert measure_reach(model, samples, "bf16", limit=16).strayed == ()


def test_what_is_infinite_in_fp32_already_counts_as_overflow(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Log", [s.input("x", ["N", 2])], "y", name="log"), ["N", 2])
    model = load(models.save(s.model(), tmp_path))
    np.savez(tmp_path / "zero.npz", x=np.zeros((1, 2), np.float32))
    samples = open_samples(str(tmp_path / "zero.npz"), model.view.inputs, Preprocess())
    (found,) = measure_reach(model, samples, "fp16", limit=1).strayed
    assert (found.tensor, found.largest) == ("y", np.inf)


def test_the_command_names_or_keeps_what_overflows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, samples = _hot_model(tmp_path), _samples(tmp_path)
    arguments = ["convert", str(model), "-o", str(tmp_path / "a.onnx"), "--samples", str(samples)]
    assert run([*arguments, "--set", "insert.overflow=name"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "2 tensors reach beyond FP16 on the samples and become infinite: 'hot' (1.2e+05)" in said
    assert "1 tensor is so small on the samples that FP16 loses digits: 'z'" in said
    assert run([*arguments, "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "conversion.json").write_text(text, "utf-8")
    found = CONVERSION.read(tmp_path / "conversion.json")
    assert [node.node for node in found.kept] == ["gain_up", "relu", "gain_down", "tiny"]
    comparison = api.compare(model, tmp_path / "a.onnx", str(samples))
    assert _measure(comparison, "max_abs") < 1e-2


def test_a_model_that_overflows_is_noticed_by_compare_and_cured_by_keep(tmp_path: Path) -> None:
    model, samples = _hot_model(tmp_path), _samples(tmp_path)
    out = tmp_path / "kept.onnx"
    settings = ["--set", "insert.overflow=keep", "--samples", str(samples)]
    assert run(["convert", str(model), "-o", str(out), *settings]) == 0
    runner_feeds = dict(np.load(samples))
    mine, theirs = (models.run(onnx.load(path), runner_feeds, optimize=False) for path in (out, model))
    np.testing.assert_allclose(mine["y"], theirs["y"], rtol=2e-3)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--types", "fp32"], "already is FP32"),
        (["--types", "fp8"], "insert.types"),
        (["-o", "SAME"], "would overwrite"),
    ],
    ids=["fp32", "unknown type", "onto itself"],
)
def test_mistakes_are_answered(
    extra: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _hot_model(tmp_path)
    words_of = ["convert", str(model), "-o", str(tmp_path / "out.onnx"), *extra]
    assert run([str(model) if word == "SAME" else word for word in words_of]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out.onnx").exists()


def test_globs_and_operators_reach_the_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = models.save(models.attention(), tmp_path)
    arguments = ["convert", str(model), "-o", str(tmp_path / "out.onnx"), "--json"]
    assert run([*arguments, "--keep", "*", "--keep-op", "Softmax", "--types", "bf16", "--half-io"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["dtype"] == "bf16"
    assert all(node["reason"] == "matches '*'" for node in data["kept"])
    assert data["narrowed"] == 0


def test_insert_names_and_keeps_overflows_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, samples = _hot_model(tmp_path), _samples(tmp_path)
    PLACEMENT.write(tmp_path / "placement.json", Placement(decisions=(), ties=()))
    CALIBRATION.write(tmp_path / "calibration.json", CalibrationTable(ranges=()))
    arguments = ["insert", str(model), "-o", str(tmp_path / "out.onnx"), "--types", "fp16"]
    arguments += ["--placement", str(tmp_path / "placement.json")]
    arguments += ["--calibration", str(tmp_path / "calibration.json")]
    name = ["--set", "insert.overflow=name"]
    assert run([*arguments, *name, "--samples", str(samples)]) == 0
    assert "become infinite: 'hot'" in capsys.readouterr().err.replace("\n", " ")
    assert run(arguments) == 0
    assert "no samples were given, so values beyond" in capsys.readouterr().err.replace("\n", " ")
    assert run([*arguments, "--samples", str(samples)]) == 0
    assert "stay FP32: 'hot'" in capsys.readouterr().err.replace("\n", " ")


def test_a_bf16_model_is_compared_without_bf16_kernels(tmp_path: Path) -> None:
    model = models.save(models.residual_cnn(), tmp_path)
    out = tmp_path / "bf16.onnx"
    found = api.convert(model, out, "bf16").conversion
    assert found.dtype.value == "bf16"
    comparison = api.compare(model, out, "random:4")
    assert comparison.candidate.endswith("BF16 emulated")
    assert 25 < _measure(comparison, "sqnr_db") < 60, "rounded, and not more than that"


def test_the_call_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    model = _hot_model(tmp_path)
    found = api.convert(
        model, tmp_path / "out.onnx", keep=["gain_*"], settings=["insert.keep_io=false"]
    ).conversion
    assert [node.node for node in found.kept] == ["gain_up", "gain_down"]
    assert "gain_up" in found._repr_html_()


# engines


def _engine(model: Path, out: Path) -> Engine:
    result, _ = BUILDERS.load("rtx").build(BuildRequest(model=model, folder=out, targets=("sm86",)))
    assert result.layers is not None
    return read_layers(out / result.layers)


def _compute(engine: Engine) -> list[str]:
    return [str(layer.precision) for layer in engine.layers if layer.role is Role.COMPUTE]


@pytest.mark.slow
@needs_rtx
@pytest.mark.rtx
@pytest.mark.parametrize("types", ["fp16", "bf16"])
def test_int8_stays_int8_and_the_rest_gets_the_type(types: str, tmp_path: Path) -> None:
    example = DIGITS / "digits.onnx"
    samples = str(DIGITS / "calibration.npz")
    wide = tmp_path / "wide.onnx"
    api.quantize(example, samples, wide)
    narrow = tmp_path / "narrow.onnx"
    assert run(["convert", str(wide), "-o", str(narrow), "--types", types]) == 0
    before, after = _engine(_fixed(wide), tmp_path / "a"), _engine(_fixed(narrow), tmp_path / "b")
    assert set(_compute(after)) == {"int8"}
    assert len(_compute(after)) == len(_compute(before))
    assert len(after.layers) <= len(before.layers), "no kernel is there for a Cast alone"
    floats = {
        str(tensor.dtype)
        for layer in after.layers
        for tensor in (*layer.inputs, *layer.outputs)
        if tensor.dtype.is_float
    }
    assert types in floats


def _fixed(path: Path) -> Path:
    """The model with its first dimension fixed to 1, for a build without profiles."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    target = path.with_suffix(".fixed.onnx")
    onnx.save(model, target)
    return target


@needs_rtx
@pytest.mark.rtx
def test_a_written_out_norm_in_fp32_costs_no_kernel(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 16, 64])
    x = s.node("MatMul", [x, s.weight("w1", 64, 64)], "h", name="first")
    centred = s.node("Sub", [x, s.node("ReduceMean", [x], "mean", axes=[-1])], "centred")
    square = s.node("Pow", [centred, s.constant("two", np.float32(2))], "square")
    spread = s.node("ReduceMean", [square], "spread", axes=[-1])
    safe = s.node("Add", [spread, s.constant("eps", np.float32(1e-5))], "safe")
    x = s.node("Div", [centred, s.node("Sqrt", [safe], "root")], "normed")
    s.output(s.node("MatMul", [x, s.weight("w2", 64, 64)], "y", name="second"), [1, 16, 64])
    model = models.save(s.model(), tmp_path)
    engines = []
    for name, settings in (("kept", []), ("narrow", ["insert.keep_ops=[]"])):
        found = api.convert(model, tmp_path / f"{name}.onnx", settings=settings).conversion
        assert len(found.kept) == (4 if name == "kept" else 0)
        engines.append(_engine(tmp_path / f"{name}.onnx", tmp_path / name))
    assert len(engines[0].layers) == len(engines[1].layers)


@pytest.mark.slow
@needs_rtx
@pytest.mark.rtx
def test_the_line_knows_bf16_from_insertion_to_accuracy(tmp_path: Path) -> None:
    report = api.run(
        DIGITS / "digits.onnx",
        str(DIGITS / "calibration.npz"),
        tmp_path / "run",
        settings=["insert.types=bf16"],
    )
    assert report is not None
    text = (tmp_path / "run" / "accuracy.json").read_text("utf-8")
    assert "BF16 emulated" in text


# shared models


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "floor"),
    [("cifar10_resnet20", 40.0), ("vit_cifar10_pgd_2_3_16", 50.0), ("mlperf_tiny_resnet8", 40.0)],
)
def test_trained_models_in_fp16_are_far_above_the_noise_of_int8(
    name: str, floor: float, tmp_path: Path
) -> None:
    model = shared(f"models/{name}/model.onnx")
    out = tmp_path / "fp16.onnx"
    assert run(["convert", str(model), "-o", str(out)]) == 0
    onnx.checker.check_model(onnx.load(out), full_check=True)
    comparison = api.compare(model, out, "random:4")
    assert _measure(comparison, "sqnr_db") > floor
