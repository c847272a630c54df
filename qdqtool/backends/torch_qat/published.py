"""Child process that exports a published network to ONNX: from timm, torchvision, Ultralytics or a Hugging Face folder.

Importing these libraries takes seconds and prints, and loading weights may need the network, so this is done here and not in
the process of the command. Beside the model it writes the image preprocessing that the library states.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT
from qdqtool.io.child import meet

RANDOM: Final = "random"
"""Weights of a network that is not trained."""
_OPSET: Final = 20
"""Opset of exported transformers: TensorRT 10 and 11 read it, and it has Gelu and LayerNormalization."""
_LENGTH: Final = 16
"""Tokens of the example for the export, which leaves their number free."""
_SOUND: Final = 16_000
"""Values of the example of a network that reads sound: one second at the usual 16 kHz."""
_TEXT: Final = 2
"""Dimensions of token ids, and of sound."""
_PLANE: Final = 2
"""Sides of a picture."""


def main() -> None:
    """Serve one request: write `{library}:{name}` with `weights` to `path`; `size` is a checkpoint's image size."""
    request, tell = meet()
    try:
        _LIBRARIES[request["library"]](request)
    except _UnknownNameError as error:
        close = get_close_matches(request["name"], error.names, n=3, cutoff=0.3)
        fix = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"choose one of {', '.join(error.names[:20])} ..."
        )
        tell({"event": "failed", "what": f"{request['library']} has no network of this name", "fix": fix})
    except _UnreadableWeightsError as error:
        what = (
            f"the weights file {error.path} cannot be read ({error.reason}): the file is truncated or damaged"
        )
        tell(
            {
                "event": "failed",
                "what": what,
                "fix": "download or copy the file again, and compare its size with the source",
            }
        )
    except ModuleNotFoundError as error:
        tell({"event": "failed", "missing": (error.name or str(error)).partition(".")[0]})
    except Exception as error:  # noqa: BLE001 -- whatever a foreign library raises becomes a message of the command
        words = " ".join(str(error).split())[:400]
        # urllib and the hub raise kinds of OSError if they cannot reach the weights
        failure = {"event": "failed", "what": f"{type(error).__name__}: {words}"}
        tell({**failure, "unreachable": isinstance(error, OSError)})
    else:
        tell({"event": "written"})


class _UnknownNameError(Exception):
    """Raised if the library does not have the network; `names` are the networks that it has."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names


class _UnreadableWeightsError(Exception):
    """Raised if the weights file `path` is incomplete or damaged; `reason` comes from its reader."""

    def __init__(self, path: Path, reason: Exception) -> None:
        super().__init__()
        self.path = path
        self.reason = " ".join(f"{type(reason).__name__} {reason}".split())[:200]


def _timm(request: dict[str, Any]) -> None:
    timm = importlib.import_module("timm")
    if not timm.is_model(request["name"]):
        raise _UnknownNameError(timm.list_models())
    import torch

    torch.manual_seed(0)
    network = timm.create_model(request["name"], pretrained=not request["weights"])
    _load(network, request["weights"])
    stated = timm.data.resolve_data_config({}, model=network)
    config = {key: stated[key] for key in ("input_size", "mean", "std", "crop_pct") if key in stated}
    _write(network, config["input_size"], request["path"], "config.json", {"pretrained_cfg": config})


def _torchvision(request: dict[str, Any]) -> None:
    models = importlib.import_module("torchvision").models
    if request["name"] not in models.list_models():
        raise _UnknownNameError(models.list_models())
    import torch

    torch.manual_seed(0)
    trained = models.get_model_weights(request["name"]).DEFAULT
    steps = trained.transforms()
    if not hasattr(steps, "crop_size"):
        raise ValueError("only classifiers state the size of their pictures; export the network yourself")
    network = models.get_model(
        request["name"], weights=None if request["weights"] else trained, **_whole(request)
    )
    _load(network, request["weights"])
    side = steps.crop_size[0]
    config = {
        "size": {"shortest_edge": steps.resize_size[0]},
        "do_center_crop": True,
        "crop_size": side,
        "rescale_factor": 1 / 255,
        "image_mean": list(steps.mean),
        "image_std": list(steps.std),
    }
    _write(network, (3, side, side), request["path"], "preprocessor_config.json", config)


def _whole(request: dict[str, Any]) -> dict[str, Any]:
    # without trained weights, these networks begin with a random search that takes half a minute
    return (
        {"init_weights": False}
        if request["weights"] and request["name"] in {"googlenet", "inception_v3"}
        else {}
    )


def _load(network: Any, weights: str) -> None:
    if weights in {"", RANDOM}:
        return
    state = _read_state(Path(weights))
    network.load_state_dict(state.get("state_dict", state) if isinstance(state, dict) else state)


def _read_state(path: Path) -> Any:
    import torch

    try:
        if path.suffix == ".safetensors":
            return importlib.import_module("safetensors.torch").load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # each file format has its own kinds of errors
        raise _UnreadableWeightsError(path, error) from error


def _write(network: Any, shape: Any, path: str, beside: str, config: dict[str, Any]) -> None:
    import torch

    from qdqtool.backends.torch_qat.export import export_example

    export_example(network, torch.zeros(1, *shape), Path(path))
    (Path(path).parent / beside).write_text(json.dumps(config), "utf-8")


def _ultralytics(request: dict[str, Any]) -> None:
    os.environ["YOLO_AUTOINSTALL"] = "false"  # installs packages otherwise
    if not request["trust"]:
        os.environ["ULTRALYTICS_SAFE_LOAD"] = "true"
    tasks = importlib.import_module("ultralytics.nn.tasks")
    if not request["trust"] and not hasattr(tasks, "SAFE_LOAD"):
        raise ValueError(
            "this release of Ultralytics runs code of checkpoints; pass --trust, or pip install 'ultralytics>=8.4.190'"
        )
    network = importlib.import_module("ultralytics").YOLO(request["name"])
    size = {"imgsz": request["size"]} if request["size"] else {}
    written = network.export(format="onnx", simplify=False, device="cpu", **size)
    Path(written).replace(request["path"])


def _transformers(request: dict[str, Any]) -> None:
    """Export the network in a Hugging Face folder with dynamic batches and lengths, without downloads and without its code."""
    transformers = importlib.import_module("transformers")
    import torch

    folder = Path(request["name"])
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = (config.architectures or ["AutoModel"])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder and a decoder, two models")
    if not hasattr(transformers, kind):
        raise ValueError(f"this release of transformers has no {kind}")
    try:
        network = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, dtype=torch.float32
        )
    except Exception:
        # The library does not name the file, and an EOFError has no text.
        for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
            _read_state(path)
        raise
    network.config.use_cache = False  # a cache would add an output for every layer
    example = _example(transformers, folder, network.eval())
    with torch.no_grad():
        results = network(**example)
    outputs = [name for name, value in results.items() if isinstance(value, torch.Tensor)]

    class Tensors(torch.nn.Module):
        """Wrapper of the network: forward() takes tensors by position and returns a tuple of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *values: Any) -> tuple[Any, ...]:
            named = self.network(**dict(zip(example, values, strict=True)))
            return tuple(named[name] for name in outputs)

    free = [
        {0: "batch", 1: "sequence"} if value.ndim == _TEXT else {0: "batch"} for value in example.values()
    ]
    program: Any = torch.onnx.export(
        Tensors().eval(),
        tuple(example.values()),
        dynamo=True,
        opset_version=_OPSET,
        input_names=list(example),
        output_names=outputs,
        dynamic_shapes={"values": tuple(free)},
        verbose=False,
    )
    path = Path(request["path"])
    program.save(str(path), external_data=network.num_parameters() * 4 >= SINGLE_FILE_LIMIT)
    for name in ("config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            copyfile(folder / name, path.parent / name)


def _example(transformers: Any, folder: Path, network: Any) -> dict[str, Any]:
    """Return example inputs of a published network by name: token ids, pictures or sounds.

    Raises:
        ValueError: the network reads other inputs, or does not state the size of its pictures.
    """
    import torch

    config, main_input = network.config, network.main_input_name
    if main_input == "pixel_values":
        sides = _sides_of_pictures(folder, config)
        return {main_input: torch.zeros(2, getattr(config, "num_channels", 3), *sides)}
    if main_input == "input_values":
        is_spectrum = {"max_length", "num_mel_bins"} <= config.to_dict().keys()
        sound = (config.max_length, config.num_mel_bins) if is_spectrum else (_SOUND,)
        return {main_input: torch.zeros(2, *sound)}
    if main_input != "input_ids":
        raise ValueError(f"the network reads {main_input}: neither token ids, pictures nor sound")
    try:
        usual = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).model_input_names
    except (OSError, ValueError):  # a folder without its tokenizer
        usual = ["attention_mask"]
    length = min(_LENGTH, getattr(config, "max_position_embeddings", _LENGTH))
    ids = torch.arange(2 * length).reshape(2, length) % config.vocab_size
    extra = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    taken = inspect.signature(network.forward).parameters
    return {main_input: ids} | {name: extra[name] for name in usual if name in extra and name in taken}


def _sides_of_pictures(folder: Path, config: Any) -> tuple[int, ...]:
    """Return height and width of a network's pictures, from `config.json` or the image processor.

    Raises:
        ValueError: neither states them.
    """
    size = getattr(config, "image_size", None)
    processor = folder / "preprocessor_config.json"
    if size is None and processor.is_file():
        stated = json.loads(processor.read_text("utf-8"))
        size = stated.get("crop_size" if stated.get("do_center_crop") else "size")
    if isinstance(size, dict):
        size = [size.get(side, size.get("shortest_edge")) for side in ("height", "width")]
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sides) != _PLANE or not all(isinstance(side, int) for side in sides):
        raise ValueError("neither config.json nor preprocessor_config.json states the size of the pictures")
    return sides


_LIBRARIES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "ultralytics": _ultralytics,
}


if __name__ == "__main__":
    main()
