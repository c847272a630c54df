"""Folders of Hugging Face that hold weights alone: exported as the network computes, with free batches and lengths."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.cli.app import run as cli
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.torch_models import as_onnx
from qdqtool.runtime.runner import open_runner

torch = pytest.importorskip("torch", reason="networks of Hugging Face need torch")
pytest.importorskip("onnxscript", reason="torch writes ONNX by onnxscript")
transformers = pytest.importorskip("transformers", reason="its networks are exported")

from qdqtool.backends.torch_qat.published import _example  # noqa: E402 -- after what it needs

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = SMALL | {"vocab_size": 50, "max_position_embeddings": 24}


def saved(folder: Path, name: str) -> Any:
    """Save a small network with random weights; return it."""
    torch.manual_seed(0)
    kinds = {
        "encoder": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT)),
        "decoder": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**TEXT, num_key_value_heads=1)
        ),
        "pictures": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(**SMALL, image_size=32, patch_size=16)
        ),
        "two parts": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        ),
    }
    network = kinds[name]().eval()
    network.save_pretrained(folder)
    return network


@pytest.mark.parametrize("name", ["encoder", "decoder", "pictures"])
def test_the_exported_network_computes_the_same_for_other_sizes(name: str, tmp_path: Path) -> None:
    network = saved(tmp_path / "net", name)
    path = as_onnx(str(tmp_path / "net"), tmp_path / "out", trust=False)
    assert (path.parent / "config.json").is_file()
    random = np.random.default_rng(1)
    feeds: dict[str, Any] = {}
    for info in load(path).view.inputs:
        if info.name == "pixel_values":
            feeds[info.name] = random.standard_normal((3, 3, 32, 32)).astype(np.float32)
        else:
            feeds[info.name] = (
                random.integers(1, 50, (3, 9)) if info.name == "input_ids" else np.ones((3, 9), np.int64)
            )
    with torch.no_grad():
        right = network(**{key: torch.from_numpy(value) for key, value in feeds.items()}).logits.numpy()
    logits = open_runner(path, description="test").run(feeds)["logits"]
    np.testing.assert_allclose(logits, right, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_weights_file_that_is_cut_off_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    network = saved(tmp_path / "net", "encoder")
    weights = tmp_path / "net" / name
    if name.endswith(".bin"):
        (tmp_path / "net" / "model.safetensors").unlink()
        torch.save(network.state_dict(), weights)
    for size in (weights.stat().st_size // 2, 0):
        weights.write_bytes(weights.read_bytes()[:size])
        with pytest.raises(InputFileError, match=f"{name} cannot be read") as refused:
            as_onnx(str(tmp_path / "net"), tmp_path / "out", trust=False)
        assert refused.value.fix is not None
        assert refused.value.fix.startswith("download or copy the file again")


@pytest.mark.parametrize(
    ("stated", "sides"),
    [
        ({"size": {"height": 48, "width": 64}}, (48, 64)),
        ({"size": {"shortest_edge": 72}, "do_center_crop": True, "crop_size": 64}, (64, 64)),
    ],
)
def test_the_image_processor_states_the_size_that_the_network_does_not(
    stated: dict[str, Any], sides: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated), "utf-8")
    network = SimpleNamespace(config=transformers.SegformerConfig(), main_input_name="pixel_values")
    assert _example(transformers, tmp_path, network)["pixel_values"].shape == (2, 3, *sides)


def test_a_network_of_pictures_whose_size_nobody_states_says_so(tmp_path: Path) -> None:
    network = SimpleNamespace(config=transformers.SegformerConfig(), main_input_name="pixel_values")
    with pytest.raises(ValueError, match="states the size"):
        _example(transformers, tmp_path, network)


@pytest.mark.parametrize(("kind", "shape"), [("Wav2Vec2Config", (2, 16_000)), ("ASTConfig", (2, 1024, 128))])
def test_sound_is_a_second_or_a_spectrum(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    network = SimpleNamespace(config=getattr(transformers, kind)(), main_input_name="input_values")
    assert _example(transformers, tmp_path, network)["input_values"].shape == shape


def test_a_network_of_two_models_says_so(tmp_path: Path) -> None:
    saved(tmp_path / "net", "two parts")
    with pytest.raises(InputFileError, match="an encoder and a decoder"):
        as_onnx(str(tmp_path / "net"), tmp_path / "out", trust=False)


def test_a_folder_is_quantized_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("net"), "encoder")
    assert cli(["quantize", "net", "--samples", "random:4", "-o", "net.qdq.onnx"]) == 0
    assert any(node.op == "QuantizeLinear" for node in load(Path("net.qdq.onnx")).view.nodes)
