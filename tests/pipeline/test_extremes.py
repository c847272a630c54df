"""One damaged value must not make all others zero without a word; networks that are made so are left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from tests import models

FLAT = ["--set", "calibrate.method=max"]


def samples(folder: Path, proto: onnx.ModelProto, value: float | None, count: int = 24) -> str:
    """Normal values for the only input, one of which is replaced in sample 7."""
    (given,) = proto.graph.input
    shape = [dim.dim_value or 1 for dim in given.type.tensor_type.shape.dim][1:]
    x = np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)
    if value is not None:
        x[7].reshape(-1)[3] = value
    np.savez(folder / "x.npz", **{given.name: x})
    return str(folder / "x.npz")


def divided() -> onnx.ModelProto:
    """Every sample is divided by the first value of its first channel; two convolutions follow."""
    s = models.Sketch()
    x = s.input("x", [1, 8, 8, 8])
    ends = [s.constant(name, np.array(value)) for name, value in (("begin", [0, 0, 0]), ("end", [1, 1, 1]))]
    first = s.node("Slice", [x, *ends, s.constant("axes", np.array([1, 2, 3]))], "first")
    x = s.relu("relu1", s.conv("conv1", s.node("Div", [x, first], "ratio"), (8, 8)))
    s.output(s.conv("conv2", x, (8, 16)), [1, 16, 8, 8])
    return s.model()


@pytest.mark.parametrize("method", [[], FLAT])
@pytest.mark.parametrize("value", [3e38, -5e4])
@pytest.mark.parametrize("command", ["quantize", "calibrate", "run"])
def test_the_sample_the_tensor_and_the_value_are_named(
    command: str, value: float, method: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = models.conv_chain()
    path, given = models.save(proto, tmp_path), samples(tmp_path, proto, value)
    assert run([command, str(path), "--samples", given, "-o", str(tmp_path / "out"), *method]) == 5
    said = " ".join(capsys.readouterr().err.split())
    assert f"x.npz[7]: the value {value:g} in the tensor 'x'" in said
    assert "remove the sample" in said


@pytest.mark.parametrize("method", [[], FLAT])
def test_a_value_that_the_network_itself_makes_is_found(
    method: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = divided()
    path, given = models.save(proto, tmp_path), samples(tmp_path, proto, None)
    x = np.load(given)["x"]
    x[:, 0, 0, 0] = 1
    x[7, 0, 0, 0] = 1e-20
    np.savez(given, x=x)
    out = str(tmp_path / "out.onnx")
    assert run(["quantize", str(path), "--samples", given, "-o", out, *method]) == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "x.npz[7]: the value" in said
    assert "in the tensor 'ratio'" in said


@pytest.mark.parametrize("method", [[], FLAT])
def test_the_fixes_can_be_followed(method: list[str], tmp_path: Path) -> None:
    proto = models.conv_chain()
    path, given = models.save(proto, tmp_path), samples(tmp_path, proto, 3e38)
    out = str(tmp_path / "out.onnx")
    x = np.load(given)["x"]
    np.savez(tmp_path / "rest.npz", x=np.delete(x, 7, axis=0))
    assert run(["quantize", str(path), "--samples", str(tmp_path / "rest.npz"), "-o", out, *method]) == 0


@pytest.mark.parametrize("method", [[], FLAT])
@pytest.mark.parametrize(
    "kind", ["sparse", "one sample fires", "a large value in each sample", "small beside large features"]
)
def test_networks_that_are_fed_so_by_design_are_quantized(
    kind: str, method: list[str], tmp_path: Path
) -> None:
    x = np.load(samples(tmp_path, models.conv_chain(), None))["x"]
    draw = np.random.default_rng(0)
    match kind:
        case "sparse":
            rows = x.reshape(24, 512)
            rows[:] = 0
            rows[np.arange(24), draw.integers(0, 512, 24)] = draw.uniform(0.5, 1, 24)
        case "one sample fires":
            x[np.arange(24) != 7] = 0
        case "a large value in each sample":
            x[:, 0, 0, 0] = 1e6
        case "small beside large features":
            x[:, ::2] *= 1e5
    np.savez(tmp_path / "x.npz", x=x)
    path, out = models.save(models.conv_chain(), tmp_path), str(tmp_path / "out.onnx")
    assert run(["quantize", str(path), "--samples", str(tmp_path / "x.npz"), "-o", out, *method]) == 0
