"""Saved models read back the same, large ones in two files; probes return what was asked for and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.errors import UsageError
from qdqtool.graph.instrumented import probe as probe_module
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.onnx_io import save as save_module
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save, serialize
from tests import models
from tests.graph.placing import opened
from tests.shared import ROOT


def test_a_saved_model_reads_back_the_same(tmp_path: Path) -> None:
    model = opened(models.attention(), tmp_path)
    save(model, tmp_path / "copy.onnx")
    assert load(tmp_path / "copy.onnx").proto == model.proto


def test_saving_never_overwrites_the_original(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    before = model.path.read_bytes()
    with pytest.raises(UsageError, match="overwrite"):
        save(model, tmp_path / "." / model.path.name)
    assert model.path.read_bytes() == before


def test_weights_beyond_the_limit_go_to_a_file_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(models.residual_cnn(), tmp_path)
    monkeypatch.setattr(save_module, "SINGLE_FILE_LIMIT", 1000)
    (tmp_path / "out").mkdir()
    save(model, tmp_path / "out" / "big.onnx")
    model_file, data_file = sorted((tmp_path / "out").iterdir(), key=lambda path: path.stat().st_size)
    assert model_file.name == "big.onnx"
    assert data_file.name.startswith("big.onnx.")
    again = load(model_file)
    feeds = models.feeds(model.proto)
    for name, value in models.run(model.proto, feeds).items():
        np.testing.assert_array_equal(models.run(again.proto, feeds)[name], value)
    save(model, tmp_path / "out" / "big.onnx")
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    path = models.save(models.attention(), tmp_path)
    code = (
        "import sys, hashlib; from pathlib import Path; from qdqtool.graph.onnx_io.load import load;"
        "from qdqtool.graph.preparation.prepare import prepare; from qdqtool.graph.onnx_io.save import serialize;"
        "from qdqtool.core.recipe import PrepareOptions;"
        "print(hashlib.sha256(serialize(prepare(load(Path(sys.argv[1])), PrepareOptions()))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_probe_returns_inputs_constants_and_results_in_the_order_asked_for(tmp_path: Path) -> None:
    model = opened(models.residual_cnn(), tmp_path)
    names = ["relu2_y", "x", "fc_b", "relu1_y"]
    made = probe(model, names)
    assert [info.name for info in made.outputs] == names
    assert isinstance(made.source, bytes)
    found = models.run(onnx.ModelProto.FromString(made.source), models.feeds(model.proto))
    assert list(found) == names
    assert found["relu1_y"].shape == (2, 8, 16, 16)


def test_a_probe_computes_nothing_that_is_not_needed(tmp_path: Path) -> None:
    made = probe(opened(models.residual_cnn(), tmp_path), ["relu1_y"])
    assert isinstance(made.source, bytes)
    graph = onnx.ModelProto.FromString(made.source).graph
    assert [node.name for node in graph.node] == ["stem", "stem_relu", "conv1", "relu1"]
    assert [info.name for info in made.inputs] == ["x"]


def test_a_probe_of_an_unknown_tensor_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nowhere'"):
        probe(opened(models.conv_chain(), tmp_path), ["nowhere"])


def test_the_probe_of_a_large_model_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (probe_module, save_module):
        monkeypatch.setattr(module, "SINGLE_FILE_LIMIT", 1000)
    model = opened(models.residual_cnn(), tmp_path)
    with pytest.raises(UsageError, match="folder"):
        probe(model, ["relu1_y"])
    made = probe(model, ["relu1_y"], tmp_path / "probe")
    assert isinstance(made.source, Path)
    assert [info.name for info in load(made.source).view.outputs] == ["relu1_y"]


def test_serializing_is_what_saving_writes(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    save(model, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == serialize(model)
