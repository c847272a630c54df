"""Models that are not ONNX files: from PyTorch, timm, torchvision, Ultralytics and Hugging Face.

They become an ONNX file, from where on they are models like any other. torch is asked for only here. Published
networks are exported in a child process. The image preprocessing that their library states is written beside the
file, and `preparations` reads it there.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

from qdqtool.backends.torch_qat import need_torch
from qdqtool.core.wording import Command, Setting
from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.io.child import ask
from qdqtool.io.files import make_folder
from qdqtool.pipeline.suggest import title_of

_FUNCTION = re.compile(r"(?:[\w./\\~+-]+|.+\.py):[A-Za-z_]\w*", re.DOTALL)
SUFFIX = ".pt2"
_PUBLISHED: Final = re.compile(r"(?P<library>timm|torchvision):(?P<name>[\w.-]+)(?:@(?P<weights>.+))?")
_CACHED: Final = re.compile(r"[\w.-]+/[\w.-]+")
_IN_FOLDERS: Final = ("model.onnx", "onnx/model.onnx")
"""Places of the model in a folder of Hugging Face, as optimum and transformers.js write it."""
_MERGED: Final = "decoder_model_merged"
"""Name of a file of optimum: a decoder with and without past keys and values."""
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
_EXPORT: Final = "export"
"""Folder in the run folder with the exported model and its preprocessing."""
_SECONDS: Final = 1800.0
"""Limit of an export in seconds; weights may have to be downloaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published network that a library such as timm or Ultralytics provides.

    Attributes:
        library: "timm", "torchvision", "transformers" or "ultralytics".
        name: of the network in its library; of Ultralytics the checkpoint, of transformers the folder.
        weights: "" for the weights of the library, "random", or a file of weights.
    """

    library: str
    name: str
    weights: str = ""

    @classmethod
    def named(cls, model: str) -> Published | None:
        """Return the network for a word such as timm:resnet18, timm:resnet18@weights.pth or yolo11n.pt; None for other words."""
        if Path(model).suffix.lower() == ".pt":
            return cls(library="ultralytics", name=model)
        match = None if Path(model).exists() else _PUBLISHED.fullmatch(model)
        if match is None:
            return None
        return cls(library=match["library"], name=match["name"], weights=match["weights"] or "")

    @property
    def title(self) -> str:
        """The name of the network for files and folders."""
        if self.library == "transformers":
            folder = Path(self.name)
            # the cache has a folder models--owner--name/snapshots/revision
            return (
                folder.parents[1].name.rpartition("--")[2]
                if folder.parent.name == "snapshots"
                else folder.name
            )
        return title_of(Path(self.name)) if self.library == "ultralytics" else self.name

    @property
    def is_installed(self) -> bool:
        """True if the library of the network is installed."""
        return importlib.util.find_spec(self.library) is not None

    def exported(self, folder: Path, *, trust: bool, size: int | None = None) -> Path:
        """Export the network to `folder` in a child process, and return the ONNX file.

        Args:
            folder: the run folder.
            trust: whether a checkpoint of Ultralytics may run code while it is loaded.
            size: height and width in pixels of the input of a checkpoint; None uses the size of its training.

        Raises:
            MissingPackage: the library, or a module that its export needs, is not installed.
            InputFileError: there is no such network, its weights cannot be had, or torch cannot export it.
        """
        if not self.is_installed:
            raise MissingPackage(
                f"{self.library} is not installed", fix=f"pip install {self.library}", where=self.name
            )
        need_torch()
        make_folder(folder / _EXPORT)
        home = (folder / _EXPORT).resolve()
        out, errors = home / f"{self.title}.onnx", home / "export.log"
        name = self.name
        if self.library == "ultralytics" and Path(name).is_file():
            # Ultralytics writes next to the checkpoint, where the user may have a model
            name = str(copyfile(name, home / Path(name).name))
        if self.library == "transformers":
            name = str(Path(name).resolve())
        weights = str(Path(self.weights).resolve()) if Path(self.weights).is_file() else self.weights
        request = {"library": self.library, "name": name, "weights": weights, "path": str(out)}
        errors.unlink(missing_ok=True)
        verdict, ended = ask(
            "qdqtool.backends.torch_qat.published",
            {**request, "trust": trust, "size": size},
            on_event={},
            timeout_s=_SECONDS,
            errors=errors,
        )
        if missing := verdict.get("missing"):
            raise MissingPackage(
                f"the export with {self.library} needs the Python module {missing}",
                fix=f"pip install {missing}",
                where=f"{self.library}:{self.name}",
            )
        if verdict["event"] != "written":
            raise InputFileError(
                verdict.get("what", f"the export ended with {ended.code}"),
                fix=verdict.get("fix") or self._way_out(unreachable=verdict.get("unreachable", False)),
                where=f"{self.library}:{self.name}",
            )
        return folder / _EXPORT / out.name

    def _way_out(self, *, unreachable: bool) -> str:
        if self.library == "ultralytics":
            return f"export the model and pass the ONNX file: yolo export model={self.name} format=onnx"
        named = f"{self.library}:{self.name}"
        if unreachable and not self.weights and self.library != "transformers":
            return f"without a connection, pass weights as {named}@weights.pth or {named}@random; or export it with torch.onnx.export"
        return "export the model with torch.onnx.export and pass the ONNX file"


def _folder_of(model: str) -> Path | None:
    """Return the path of a Hugging Face folder or cached id; None for other texts.

    Raises:
        InputFileError: the id is not in the cache.
    """
    folder = Path(model)
    if not folder.exists() and _CACHED.fullmatch(model):
        # https://huggingface.co/docs/huggingface_hub/guides/manage-cache
        home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
        cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
        snapshots = (cache / f"models--{model.replace('/', '--')}" / "snapshots").glob("*")
        folder = max(snapshots, key=lambda entry: entry.stat().st_mtime, default=folder)
        if not folder.exists() and not folder.parent.exists():
            raise InputFileError(
                "the path is neither a file nor a model in the local cache of Hugging Face",
                fix=f"check the path; or download the model: hf download {model}",
                where=model,
            )
    return folder if folder.is_dir() else None


def in_folder(model: str) -> Path | Published | None:
    """Return the ONNX file in a Hugging Face folder, or of an id in the local cache; if there is none, the network to export.

    Return None for other texts.

    Raises:
        InputFileError: the folder holds no model, or several; or the id is not in the cache.
    """
    folder = _folder_of(model)
    if folder is None:
        return None
    usual = next((folder / name for name in _IN_FOLDERS if (folder / name).is_file()), None)
    files = [usual] if usual else sorted({*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")})
    if len(files) == 1:
        return files[0]
    if not files and (folder / "config.json").is_file() and any(map(any, map(folder.glob, _WEIGHTS))):
        return Published(library="transformers", name=str(folder))
    if not files:
        raise InputFileError(
            "the folder holds no ONNX model, and no config.json with weights that could be exported",
            fix="pass an ONNX file, or a folder with one",
            where=model,
        )
    # optimum's merged decoder has its nodes in the bodies of an If, and only nodes of the main graph are quantized
    whole = [path for path in files if path.stem != _MERGED]
    names = ", ".join(str(path) for path in whole[:8])
    chosen = Setting("prepare.constants", '{"use_cache_branch": true}')
    merged = f"; {_MERGED}.onnx with {chosen}, and once with false" if len(whole) < len(files) else ""
    raise InputFileError(
        "the folder holds several ONNX models",
        fix=f"quantize one model at a time: {names}{merged}",
        where=model,
    )


def model_or_outputs(text: str) -> str:
    """Return the ONNX file of a Hugging Face folder or cached id. Other text, such as a folder of outputs, is returned unchanged.

    Raises:
        InputFileError: an id that is not in the cache.
    """
    folder = Path(text)
    if folder.is_dir() and not any((folder / name).is_file() for name in _IN_FOLDERS):
        return text
    inside = in_folder(text)
    if isinstance(inside, Published):
        raise InputFileError(
            "the folder holds no ONNX model",
            fix=f"pass an ONNX file; {Command('run', (text,))} exports one into the folder of the run",
            where=text,
        )
    return str(inside or text)


def names_function(model: str) -> bool:
    """Return True if the text is `module:function` or `file.py:function`, and not the name of a file."""
    return _FUNCTION.fullmatch(model) is not None and not Path(model).exists()


def name_of(model: str) -> str:
    """Return a name for a model: the name of its function or file; for a common file name, the name of its folder."""
    published = Published.named(model)
    if published is not None:
        return published.title
    return model.rpartition(":")[2] if names_function(model) else title_of(Path(model))


def as_onnx(model: str, folder: Path, *, trust: bool) -> Path:
    """Return the model as an ONNX file. An exported file is in `folder`.

    Besides files, a model is a function, a network of timm or torchvision, or a folder or cached id of Hugging Face.
    A function is called without arguments and returns a pair of a `torch.nn.Module` and its example inputs, or the
    result of `torch.export.export`. A user who names a function agrees that its code runs. A file of torch.export
    holds pickles, which may run other code, so it is read only with `trust`.

    Raises:
        MissingPackage: torch, or the library of the network, is not installed.
        UsageError: a file of torch.export without trust; a missing function, or a function that returns another type.
        InputFileError: the file cannot be read.
    """
    published = Published.named(model)
    # a .pt file may come from anyone; without Ultralytics, the reader of .pt files reports what it is
    is_any = published is not None and published.library == "ultralytics" and not published.is_installed
    if published is not None and not is_any:
        return published.exported(folder, trust=trust)
    inside = in_folder(model)
    if inside is not None:
        return inside.exported(folder, trust=trust) if isinstance(inside, Published) else inside
    if names_function(model):
        need_torch()
        from qdqtool.plugins import resolve

        return write(resolve(model, Path(), "model")(), folder, name_of(model))
    path = Path(model)
    if path.suffix.lower() != SUFFIX or not path.is_file():
        return path
    need_torch()
    if not trust:
        raise UsageError(
            "files of torch.export may run code when they are loaded",
            fix="pass --trust if you trust the author of the file",
            where=model,
        )
    from qdqtool.backends.torch_qat.export import load_program

    return write(load_program(path), folder, path.stem)


def is_torch(model: object) -> bool:
    """Return True if `write` exports the object: an exported program, or a pair such as (module, inputs)."""
    return (isinstance(model, tuple) and len(model) == 2) or type(model).__name__ == "ExportedProgram"


def write(model: Any, folder: Path, stem: str) -> Path:
    """Export an exported program, or a pair of a module and example inputs, to an ONNX file in `folder`.

    Raises:
        UsageError: it is neither, or cannot be exported.
        MissingPackage: torch is not installed.
    """
    need_torch()
    from qdqtool.backends.torch_qat.export import export_example, export_program

    if not is_torch(model):
        raise UsageError(
            f"the model is a {type(model).__name__}, which cannot be exported",
            fix="return (torch.nn.Module, example inputs), or the result of torch.export.export",
            where=stem,
        )
    make_folder(folder)
    path = folder / f"{stem}.onnx"
    if isinstance(model, tuple):
        module, example = model
        export_example(module, example, path)
    else:
        export_program(model, path)
    return path
