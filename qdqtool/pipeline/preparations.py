"""Finds how pictures are prepared for a model, in the model or a file beside it, and reports all assumptions.

Read are: metadata of this tool, of exports of Ultralytics and lightly-train, and ONNX's own keys for pictures. Files that are read are
preprocessor_config.json of Hugging Face, the pretrained_cfg of timm in config.json, and the inference.yml or infer_cfg.yml
of Paddle.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from qdqtool.backends.shapes import parse_shapes
from qdqtool.calibration.samples import SampleInput, open_samples
from qdqtool.calibration.samples.images import SUFFIXES
from qdqtool.calibration.samples.opening import SampleSpec
from qdqtool.core.comparison import GIVEN, GUESSED, Assumption
from qdqtool.core.protocols import InputProfile
from qdqtool.core.recipe import PRESETS, Preprocess, Recipe
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError, QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.provenance import PICTURES
from qdqtool.graph.view import Model
from qdqtool.io.json_files import parse_json
from qdqtool.io.yaml_files import parse_yaml
from qdqtool.pipeline.datacheck import sample_set
from qdqtool.pipeline.preparation_trials import ROUNDS, compare_preparations
from qdqtool.pipeline.recipes import inspect
from qdqtool.pipeline.recipes import load as load_recipe
from qdqtool.report.words import input_rows
from qdqtool.runtime.runner import open_model as open_float

log = logging.getLogger(__name__)
Values = dict[str, Any]
_LARGEST: Final = 1 << 20
"""Most bytes of a file beside the model; files of real models have a few thousand."""
_MOST_ENTRIES: Final = 100_000
"""Most values of a YAML file; the characters that PP-OCRv5 reads are 18,000."""
_SCALING: Final = ("scale", "mean", "std")
_PIXELS: Final = (*_SCALING, "colour")
_SIZES: Final = ("resize", "crop", "letterbox")
_NAMES: Final = {"colour": "colour order"}
_UNIT: Final = PRESETS["yolo"]
_UNCUT: Final = 384
"""Side in pixels from which ConvNext's processor resizes to a square without a cut."""
_TIMM_CROP: Final = 0.875
"""Share of a picture that timm keeps if a config does not say it."""
_SQUARE: Final = ("ViT", "DeiT", "Beit", "Segformer", "DPT", "EfficientNet", "Perceiver", "Blip")
"""Beginnings of the classes of transformers that resize to a square if `size` is a number; others resize the shorter side."""
_TASKS: Final = {"ForSemanticSegmentation": "segment", "ForCTC": "text", "ForTokenClassification": "tokens"}
"""By the end of the name of an architecture of transformers: the task of its logits."""
_ONNX_RANGES: Final[Mapping[str, Values]] = {
    "NominalRange_0_255": {"scale": 1.0, "mean": (0.0,), "std": (1.0,)},
    "Normalized_0_1": {"scale": 1 / 255, "mean": (0.0,), "std": (1.0,)},
    "Normalized_1_1": {"scale": 1 / 255, "mean": (0.5,), "std": (0.5,)},
}


def with_known_inputs(
    recipe: Recipe,
    samples: SampleInput,
    path: Path,
    *next_files: Path,
    opened: Callable[[], Model] | None = None,
) -> Recipe:
    """Add the preparation of pictures that the model states to the recipe, with the source of every value.

    Values that the recipe states are kept. Recipes for arrays, and recipes with known sources, are returned
    unchanged.

    Args:
        recipe: the recipe as it was loaded.
        samples: the calibration samples; only of pictures a preparation is asked.
        path: the file of the model, whose neighbours are read.
        next_files: files of the same network, which are read if `path` states nothing.
        opened: returns the model of `path`, if it is open already.
    """
    options = recipe.samples
    if options.sources or not (options.preprocess.arrays or _is_pictures(samples)):
        return recipe
    fields = options.preprocess.model_fields_set
    open_first = opened or partial(load, path)
    stated = (
        read_stated(load(file) if number else open_first(), file)
        for number, file in enumerate((path, *next_files))
    )
    stated_values, where = next(filter(any, stated), ({}, ""))
    values = {name: getattr(options.preprocess, name) for name in fields}
    sources = dict.fromkeys(fields, GIVEN)
    for group in (_SCALING, ("colour",), _SIZES, ("layout", "pad", "anchor")):
        if fields.isdisjoint(group):
            values |= {name: stated_values[name] for name in group if name in stated_values}
            sources |= {name: f"read from {where}" for name in group if name in stated_values}
    for name in _PIXELS:
        # a user who gives one value of the scaling knows the others; the colour order alone shows nothing about them
        sources.setdefault(name, GUESSED if fields.isdisjoint(_SCALING) else GIVEN)
    preprocess = Preprocess.model_validate(values)
    guess = recipe.model_copy(
        update={"samples": options.model_copy(update={"preprocess": preprocess, "sources": sources})}
    )
    return guess if GUESSED not in sources.values() else _try_preparations(guess, samples, open_first)


def _try_preparations(guess: Recipe, samples: SampleInput, open_model: Callable[[], Model]) -> Recipe:
    """Replace the guessed preparation of pictures if another usual one suits the model clearly better.

    The preparation remains a guess that the model confirms; no verdict that rests on it is good.
    """
    options = guess.samples
    try:
        runner = open_float(open_model(), description="float model")
        some = open_samples(samples, runner.inputs, options.preprocess, limit=ROUNDS[-1], on_nan=options.nan)
        comparison = compare_preparations(runner, some, sample_set(some), guess)
    except QdqError as error:
        # the steps of a run report errors of the model and of samples, in their order
        log.info("preparations are not tried: %s", error)
        return guess
    if comparison is None or comparison.few_classes:
        return guess
    if comparison.name:
        words = f"better than as stored: mirrored pictures agree by {comparison.best:.2f} nats instead of {comparison.asis:.2f}"
    else:
        words = f"no usual preparation is better: mirrored pictures agree by {comparison.asis:.2f} nats"
    sources = {
        name: f"guessed, and tried on {count_noun(comparison.samples, 'picture')} without labels: {words}"
        if source == GUESSED
        else source
        for name, source in options.sources.items()
    }
    advised = load_recipe(None, list(comparison.settings)).samples.preprocess
    if any(options.sources.get(name) == GIVEN for name in advised.model_fields_set):
        return guess
    values = options.preprocess.model_dump(exclude_unset=True) | advised.model_dump(exclude_unset=True)
    changed = {"preprocess": Preprocess.model_validate(values), "sources": sources}
    return guess.model_copy(update={"samples": options.model_copy(update=changed)})


def assumptions(recipe: Recipe, profiles: tuple[InputProfile, ...]) -> tuple[Assumption, ...]:
    """Return the assumptions of a run: the preparation of pictures (if its source is known), and shapes of dynamic dimensions.

    Args:
        recipe: the recipe of the run.
        profiles: shapes of dynamic inputs that the engine was built for.
    """
    options = recipe.samples
    entries = []
    if options.sources:
        for name in (*_SIZES, *_PIXELS, "layout"):
            value = getattr(options.preprocess, name)
            if value is not None:
                source = options.sources.get(name, "default of the recipe")
                entries.append(Assumption(what=_NAMES.get(name, name), value=_words(value), source=source))
    named = parse_shapes(recipe.build.opt_shapes)
    entries += [
        Assumption(
            what=f"{'value' if profile.is_value else 'shape'} of {profile.name}",
            value="x".join(map(str, profile.opt)),
            source=GIVEN
            if profile.name in named
            else "read from the samples"
            if profile.is_value
            else "read from the first sample",
        )
        for profile in profiles
    ]
    return tuple(entries)


def input_notes(recipe: Recipe) -> tuple[str, ...]:
    """Return a note on the preparation of pictures for each source of its values; () for arrays."""
    return tuple(f"inputs: {text}" for _, text in input_rows(assumptions(recipe, ())))


def read_stated(model: Model, path: Path) -> tuple[Values, str]:
    """Return the `samples.preprocess` values that the model or a file beside it states, and their source; else ({}, "")."""
    for reader in (_own, _ultralytics, _lightly_train, _onnx_keys):
        if values := _check_values(reader(model.metadata), path):
            return values, f"the metadata of {path.name}"
    for folder in _folders(path):
        for name, read in _FILES.items():
            file = folder / name
            if file.is_file() and (values := _check_values(read(_content(file)), file)):
                return values, name
    return {}, ""


def _folders(path: Path) -> Iterable[Path]:
    """Return the folder of a file and the one above it; for a link also those of its target."""
    homes = (path.parent.resolve(), path.resolve().parent)
    return dict.fromkeys(folder for home in homes for folder in (home, home.parent))


def read_task(path: Path, recipe: str | None = None) -> tuple[str, ...]:
    """Return the setting `compare.task` that a Hugging Face `config.json` beside the model implies; else ().

    If the user names a recipe with another task than `classify`, that task is kept.

    Raises:
        UsageError, InputFileError: as `recipes.inspect`.
    """
    if not path.is_file() or (recipe is not None and inspect(recipe)[0].compare.task != "classify"):
        return ()
    for folder in _folders(path):
        file = folder / "config.json"
        document = _content(file) if file.is_file() else {}
        names = document.get("architectures") if isinstance(document, dict) else None
        for name in names if isinstance(names, list) else ():
            if task := next((task for ending, task in _TASKS.items() if str(name).endswith(ending)), ""):
                return (f"compare.task={task}",)
    return ()


def _is_pictures(samples: SampleInput) -> bool:
    if not isinstance(samples, str):
        return False
    folder = Path(SampleSpec(text=samples, preprocess=Preprocess()).place)
    return folder.is_dir() and any(entry.suffix.lower() in SUFFIXES for entry in folder.rglob("*"))


def _check_values(values: Values, where: Path) -> Values:
    """Return `samples.preprocess` values if a recipe accepts all of them; else {}."""
    try:
        Preprocess.model_validate(values)
    except ValidationError as error:
        log.warning("%s: its image preprocessing is not read: %s", where, error.errors()[0]["msg"])
        return {}
    return values


def _content(file: Path) -> Any:
    """Return the content of an untrusted JSON or YAML file; {} if it cannot be read."""
    if file.stat().st_size > _LARGEST:
        log.warning("%s is not read: it is larger than %d bytes", file, _LARGEST)
        return {}
    text = file.read_text("utf-8", errors="replace")
    try:
        is_json = file.suffix == ".json"
        return parse_json(text, str(file)) if is_json else parse_yaml(text, str(file), most=_MOST_ENTRIES)[0]
    except InputFileError as error:
        reason = error.what
    except (ValueError, RecursionError) as error:
        reason = f"the file is not JSON: {str(error).partition(chr(10))[0]}"
    log.warning("%s is not read: %s", file, reason)
    return {}


def written(recipe: Recipe) -> str:
    """Return the picture preparation that a Q/DQ model records: JSON without guessed values; "" if empty."""
    options = recipe.samples
    sure = {name for name, source in options.sources.items() if not source.startswith(GUESSED[:7])}
    values = options.preprocess.model_dump(mode="json", include=sure, exclude_none=True)
    return json.dumps(values) if values else ""


def _own(metadata: Mapping[str, str]) -> Values:
    return _entry(metadata, PICTURES)


def _lightly_train(metadata: Mapping[str, str]) -> Values:
    if "lightly_train_version" not in metadata:
        return {}
    normal = _entry(metadata, "image_normalize")
    return {**_UNIT, **{name: normal[name] for name in ("mean", "std") if name in normal}}


def _entry(metadata: Mapping[str, str], key: str) -> Values:
    """Return an entry of untrusted metadata that holds a JSON object; {} for other text."""
    try:
        values = parse_json(metadata.get(key, "{}")[:_LARGEST], key)
    except (InputFileError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _ultralytics(metadata: Mapping[str, str]) -> Values:
    if not {"task", "imgsz", "stride"} <= metadata.keys():
        return {}
    size = [int(number) for number in re.findall(r"\d{1,5}", metadata["imgsz"])][:2]
    if not size:
        return {}
    height, width = size[0], size[-1]
    if metadata["task"] == "classify":
        return {**_UNIT, "resize": min(height, width), "crop": (height, width)}
    return {**_UNIT, "letterbox": (height, width), "pad": 114}


def _onnx_keys(metadata: Mapping[str, str]) -> Values:
    """Read the metadata keys of ONNX's MetadataProps.md."""
    values = dict(_ONNX_RANGES.get(metadata.get("Image.NominalPixelRange", ""), {}))
    if values:
        order = metadata.get("Image.BitmapPixelFormat", "")[:3].lower()
        values["colour"] = {"bgr": "bgr", "gra": "gray"}.get(order, "rgb")
    return values


def _hugging_face(document: Any) -> Values:
    """Read an image processor of transformers: rescaling by `rescale_factor`, then `image_mean` and `image_std`."""
    if not isinstance(document, dict) or not {"image_mean", "rescale_factor", "do_rescale"} & document.keys():
        return {}
    is_scaled, is_normal = document.get("do_rescale", True), document.get("do_normalize", True)
    values: Values = {
        "scale": document.get("rescale_factor", 1 / 255) if is_scaled else 1.0,
        "mean": document.get("image_mean", 0.0) if is_normal else (0.0,),
        "std": document.get("image_std", 1.0) if is_normal else (1.0,),
        "colour": "bgr" if document.get("do_flip_channel_order") else "rgb",
    }
    values |= {
        name: (value,)
        for name, value in values.items()
        if name in {"mean", "std"} and isinstance(value, float)
    }
    if document.get("do_resize", True) and (size := _size(document.get("size"))) is not None:
        kind = str(document.get("image_processor_type") or document.get("feature_extractor_type"))
        is_square = isinstance(size, int) and kind.startswith(_SQUARE)
        values["resize"] = (size, size) if is_square else size
    if document.get("do_center_crop") and (crop := _size(document.get("crop_size"))) is not None:
        values["crop"] = crop
    side, share = values.get("resize"), document.get("crop_pct")
    if isinstance(side, int) and isinstance(share, int | float) and 0 < share <= 1:
        # ConvNext's processor resizes the shortest edge and crops a square, but only for small images
        whole = side if side >= _UNCUT else math.floor(side / share)
        values |= {"resize": (side, side)} if whole == side else {"resize": whole, "crop": (side, side)}
    return values


def _size(value: Any) -> Any:
    if isinstance(value, dict):
        if "shortest_edge" in value:
            return value["shortest_edge"]
        return (value["height"], value["width"]) if {"height", "width"} <= value.keys() else None
    return value if isinstance(value, int) else None


def _timm(document: Any) -> Values:
    config = document.get("pretrained_cfg", document) if isinstance(document, dict) else {}
    if not isinstance(config, dict) or not {"input_size", "mean", "std"} <= config.keys():
        return {}
    size, share = config["input_size"], config.get("crop_pct") or _TIMM_CROP
    values = {"scale": 1 / 255, "mean": config["mean"], "std": config["std"], "colour": "rgb"}
    if isinstance(size, list) and len(size) == 3 and all(isinstance(dim, int) for dim in size):
        values |= {"crop": tuple(size[1:])}
        if isinstance(share, float | int) and 0 < share <= 1:
            sides = tuple(math.floor(dim / share) for dim in size[1:])
            values |= {"resize": sides if config.get("crop_mode") == "squash" else min(sides)}
    return values


def _paddle(document: Any) -> Values:
    """Read the preparation from Paddle's reader steps, which may be anywhere in the document."""
    values: Values = {}
    for name, step in _steps(document, 0):
        if name == "NormalizeImage":
            scale = step.get("scale", 1 / 255 if step.get("is_scale", True) else 1.0)
            values |= {
                "scale": 1 / 255 if isinstance(scale, str) else scale,
                "mean": step.get("mean", (0.485, 0.456, 0.406)),
                "std": step.get("std", (0.229, 0.224, 0.225)),
            }
            values.setdefault("colour", "rgb")
        elif name == "DecodeImage" and step.get("img_mode") == "BGR":
            values["colour"] = "bgr"
        elif name == "Resize" and isinstance(step.get("target_size"), list):
            values["resize"] = tuple(step["target_size"])
    return values if "mean" in values else {}


def _steps(document: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every step of Paddle's readers with its options: `{type: Name, ...}` (PaddleDetection) or `{Name: {...}}` (others)."""
    if depth > 8:
        return
    if isinstance(document, list):
        for entry in document:
            yield from _steps(entry, depth + 1)
    elif isinstance(document, dict):
        if isinstance(document.get("type"), str):
            yield document["type"], document
        for name, entry in document.items():
            if isinstance(entry, dict):
                yield str(name), entry
            yield from _steps(entry, depth + 1)


_FILES: Final[Mapping[str, Callable[[Any], Values]]] = {
    "preprocessor_config.json": _hugging_face,
    "config.json": _timm,
    "inference.yml": _paddle,
    "infer_cfg.yml": _paddle,
}


def _words(value: object) -> str:
    return ", ".join(
        f"{part:.6g}" if isinstance(part, float) else str(part)
        for part in (value if isinstance(value, tuple) else (value,))
    )
