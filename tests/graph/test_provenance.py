"""A Q/DQ model names the tool, recipe and samples that made it; equal inputs give equal bytes on any path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.provenance import Provenance, origin, provenance, stamp_provenance
from qdqtool.graph.view import Model
from qdqtool.placement.lint import lint
from tests import models

EXAMPLE = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
QUICK = ("calibrate.method=max", "calibrate.symmetric=always", "weights.rounding=nearest")


def _loaded(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(models.save(proto, folder))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.producer_name, proto.producer_version = "pytorch", "2.9"
    model = _loaded(proto, tmp_path)
    assert provenance(model) is None
    made = Provenance(version="1.2", recipe="ab" * 32, samples="cd" * 32, method="max")
    twice = stamp_provenance(stamp_provenance(model, made), made)
    found = provenance(twice)
    assert found is not None
    assert (found.version, found.recipe, found.samples, found.method) == ("1.2", "ab" * 32, "cd" * 32, "max")
    assert origin(twice).startswith("qdqtool 1.2 (recipe abababababab, samples cdcdcdcdcdcd, method max")
    assert len({entry.key for entry in twice.proto.metadata_props}) == len(twice.proto.metadata_props)
    assert provenance(model) is None


@pytest.mark.parametrize("value", ["\x1b[31m\n" * 9, "x" * 100_000, "", "[bold]"])
def test_metadata_of_strangers_is_short_and_printable(value: str, tmp_path: Path) -> None:
    proto = models.conv_chain()
    for key in ("version", "recipe", "samples", "method", "source"):
        proto.metadata_props.add(key=f"qdqtool.made.{key}", value=value)
    said = origin(_loaded(proto, tmp_path))
    assert said.isprintable()
    assert len(said) < 400


def test_about_shows_the_origin_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = models.conv_chain()
    proto.producer_name, proto.producer_version = "pytorch", "2.9"
    proto.metadata_props.add(key="task", value="detect\x1b[31m" + "x" * 500)
    plain, made = tmp_path / "plain.onnx", tmp_path / "made.onnx"
    onnx.save(proto, plain)
    assert run(["engine", "about", str(plain)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "origin  quantized by: an unknown tool or not at all",
        "origin  written by: pytorch 2.9",
    ]
    assert lines[2].startswith("metadata  task: detect[31mxx")
    assert max(map(len, lines)) < 120
    onnx.save(
        stamp_provenance(_loaded(proto, tmp_path), Provenance(recipe="ab" * 32, method="max")).proto, made
    )
    assert run(["engine", "about", str(made), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["data"]["facts"]
    assert facts[0]["value"].startswith("qdqtool ")
    assert "method max" in facts[0]["value"]


def test_equal_inputs_give_equal_bytes_in_any_folder(tmp_path: Path) -> None:
    written = []
    for name in ("one", "another place"):
        folder = tmp_path / name
        shutil.copytree(EXAMPLE, folder)
        qdqtool.quantize(
            folder / "digits.onnx", str(folder / "calibration.npz"), folder / "q.onnx", settings=QUICK
        )
        written.append((folder / "q.onnx").read_bytes())
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]
    model = load(tmp_path / "one" / "q.onnx")
    assert lint(model).origin == origin(model) != ""
    other = qdqtool.quantize(
        EXAMPLE / "digits.onnx",
        str(EXAMPLE / "calibration.npz"),
        tmp_path / "p.onnx",
        settings=("calibrate.method=percentile", *QUICK[1:]),
    )
    del other
    first, second = provenance(model), provenance(load(tmp_path / "p.onnx"))
    assert first is not None
    assert second is not None
    assert first.recipe != second.recipe
    assert first.samples == second.samples


@pytest.mark.parametrize("producer", ["tf2onnx", "onnx.quantize", "quark.onnx"])
def test_a_float_model_was_quantized_by_nobody(producer: str, tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.producer_name = producer
    assert origin(_loaded(proto, tmp_path)) == ""
