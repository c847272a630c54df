"""Quantizes models of `yolo export format=engine` with qdqtool instead of NVIDIA's ModelOpt or a calibrator.

    import qdqtool.integrations.ultralytics as door

    door.enable()
    YOLO("yolo11n.pt").export(format="engine", quantize=8, data="coco8.yaml")
    door.disable()

Ultralytics must be installed: pip install 'qdqtool[yolo]'. `quantize_onnx` works without `enable` and without a GPU.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

import numpy as np

from qdqtool.api.inputs import fitting_recipe
from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import spell_shapes
from qdqtool.calibration.samples import SampleObjects
from qdqtool.calibration.samples.objects import as_array
from qdqtool.errors import MissingPackage, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.view import Model
from qdqtool.pipeline.conversion import convert_file
from qdqtool.pipeline.recipes import load as load_recipe
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.runner import LINE, WITHOUT_ENGINE, run
from qdqtool.pipeline.steps import can_build

__all__ = ["disable", "enable", "quantize_onnx"]

log = logging.getLogger(__name__)
_ENGINE: Final = "ultralytics.utils.export.engine"
_MOST: Final = 512
"""Most calibration pictures."""
_EVALUATION: Final = 64
"""Most pictures on which the result is compared with the float model."""
_FEWEST: Final = 16
"""Number of pictures below which calibration and evaluation use one set of pictures; the report says so."""
_originals: dict[str, Callable[..., str]] = {}


def quantize_onnx(
    onnx_file: str,
    quantize: int | str | None = None,
    dataset: Any = None,
    shape: tuple[int, int, int, int] = (1, 3, 640, 640),
    dynamic: bool = False,
    prefix: str = "",
) -> str:
    """Write the model with INT8 Q/DQ nodes or in FP16, and return the path of the file.

    Ranges are searched as `qdqtool run` does. Heads are found by their position in the graph and stay float; nodes
    that are not INT8 are FP16. The report is in the folder beside the file: `yolo11n.int8.onnx` and
    `yolo11n.int8/report.html`.

    Args:
        onnx_file: the float ONNX file.
        quantize: 8 for INT8, 16 for FP16.
        dataset: the calibration loader of Ultralytics, whose items have uint8 pictures under "img". Pictures are read
            one by one, by their number in the data set, so that every pass reads equal pictures.
        shape: batch, channels, height and width of the input of a dynamic model.
        dynamic: whether the input has dynamic dimensions.
        prefix: begins each message of the log.

    Raises:
        UsageError: INT8 without pictures, or another `quantize`.
        QdqError: the model or a picture cannot be read, or the builder refuses the model.
    """
    source = Path(onnx_file)
    if quantize == 16:
        return _half(source, prefix)
    if quantize != 8:
        raise UsageError(f"the value is {quantize!r}", fix="pass 8 for INT8 or 16 for FP16", where="quantize")
    if dataset is None:
        raise UsageError("INT8 needs calibration pictures", fix="pass data=coco8.yaml", where="dataset")
    model = load(source)
    first, evaluation = _pictures(dataset)
    request = RunRequest(
        model=source,
        recipe=fitting_recipe(None, _settings(model, shape if dynamic else None), lambda: model, trust=False),
        samples=first,
        eval_samples=evaluation,
        labels=None,
        out=source.with_suffix(".int8"),
        brought=model,
    )
    report = run(request, course=LINE if can_build(request.recipe) else WITHOUT_ENGINE)
    out = source.with_suffix(".int8.onnx")
    copyfile(request.out / "model.qdq.onnx", out)
    verdict = report.summary.verdict
    log.warning(
        "%s INT8 by qdqtool: %s, accurate: %s (%s); report: %s",
        prefix,
        verdict.answer,
        verdict.accurate.state,
        verdict.accurate.evidence,
        request.out / "report.html",
    )
    return str(out)


def enable() -> None:
    """Let exports to TensorRT engines quantize with `quantize_onnx`, until `disable` is called.

    TensorRT 11 takes INT8 and FP16 from the model. Earlier releases get a Q/DQ model for INT8 instead of a calibrator.

    Raises:
        MissingPackage: Ultralytics is not installed, or its release has other functions.
    """
    engine = _engine()
    if _originals:
        return
    for name in ("modelopt_quantize_onnx", "onnx2engine"):
        if not hasattr(engine, name):
            raise MissingPackage(f"{_ENGINE} has no {name}", fix="pip install 'ultralytics>=8.4.190'")
        _originals[name] = getattr(engine, name)
    engine.modelopt_quantize_onnx = quantize_onnx
    engine.onnx2engine = _without_calibrator(_originals["onnx2engine"])


def disable() -> None:
    """Undo `enable`."""
    engine = _engine() if _originals else None
    for name, function in _originals.items():
        setattr(engine, name, function)
    _originals.clear()


def _engine() -> Any:
    try:
        return importlib.import_module(_ENGINE)
    except ImportError as error:
        fix = "pip install 'ultralytics>=8.4.190'"
        raise MissingPackage(f"{_ENGINE} cannot be imported: {error}", fix=fix) from error


def _without_calibrator(build: Callable[..., str]) -> Callable[..., str]:
    """Return a builder that gets a Q/DQ model if it would run a calibrator: INT8 on TensorRT 8 to 10, except on DLA."""
    signature = inspect.signature(build)

    @wraps(build)
    def onnx2engine(*args: Any, **options: Any) -> str:
        call = signature.bind(*args, **options)
        call.apply_defaults()
        arguments = call.arguments
        path = Path(arguments["onnx_file"])
        is_int8 = arguments["quantize"] == 8 and arguments["dla"] is None and not _target().startswith("11")
        if is_int8 and not quantized_ops(load(path)):
            arguments["output_file"] = arguments["output_file"] or path.with_suffix(".engine")
            arguments["onnx_file"] = quantize_onnx(
                str(path),
                8,
                arguments["dataset"],
                arguments["shape"],
                arguments["dynamic"],
                arguments["prefix"],
            )
        return build(*call.args, **call.kwargs)

    return onnx2engine


def _half(source: Path, prefix: str) -> str:
    out = source.with_suffix(".fp16.onnx")
    conversion = convert_file(source, out, load_recipe(None, ["insert.types=fp16"]))
    for note in conversion.notes:
        log.warning("%s %s", prefix, note)
    return str(out)


def _target() -> str:
    """Return the release of the installed TensorRT, as 10.13; "11" without one."""
    try:
        return ".".join(BUILDERS.load("trt").version().split(".")[:2])
    except MissingPackage:
        return "11"


def _settings(model: Model, shape: Sequence[int] | None) -> list[str]:
    settings = ["insert.types=fp16", f"place.target='{_target()}'", f"samples.limit={_MOST}"]
    if shape is not None:
        name = model.view.inputs[0].name
        settings.append(f"build.opt_shapes={json.dumps(spell_shapes({name: tuple(shape)}))}")
    return settings


def _pictures(loader: Any) -> tuple[SampleObjects, SampleObjects]:
    """Return the calibration pictures and other pictures for the evaluation; one set for both if there are few.

    The loader shuffles, and every pass over the samples must give equal pictures, so its data set is read by number.
    """
    pictures: Any = getattr(loader, "dataset", None)
    if not (hasattr(pictures, "__getitem__") and hasattr(pictures, "__len__")):
        every = _samples(lambda: islice(_of_batches(loader), _MOST))
        return every, every
    total = len(pictures)
    if total < _FEWEST:
        every = _samples(lambda: _choose_pictures(pictures, range(total)))
        return every, every
    evaluated = min(_EVALUATION, total // 4)
    numbers = np.linspace(0, total - 1, num=min(total, _MOST + evaluated), dtype=np.int64).tolist()
    step = len(numbers) / evaluated
    held = {numbers[int(place * step)] for place in range(evaluated)}
    chosen = [number for number in numbers if number not in held]
    return _samples(lambda: _choose_pictures(pictures, chosen)), _samples(
        lambda: _choose_pictures(pictures, sorted(held))
    )


def _samples(give: Callable[[], Iterable[Any]]) -> SampleObjects:
    return SampleObjects(give=give, description="pictures of the calibration loader")


def _choose_pictures(pictures: Any, numbers: Sequence[int]) -> Iterator[Any]:
    return (_scale_pixels(pictures[number]["img"]) for number in numbers)


def _of_batches(loader: Any) -> Iterator[Any]:
    for batch in loader:
        yield from _scale_pixels(batch["img"])


def _scale_pixels(pixels: Any) -> Any:
    return as_array(pixels).astype(np.float32) / np.float32(255)
