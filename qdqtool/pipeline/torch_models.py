"""Models from PyTorch: files of torch.export, functions that return a module, and objects in memory.

They are written as ONNX, from where on they are models like any other. torch is asked for only here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qdqtool.backends.torch_qat.callables import need_torch
from qdqtool.errors import UsageError
from qdqtool.io.files import make_folder
from qdqtool.pipeline.suggest import title_of

_FUNCTION = re.compile(r"[\w./\\~+-]+:[A-Za-z_]\w*")
SUFFIX = ".pt2"


def names_function(model: str) -> bool:
    """Return whether a model is written as `module:function` or `file.py:function`, and is not the name of a file."""
    return _FUNCTION.fullmatch(model) is not None and not Path(model).exists()


def name_of(model: str) -> str:
    """Return a name for a model: of its function, of its file, or of its folder if the file has a common name."""
    return model.rpartition(":")[2] if names_function(model) else title_of(Path(model))


def as_onnx(model: str, folder: Path, *, trust: bool) -> Path:
    """Return the model as an ONNX file; if it must be exported, the file is in `folder`.

    A function is called without arguments and returns a pair of a `torch.nn.Module` and its example inputs, or what
    `torch.export.export` returned. Naming it is asking for its code to run; a file of torch.export holds pickles, which
    may run code that nobody named, so that it is read only with `trust`.

    Raises:
        MissingPackage: torch is not installed.
        UsageError: a file of torch.export without trust; no such function, or one that returns something else.
        InputFileError: the file cannot be read.
    """
    if names_function(model):
        need_torch()
        from qdqtool.backends.torch_qat.callables import resolve

        return write(resolve(model, Path(), "model")(), folder, name_of(model))
    path = Path(model)
    if path.suffix.lower() != SUFFIX or not path.is_file():
        return path
    need_torch()
    if not trust:
        raise UsageError(
            "files of torch.export may run code when they are loaded",
            fix="pass --trust if you trust its author",
            where=model,
        )
    from qdqtool.backends.torch_qat.export import load_program

    return write(load_program(path), folder, path.stem)


def is_torch(model: object) -> bool:
    """Return whether `write` takes the object."""
    return (isinstance(model, tuple) and len(model) == 2) or type(model).__name__ == "ExportedProgram"


def write(model: Any, folder: Path, stem: str) -> Path:
    """Export a pair of module and example inputs, or an exported program, to an ONNX file in `folder`.

    Raises:
        UsageError: it is neither, or cannot be exported.
        MissingPackage: torch is not installed.
    """
    need_torch()
    from qdqtool.backends.torch_qat.export import export_example, export_program

    if not is_torch(model):
        raise UsageError(
            f"the model is a {type(model).__name__}",
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
