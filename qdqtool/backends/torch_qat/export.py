"""Exports a flat network as float ONNX. The names of nodes begin with the names of the network's steps."""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from glob import escape
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx

from qdqtool.backends.torch_qat import need
from qdqtool.backends.torch_qat.flat import placeholders, tensors, with_tensors_only
from qdqtool.backends.writing import write
from qdqtool.core.wording import Setting
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT
from qdqtool.io.files import make_folder, replacing

Inputs = tuple[torch.Tensor, ...]


def export(flat: fx.GraphModule, inputs: Inputs, path: Path, *, exporter: str, opset: int) -> None:
    """Write the network in evaluation mode to `path` atomically, with a dynamic batch dimension.

    Weights of 2 GiB and more go to one file beside the model.

    Weights keep their names and BatchNormalization its node, because folding is our own work. Both exporters
    give node names of the form `/<step>/<what>`, by which quantizers find their place.

    Raises:
        UsageError: the exporter refuses the network.
    """
    flat = with_tensors_only(flat.eval())
    device = next((parameter.device for parameter in flat.parameters()), torch.device("cpu"))
    inputs = tuple(value.to(device) for value in inputs)
    _clear(path)
    export = partial(_write, flat, inputs, exporter=exporter, opset=opset)
    if _weight_bytes(flat) < SINGLE_FILE_LIMIT:
        with replacing(path) as draft:
            export(draft)
        return
    make_folder(path.parent)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        export(draft)
        # The exporters write large weights into many files; this puts them into a single file.
        write(load(draft), path, step="qat export")


def _clear(path: Path) -> None:
    """Remove files that a killed export left beside its model."""
    for draft in path.parent.glob(f".{escape(path.name)}.*"):
        if draft.is_dir():
            rmtree(draft)
        else:
            draft.unlink()


def _write(flat: fx.GraphModule, inputs: Inputs, draft: Path, *, exporter: str, opset: int) -> None:
    with _silenced_exporters():
        try:
            if exporter == "dynamo":
                _dynamo(flat, inputs, draft, opset)
            else:
                _legacy(flat, inputs, draft, opset)
        except Exception as error:
            alternative = "legacy" if exporter == "dynamo" else "dynamo"
            raise UsageError(
                f"the {exporter} exporter refuses the network: {_short(error)}",
                fix=f"try {Setting('qat.exporter', alternative)}, or another qat.opset",
                where="qat.exporter",
            ) from error


def _weight_bytes(flat: fx.GraphModule) -> int:
    return sum(value.numel() * value.element_size() for value in flat.state_dict().values())


def _legacy(flat: fx.GraphModule, inputs: Inputs, draft: Path, opset: int) -> None:
    names, outputs = list(placeholders(flat)), _output_names(flat, inputs)
    torch.onnx.export(
        flat,
        inputs,
        str(draft),
        dynamo=False,
        opset_version=opset,
        input_names=names,
        output_names=outputs,
        dynamic_axes={name: {0: "batch"} for name in [*names, *outputs]},
        do_constant_folding=False,
        # PRESERVE with a network in evaluation mode: unlike EVAL, it renames no weights and fuses nothing.
        training=torch.onnx.TrainingMode.PRESERVE,
    )


def _dynamo(flat: fx.GraphModule, inputs: Inputs, draft: Path, opset: int) -> None:
    names, outputs = list(placeholders(flat)), _output_names(flat, inputs)
    program: Any = torch.onnx.export(
        flat,
        tuple(_two(value) for value in inputs),
        dynamo=True,
        opset_version=opset,
        input_names=names,
        output_names=outputs,
        dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in names),
        optimize=False,
        verbose=False,
    )
    for number, node in enumerate(program.model.graph):
        scopes = _scopes(node.metadata_props.get("pkg.torch.onnx.name_scopes", ""))
        if scopes:
            node.name = f"/{scopes[0]}/{node.op_type}_{number}"
    # A convolution without a bias would get a computed one, and BatchNormalization could not be folded into it.
    optimizer: Any = need("onnxscript.optimizer")
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)
    program.save(str(draft), external_data=_weight_bytes(flat) >= SINGLE_FILE_LIMIT)


@torch.no_grad()
def _output_names(flat: fx.GraphModule, inputs: Inputs) -> list[str]:
    """Return one name for each tensor that the network returns. A single tensor has the name `output`."""
    count = len(tensors(flat(*inputs)))
    return ["output"] if count == 1 else [f"output{number}" for number in range(count)]


def _two(value: torch.Tensor) -> torch.Tensor:
    """Repeat a single sample, because torch.export would treat a batch of one as a constant size."""
    return value if value.shape[0] > 1 else torch.cat([value, value])


def _scopes(text: str) -> list[str]:
    words = [word.strip().strip("'\"") for word in text.strip("[]").split(",")]
    return [word for word in words[:-1] if word]


@contextmanager
def _silenced_exporters() -> Iterator[None]:
    """Silence messages of exporters inside the block. Errors are still raised."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.onnx._internal.exporter")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def export_example(module: Any, example: Any, path: Path) -> None:
    """Write a plain `torch.nn.Module` to the ONNX file `path`, with a dynamic batch dimension.

    `example` has the arguments of the module: a tensor, a tuple of tensors, or a dict by parameter name. The names
    become the inputs of the ONNX model.

    Raises:
        UsageError: the module cannot be exported.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"a pair of {type(module).__name__} and example inputs is not a model",
            fix="pass (torch.nn.Module, example inputs)",
            where="model",
        )
    # the exporter gives names in the order of forward(), so the dict must have this order too
    order = {name: place for place, name in enumerate(inspect.signature(module.forward).parameters)}
    by_name = example if isinstance(example, Mapping) else {}
    named = {name: by_name[name] for name in sorted(by_name, key=lambda name: order.get(name, len(order)))}
    arguments = () if named else tuple(example) if isinstance(example, (tuple, list)) else (example,)
    names = list(named) or (
        [f"input{number}" for number in range(len(arguments))] if len(arguments) > 1 else ["input"]
    )
    was_training = module.training
    try:
        with _silenced_exporters():
            torch.onnx.export(
                module.eval(),
                arguments,
                str(path),
                kwargs=named or None,
                input_names=names,
                dynamic_axes={
                    name: {0: "batch"}
                    for name, value in zip(names, named.values() or arguments, strict=True)
                    if getattr(value, "ndim", 0)
                },
                opset_version=17,
                dynamo=False,
            )
    except Exception as error:
        raise UsageError(
            f"torch cannot export {type(module).__name__}: {_short(error)}",
            fix="export the module and pass the ONNX file, or a program of torch.export.export",
            where="model",
        ) from error
    finally:
        module.train(was_training)


def export_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a program of `torch.export` to the ONNX file `path`. Dynamic dimensions remain dynamic.

    Raises:
        UsageError: an operator of it has no ONNX form.
        MissingPackage: onnxscript, by which torch writes ONNX, is not installed.
    """
    need("onnxscript")
    try:
        with _silenced_exporters():
            written: Any = torch.onnx.export(program, (), dynamo=True, opset_version=18, verbose=False)
            written.save(str(path), external_data=_program_bytes(program) >= SINGLE_FILE_LIMIT)
    except Exception as error:
        raise UsageError(
            f"torch cannot write the program as ONNX: {_short(error)}",
            fix="export the module with torch.onnx.export and pass the ONNX file",
            where="model",
        ) from error


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Load a program from a file of `torch.export.save`. Loading the file may run code in it.

    Raises:
        InputFileError: it is not such a file, or of a release that this torch cannot read.
    """
    try:
        with _silenced_exporters():
            return torch.export.load(path)
    except Exception as error:
        raise InputFileError(
            f"torch.export cannot load the file: {_short(error)}",
            fix="write the file with torch.export.save of this torch release",
            where=str(path),
        ) from error


def _program_bytes(program: torch.export.ExportedProgram) -> int:
    return sum(value.numel() * value.element_size() for value in program.state_dict.values())


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
