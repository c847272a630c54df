"""`qdqtool calibrate` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from glob import escape
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import calibrators
from qdqtool.cli.app import run, spell_out
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.recipe import Recipe
from tests import models
from tests.calibration.material import images
from tests.shared import ROOT


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(models.save(models.residual_cnn(batchnorm=True), tmp_path))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(images(tmp_path, 9, (3, 16, 16)))


def test_a_table_is_written_and_the_histograms_beside_it(model: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert run(["calibrate", model, "--samples", data, "-o", str(out)]) == 0
    assert CALIBRATION.read(out).samples == 9
    assert (tmp_path / "t.histograms.npz").exists()


def test_all_methods_come_from_one_collection(model: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert run(["calibrate", model, "--samples", data, "-o", str(out), "--method", "all"]) == 0
    made = {path.name for path in tmp_path.glob("t.*.json")}
    assert made == {f"t.{method}.json" for method in (*calibrators.names(), "auto")}
    ranges = {
        name: CALIBRATION.read(tmp_path / f"t.{name}.json").by_tensor()["x"].amax
        for name in ("max", "entropy")
    }
    assert ranges["entropy"] <= ranges["max"]
    assert CALIBRATION.read(out) == CALIBRATION.read(tmp_path / f"t.{Recipe().calibrate.method}.json")


def test_json_is_the_artefact(model: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", model, "--samples", data, "--method", "max", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "calibration"


def test_without_an_output_a_table_is_printed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", model, "--samples", "random:2"]) == 0
    said = capsys.readouterr()
    assert "stem_relu_y" in said.out
    assert "mean nothing" in said.err


@pytest.mark.parametrize("bias", ["keep", "correct"])
def test_shards_are_merged_to_the_same_bytes(bias: str, model: str, data: str, tmp_path: Path) -> None:
    whole, merged = tmp_path / "whole.json", tmp_path / "merged.json"
    options = ["--set", f"calibrate.bias={bias}"]
    assert run(["calibrate", model, "--samples", data, "-o", str(whole), *options]) == 0
    folder = tmp_path / "parts [1]"
    for number in (1, 2, 3):
        part = ["--shard", f"{number}/3", "-o", str(folder / f"p{number}.npz")]
        assert run(["calibrate", model, "--samples", data, *part]) == 0
    files = [str(folder / f"p{number}.npz") for number in (1, 2, 3)]
    for places in ([str(folder)], [escape(str(folder)) + "/p*.npz"], files):
        more = ["--samples", data, "-o", str(merged), *options]
        merging = [word for place in places for word in ("--merge", place)]
        assert run(["calibrate", model, *merging, *more]) == 0
        assert merged.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("way", ["cross-layer", "smooth"])
def test_shards_of_an_equalized_network_are_merged_to_the_same_bytes(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = models.residual_cnn if way == "cross-layer" else models.gemms
    model = models.save(make(), tmp_path)
    shape = [dim.dim_value for dim in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    data = tmp_path / "data.npy"
    np.save(data, np.random.default_rng(1).standard_normal((6, *shape[1:])).astype(np.float32))
    named = [str(model), "--set", f"weights.equalize={way}"]
    whole, merged = tmp_path / "whole.json", tmp_path / "merged.json"
    assert run(["calibrate", *named, "--samples", str(data), "-o", str(whole)]) == 0
    assert (tmp_path / "whole.weights.npz").exists()
    for number in (1, 2):
        part = ["--shard", f"{number}/2", "-o", str(tmp_path / "parts" / f"{number}.npz")]
        assert run(["calibrate", *named, "--samples", str(data), *part]) == 0
    merging = ["calibrate", *named, "--merge", str(tmp_path / "parts"), "-o", str(merged)]
    assert run([*merging, "--samples", str(data)]) == 0
    assert merged.read_bytes() == whole.read_bytes()
    assert run(merging) == 5
    assert "also pass the samples with --samples" in capsys.readouterr().err


def test_shards_without_samples_say_that_no_output_chose(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = str(tmp_path / "p.npz")
    assert run(["calibrate", model, "--samples", data, "--shard", "1/1", "-o", part]) == 0
    assert run(["calibrate", model, "--merge", part, "-o", str(tmp_path / "t.json")]) == 0
    assert "add --samples to choose by the error of the network's outputs" in capsys.readouterr().err


@pytest.mark.parametrize("value", [1.0, 3e30])
def test_shards_without_samples_say_that_one_value_may_make_all_others_zero(
    value: float, model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With samples it is an error that names the sample; histograms only show that there is such a value."""
    array = np.load(data)["x"]
    array[0].flat[0] = value
    other, part, table = (str(tmp_path / name) for name in ("damaged.npy", "part.npz", "table.json"))
    np.save(other, array)
    assert run(["calibrate", model, "--samples", other, "--shard", "1/1", "-o", part]) == 0
    assert run(["calibrate", model, "--merge", part, "-o", table, "--method", "max"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert ("may make all others zero" in said) is (value > 1)
    assert ("reaches 3e+30" in said) is (value > 1)


@pytest.fixture
def parts(model: str, data: str, tmp_path: Path) -> str:
    for number in (1, 2):
        part = ["--shard", f"{number}/2", "-o", str(tmp_path / "parts" / f"{number}.npz")]
        assert run(["calibrate", model, "--samples", data, *part]) == 0
    return str(tmp_path / "parts")


def test_shards_of_the_same_network_with_other_weights_are_refused(
    parts: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    onnx.save(proto, tmp_path / "trained.onnx")
    assert run(["calibrate", str(tmp_path / "trained.onnx"), "--merge", parts]) == 5
    assert "collected from another model" in capsys.readouterr().err


def test_shards_of_other_samples_are_refused(
    parts: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = images(tmp_path, 5, (3, 16, 16))
    assert run(["calibrate", model, "--merge", parts, "--samples", str(other)]) == 5
    assert "collected from other samples" in capsys.readouterr().err


def test_merged_histograms_are_those_of_one_run(parts: str, model: str, data: str, tmp_path: Path) -> None:
    kept, merged = tmp_path / "whole.npz", tmp_path / "merged.npz"
    assert run(["calibrate", model, "--samples", data, "--histograms", str(kept)]) == 0
    assert run(["calibrate", model, "--merge", parts, "--histograms", str(merged)]) == 0
    assert merged.read_bytes() == kept.read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--samples", "random:2", "--merge", "nowhere*.npz"],
        ["--samples", "random:2", "--nan", "maybe"],
        ["--samples", "random:2", "--method", "entopy"],
        ["--samples", "random:2", "--shard", "3/2"],
        ["--samples", "random:2", "--shard", "1/2"],
        ["--samples", "random:2", "--shard", "1/2", "--cluster"],
        ["--merge", "nowhere.npz", "--shard", "1/2", "-o", "nowhere.npz"],
        ["--samples", "nowhere"],
        ["--merge", "nowhere*.npz"],
    ],
    ids=" ".join,
)
def test_mistakes_on_the_command_line_exit_with_2(words: list[str], model: str) -> None:
    assert run(["calibrate", model, *words]) == 2


def test_samples_that_are_left_out_are_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.ones((3, 3, 16, 16), np.float32)
    rows[1, 0, 0, 0] = np.nan
    np.savez(tmp_path / "s.npz", x=rows)
    assert run(["calibrate", model, "--samples", str(tmp_path / "s.npz")]) == 5
    assert "s.npz[1]" in capsys.readouterr().err
    assert run(["calibrate", model, "--samples", str(tmp_path / "s.npz"), "--nan", "skip", "--json"]) == 0
    said = capsys.readouterr()
    assert "skipped because of NaN or Inf" in said.err
    assert json.loads(said.out)["data"]["samples"] == 2
    np.savez(tmp_path / "s.npz", x=rows[1:2])
    assert run(["calibrate", model, "--samples", str(tmp_path / "s.npz"), "--nan", "skip"]) == 5


def test_what_samples_do_not_show_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 8, 8, 8])
    logs = sketch.conv("first", sketch.node("Log", [x], "logs"), (8, 8))
    dead = sketch.node("Mul", [x, sketch.constant("nought", np.float32(0))], "dead")
    both = sketch.node("Add", [logs, sketch.conv("second", dead, (8, 8))], "both")
    sketch.output(both, ["N", 8, 8, 8])
    path = str(models.save(sketch.model(), tmp_path))
    rows = np.random.default_rng(0).uniform(1, 2, (2, 8, 8, 8)).astype(np.float32)
    rows[1, 0, 0, :3] = -1
    for number, values in enumerate((rows, -rows[:1])):
        np.savez(tmp_path / f"{number}.npz", x=values)
        words = [
            "--samples",
            str(tmp_path / f"{number}.npz"),
            "--nan",
            "skip",
            "-o",
            str(tmp_path / "t.json"),
        ]
        assert run(["calibrate", path, "--recipe", "conv-int8", *words]) == 0
        said = capsys.readouterr().err
        assert "1 tensor zero in every sample, so the range is a guess: dead" in said
        assert f"contained NaN or Inf, which were skipped: logs ({512 if number else 3} values)" in said
        assert ("1 tensor contained only NaN or Inf: logs" in said) is bool(number)


@pytest.mark.slow
def test_two_hash_seeds_give_the_same_bytes(model: str, data: str, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "qdqtool",
                "calibrate",
                model,
                "--samples",
                data,
                "-o",
                str(tmp_path / f"{seed}.json"),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        )
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert (tmp_path / "1.histograms.npz").read_bytes() == (tmp_path / "2.histograms.npz").read_bytes()


def test_a_depthwise_convolution_that_one_scale_cannot_serve_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", 32, 6, 6])
    for name, group in (("depthwise", 32), ("last", 1)):
        weight = sketch.weight(f"{name}_w", 32, 32 // group, 3, 3)
        x = sketch.node("Conv", [x, weight], f"{name}_y", name=name, group=group, pads=[1] * 4)
    sketch.output(x, ["N", 32, 6, 6])
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 32, 6, 6)).astype(np.float32)
    rows[:, :8] *= 0.01
    np.savez(tmp_path / "s.npz", x=rows)
    path = str(models.save(sketch.model(), tmp_path))
    assert run(["calibrate", path, "--samples", str(tmp_path / "s.npz")]) == 0
    said = capsys.readouterr().err
    assert (
        "CAL150 depthwise: the depthwise convolution reads 'x' with one scale, and 8 of its 32 channels"
        in " ".join(said.split())
    )


SUICIDAL = """
    import os
    from pathlib import Path

    def feeds():
        import numpy as np
        import multiprocessing

        rows = np.load({data!r})["x"]
        for number, row in enumerate(rows):
            marker = Path({marker!r})
            if number == 5 and not marker.exists() and multiprocessing.parent_process() is not None:
                marker.touch()
                os.kill(os.getpid(), 9)
            yield dict(x=row[None])
"""


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(model: str, data: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    marker = tmp_path / "killed"
    code = tmp_path / "cluster_samples.py"
    code.write_text(textwrap.dedent(SUICIDAL).format(data=data, marker=str(marker)))
    samples = f"{code}:feeds"
    alone, spread = tmp_path / "alone.json", tmp_path / "spread.json"
    assert run(["calibrate", model, "--samples", samples, "-o", str(alone)]) == 0
    # no scheduler is named: workers of this machine
    words = ["calibrate", "--cluster", model, "--samples", samples, "-o", str(spread)]
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    assert spread.read_bytes() == alone.read_bytes()
    assert (tmp_path / "spread.histograms.npz").read_bytes() == (
        tmp_path / "alone.histograms.npz"
    ).read_bytes()
    assert not (tmp_path / "spread.histograms.shards").exists()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("m.onnx", "m.onnx"),
        ("m.onnx --cluster", "m.onnx --cluster local"),
        ("--cluster m.onnx -o t.json", "--cluster local m.onnx -o t.json"),
        ("m.onnx --cluster --samples random:2", "m.onnx --cluster local --samples random:2"),
        ("m.onnx --cluster local -o t", "m.onnx --cluster local -o t"),
        ("m.onnx --cluster dask://host:8786 -o t", "m.onnx --cluster dask://host:8786 -o t"),
        ("m.onnx --cluster dask://", "m.onnx --cluster dask://"),
        ("--cluster host:8786 m.onnx", "--cluster host:8786 m.onnx"),
        ("--cluster=tcp://host:1 m.onnx", "--cluster=tcp://host:1 m.onnx"),
        ("-- --cluster", "-- --cluster"),
    ],
    ids=lambda words: words,
)
def test_a_cluster_without_an_address_is_this_machine(typed: str, meant: str) -> None:
    assert " ".join(spell_out(typed.split())) == meant


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(
    model: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    code = run(["calibrate", model, "--samples", data, "--cluster", "dask://127.0.0.1:9"])
    assert code == 3
    assert "no Dask scheduler answers" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(model: str, data: str, tmp_path: Path) -> None:
    code = tmp_path / "slow_samples.py"
    code.write_text(
        "import os, signal, numpy as np\n"
        "def feeds():\n"
        f"    for number, row in enumerate(np.load({data!r})['x']):\n"
        "        if number == 4 and not os.path.exists(__file__ + '.stopped'):\n"
        "            open(__file__ + '.stopped', 'w').close()\n"
        "            signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield dict(x=row[None])\n"
    )
    command = [sys.executable, "-m", "qdqtool", "calibrate", model, "--samples", f"{code}:feeds"]
    command += ["-o", str(tmp_path / "t.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, timeout=120)
    assert first.returncode == 130
    assert not (tmp_path / "t.json").exists()
    second = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, timeout=120)
    assert second.returncode == 0
    assert CALIBRATION.read(tmp_path / "t.json").samples == 9
