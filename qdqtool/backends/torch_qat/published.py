"""The child process that exports a published network to ONNX: of timm, of torchvision, or an Ultralytics checkpoint.

Importing these libraries takes seconds and prints, and loading weights may need the network, so this is done here and not in
the process of the command. Beside the model it writes the image preprocessing that the library states.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from qdqtool.io.child import meet

RANDOM: Final = "random"
"""Weights of a network that is not trained."""


def main() -> None:
    """Serve one request: write `{library}:{name}` with `weights` to `path`; a checkpoint at `size` pixels."""
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
    except Exception as error:  # noqa: BLE001 -- whatever a foreign library raises becomes a message of the command
        words = " ".join(str(error).split())[:400]
        # urllib and the hub raise kinds of OSError if they cannot reach the weights
        failure = {"event": "failed", "what": f"{type(error).__name__}: {words}"}
        tell({**failure, "unreachable": isinstance(error, OSError)})
    else:
        tell({"event": "written"})


class _UnknownNameError(Exception):
    """The library has other networks: `names`."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names


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
    # without trained weights these networks start by a random search that takes half a minute
    return (
        {"init_weights": False}
        if request["weights"] and request["name"] in {"googlenet", "inception_v3"}
        else {}
    )


def _load(network: Any, weights: str) -> None:
    import torch

    if weights in {"", RANDOM}:
        return
    if weights.endswith(".safetensors"):
        state = importlib.import_module("safetensors.torch").load_file(weights)
    else:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    network.load_state_dict(state.get("state_dict", state) if isinstance(state, dict) else state)


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


_LIBRARIES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "ultralytics": _ultralytics,
}


if __name__ == "__main__":
    main()
