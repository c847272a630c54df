"""Arguments of callers: models, samples, recipes and settings, in all supported forms."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from qdqtool.api.results import ModelResult
from qdqtool.calibration.samples import SampleInput, sample_objects
from qdqtool.core.recipe import Recipe
from qdqtool.core.target import Target
from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, save_beside
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes, suggest, torch_models
from qdqtool.pipeline.preparations import read_task

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs
    import torch

AnyPath = str | os.PathLike[str]
ModelInput: TypeAlias = (
    "AnyPath | onnx.ModelProto | gs.Graph | ModelResult | tuple[Any, Any] | torch.export.ExportedProgram"
)
"""A file, an `onnx.ModelProto`, an `onnx_graphsurgeon.Graph`, the result of another call, a pair of a
`torch.nn.Module` and its example inputs (a tensor, a tuple, or a dict by name), or the result of
`torch.export.export`.
"""
SamplesInput = AnyPath | Iterable[Any] | Mapping[str, Any] | Any
"""A path or a spec as on the command line ("calibration/", "x.npz[:100]", "random:16"), an array, a dict of arrays, an
iterable of dicts, arrays or tuples, a `torch` DataLoader, a Polygraphy data loader, an onnxruntime
`CalibrationDataReader`, or a function that returns any of these."""
LabelsInput: TypeAlias = "AnyPath | Mapping[str, int] | ArrayLike | None"
RecipeInput = str | os.PathLike[str] | Mapping[str, Any] | Recipe
"""The name of a shipped recipe, a .yaml file, a dict with the content of such a file, or a `Recipe`."""
SettingsInput = Mapping[str, Any] | Sequence[str]
"""Changes of the recipe: {"place.first_layer": "float"}, {"place": {"first_layer": "float"}}, or as on the
command line ["place.first_layer=float"].
"""

_LOGGER = logging.getLogger(__name__)
_PLAIN = re.compile(r"[^\w.-]+")


@contextmanager
def model_files(*models: object) -> Iterator[tuple[Path, ...]]:
    """Provide the models as files. Models in memory are in a temporary folder until the context ends."""
    with ExitStack() as stack:
        places: dict[str, str] = {}
        paths = tuple(_model_file(model, stack, places) for model in models)
        try:
            yield paths
        except QdqError as error:
            error.say(lambda text: _name_objects(text, places))
            raise


def _model_file(model: object, stack: ExitStack, places: dict[str, str]) -> Path:
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        if path.suffix.lower() == torch_models.SUFFIX:
            raise UsageError(
                "the model is a file of torch.export, which may run code when it is loaded",
                fix="pass torch.export.load(path) if you trust its author",
                where=str(path),
            )
        # `fix` takes the folder of a finished run
        if path.is_file() or (path / "model.qdq.onnx").is_file():
            return path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qdqtool-model-")))
    if isinstance(model, (str, os.PathLike)):
        return torch_models.as_onnx(os.fspath(model), folder, trust=False)
    if torch_models.is_torch(model):
        named = model[0] if isinstance(model, tuple) else model
        path = torch_models.write(model, folder, type(named).__name__.lower())
    else:
        path = _write_model(model, folder)
    places[str(path)] = f"{type(model).__name__} {path.stem!r}"
    return path


def _write_model(model: object, folder: Path) -> Path:
    """Write a model in memory to a file with the name of its graph."""
    import onnx

    if isinstance(model, ModelResult):
        model = model.model
    elif type(model).__module__.startswith("onnx_graphsurgeon."):
        import onnx_graphsurgeon

        model = onnx_graphsurgeon.export_onnx(model)
    if not isinstance(model, onnx.ModelProto):
        raise UsageError(
            f"a model cannot be read from {type(model).__name__}",
            fix="pass a path, an onnx.ModelProto, an onnx_graphsurgeon.Graph, (torch module, example inputs), or the result of torch.export.export",
            where="model",
        )
    path = folder / f"{_PLAIN.sub('-', model.graph.name).strip('-.')[:60] or 'model'}.onnx"
    try:
        # Check the size first: protobuf fails above 2 GiB only after it has copied everything.
        if model.ByteSize() < SINGLE_FILE_LIMIT:
            onnx.save(model, path)
        else:  # onnx would remove the weights from the caller's model
            save_beside(Model(proto=model, path=path), path)
    except (ValueError, OSError) as error:
        raise InputFileError(
            f"the model cannot be written: {error}", fix="pass a path instead", where=path.stem
        ) from error
    return path


# protobuf serializes less than 2 GiB; saving adds a little.


def _name_objects(text: str, places: Mapping[str, str]) -> str:
    """Return a message that names the caller's objects instead of temporary files."""
    for path, name in places.items():
        text = text.replace(path, name)
    return text


def architectures_of(sm: Sequence[str] | str | float) -> tuple[str, ...]:
    """Return GPU architectures as words of digits: "sm86", "86", 86 and 8.6 give ("86",), and "86,89" gives two."""
    names = str(sm).split(",") if isinstance(sm, (str, int, float)) else list(words_of(sm, "sm"))
    return tuple(word.strip().lower().removeprefix("sm").lstrip("_").replace(".", "") for word in names)


def words_of(value: object, name: str) -> tuple[str, ...]:
    """Return the argument `name` as a tuple of words; a single word is allowed.

    Raises:
        UsageError: the value has another type.
    """
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        words = tuple(value)
        if all(isinstance(word, (str, int)) for word in words):
            return tuple(map(str, words))
    raise UsageError(
        f"the value cannot be of type {type(value).__name__}", fix="pass a list of words", where=name
    )


def ignored_words(value: object) -> tuple[str, ...]:
    """Return the argument `ignore` as words: codes or names of checks, each with `=reason` if there is one.

    Raises:
        UsageError: the value has another type.
    """
    if isinstance(value, Mapping):
        value = [f"{word}={reason}" for word, reason in value.items()]
    return words_of(value, "ignore")


def count_of(value: object, name: str, least: int = 1) -> int:
    """Return the argument `name` as an integer.

    Raises:
        UsageError: it is none, or below `least`.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise UsageError(f"the value is {value!r}", fix=f"pass a whole number, at least {least}", where=name)


def number_of(value: object, name: str) -> float:
    """Return the argument `name` as a finite number.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number):
            return number
    raise UsageError(f"the value is {value!r}", fix="pass a number", where=name)


def target_of(target: object, sm: Sequence[str] | str | float) -> Target:
    """Return the builder and GPU architectures for which a model is checked.

    Raises:
        UsageError: an unknown builder, release or architecture.
    """
    if isinstance(target, int) and not isinstance(target, bool):
        target = str(target)
    if not isinstance(target, str):
        raise UsageError(
            f"the target cannot be of type {type(target).__name__}",
            fix='pass a string: "rtx", "8", "10", "11" or a release such as "10.13"',
            where="target",
        )
    return Target.parse(target, architectures_of(sm))


def samples_of(samples: SamplesInput | None) -> SampleInput:
    """Return samples in the form that the pipeline accepts; None if the argument is None or ""."""
    if samples is None or isinstance(samples, (str, os.PathLike)):
        return "" if samples is None else os.fspath(samples)
    return sample_objects(samples)


@contextmanager
def labels_file(labels: object) -> Iterator[str | None]:
    """Provide labels as a file; labels in memory are written to a temporary file."""
    if labels is None or isinstance(labels, (str, os.PathLike)):
        yield None if labels is None else os.fspath(labels)
        return
    with tempfile.TemporaryDirectory(prefix="qdqtool-labels-") as folder:
        if isinstance(labels, Mapping):
            path = Path(folder) / "labels.json"
            path.write_text(json.dumps({str(name): int(label) for name, label in labels.items()}), "utf-8")
        else:
            from qdqtool.calibration.samples.objects import as_array

            classes = as_array(labels)
            if classes.ndim != 1 or classes.dtype.kind not in "iu":
                raise UsageError(
                    f"shape {classes.shape} and type {classes.dtype} are not a row of class indices",
                    fix="pass one whole number per sample",
                    where="labels",
                )
            path = Path(folder) / "labels.npy"
            np.save(path, classes)
        try:
            yield str(path)
        except QdqError as error:
            error.say(lambda text: text.replace(str(path), "labels"))
            raise


def recipe_of(
    recipe: RecipeInput | None,
    settings: SettingsInput = (),
    *,
    trust: bool = False,
    labels: LabelsInput = None,
) -> Recipe:
    """Return the recipe with the settings applied; None means all defaults. Files may name functions only with `trust`.

    Raises:
        UsageError: mistakes in the recipe or the settings, all in one message.
    """
    name, changes = spell_settings(recipe, settings)
    return recipes.load(name, recipes.add_scoring(changes, labels), trust=trust)


def fitting_recipe(
    recipe: RecipeInput | None,
    settings: SettingsInput,
    model: Path | Callable[[], Model],
    *,
    trust: bool,
    labels: LabelsInput = None,
) -> Recipe:
    """Return the recipe as `recipe_of` does. For None, return the shipped recipe that fits `model`.

    `model` is a file, or a function that loads the model.
    """
    return recipe_of(*fit_recipe(recipe, settings, model, labels=labels), trust=trust)


def fit_recipe(
    recipe: RecipeInput | None,
    settings: SettingsInput,
    model: Path | Callable[[], Model],
    *,
    labels: LabelsInput = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Return recipe and settings as words of a command line; None means the shipped recipe that fits the model."""
    name, typed = spell_settings(recipe, settings)
    if labels is None:
        typed = (*read_task(model if isinstance(model, Path) else model().path, name), *typed)
    changes = recipes.add_scoring(typed, labels)
    if recipe is not None:
        return name, changes
    chosen, why = suggest.fitting(load(model) if isinstance(model, Path) else model(), changes)
    _LOGGER.info("recipe %s, because %s", chosen, why)
    return chosen, changes


def spell_settings(recipe: RecipeInput | None, settings: SettingsInput) -> tuple[str | None, tuple[str, ...]]:
    """Return recipe and settings as words of a command line: a name or a file, and key=value."""
    changes = _changes(settings)
    if isinstance(recipe, Recipe):
        return None, (*_changes(recipe.model_dump(mode="json", exclude_unset=True)), *changes)
    if isinstance(recipe, Mapping):
        document = dict(recipe)
        parent = document.pop("extends", None)
        return None if parent is None else str(parent), (*_changes(document), *changes)
    if recipe is None or isinstance(recipe, (str, os.PathLike)):
        return None if recipe is None else os.fspath(recipe), changes
    raise UsageError(
        f"a recipe cannot be read from {type(recipe).__name__}",
        fix=f"pass one of {', '.join(recipes.names())}, a .yaml file, a dict or a Recipe",
        where="recipe",
    )


def place_on(device: str | None, settings: SettingsInput) -> SettingsInput:
    """Return the settings with `compute.device`; None leaves the device to the recipe."""
    return settings if device is None else (*_changes(settings), f"compute.device={_yaml(device)}")


def _changes(settings: object) -> tuple[str, ...]:
    if isinstance(settings, Mapping):
        return tuple(_flatten_settings(settings))
    if isinstance(settings, Sequence) and not isinstance(settings, str):
        return tuple(map(str, settings))
    raise UsageError(
        f"the settings cannot be of type {type(settings).__name__}",
        fix='pass a dict such as {"place.first_layer": "float"}',
        where="settings",
    )


def _flatten_settings(settings: Mapping[str, Any]) -> Iterator[str]:
    """Turn nested sections of settings into dotted keys, such as "place.first_layer"."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value and "." not in str(key):
            for inner, content in value.items():
                yield f"{key}.{inner}={_yaml(content)}"
        else:
            yield f"{key}={_yaml(value)}"


def _yaml(value: Any) -> str:
    """Return the value of a setting as JSON, which is also YAML."""
    try:
        return json.dumps(value, default=_plain)
    except TypeError as error:
        raise UsageError(
            f"the value of a setting cannot be {value!r}",
            fix="pass numbers, strings, lists or dicts",
            where="settings",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError
